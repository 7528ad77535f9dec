"""The store of object storage: one class, on the requests of each service.

Only the version of an object that was listed is read. If the object has been replaced since,
reading it raises a `ReadError` of the kind Changed.

An object with `Content-Encoding: gzip` is its decompressed content: that is what web browsers and
the tools of the service show. Its ranges cannot be read, because they are ranges of other bytes.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import google_crc32c

from imageshards.transforms.elements import BuildError
from imageshards.transforms.storage import globs
from imageshards.transforms.storage.protocol import (
    AGAIN,
    UNKNOWN,
    Entry,
    Match,
    Names,
    ReadError,
    Store,
    StoreError,
)
from imageshards.transforms.storage.sink import BatchSink

if TYPE_CHECKING:
    from imageshards.transforms.storage.web import WebOptions

UPLOAD_BYTES = 8 << 20
"""A larger object is uploaded in several requests of this size, a multiple of 256 KiB."""
_READ_AHEAD_BYTES = 4 << 20

_GZIP_MAGIC = b"\x1f\x8b"


class Content(NamedTuple):
    """The result of a read request.

    Attributes:
      data: the stored bytes of the object, or of the requested range.
      size: the size of the whole object, in bytes.
      stamp: the object's stamp.
      is_gzip: whether the object has `Content-Encoding: gzip`, and the stored bytes are compressed.
      crc32c: CRC-32C of the stored bytes of the whole object; None if unknown.
    """

    data: bytes
    size: int
    stamp: int
    is_gzip: bool = False
    crc32c: int | None = None


class Upload(Protocol):
    """An object that is written in several requests."""

    def append(self, data: bytes) -> None:
        """Sends a multiple of `UPLOAD_BYTES`."""

    def finish(self, data: bytes) -> None:
        """Sends the last bytes, which may be none, and completes the object."""

    def abort(self) -> None:
        """Discards what was sent: the object does not appear."""


class Api(Protocol):
    """The requests of a service. Errors are those of `Store`."""

    def get(self, uri: str, stamp: int, span: tuple[int, int] | None, limit: int) -> Content:
        """Reads an object, or the part of the range span[0] <= byte < span[1] that exists.

        Args:
          uri: the object's URI.
          stamp: the stamp of the version to read; 0: the newest.
          span: the range; None: the whole object.
          limit: the largest object to read, in bytes; 0: any.

        Raises:
          FileNotFoundError: no object has this URI and this stamp.
          ReadError: the object has more than `limit` bytes.
          StoreError: no permission, or no response.
        """

    def stat(self, uri: str) -> tuple[int, int]:
        """Returns (bytes, stamp) of an object, or `UNKNOWN`."""

    def crc32c(self, uri: str) -> int | None:
        """Returns the CRC-32C of an object; None if there is no object, or it is not reported."""

    def list_prefix(self, bucket: str, prefix: str) -> Iterator[tuple[str, int, int]]:
        """Yields (name, bytes, stamp) of the objects with a prefix, in any order."""

    def list_part(
        self, bucket: str, prefix: str, names: Names, few: bool
    ) -> Iterator[tuple[str, int, int] | Names]:
        """Yields some objects with a prefix, and ranges of names with the others.

        Args:
          bucket: the bucket.
          prefix: the prefix.
          names: the range of names to list.
          few: whether to list some thousands of objects only, and to yield ranges of the others.
        """

    def list_first(
        self, bucket: str, prefix: str, accept: Callable[[str], object]
    ) -> list[tuple[str, int, int]]:
        """Returns the accepted names among the first ones, with at most four requests."""

    def list_folder(self, bucket: str, prefix: str) -> Iterator[Entry]:
        """Yields the objects directly below a prefix, which is empty or ends with `/`."""

    def delete(self, uri: str) -> None:
        """Deletes an object, if it exists."""

    def put(self, uri: str, data: bytes, stamp: int | None) -> bool:
        """Writes an object: if it has this stamp; 0: if it does not exist; None: always."""

    def open_upload(self, uri: str) -> Upload:
        """Begins to write an object in several requests."""

    def abort_uploads(self, bucket: str, prefix: str) -> None:
        """Discards the uploads of objects with a prefix that killed processes did not complete."""


def split(uri: str) -> tuple[str, str]:
    """Splits SCHEME://BUCKET/NAME into the bucket and the name.

    >>> split("gs://bucket/photos/1.jpg")
    ('bucket', 'photos/1.jpg')

    Raises:
      BuildError: the bucket is missing.
    """
    scheme, _, path = uri.partition("://")
    bucket, _, name = path.partition("/")
    if not bucket:
        raise BuildError(f"{uri}: the bucket is missing: write {scheme}://BUCKET/...")
    return bucket, name


def _parsed(pattern: str) -> tuple[str, str, Callable[[str], object]]:
    """The bucket of a pattern, the prefix of the names that match, and whether a name matches."""
    bucket, rest = split(pattern)
    if globs.fixed_prefix(bucket) != bucket:
        raise BuildError(f"{pattern}: the name of the bucket cannot be a pattern")
    return bucket, globs.fixed_prefix(rest), globs.regex(rest).fullmatch


class ObjectStore(Store):
    """The objects of a service of object storage, SCHEME://BUCKET/NAME."""

    def __init__(self, scheme: str, api: Api, *, beam_writes: bool = False) -> None:
        self.beam_writes = beam_writes
        self._scheme = scheme
        self._api = api

    def read(self, uri: str, limit: int, stamp: int, web: WebOptions, /) -> tuple[bytes, int]:
        """Returns the content of an object, and its stamp."""
        try:
            found = self._api.get(uri, stamp, None, limit)
        except FileNotFoundError as error:
            raise self._missing(uri, stamp) from error
        is_gzip = found.is_gzip and found.data.startswith(_GZIP_MAGIC)
        return _gunzip(found.data, limit) if is_gzip else found.data, found.stamp

    def read_range(self, uri: str, offset: int, size: int, stamp: int, /) -> bytes:
        """Returns the bytes of a range; fewer if the object ends before."""
        found = self.read_stored(uri, offset, size, stamp)
        if found.is_gzip:
            raise StoreError(
                f"{uri}: parts of it cannot be read, because it is stored with Content-Encoding: "
                "gzip: upload it without compression"
            )
        return found.data

    def read_stored(self, uri: str, offset: int, size: int, stamp: int) -> Content:
        """Returns a range of the stored bytes, which may be compressed."""
        if not size:
            return Content(b"", 0, stamp)
        try:
            return self._api.get(uri, stamp, (offset, offset + size), 0)
        except FileNotFoundError as error:
            raise self._missing(uri, stamp) from error

    def _missing(self, uri: str, stamp: int) -> ReadError:
        if stamp and self.exists(uri):
            return ReadError("Changed", "it was replaced after it had been listed")
        return ReadError("Missing", "no such object")

    def open_read(self, uri: str, /) -> IO[bytes]:
        """Opens an object."""
        first = self._api.get(uri, 0, (0, _READ_AHEAD_BYTES), 0)
        file = ReadAhead(_Object(self, uri, first), _READ_AHEAD_BYTES)
        if first.is_gzip and first.data.startswith(_GZIP_MAGIC):
            return cast(IO[bytes], gzip.GzipFile(fileobj=file))
        return file

    def stat(self, uri: str, /) -> tuple[int, int]:
        """Returns (bytes, stamp) of an object, or `UNKNOWN`."""
        return self._api.stat(uri) if split(uri)[1] else UNKNOWN

    def match(self, pattern: str, /) -> Iterator[tuple[str, int, int]]:
        """Yields (URI, bytes, stamp) of the objects that match a pattern."""
        bucket, prefix, matches = _parsed(pattern)
        for name, size, stamp in self._api.list_prefix(bucket, prefix):
            if matches(name):
                yield self._uri(bucket, name), size, stamp

    def match_part(self, pattern: str, names: Names, few: bool, /) -> Iterator[Match | Names]:
        """Yields some objects that match a pattern, and ranges of names with the others."""
        bucket, prefix, matches = _parsed(pattern)
        for found in self._api.list_part(bucket, prefix, names, few):
            if isinstance(found, Names):
                yield found
            elif matches(found[0]):
                yield self._uri(bucket, found[0]), *found[1:]

    def match_first(self, pattern: str, /) -> list[Match]:
        """Returns the first objects that match a pattern: those of a page."""
        bucket, prefix, matches = _parsed(pattern)
        found = self._api.list_first(bucket, prefix, matches)
        return [(self._uri(bucket, name), size, stamp) for name, size, stamp in found]

    def _uri(self, bucket: str, name: str) -> str:
        return f"{self._scheme}://{bucket}/{name}"

    def entries_in(self, folder: str, /) -> Iterator[Entry]:
        """Yields the objects directly below a prefix."""
        bucket, name = split(folder)
        return self._api.list_folder(bucket, name.rstrip("/") + "/" if name else "")

    def crc32c(self, uri: str, /) -> int | None:
        """Returns the CRC-32C of an object."""
        return self._api.crc32c(uri)

    def delete(self, uri: str, /) -> None:
        """Deletes an object, if it exists."""
        self._api.delete(uri)

    @contextmanager
    def open_sink(self, uri: str, scratch: str, /) -> Iterator[BatchSink]:
        """Opens an object that appears when its upload is complete; `scratch` is not used."""
        pending = _Pending(self._api, uri)
        sink = BatchSink(pending.write)
        try:
            try:
                yield sink
                sink.finish()
            finally:
                sink.close()
            if sink.keep:
                pending.finish()
        except BaseException:
            pending.abort()
            raise
        if not sink.keep:
            pending.abort()
            self.delete(uri)

    def abort_uploads(self, folder: str, /) -> None:
        """Discards the uploads below a prefix that killed processes did not complete."""
        bucket, name = split(folder)
        with suppress(StoreError):  # other permissions may be required, and the rest is not in need
            self._api.abort_uploads(bucket, name.rstrip("/") + "/" if name else "")

    def create(self, uri: str, data: bytes, scratch: str, /) -> bool:
        """Writes a small object unless it exists."""
        return self._api.put(uri, data, 0)

    def replace(self, uri: str, data: bytes, scratch: str, stamp: int, /) -> bool:
        """Writes a small object if it has this stamp; 0: if it does not exist."""
        return self._api.put(uri, data, stamp)


def check_size(size: int, limit: int) -> None:
    """Raises a `ReadError` if an object has more than `limit` bytes."""
    if size > limit:
        raise ReadError("TooLarge", f"{size:,} bytes, more than {limit:,}")


def _gunzip(data: bytes, limit: int) -> bytes:
    # No more than the limit: a decompression bomb may expand to any size.
    try:
        plain = gzip.GzipFile(fileobj=io.BytesIO(data)).read(limit + 1)
    except (EOFError, OSError, zlib.error) as error:
        reason = f"its Content-Encoding is gzip, but it cannot be decompressed: {error}"
        raise ReadError("Unreadable", reason) from error
    if len(plain) > limit:
        raise ReadError("TooLarge", f"expands to more than {limit:,} bytes")
    return plain


class ReadAhead(io.BufferedReader):
    """A buffered file whose `read1` fills the buffer too.

    `TextIOWrapper` calls it for 8 KiB at a time, which would be a request each.
    """

    def read1(self, size: int = -1, /) -> bytes:
        """Returns bytes of the buffer, after filling it if it is empty."""
        self.peek(1)
        return super().read1(size)


class _Object(io.RawIOBase):
    """A file that reads one version of an object: the one that existed when it was opened.

    If it is read from its beginning to its end, its bytes are compared with the object's CRC-32C.
    """

    def __init__(self, store: ObjectStore, uri: str, first: Content) -> None:
        self._store = store
        self._uri = uri
        self._first = first
        self._position = 0
        self._compared = 0
        self._crc32c = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._first.size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        begin = self._position
        data = self._first.data[begin : begin + len(buffer)]
        if not data and begin < self._first.size:
            try:
                found = self._store.read_stored(self._uri, begin, len(buffer), self._first.stamp)
                data = found.data
            except ReadError as error:
                raise StoreError(
                    f"{self._uri}: was replaced while it was read; run the command again"
                ) from error
        buffer[: len(data)] = data
        self._position += len(data)
        if begin == self._compared and self._first.crc32c is not None:
            self._compare(data)
        return len(data)

    def _compare(self, data: bytes) -> None:
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._compared += len(data)
        if data and self._compared == self._first.size and self._crc32c != self._first.crc32c:
            raise StoreError(
                f"{self._uri}: cannot be read: its bytes differ from its CRC-32C; {AGAIN}"
            )


class _Pending:
    """The bytes of an object that have not been sent yet."""

    def __init__(self, api: Api, uri: str) -> None:
        self._api = api
        self._uri = uri
        self._parts: list[bytes] = []
        self._size = 0
        self._stream: Upload | None = None

    def write(self, parts: list[bytes]) -> None:
        """Adds parts, and sends whole multiples of `UPLOAD_BYTES`."""
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size > UPLOAD_BYTES:
            data = b"".join(self._parts)
            whole = len(data) // UPLOAD_BYTES * UPLOAD_BYTES
            self._stream = self._stream or self._api.open_upload(self._uri)
            self._stream.append(data[:whole])
            self._parts, self._size = [data[whole:]], len(data) - whole

    def finish(self) -> None:
        """Sends the rest, and completes the object."""
        data = b"".join(self._parts)
        if self._stream:
            self._stream.finish(data)
        else:
            self._api.put(self._uri, data, None)

    def abort(self) -> None:
        """Discards what was sent, whatever the service says about it."""
        if self._stream:
            with suppress(StoreError):
                self._stream.abort()
