"""The HTTP client of reads, against a server that sends given bytes."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from imageshards.transforms.storage.http1 import BrokenResponse, Connections

OK = b"HTTP/1.1 200 OK\r\n"
TIMEOUTS = (5.0, 0.2)


class Server:
    """Sends the next of some responses for each request; after an empty one, it disconnects.

    Attributes:
      requests: the heads of the requests.
      connections: number of connections.
    """

    def __init__(self, *responses: bytes) -> None:
        self.responses = list(responses)
        self.requests: list[str] = []
        self.connections = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                accepted, _ = self.socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, accepted.makefile("rb") as file:
            while True:
                lines = []
                while (line := file.readline()) not in (b"\r\n", b""):
                    lines.append(line.decode().rstrip())
                if not lines:
                    return
                self.requests.append("\n".join(lines))
                response = self.responses.pop(0)
                if not response:
                    return
                accepted.sendall(response)


@contextmanager
def serving(*responses: bytes) -> Iterator[tuple[Server, Connections]]:
    server = Server(*responses)
    with closing(server.socket):
        yield server, Connections(f"http://{server.address}")


def get(connections: Connections, piece: int = 1 << 16) -> tuple[int, bytes]:
    """Makes a request, and returns the status and the body."""
    with connections.request("/a?b=1", {"Range": "bytes=0-"}, TIMEOUTS) as response:
        parts = []
        while part := response.read(piece):
            parts.append(part)
        return response.status, b"".join(parts)


def test_requests_share_a_connection():
    body = OK + b"Content-Length: 5\r\n\r\nhello"
    with serving(body, OK + b"Content-Length: 0\r\n\r\n", body) as (server, connections):
        assert [get(connections) for _ in range(3)] == [
            (200, b"hello"),
            (200, b""),
            (200, b"hello"),
        ]
        assert server.connections == 1
        assert server.requests[0] == f"GET /a?b=1 HTTP/1.1\nHost: {server.address}\nRange: bytes=0-"


def test_headers_are_found_by_their_lower_case_names_and_repeated_ones_are_joined():
    head = b"X-Goog-Hash: crc32c=a\r\nX-GOOG-HASH:md5=b \r\nEmpty:\r\nContent-Length: 0\r\n\r\n"
    with (
        serving(OK + head) as (_, connections),
        connections.request("/", {}, TIMEOUTS) as response,
    ):
        assert response.headers == {
            "x-goog-hash": "crc32c=a, md5=b",
            "empty": "",
            "content-length": "0",
        }
        assert (response.status, response.reason) == (200, "OK")


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_a_body_in_chunks_is_joined(piece: int):
    chunks = b"5;name=value\r\nhello\r\n00B\r\n12345678901\r\n0\r\nTrailer: x\r\n\r\n"
    body = OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    with serving(body, body) as (server, connections):
        for _ in range(2):
            assert get(connections, piece=piece) == (200, b"hello12345678901")
        assert server.connections == 1


def test_a_response_without_content_has_no_body():
    no_content = b"HTTP/1.1 204 No Content\r\n\r\n"
    with serving(no_content, OK + b"Content-Length: 1\r\n\r\na") as (server, connections):
        assert [get(connections), get(connections)] == [(204, b""), (200, b"a")]
        assert server.connections == 1


def test_an_interim_response_is_skipped():
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    with serving(hints + OK + b"Content-Length: 1\r\n\r\na") as (_, connections):
        assert get(connections) == (200, b"a")


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n", OK + b"Connection: close\r\n"])
def test_a_connection_that_the_server_closes_is_not_used_again(head: bytes):
    head += b"Content-Length: 1\r\n\r\n"
    with serving(head + b"a", head + b"b") as (server, connections):
        assert [get(connections), get(connections)] == [(200, b"a"), (200, b"b")]
        assert server.connections == 2


def test_a_connection_that_was_closed_while_it_was_idle_is_replaced():
    # The server sends more than the body, as one that reports a time-out does.
    ok = OK + b"Content-Length: 1\r\n\r\n"
    with serving(ok + b"a" + b"HTTP/1.1 408 Request Timeout\r\n\r\n", ok + b"b") as (
        server, connections,
    ):  # fmt: skip
        assert [get(connections), get(connections)] == [(200, b"a"), (200, b"b")]
        assert server.connections == 2


def test_a_body_that_was_not_read_is_not_the_next_response():
    ok = OK + b"Content-Length: 5\r\n\r\n"
    with serving(ok + b"first", ok + b"again") as (server, connections):
        with connections.request("/", {}, TIMEOUTS) as response:
            assert response.read(2) == b"fi"
        assert get(connections) == (200, b"again")
        assert server.connections == 2


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (b"", "the response breaks off"),
        (b"HTTP/1.1 200", "no data|timed out"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "not HTTP: no status line"),
        (b"HTTP/1.1 OK\r\n\r\n", "not HTTP: no status line"),
        (OK + b"no colon\r\n\r\n", "not HTTP: a header without a name"),
        (OK + b"A: b\r\n folded\r\n\r\n", "not HTTP: a header without a name"),
        (OK + b"A: " + b"a" * 70_000 + b"\r\n\r\n", "breaks off"),
        (OK + b"A: b\r\n" * 300 + b"\r\n", "not HTTP: more than 200 headers"),
        (OK + b"Content-Length: -1\r\n\r\n", "not HTTP: Content-Length: -1"),
        (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n", "not HTTP: Content-Length: 2, 3"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "not HTTP: a chunk without a length"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "not HTTP: a chunk without an end"),
    ],
)  # fmt: skip
def test_a_broken_response_is_an_error(response: bytes, says: str):
    with serving(response) as (_, connections), pytest.raises(OSError, match=says):
        get(connections)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_breaks_off_is_an_error_and_its_bytes_are_kept(chunked: bool):
    head = b"Transfer-Encoding: chunked\r\n\r\n8\r\n" if chunked else b"Content-Length: 8\r\n\r\n"
    server = Server(OK + head + b"half")
    connections = Connections(f"http://{server.address}")
    found = []

    def read() -> None:
        with connections.request("/", {}, TIMEOUTS) as response:
            while part := response.read(2):
                found.append(part)

    with closing(server.socket), pytest.raises((BrokenResponse, TimeoutError)):
        read()
    assert found == [b"ha", b"lf"]


def test_a_server_that_sends_nothing_is_a_time_out():
    with (
        serving(OK + b"Content-Length: 5\r\n\r\n") as (_, connections),
        pytest.raises(TimeoutError),
    ):
        get(connections)


def test_no_server_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        get(Connections(f"http://127.0.0.1:{port}"))


def test_tls_goes_through_a_proxy_by_a_tunnel():
    server = Server(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    context = ssl.create_default_context()
    through = f"http://user:p%40ss@{server.address}"
    with closing(server.socket), pytest.raises(OSError, match="403"):
        get(Connections("https://example.org", through, context))
    (head,) = server.requests
    first, *rest = head.split("\n")
    assert first.startswith("CONNECT example.org:443 HTTP/1.")
    token = base64.b64encode(b"user:p@ss").decode()
    assert f"Proxy-Authorization: Basic {token}" in rest
