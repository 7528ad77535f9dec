"""Images at http:// and https:// URLs, politely.

urllib3 reads them: it comes with Beam anyway (by way of requests), keeps connections, and knows
what a broken response is. The time one image may take, retries, redirects and the number of
requests at a time are decided here. Whatever a server does ends, in a bounded time and memory.
"""

from __future__ import annotations

import io
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from imageshards.transforms.storage import MAX_BYTES, ReadError, is_web

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

USER_AGENT = "imageshards"
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 20.0
_MAX_REDIRECTS = 5
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KINDS = {401: "Forbidden", 403: "Forbidden", 404: "Missing", 410: "Missing"}
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Manners:
    """How web servers are treated. None of it reaches a record.

    Attributes:
      user_agent: what we say we are.
      timeout: seconds that one image may take, retries and their waits included; waiting for a
        turn is not.
      retries: further attempts after a failure that may pass.
      per_host: requests at a time to one host, from this machine.
    """

    user_agent: str = USER_AGENT
    timeout: float = 60.0
    retries: int = 3
    per_host: int = 16


class _MayPass(Exception):
    """A failure that may be gone on another attempt."""

    def __init__(self, kind: str, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.wait = wait


def read(url: str, manners: Manners, limit: int = MAX_BYTES) -> bytes:
    """The body at a URL.

    Args:
      url: http or https.
      manners: how the server is treated.
      limit: a body of more bytes is not read.

    Raises:
      ReadError: it cannot be had.
    """
    turn = _Turn(manners)
    for attempt in range(manners.retries + 1):
        try:
            return _follow(url, turn, limit)
        except _MayPass as failure:
            wait = _FIRST_WAIT_SECONDS * 2**attempt * random.uniform(0.5, 1.0)
            wait = min(max(wait, failure.wait or 0), _LONGEST_WAIT_SECONDS)
            if attempt == manners.retries or wait >= turn.left:
                tried = f" ({attempt + 1} attempts)" if attempt else ""
                raise ReadError(failure.kind, f"{failure}{tried}") from failure
        turn.left -= wait
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _follow(url: str, turn: _Turn, limit: int) -> bytes:
    """One attempt, redirects followed."""
    seen = [url]
    while True:
        with turn.take(seen[-1]), _get(seen[-1], turn) as response:
            if response.status not in _REDIRECTS or "Location" not in response.headers:
                return _body(response, limit)
            target = urljoin(seen[-1], response.headers["Location"])
        if not is_web(target):
            raise ReadError("HttpError", f"status {response.status}: redirected to {target!r}")
        if target in seen or len(seen) > _MAX_REDIRECTS:
            what = "in a circle" if target in seen else f"more than {_MAX_REDIRECTS} times"
            raise ReadError("TooManyRedirects", f"redirected {what}: {target}")
        seen.append(target)


@contextmanager
def _get(url: str, turn: _Turn) -> Iterator[BaseHTTPResponse]:
    from urllib3 import exceptions

    headers = {
        "User-Agent": turn.manners.user_agent,
        "Accept": "image/*,*/*;q=0.5",
        # The bytes of the file, and not of something that expands to them.
        "Accept-Encoding": "identity",
    }
    response = None
    try:
        _thread.deadline = turn.deadline
        response = _pools().request(
            "GET", url, headers=headers, redirect=False, retries=False, preload_content=False,
            decode_content=False, timeout=_timeout(turn),
        )  # fmt: skip
        yield response
    except exceptions.NewConnectionError as error:  # which urllib3 has for a time-out
        raise _MayPass("HttpError", _cause(error)) from error
    except exceptions.TimeoutError as error:
        raise _MayPass("Timeout", _timed_out(turn)) from error
    except exceptions.LocationValueError as error:
        raise ReadError("HttpError", f"not a URL: {error}") from error
    except exceptions.SSLError as error:
        raise ReadError("HttpError", f"TLS: {_cause(error)}") from error
    except (exceptions.HTTPError, HTTPException, OSError) as error:
        raise _MayPass("HttpError", _cause(error)) from error
    except ValueError as error:  # numbers and addresses as a server writes them
        raise ReadError("HttpError", f"not HTTP: {error}") from error
    finally:
        if response:
            # Of a body that was read to its end, the connection is back in its pool by now.
            response.close()


def _timeout(turn: _Turn) -> Any:
    from urllib3 import Timeout

    left = max(turn.deadline - time.monotonic(), 0.001)
    return Timeout(connect=min(_CONNECT_SECONDS, left), read=min(_SILENCE_SECONDS, left))


def _timed_out(turn: _Turn) -> str:
    if time.monotonic() >= turn.deadline:
        return f"not there after {turn.manners.timeout:g} s"
    return f"no answer, or none further, for {_SILENCE_SECONDS:g} s"


def _cause(error: Exception) -> str:
    """The innermost reason, without the addresses of objects that urllib3 puts before it."""
    reason = getattr(error, "reason", None)
    while isinstance(reason, Exception):
        error, reason = reason, getattr(reason, "reason", None)
    text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return text.rpartition("): ")[2] or type(error).__name__


def _body(response: BaseHTTPResponse, limit: int) -> bytes:
    status = response.status
    if status != 200:
        reason = f"status {status} {response.reason or ''}".rstrip()
        if status in _AGAIN:
            raise _MayPass("HttpError", reason, _retry_after(response.headers.get("Retry-After")))
        raise ReadError(_KINDS.get(status, "HttpError"), reason)
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ReadError("HttpError", "compressed by the server, though asked not to be")
    length = response.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) > limit:
        raise ReadError("TooLarge", f"{int(length):,} bytes, more than {limit:,}")
    parts = []
    size = 0
    while part := response.read(_PIECE_BYTES):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise ReadError("TooLarge", f"more than {limit:,} bytes")
    return b"".join(parts)


def _retry_after(value: str | None) -> float | None:
    """Seconds, from the header of that name (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


class _Turn:
    """The time of one image, which stands still while it waits for others.

    Attributes:
      manners: how the server is treated.
      left: seconds.
      deadline: of the request that is being made, by `time.monotonic`.
    """

    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.left = manners.timeout
        self.deadline = 0.0

    @contextmanager
    def take(self, url: str) -> Iterator[None]:
        """Waits until a further request to the host of a URL would not be one too many."""
        try:
            host = urlsplit(url).netloc.rpartition("@")[2].lower()
        except ValueError as error:
            raise ReadError("HttpError", f"not a URL: {error}") from error
        with _limit(host, max(1, self.manners.per_host // _sharers)):
            begin = time.monotonic()
            self.deadline = begin + self.left
            try:
                yield
            finally:
                self.left -= time.monotonic() - begin


_sharers = 1


def share(processes: int) -> None:
    """Tells that so many processes on this machine ask the same hosts at the same time."""
    global _sharers
    _sharers = processes


_limits: dict[tuple[str, int], threading.BoundedSemaphore] = {}
_limits_lock = threading.Lock()


def _limit(host: str, requests: int) -> threading.BoundedSemaphore:
    with _limits_lock:
        return _limits.setdefault((host, requests), threading.BoundedSemaphore(requests))


_thread = threading.local()
"""`deadline`: of the request that this thread makes, for the response that urllib3 makes of it."""


class _Response(HTTPResponse):
    """A response that ends when the time of its image does.

    A time-out of a socket counts from its last byte: a server that sends one byte every second,
    be it of the headers, would never meet it.
    """

    def __init__(self, sock: Any, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        raw = self.fp.detach()
        self.fp = io.BufferedReader(_UntilDeadline(sock, raw, _thread.deadline), _PIECE_BYTES)


class _UntilDeadline(io.RawIOBase):
    def __init__(self, sock: Any, raw: Any, deadline: float) -> None:
        self._sock = sock
        self._raw = raw
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time of this image is over")
        self._sock.settimeout(min(left, _SILENCE_SECONDS))
        return self._raw.readinto(buffer)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._raw.close()
        super().close()


@cache
def _pools() -> PoolManager:
    from urllib3 import PoolManager
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Connection(HTTPConnection):
        response_class = _Response

    class SecureConnection(HTTPSConnection):
        response_class = _Response

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    pools = PoolManager(num_pools=100, maxsize=32)
    pools.pool_classes_by_scheme = {"http": Pool, "https": SecurePool}
    return pools
