"""Reads of objects whose versions are identified by ETags. Attempts continue one another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import google_crc32c

from imageshards.transforms.storage import retry
from imageshards.transforms.storage.objects import Content, check_size
from imageshards.transforms.storage.retry import Failure, Pace, Refusal, translate

NOT_FOUND, PRECONDITION_FAILED, NO_SUCH_RANGE = 404, 412, 416


def stamp_of(etag: str) -> int:
    """Returns the stamp of an ETag: a positive number of 63 bits.

    >>> stamp_of('"5d41402abc4b2a76b9719d911017c592"')
    2654851958897963411
    """
    digest = hashlib.blake2b(etag.strip('"').encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 1) or 1


@dataclass(frozen=True)
class Response:
    """The response to a request for an object, or for a part of it.

    Attributes:
      etag: the ETag of the version.
      size: the size of the whole object, in bytes.
      is_part: whether the bytes are those of the requested range; if not, of the whole object.
      pieces: the bytes. They end without an error only after the last one; a `Failure` otherwise.
      is_gzip: whether the object has `Content-Encoding: gzip`.
      crc32c: CRC-32C of the whole object; None if it is not reported.
      md5: MD5 of the whole object; None if it is not reported.
    """

    etag: str
    size: int
    is_part: bool
    pieces: Iterable[bytes]
    is_gzip: bool = False
    crc32c: int | None = None
    md5: bytes | None = None


Request = Callable[[str, int, int | None], Response]
"""(ETag or "", first byte, byte to stop before or None) -> the response; raises `Failure`."""


def download(
    uri: str,
    request: Request,
    wanted: tuple[int, tuple[int, int] | None, int],
    pace: Pace,
    refusal: Refusal,
) -> Content:
    """Reads an object, or a part of it, with retries; see `objects.Api.get`.

    Args:
      uri: the object's URI.
      request: makes one request.
      wanted: the stamp, the range and the limit of `Api.get`.
      pace: the pace of this process's reads.
      refusal: returns the error of a refused request.
    """
    read = _Download(request, *wanted)

    def attempt() -> Content:
        with pace.request():
            return read.attempt()

    try:
        return retry.POLICY.call(attempt)
    except Failure as failure:
        raise translate(uri, "read", failure, refusal) from failure


class _Download:
    """A read of an object. An attempt continues after the bytes that earlier ones received.

    Args:
      request: makes one request.
      stamp: the stamp of the version to read; 0: the newest.
      span: the range span[0] <= byte < span[1]; None: the whole object.
      limit: the largest object to read, in bytes; 0: any.
    """

    def __init__(
        self, request: Request, stamp: int, span: tuple[int, int] | None, limit: int
    ) -> None:
        self._request = request
        self._stamp = stamp
        self._span = span
        self._limit = limit
        self._etag = ""
        self._data = bytearray()
        self._crc32c: int | None = None
        self._md5: bytes | None = None

    def attempt(self) -> Content:
        """Makes one request.

        Raises:
          Failure: of the request. Its status is 404 if the object has another stamp.
          ReadError: the object has more than `limit` bytes.
        """
        begin, end = self._span or (0, None)
        try:
            response = self._request(self._etag, begin + len(self._data), end)
        except Failure as failure:
            if failure.status == NO_SUCH_RANGE and not self._data:
                return Content(b"", 0, self._stamp)
            if failure.status not in (PRECONDITION_FAILED, NO_SUCH_RANGE):
                raise
            self._restart()
            raise Failure("it is replaced during each attempt") from failure
        if self._stamp and stamp_of(response.etag) != self._stamp:
            raise Failure("it was replaced", NOT_FOUND)
        return self._content(response)

    def _content(self, response: Response) -> Content:
        if self._limit:
            check_size(response.size, self._limit)
        if not response.is_part:
            self._restart()
        self._etag = response.etag
        if not self._data:
            self._crc32c, self._md5 = response.crc32c, response.md5
        for piece in response.pieces:
            self._data += piece
        data = bytes(self._data)
        if self._span:
            if not response.is_part:
                data = data[slice(*self._span)]
        elif not self._is_intact(data):
            self._restart()
            raise Failure("its bytes differ from its checksum on each attempt")
        stamp = stamp_of(response.etag)
        return Content(data, response.size, stamp, response.is_gzip, self._crc32c)

    def _is_intact(self, data: bytes) -> bool:
        if self._crc32c is not None:
            return bool(self._crc32c == google_crc32c.value(data))
        if self._md5 is not None:
            return self._md5 == hashlib.md5(data, usedforsecurity=False).digest()
        return True

    def _restart(self) -> None:
        self._etag = ""
        self._data = bytearray()
        self._crc32c = self._md5 = None
