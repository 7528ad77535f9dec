"""The store of http:// and https:// URLs. It only reads whole files, and limits its requests.

urllib3 makes the requests: Beam installs it anyway (through requests), it keeps connections, and it
detects broken responses. The time for an image, retries, redirects and the number of concurrent
requests are decided here. A read takes bounded time and memory, whatever the server sends.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urljoin, urlsplit

from imageshards.transforms.elements import quoted, shortened
from imageshards.transforms.storage.addresses import is_public, resolve
from imageshards.transforms.storage.protocol import UNKNOWN, NoFilesystem, ReadError, Store
from imageshards.transforms.storage.retry import connection_error

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 20.0
_MAX_REDIRECTS = 5
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KINDS = {401: "Forbidden", 403: "Forbidden", 404: "Missing", 410: "Missing"}
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class WebOptions:
    """Limits of requests to web servers. They do not affect the records.

    Attributes:
      user_agent: the User-Agent header.
      timeout: seconds that one image may take, with retries and the waits between them, but
        without the wait for other requests to the host.
      retries: further attempts after a transient error.
      per_host: concurrent requests to one host, from this machine.
      allow_private_hosts: whether to connect to addresses that are not public.
    """

    user_agent: str = "imageshards"
    timeout: float = 60.0
    retries: int = 3
    per_host: int = 16
    allow_private_hosts: bool = False


class _Transient(Exception):
    """A failure after which another attempt may succeed.

    Attributes:
      kind: the kind of the `ReadError` that is raised if no attempt succeeds.
      wait: seconds until the next attempt, if the server specifies them.
    """

    def __init__(self, kind: str, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.wait = wait


class WebStore(Store):
    """Files of web servers. They can only be read, and only as a whole."""

    can_list = False

    def read(self, uri: str, limit: int, stamp: int, web: WebOptions, /) -> tuple[bytes, int]:
        """Returns the body of a URL, and 0: it has no stamp."""
        import random

        budget = _Budget(web)
        for attempt in range(web.retries + 1):
            try:
                return _follow(uri, budget, limit), 0
            except _Transient as failure:
                wait = _FIRST_WAIT_SECONDS * 2**attempt * random.uniform(0.5, 1.0)
                wait = min(max(wait, failure.wait or 0), _LONGEST_WAIT_SECONDS)
                if attempt == web.retries or wait >= budget.left:
                    tried = f" ({attempt + 1} attempts)" if attempt else ""
                    raise ReadError(failure.kind, f"{failure}{tried}") from failure
            budget.left -= wait
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def stat(self, uri: str, /) -> tuple[int, int]:
        """Returns `UNKNOWN`: servers need not report the size of a file."""
        return UNKNOWN

    def _refuse(self, uri: str, /, *_: object) -> NoReturn:
        raise NoFilesystem(f"{uri}: only images are read from web servers; download the file first")

    read_range = open_read = match = entries_in = delete = open_sink = exists = _refuse


def _follow(url: str, budget: _Budget, limit: int) -> bytes:
    """Makes one attempt, and follows redirects."""
    seen = [url]
    while True:
        with budget.request(seen[-1]), _get(seen[-1], budget) as response:
            if response.status not in _REDIRECTS or "Location" not in response.headers:
                return _body(response, limit)
            target = urljoin(seen[-1], response.headers["Location"])
        if not target[:8].lower().startswith(("http://", "https://")):
            raise ReadError(
                "HttpError", f"status {response.status}: redirected to {quoted(target)}"
            )
        if target in seen or len(seen) > _MAX_REDIRECTS:
            what = "in a circle" if target in seen else f"more than {_MAX_REDIRECTS} times"
            raise ReadError("TooManyRedirects", f"redirected {what}: {quoted(target)}")
        seen.append(target)


@contextmanager
def _get(url: str, budget: _Budget) -> Iterator[BaseHTTPResponse]:
    from http.client import HTTPException

    from urllib3 import Timeout, exceptions

    headers = {
        "User-Agent": budget.options.user_agent,
        "Accept": "image/*,*/*;q=0.5",
        # The server must send the bytes of the file itself, not compressed ones.
        "Accept-Encoding": "identity",
    }
    left = max(budget.deadline - time.monotonic(), 0.001)
    timeout = Timeout(connect=min(_CONNECT_SECONDS, left), read=min(_SILENCE_SECONDS, left))
    response = None
    try:
        _thread.deadline = budget.deadline
        response = _pools(budget.options.allow_private_hosts).request(
            "GET", url, headers=headers, redirect=False, retries=False, preload_content=False,
            decode_content=False, timeout=timeout,
        )  # fmt: skip
        yield response
    except exceptions.NewConnectionError as error:  # a subclass of TimeoutError
        raise _Transient("HttpError", connection_error(error)) from error
    except exceptions.TimeoutError as error:
        reason = f"no data for {_SILENCE_SECONDS:g} s"
        if time.monotonic() >= budget.deadline:
            reason = f"incomplete after {budget.options.timeout:g} s"
        raise _Transient("Timeout", reason) from error
    except exceptions.LocationValueError as error:
        raise ReadError("HttpError", f"not a URL: {error}") from error
    except exceptions.SSLError as error:
        raise ReadError("HttpError", f"TLS: {connection_error(error)}") from error
    except (exceptions.HTTPError, HTTPException, OSError) as error:
        raise _Transient("HttpError", connection_error(error)) from error
    except ValueError as error:  # malformed numbers and addresses in a response
        raise ReadError("HttpError", f"not HTTP: {shortened(str(error))}") from error
    finally:
        if response:
            # After a complete body, the connection is back in its pool, and stays open.
            response.close()


def _body(response: BaseHTTPResponse, limit: int) -> bytes:
    status = response.status
    if status != 200:
        reason = f"status {status} {shortened(response.reason or '')}".rstrip()
        if status in _TRANSIENT:
            raise _Transient("HttpError", reason, _retry_after(response.headers.get("Retry-After")))
        raise ReadError(_KINDS.get(status, "HttpError"), reason)
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ReadError("HttpError", "the server compressed it, although the request excludes that")
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
    """Parses a Retry-After header (RFC 9110, 10.2.3); returns seconds from now, or None."""
    from email.utils import parsedate_to_datetime

    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


class _Budget:
    """The time left for one image; waiting for other requests to the host does not count.

    Attributes:
      options: limits of the requests.
      left: seconds.
      deadline: the time at which the current request has to end, by `time.monotonic`.
    """

    def __init__(self, options: WebOptions) -> None:
        self.options = options
        self.left = options.timeout
        self.deadline = 0.0

    @contextmanager
    def request(self, url: str) -> Iterator[None]:
        """Waits until the host of a URL has a free request slot, and takes it."""
        try:
            host = urlsplit(url).netloc.rpartition("@")[2].lower()
        except ValueError as error:
            raise ReadError("HttpError", f"not a URL: {error}") from error
        requests = max(1, self.options.per_host // _processes)
        with _slots_lock:
            slots = _slots.setdefault((host, requests), threading.BoundedSemaphore(requests))
        with slots:
            begin = time.monotonic()
            self.deadline = begin + self.left
            try:
                yield
            finally:
                self.left -= time.monotonic() - begin


_processes = 1


def divide_requests(processes: int) -> None:
    """Divides `WebOptions.per_host` among the worker processes of this machine."""
    global _processes
    _processes = processes


_slots: dict[tuple[str, int], threading.BoundedSemaphore] = {}
"""(host, concurrent requests) -> the semaphore that limits them."""
_slots_lock = threading.Lock()

_thread = threading.local()
"""`deadline` of this thread's current request, for `Response`: urllib3 cannot pass it on."""


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
            raise TimeoutError("the deadline of the image has passed")
        self._sock.settimeout(min(left, _SILENCE_SECONDS))
        return self._raw.readinto(buffer)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._raw.close()
        super().close()


class _ToPublicHosts:
    """A mixin for urllib3's connections that connects to public addresses only.

    The name is resolved once, and the connection is made to the address that was checked: a name
    server could answer a second look-up with another address.
    """

    host: str
    port: int

    def _new_conn(self) -> Any:
        from urllib3.exceptions import (
            ConnectTimeoutError,
            LocationParseError,
            NameResolutionError,
            NewConnectionError,
        )
        from urllib3.util.connection import allowed_gai_family

        name = self.host
        try:
            found = resolve(name, self.port, allowed_gai_family())
        except UnicodeError as error:
            raise LocationParseError(name) from error
        except OSError as error:
            raise NameResolutionError(name, self, error) from error  # type: ignore[arg-type]
        public = [address for address in found if is_public(address)]
        if not public:
            resolved = "" if found[0] == name.strip("[]") else f"resolves to {found[0]}, which "
            raise ReadError(
                "PrivateHost",
                f"{name} {resolved}is not a public address; --allow_private_hosts permits it",
            )
        for number, address in enumerate(public, 1):
            self.host = address
            try:
                return super()._new_conn()  # type: ignore[misc]
            except (NewConnectionError, ConnectTimeoutError):
                if number == len(public):
                    raise
            finally:
                self.host = name
        raise AssertionError("the last address connects or raises")


@cache
def _pools(allow_private_hosts: bool) -> PoolManager:
    """Returns the open connections; those to private hosts are apart from all others."""
    from http.client import HTTPResponse

    from urllib3 import PoolManager
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Response(HTTPResponse):
        """A response that fails at the deadline of its request.

        A socket's timeout starts again with each byte: a server that sends one byte of the headers
        or the body every second would never reach it.
        """

        def __init__(self, sock: Any, *args: Any, **named: Any) -> None:
            super().__init__(sock, *args, **named)
            raw = self.fp.detach()
            self.fp = io.BufferedReader(_UntilDeadline(sock, raw, _thread.deadline), _PIECE_BYTES)

    def with_responses(pool: type, connection: type) -> Any:
        bases = (connection,) if allow_private_hosts else (_ToPublicHosts, connection)
        connection = type("Connection", bases, {"response_class": Response})
        return type("Pool", (pool,), {"ConnectionCls": connection})

    pools = PoolManager(num_pools=100, maxsize=32)
    pools.pool_classes_by_scheme = {
        "http": with_responses(HTTPConnectionPool, HTTPConnection),
        "https": with_responses(HTTPSConnectionPool, HTTPSConnection),
    }
    return pools
