"""A proxy in front of a local server: it counts the requests, and injects faults into them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, partialmethod
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gcs_faults import Fault, Send

_OF_CONNECTION = {"connection", "content-length", "expect", "keep-alive", "transfer-encoding"}


@dataclass
class FaultProxy:
    """The proxy.

    Attributes:
      backend: host and port of the server.
      url: where the proxy listens.
      log: `METHOD path?query` of all requests, in order.
      faults: what it injects. The first one that matches a request decides.
      failed: requests that met a fault.
    """

    backend: tuple[str, int]
    url: str = ""
    log: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    failed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, method: str, text: str = "") -> int:
        """Number of requests of a method with a text in their path or query."""
        return sum(line.startswith(method + " ") and text in line for line in self.log)

    @contextmanager
    def failing(self, *faults: Fault) -> Iterator[None]:
        """Injects faults during the block."""
        self.faults, self.failed = list(faults), 0
        try:
            yield
        finally:
            self.faults = []

    def fault_for(self, request: str, *, before: bool) -> Fault | None:
        """Returns the fault that a request meets."""
        with self.lock:
            for fault in self.faults:
                if fault.before == before and re.search(fault.requests, request):
                    fault.met += 1
                    if fault.after < fault.met <= fault.after + fault.times:
                        self.failed += 1
                        return fault
        return None


def refusing(status: int, code: str, message: str = "No.") -> Send:
    """Responds with an error, as S3 and Azure Blob Storage do."""

    def send(handler: Any, head: bytes, body: bytes) -> None:
        text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        lines = [f"HTTP/1.1 {status} Refused", f"x-ms-error-code: {code}"]
        lines += ["Content-Type: application/xml", f"Content-Length: {len(text)}"]
        content = b"" if handler.command == "HEAD" else text
        handler.connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)

    return send


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: FaultProxy, *arguments: Any) -> None:
        self.proxy = proxy
        self.upstream = HTTPConnection(*proxy.backend, timeout=60)
        super().__init__(*arguments)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client disconnected
            self.close_connection = True
        finally:
            self.upstream.close()

    def _serve(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{method} {self.path}"
        with self.proxy.lock:
            self.proxy.log.append(request)
        if fault := self.proxy.fault_for(request, before=True):
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"{}"
            fault.send(self, *(self._forwarded(method, body) if method == "GET" else answer))  # type: ignore[arg-type]
            return
        head, content = self._forwarded(method, body)
        if fault := self.proxy.fault_for(request, before=False):
            fault.send(self, head, content)  # type: ignore[arg-type]
        else:
            self.connection.sendall(head + content)

    def _forwarded(self, method: str, body: bytes) -> tuple[bytes, bytes]:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _OF_CONNECTION}
        self.upstream.request(method, self.path, body or None, {
            **headers, "Content-Length": str(len(body)),
        })  # fmt: skip
        response = self.upstream.getresponse()
        content = response.read()
        length = response.headers.get("Content-Length") if method == "HEAD" else None
        lines = [f"HTTP/1.1 {response.status} {response.reason}"]
        lines += [
            f"{k}: {v}" for k, v in response.headers.items() if k.lower() not in _OF_CONNECTION
        ]
        lines += [f"Content-Length: {length or len(content)}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1"), content

    def log_message(self, *_: object) -> None:
        """Writes nothing."""


for _method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
    setattr(_Handler, f"do_{_method}", partialmethod(_Handler._serve, _method))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256


@contextmanager
def running(host: str, port: int) -> Iterator[FaultProxy]:
    """Runs a proxy in front of a server."""
    proxy = FaultProxy((host, port))
    httpd = _Server(("127.0.0.1", 0), partial(_Handler, proxy))
    proxy.url = f"http://127.0.0.1:{httpd.server_port}"
    threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield proxy
    finally:
        httpd.shutdown()
        httpd.server_close()
