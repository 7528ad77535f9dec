"""A local web server for tests, which serves a body or a fault at each path."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

from imageshards.transforms.storage.web import _pools

Page = Callable[[BaseHTTPRequestHandler], None]


class WebServer:
    """Serves pages, and 404 for other paths.

    Attributes:
      pages: unquoted path without query -> body, or a function that sends the response.
      requests: path -> number of requests.
      agents: User-Agent headers of the requests.
      most_at_a_time: highest number of concurrent requests.
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
    """Sends a Content-Length that is larger than the body."""

    def page(handler: BaseHTTPRequestHandler) -> None:
        reply(handler, 200, body, Content_Length=str(said))
        handler.close_connection = True

    return page


def slow(body: bytes, pause: float) -> Page:
    """Sends the body byte by byte, with a pause in seconds after each."""

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
    """Sends endless headers, byte by byte."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        handler.wfile.write(b"a")
        handler.wfile.flush()
        time.sleep(0.02)


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Sends an endless body, in chunks."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Closes the connection without a response."""
    handler.close_connection = True


def after(failures: int, failure: Page, body: bytes) -> Page:
    """Fails a number of times, then sends the body."""
    left = iter(range(failures))

    def page(handler: BaseHTTPRequestHandler) -> None:
        if next(left, None) is None:
            reply(handler, 200, body)
        else:
            failure(handler)

    return page


class Internet:
    """Host names with public addresses, which lead to a local web server.

    Attributes:
      answers: host -> the addresses that its name server returns, in turn; the last answer stays.
      connected: the addresses that were connected to, in order.
    """

    def __init__(self, server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.connected: list[str] = []
        _pools.cache_clear()  # connections that an earlier test has left open
        resolve, connect = socket.getaddrinfo, socket.socket.connect
        local = ("127.0.0.1", int(server.url.rpartition(":")[2]))

        def answer(host: str, port: int, *rest: Any, **named: Any) -> list[Any]:
            answers = self.answers.get(host)
            if not answers:
                return resolve(host, port, *rest, **named)
            found = answers.pop(0) if len(answers) > 1 else answers[0]
            return [line for address in found for line in resolve(address, port, *rest, **named)]

        def route(sock: socket.socket, address: Any) -> None:
            self.connected.append(address[0])
            connect(sock, local)

        monkeypatch.setattr(socket, "getaddrinfo", answer)
        monkeypatch.setattr(socket.socket, "connect", route, raising=False)


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
            """Ignores clients that disconnect, as some tests do."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    web.url = f"http://127.0.0.1:{server.server_port}"
    yield web
    server.shutdown()
    server.server_close()
