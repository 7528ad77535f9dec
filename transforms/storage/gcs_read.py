"""Reads of Cloud Storage objects, and of their metadata: requests that happen once per image.

urllib3 makes the requests. obstore takes half its CPU time (0.4 instead of 0.8 ms for 108 kB), but
does not report the checksums of objects.

The bytes are those that are stored: without `Accept-Encoding: gzip`, Cloud Storage decompresses
objects with `Content-Encoding: gzip`, and sends them without a length and regardless of the range.
An object that was read as a whole is compared with its CRC-32C. There is none of a range.

The APIs: https://cloud.google.com/storage/docs/xml-api/overview for the bytes, and
https://cloud.google.com/storage/docs/json_api/v1 for metadata
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import google_crc32c

from imageshards.transforms.storage import gcs_auth, retry
from imageshards.transforms.storage.messages import message_in
from imageshards.transforms.storage.objects import Content, check_size, split
from imageshards.transforms.storage.protocol import UNKNOWN
from imageshards.transforms.storage.retry import Failure, Pace, connection_error, translate

T = TypeVar("T")

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, HTTPConnectionPool

PACE = Pace()
"""The pace of this process's reads."""

_PIECE_BYTES = 128 << 10
_LONGEST_TEXT = 1 << 20
_CONNECTIONS = 128
"""Idle connections to keep: more than there are reads in flight."""
_OK, _PART, _UNAUTHORIZED, _NOT_FOUND, _NO_SUCH_RANGE = 200, 206, 401, 404, 416
_CRC32C = re.compile(r"crc32c=([^,\s]+)")


def get(uri: str, stamp: int, span: tuple[int, int] | None, limit: int) -> Content:
    """Reads an object, or the part of the range span[0] <= byte < span[1] that exists.

    Args:
      uri: the object's URI.
      stamp: the generation to read; 0: the newest.
      span: the range; None: the whole object.
      limit: the largest object to read, in bytes; 0: any.

    Raises:
      FileNotFoundError: no object has this URI and this generation.
      ReadError: the object has more than `limit` bytes.
      StoreError: no permission, no response, or other bytes than those that were stored.
    """
    return _call(_Read(uri, stamp, span, limit).attempt, uri)


def stat(uri: str) -> tuple[int, int]:
    """Returns (bytes, generation) of an object, or `UNKNOWN`."""
    bucket, name = split(uri)
    path = f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}?fields=size,generation"

    def attempt() -> tuple[int, int]:
        with _request(path, {}) as response:
            body = _body(response)
        try:
            found = json.loads(body)
        except ValueError as error:
            raise Failure("the response breaks off") from error
        # Other servers omit the size of empty objects.
        return int(found.get("size", 0)), int(found["generation"])

    try:
        return _call(attempt, uri)
    except FileNotFoundError:
        return UNKNOWN


def _call(attempt: Callable[[], T], uri: str) -> T:
    try:
        return retry.POLICY.call(attempt)
    except Failure as failure:
        raise translate(uri, "read", failure, gcs_auth.refusal) from failure


class _Read:
    """A read of an object. An attempt continues after the bytes that earlier ones received."""

    def __init__(self, uri: str, stamp: int, span: tuple[int, int] | None, limit: int) -> None:
        self._path = _path(uri)
        self._required = stamp
        self._stamp = stamp
        self._span = span
        self._limit = limit
        self._parts: list[bytes] = []
        self._received = 0

    def attempt(self) -> Content:
        """Makes one request; raises `Failure`."""
        begin, end = self._span or (0, None)
        begin += self._received
        headers = {}
        if self._span or self._received:
            headers["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
        generation = f"?generation={self._stamp}" if self._stamp else ""
        try:
            with _request(self._path + generation, headers) as response:
                if response.status == _NO_SUCH_RANGE:
                    if self._received:  # all bytes, by a response without a length that broke off
                        self._restart()
                        raise Failure("the response breaks off")
                    return Content(b"", 0, self._stamp)
                return self._content(response)
        except Failure as failure:
            if failure.status != _NOT_FOUND or self._stamp == self._required:
                raise
            self._restart()
            raise Failure("it is replaced during each attempt") from failure

    def _content(self, response: BaseHTTPResponse) -> Content:
        headers = response.headers
        encoding = headers.get("content-encoding", "")
        # Content types that the service considers compressed are decompressed nevertheless.
        changed = "gzip" in headers.get("x-goog-stored-content-encoding", "") and not encoding
        if response.status == _OK:
            self._restart()
        if changed and self._span:
            raise Failure(
                "Cloud Storage decompresses it (Content-Encoding: gzip), so parts of it cannot be "
                "read: store it without this encoding", retry=False,
            )  # fmt: skip
        total = headers.get("content-range", "").rpartition("/")[2]
        size = int(total or headers.get("content-length") or -1)
        if self._limit:
            check_size(size, self._limit)
        self._stamp = int(headers.get("x-goog-generation", 0))
        while piece := response.read(_PIECE_BYTES):
            self._parts.append(piece)
            self._received += len(piece)
            if self._limit:
                check_size(self._received, self._limit)
            if self._received == size:
                break
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        size = size if total else len(data)
        found = None if changed else _CRC32C.search(headers.get("x-goog-hash", ""))
        crc32c = int.from_bytes(base64.b64decode(found[1])) if found else None
        if len(data) == size and crc32c not in (None, google_crc32c.value(data)):
            self._restart()
            raise Failure("its bytes differ from its CRC-32C on each attempt")
        if self._span and response.status == _OK:
            data = data[slice(*self._span)]
        return Content(data, size, self._stamp, encoding == "gzip", crc32c)

    def _restart(self) -> None:
        self._stamp = self._required
        self._parts.clear()
        self._received = 0


@contextmanager
def _request(path: str, headers: dict[str, str]) -> Iterator[BaseHTTPResponse]:
    """Makes one attempt at a request, whose response the block reads; raises `Failure`."""
    from urllib3 import exceptions

    headers |= {"Accept-Encoding": "gzip", "User-Agent": "imageshards", **gcs_auth.headers()}
    with PACE.request():
        gcs_auth.authorize(headers)
        response = None
        try:
            response = _send(path, headers)
            if response.status == _UNAUTHORIZED and gcs_auth.renew(headers):
                response.drain_conn()  # so that the connection can be used again
                response = _send(path, headers)
            if response.status not in (_OK, _PART, _NO_SUCH_RANGE):
                raise _failure(response)
            yield response
        except exceptions.NameResolutionError as error:
            host = urlsplit(gcs_auth.endpoint()).hostname
            reason = f"no address of {host}: {connection_error(error)}"
            raise Failure(reason, cause="offline") from error
        except exceptions.NewConnectionError as error:  # a subclass of TimeoutError
            raise Failure(connection_error(error)) from error
        except (exceptions.TimeoutError, TimeoutError) as error:
            raise Failure(f"no data for {retry.POLICY.silence:g} s") from error
        except (exceptions.HTTPError, OSError) as error:
            raise Failure(connection_error(error)) from error
        finally:
            if response:
                # After a complete body, the connection is back in its pool, and stays open.
                response.close()


def _send(path: str, headers: dict[str, str]) -> BaseHTTPResponse:
    from urllib3 import Timeout

    # The methods of `PoolManager` look up the connections again for each request.
    return _connections(gcs_auth.endpoint()).urlopen(
        "GET", path, headers=headers, preload_content=False, decode_content=False,
        redirect=False, retries=False,
        timeout=Timeout(connect=retry.POLICY.connect, read=retry.POLICY.silence),
    )  # fmt: skip


def _failure(response: BaseHTTPResponse) -> Failure:
    message = message_in(_body(response).decode("utf-8", "replace"))
    reason = f"status {response.status}" + ("" if message else f" {response.reason or ''}")
    return Failure(reason.rstrip(), response.status, message=message)


def _body(response: BaseHTTPResponse) -> bytes:
    """Returns the beginning of a body of text, which may be compressed."""
    return response.read(_LONGEST_TEXT, decode_content=True)


def _path(uri: str) -> str:
    bucket, name = split(uri)
    return f"/{quote(bucket, safe='')}/{quote(name, safe='')}"


@cache
def _connections(url: str) -> HTTPConnectionPool:
    """Returns the connections to a server, with the proxy and the certificates of `requests`."""
    from requests import Session
    from requests.utils import DEFAULT_CA_BUNDLE_PATH, get_auth_from_url, select_proxy
    from urllib3 import PoolManager, ProxyManager, make_headers

    settings = Session().merge_environment_settings(url, {}, None, None, None)
    found = settings["verify"]
    options: dict[str, Any] = {
        "maxsize": _CONNECTIONS,
        "ca_certs": found if isinstance(found, str) else DEFAULT_CA_BUNDLE_PATH,
    }
    # An emulator is on this machine, or near it.
    proxy = select_proxy(url, settings["proxies"]) if url.startswith("https:") else None
    if not proxy:
        return PoolManager(**options).connection_from_url(url)
    user, password = get_auth_from_url(proxy)
    headers = make_headers(proxy_basic_auth=f"{user}:{password}") if user else None
    return ProxyManager(proxy, proxy_headers=headers, **options).connection_from_url(url)
