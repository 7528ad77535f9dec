"""A web server on this machine that does at each path what a test tells it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

Page = Callable[[BaseHTTPRequestHandler], None]


class WebServer:
    """Serves pages; what is not among them is a 404.

    Attributes:
      pages: path without query, unquoted -> body, or what is done.
      requests: path -> how often it was asked for.
      agents: the User-Agents that asked.
      most_at_a_time: requests that were served together.
    """

    def __init__(self) -> None:
        self.pages: dict[str, bytes | Page] = {}
        self.requests: Counter[str] = Counter()
        self.agents: set[str] = set()
        self.most_at_a_time = 0
        self.url = ""
        self._now = 0
        self._lock = threading.Lock()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(handler.path.partition("?")[0], errors="surrogateescape")
        with self._lock:
            self.requests[path] += 1
            self.agents.add(handler.headers["User-Agent"])
            self._now += 1
            self.most_at_a_time = max(self.most_at_a_time, self._now)
        try:
            page = self.pages.get(path, status(404))
            if callable(page):
                page(handler)
            else:
                reply(handler, 200, page)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True
        finally:
            with self._lock:
                self._now -= 1


def reply(handler: BaseHTTPRequestHandler, code: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(code)
    headers.setdefault("Content_Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def status(code: int, **headers: str) -> Page:
    return lambda handler: reply(handler, code, b"<html>", **headers)


def redirect(target: str) -> Page:
    return status(302, Location=target)


def short(body: bytes, said: int) -> Page:
    """Says that the body is longer than it is."""

    def page(handler: BaseHTTPRequestHandler) -> None:
        reply(handler, 200, body, Content_Length=str(said))
        handler.close_connection = True

    return page


def slow(body: bytes, pause: float) -> Page:
    """A byte at a time."""

    def page(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        for byte in body:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(pause)

    return page


def slow_headers(handler: BaseHTTPRequestHandler) -> None:
    """Headers that come a byte at a time, without end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        handler.wfile.write(b"a")
        handler.wfile.flush()
        time.sleep(0.02)


def endless(handler: BaseHTTPRequestHandler) -> None:
    """A body without end, in chunks."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Closes the connection without a word."""
    handler.close_connection = True


def after(failures: int, failure: Page, body: bytes) -> Page:
    """So many failures, then the body."""
    left = iter(range(failures))

    def page(handler: BaseHTTPRequestHandler) -> None:
        if next(left, None) is None:
            reply(handler, 200, body)
        else:
            failure(handler)

    return page


@contextmanager
def running() -> Iterator[WebServer]:
    web = WebServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            web.serve(self)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: object) -> None:
            """A client that hung up is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    yield web
    server.shutdown()
    server.server_close()
