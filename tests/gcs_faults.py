"""Faults that the Cloud Storage server of the tests injects."""

from __future__ import annotations

import fcntl
import json
import re
import socket
import struct
import termios
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gcs_handler import Handler


Send = Callable[["Handler", bytes, bytes], None]
"""(handler, head, body): sends the response, or what the fault replaces it by."""


@dataclass
class Fault:
    """A fault of the server.

    Attributes:
      send: sends something else instead of the response.
      requests: pattern of `METHOD path?query` of the affected requests.
      after: number of matching requests that succeed first.
      times: number of matching requests that fail then.
      before: the request is not executed; otherwise only its response is lost.
      receive: the body of a request -> the bytes that the server receives of it; not with `before`.
      met: number of matching requests so far.
    """

    send: Send
    requests: str = ""
    after: int = 0
    times: int = 1 << 60
    before: bool = True
    receive: Callable[[bytes], bytes] | None = None
    met: int = 0


def status(code: int, message: str = "", **headers: str) -> Send:
    """Responds with a status."""

    def send(handler: Handler, head: bytes, body: bytes) -> None:
        says = message or HTTPStatus(code).phrase
        text = json.dumps({"error": {"code": code, "message": says}}).encode()
        lines = [f"HTTP/1.1 {code} {says}", f"Content-Length: {len(text)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        text = b"" if handler.command == "HEAD" else text
        handler.connection.sendall("\r\n".join([*lines, "", ""]).encode() + text)

    return send


def refused(code: int, message: str, reason: str = "forbidden") -> Send:
    """Refuses a request as the real service does: in XML or in JSON, depending on the API.

    Args:
      code: the status.
      message: the service's words. In XML they are details of a message of a few words.
      reason: the code of the error in JSON.
    """

    def send(handler: Handler, head: bytes, body: bytes) -> None:
        if handler.path.startswith(("/storage/", "/upload/", "/download/")):
            error = {"message": message, "domain": "global", "reason": reason}
            text = json.dumps({"error": {"code": code, "message": message, "errors": [error]}})
        else:
            text = (
                f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{reason}</Code>"
                f"<Message>Access denied.</Message><Details>{escape(message)}</Details></Error>"
            )
        content = b"" if handler.command == "HEAD" else text.encode()
        answer = f"HTTP/1.1 {code} Refused\r\nContent-Length: {len(content)}\r\n\r\n"
        handler.connection.sendall(answer.encode() + content)

    return send


def denied(permission: str) -> Send:
    """Refuses a request because a permission is missing."""
    return refused(
        403,
        f"me@example.org does not have {permission} access to the Google Cloud Storage object. "
        f"Permission '{permission}' denied on resource (or it may not exist).",
    )


def broken_json(handler: Handler, head: bytes, body: bytes) -> None:
    """Sends half of the body, as if it were all of it."""
    half = body[: len(body) // 2]
    head = re.sub(rb"(?i)content-length: \d+", b"Content-Length: %d" % len(half), head)
    handler.connection.sendall(head + half)


def incomplete(received: int = 0) -> Send:
    """Says that a number of bytes of an upload have been received, whatever has been sent."""

    def send(handler: Handler, head: bytes, body: bytes) -> None:
        lines = ["HTTP/1.1 308 Resume Incomplete", "Content-Length: 0"]
        lines += [f"Range: bytes=0-{received - 1}"] if received else []
        handler.connection.sendall("\r\n".join([*lines, "", ""]).encode())

    return send


def unchanged(handler: Handler, head: bytes, body: bytes) -> None:
    """Sends the response, to a request of which the server received something else."""
    handler.connection.sendall(head + body)


def first_bytes(count: int) -> Callable[[bytes], bytes]:
    """Receives the first bytes of a body."""
    return lambda body: body[:count]


def flipped(body: bytes) -> bytes:
    """Receives a body of which a bit has changed."""
    return bytes([body[0] ^ 1]) + body[1:] if body else body


def reset(handler: Handler, head: bytes, body: bytes) -> None:
    """Sends half of the body and resets the connection."""
    handler.connection.sendall(head + body[: len(body) // 2])
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def short_body(handler: Handler, head: bytes, body: bytes) -> None:
    """Sends half of the body and closes the connection properly."""
    handler.connection.sendall(head + body[: len(body) // 2])
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def chunk_without_end(handler: Handler, head: bytes, body: bytes) -> None:
    """Sends the body without its length, and closes the connection before the last, empty chunk."""
    head = re.sub(rb"(?i)content-length: \d+", b"Transfer-Encoding: chunked", head)
    handler.connection.sendall(head + b"%x\r\n%b\r\n" % (len(body), body))
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def stall(handler: Handler, head: bytes, body: bytes) -> None:
    """Sends half of the body, and then nothing until the client disconnects."""
    stall_at(len(body) // 2)(handler, head, body)


def stall_at(sent: int) -> Send:
    """Sends a number of bytes of the body, and then nothing until the client disconnects."""

    def send(handler: Handler, head: bytes, body: bytes) -> None:
        handler.connection.sendall(head + body[:sent])
        handler.connection.settimeout(120)
        handler.connection.recv(1)
        handler.close_connection = True

    return send


def silent(handler: Handler, head: bytes, body: bytes) -> None:
    """Sends nothing until the client disconnects."""
    stall_at(0)(handler, b"", b"")


def reset_at(sent: int) -> Send:
    """Sends a number of bytes of the body, and resets the connection; shorter bodies are whole."""

    def send(handler: Handler, head: bytes, body: bytes) -> None:
        handler.connection.sendall(head + body[:sent])
        if len(body) > sent:
            # A reset discards what the client has not received.
            unsent = array("i", [1])
            while unsent[0]:
                time.sleep(0.001)
                fcntl.ioctl(handler.connection, termios.TIOCOUTQ, unsent)
            reset(handler, b"", b"")

    return send


def corrupt(handler: Handler, head: bytes, body: bytes) -> None:
    """Changes a bit in the middle of the body."""
    changed = bytearray(body)
    changed[len(body) // 2] ^= 1
    handler.connection.sendall(head + changed)


def slow(pieces: int, pause: float) -> Send:
    """Sends the body in a number of pieces, with a pause in seconds before each."""

    def send(handler: Handler, head: bytes, body: bytes) -> None:
        handler.connection.sendall(head)
        size = len(body) // pieces + 1
        for start in range(0, len(body), size):
            time.sleep(pause)
            handler.connection.sendall(body[start : start + size])

    return send
