"""A local Cloud Storage server for tests: gcp-storage-emulator, corrected, with injected faults.

It adds concurrent requests, lists with pages and offsets, generations, preconditions, HEAD
requests, uploads of which a part is received, objects with `Content-Encoding: gzip`, the headers
that clients require, and names with `#` and `?`.
"""

from __future__ import annotations

import bisect
import fcntl
import gzip
import json
import re
import socket
import struct
import termios
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial, partialmethod
from html import escape
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.storage import Storage

_OBJECT = re.compile(
    r"/(?:(?:download/)?storage/v1/b/([^/]+)/o/|(?!upload/|storage/|b/)([^/]+)/)(.+)"
)
_LIST = re.compile(r"/storage/v1/b/([^/]+)/o/?")
_PAGE = 1000
_CHUNK = 1 << 16
_LONGEST_WITH_LENGTH = 8 << 20
"""The responses of longer objects with `Content-Encoding: gzip` have no Content-Length."""

Send = Callable[["_Handler", bytes, bytes], None]
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

    def send(handler: _Handler, head: bytes, body: bytes) -> None:
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

    def send(handler: _Handler, head: bytes, body: bytes) -> None:
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


def broken_json(handler: _Handler, head: bytes, body: bytes) -> None:
    """Sends half of the body, as if it were all of it."""
    half = body[: len(body) // 2]
    head = re.sub(rb"(?i)content-length: \d+", b"Content-Length: %d" % len(half), head)
    handler.connection.sendall(head + half)


def incomplete(received: int = 0) -> Send:
    """Says that a number of bytes of an upload have been received, whatever has been sent."""

    def send(handler: _Handler, head: bytes, body: bytes) -> None:
        lines = ["HTTP/1.1 308 Resume Incomplete", "Content-Length: 0"]
        lines += [f"Range: bytes=0-{received - 1}"] if received else []
        handler.connection.sendall("\r\n".join([*lines, "", ""]).encode())

    return send


def unchanged(handler: _Handler, head: bytes, body: bytes) -> None:
    """Sends the response, to a request of which the server received something else."""
    handler.connection.sendall(head + body)


def first_bytes(count: int) -> Callable[[bytes], bytes]:
    """Receives the first bytes of a body."""
    return lambda body: body[:count]


def flipped(body: bytes) -> bytes:
    """Receives a body of which a bit has changed."""
    return bytes([body[0] ^ 1]) + body[1:] if body else body


def reset(handler: _Handler, head: bytes, body: bytes) -> None:
    """Sends half of the body and resets the connection."""
    handler.connection.sendall(head + body[: len(body) // 2])
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def short_body(handler: _Handler, head: bytes, body: bytes) -> None:
    """Sends half of the body and closes the connection properly."""
    handler.connection.sendall(head + body[: len(body) // 2])
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def chunk_without_end(handler: _Handler, head: bytes, body: bytes) -> None:
    """Sends the body without its length, and closes the connection before the last, empty chunk."""
    head = re.sub(rb"(?i)content-length: \d+", b"Transfer-Encoding: chunked", head)
    handler.connection.sendall(head + b"%x\r\n%b\r\n" % (len(body), body))
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def stall(handler: _Handler, head: bytes, body: bytes) -> None:
    """Sends half of the body, and then nothing until the client disconnects."""
    stall_at(len(body) // 2)(handler, head, body)


def stall_at(sent: int) -> Send:
    """Sends a number of bytes of the body, and then nothing until the client disconnects."""

    def send(handler: _Handler, head: bytes, body: bytes) -> None:
        handler.connection.sendall(head + body[:sent])
        handler.connection.settimeout(120)
        handler.connection.recv(1)
        handler.close_connection = True

    return send


def silent(handler: _Handler, head: bytes, body: bytes) -> None:
    """Sends nothing until the client disconnects."""
    stall_at(0)(handler, b"", b"")


def reset_at(sent: int) -> Send:
    """Sends a number of bytes of the body, and resets the connection; shorter bodies are whole."""

    def send(handler: _Handler, head: bytes, body: bytes) -> None:
        handler.connection.sendall(head + body[:sent])
        if len(body) > sent:
            # A reset discards what the client has not received.
            unsent = array("i", [1])
            while unsent[0]:
                time.sleep(0.001)
                fcntl.ioctl(handler.connection, termios.TIOCOUTQ, unsent)
            reset(handler, b"", b"")

    return send


def corrupt(handler: _Handler, head: bytes, body: bytes) -> None:
    """Changes a bit in the middle of the body."""
    changed = bytearray(body)
    changed[len(body) // 2] ^= 1
    handler.connection.sendall(head + changed)


def slow(pieces: int, pause: float) -> Send:
    """Sends the body in a number of pieces, with a pause in seconds before each."""

    def send(handler: _Handler, head: bytes, body: bytes) -> None:
        handler.connection.sendall(head)
        size = len(body) // pieces + 1
        for start in range(0, len(body), size):
            time.sleep(pause)
            handler.connection.sendall(body[start : start + size])

    return send


@dataclass
class GcsServer:
    """A running server.

    Attributes:
      url: its URL.
      storage: its buckets and objects.
      faults: current faults; the first that matches a request applies.
      requests: method and kind of request (`GET media`, `GET list`, ...) -> number.
      log: `METHOD path?query` of every request, in order.
      failed: number of requests that met a fault.
      delay: seconds before each response.
      most_at_a_time: highest number of concurrent requests.
      uploaded: id of a completed resumable upload -> metadata of its object.
      taken_bytes: bytes that the server receives of each request of a resumable upload; 0: all.
      reads_at_a_time: further reads are refused with the status 429; 0: none are refused.
      refused: number of reads that were refused so.
      requester_pays: the project that must pay for each request; empty: the owner pays.
      refuses_anonymous_payers: a project is refused in a request without an access token.
      managed_key: lists report no CRC-32C, as for objects under a customer-managed key.
      token: the one access token that is accepted; empty: none is required.
      short_pages: pages of lists have fewer objects than requested, some have none.
      sorted_of: bucket and number of objects for which `sorted_names` is valid.
      sorted_names: sorted names of a large bucket.
    """

    url: str = ""
    storage: Storage = field(default_factory=lambda: Storage(use_memory_fs=True))
    faults: list[Fault] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    failed: int = 0
    delay: float = 0.0
    most_at_a_time: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    now: int = 0
    uploaded: dict[str, dict[str, Any]] = field(default_factory=dict)
    requester_pays: str = ""
    refuses_anonymous_payers: bool = False
    managed_key: bool = False
    token: str = ""
    short_pages: bool = False
    taken_bytes: int = 0
    reads_at_a_time: int = 0
    refused: int = 0
    reading: int = 0
    sorted_of: tuple[str, int] = ("", 0)
    sorted_names: list[str] = field(default_factory=list)

    def put(self, name: str, data: bytes, bucket: str = "bucket", encoding: str = "") -> None:
        """Creates an object, without a request; `encoding` is its Content-Encoding."""
        with self.lock:
            self.create(name, data, bucket)
            if encoding:
                self.storage.objects[bucket][name]["contentEncoding"] = encoding

    def create(self, name: str, data: bytes, bucket: str) -> dict[str, Any]:
        """Creates an object and returns its metadata; the caller holds the lock."""
        from gcp_storage_emulator.handlers.objects import _checksums, _make_object_resource

        resource = _make_object_resource(
            self.url, bucket, name, "application/octet-stream", str(len(data))
        )
        self.storage.create_file(bucket, name, data, _checksums(data, resource))
        return resource  # type: ignore[no-any-return]

    def put_folder(self, folder: Path, prefix: str, bucket: str = "bucket") -> int:
        """Creates an object for each file below a folder; returns their number."""
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in paths:
            self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes(), bucket)
        return len(paths)

    def get(self, name: str, bucket: str = "bucket") -> bytes:
        """Returns the content of an object."""
        data: bytes = self.storage.get_file(bucket, name)
        return data

    def delete(self, name: str, bucket: str = "bucket") -> None:
        """Deletes an object."""
        with self.lock:
            self.storage.delete_file(bucket, name)

    def names(self, prefix: str = "", bucket: str = "bucket") -> list[str]:
        """Returns the names of the objects with a prefix, sorted."""
        with self.lock:
            there = self.storage.objects.get(bucket, {})
            return sorted(name for name in there if name.startswith(prefix))

    def contents(self, folder: str, bucket: str = "bucket") -> dict[str, bytes]:
        """Returns name below a folder -> content."""
        names = self.names(folder + "/", bucket)
        return {name.removeprefix(folder + "/"): self.get(name, bucket) for name in names}

    @contextmanager
    def failing(self, *faults: Fault) -> Iterator[None]:
        """Injects faults inside a `with` block."""
        self.faults = list(faults)
        try:
            yield
        finally:
            self.faults = []

    def matching(self, pattern: str) -> int:
        """Returns the number of requests in the log that match a pattern."""
        return sum(bool(re.search(pattern, request)) for request in self.log)

    def first(self, pattern: str) -> int:
        """Returns the position of the first request in the log that matches a pattern."""
        return next(n for n, request in enumerate(self.log) if re.search(pattern, request))

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment variables that make clients use this server."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "GOOGLE_CLOUD_PROJECT": "project",
            "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",
        }

    def fault_for(self, request: str, before: bool) -> Fault | None:
        """Returns the fault that applies to a request, if any."""
        with self.lock:
            for fault in self.faults:
                if fault.before != before or not re.search(fault.requests, request):
                    continue
                fault.met += 1
                if fault.after < fault.met <= fault.after + fault.times:
                    self.failed += 1
                    return fault
        return None


def _kind(method: str, path: str, query: dict[str, list[str]]) -> str:
    if _LIST.fullmatch(path):
        return f"{method} list"
    if path.startswith("/upload/"):
        return f"{method} upload"
    if method == "GET" and ("/storage/v1/" not in path or query.get("alt") == ["media"]):
        return "GET media"
    return f"{method} object"


class _Handler(emulator.RequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, server: GcsServer, *arguments: Any) -> None:
        self.gcs = server
        super().__init__(server.storage, *arguments)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client disconnected
            self.close_connection = True

    def _serve(self, method: str) -> None:
        gcs = self.gcs
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        kind = _kind(method, parts.path, query)
        reading = kind == "GET media"
        with gcs.lock:
            gcs.requests[kind] += 1
            gcs.log.append(f"{method} {self.path}")
            gcs.now += 1
            gcs.most_at_a_time = max(gcs.most_at_a_time, gcs.now)
            gcs.reading += reading
            too_many = reading and 0 < gcs.reads_at_a_time < gcs.reading
            gcs.refused += too_many
        try:
            if too_many:
                status(429, "Too Many Requests")(self, b"", b"")
            else:
                self._answer(method, parts.path, query)
        finally:
            with gcs.lock:
                gcs.now -= 1
                gcs.reading -= reading

    def _answer(self, method: str, path: str, query: dict[str, list[str]]) -> None:
        # An unread body would be parsed as the next request.
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{method} {self.path}"
        if self.gcs.delay:
            time.sleep(self.gcs.delay)
        if refusal := self._refusal():
            refusal(self, b"", b"")
            return
        if fault := self.gcs.fault_for(request, before=True):
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"{}"
            if method == "GET":
                answer = self._response(method, path, query, body)
            fault.send(self, *answer)
            return
        fault = self.gcs.fault_for(request, before=False)
        receive = fault.receive if fault else None
        if not receive and self.gcs.taken_bytes and method == "PUT":
            receive = first_bytes(self.gcs.taken_bytes)
        if receive:
            body = self._received(body, receive(body))
        head, content = self._response(method, path, query, body)
        (fault.send if fault else unchanged)(self, head, content)

    def _refusal(self) -> Send | None:
        """Returns how to refuse the request, if neither its token nor its project is the right one.

        The session of an upload needs neither: its URL is a secret.
        """
        gcs = self.gcs
        if "upload_id=" in self.path:
            return None
        if gcs.token and self.headers.get("Authorization") != f"Bearer {gcs.token}":
            return refused(401, "Invalid Credentials", "authError")
        project = self.headers.get("x-goog-user-project")
        if gcs.refuses_anonymous_payers and project and "Authorization" not in self.headers:
            return refused(401, "Anonymous caller cannot use a project.", "authError")
        if gcs.requester_pays and not project:
            text = "Bucket is requester pays bucket but no user project provided."
            return refused(400, text, "required")
        if gcs.requester_pays and project != gcs.requester_pays:
            return denied("serviceusage.services.use")
        return None

    def _received(self, body: bytes, received: bytes) -> bytes:
        """Returns the bytes that the server receives, and makes the headers fit them."""
        begin = re.match(r"bytes (\d+)-", self.headers.get("Content-Range") or "")
        if begin and len(received) < len(body):
            del self.headers["Content-Range"], self.headers["Content-Length"]
            last = int(begin[1]) + len(received) - 1
            self.headers["Content-Range"] = f"bytes {begin[1]}-{last}/*"
            self.headers["Content-Length"] = str(len(received))
        return received

    def _response(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[bytes, bytes]:
        """Returns the head and the body of the response."""
        rfile, wfile = self.rfile, self.wfile
        self.rfile, self.wfile = BytesIO(body), BytesIO()
        try:
            with self.gcs.lock:
                if not self._mended(method, path, query):
                    emulator.Router(self).handle(method)
            head, _, content = self.wfile.getvalue().partition(b"\r\n\r\n")
        finally:
            self.rfile, self.wfile = rfile, wfile
        return head + b"\r\n\r\n", content

    def _mended(self, method: str, path: str, query: dict[str, list[str]]) -> bool:
        """Handles requests that the emulator does not support, or not as the real server does."""

        def first(name: str, default: str = "") -> str:
            return query.get(name, [default])[0]

        if method == "GET" and (found := _LIST.fullmatch(path)):
            self._list(unquote(found[1]), first)
            return True
        upload = first("upload_id")
        if method == "PUT" and upload in self.gcs.uploaded:
            # The response to its last request was lost.
            self._say(200, self.gcs.uploaded[upload])
            return True
        if method == "PUT" and upload:
            if self._takes_nothing(upload):
                return True
            resource = self.storage.get_resumable_file_obj(upload)
            emulator.Router(self).handle(method)
            there = self.storage.objects.get(resource["bucket"], {}).get(resource["name"])
            if there and there["id"] == resource["id"]:
                self.gcs.uploaded[upload] = there
            return True
        if method == "POST" and path.startswith("/upload/") and "ifGenerationMatch" in query:
            bucket_objects = self.storage.objects.get(path.split("/")[5], {})
            there = bucket_objects.get(first("name") or self._name_in_body(), {})
            if there.get("generation", "0") != first("ifGenerationMatch"):
                self._say(412, {"error": {"code": 412, "message": "conditionNotMet"}})
                return True
        if method == "POST" and path.startswith("/upload/") and first("uploadType") == "media":
            # The emulator refuses objects without bytes.
            bucket = unquote(path.split("/")[5])
            if bucket in self.storage.buckets:
                self._say(200, self.gcs.create(first("name"), self.rfile.getvalue(), bucket))
            else:
                self._say(404, {"error": {"code": 404, "message": "The bucket does not exist."}})
            return True
        if not (found := _OBJECT.fullmatch(path)) or method not in ("GET", "HEAD", "DELETE"):
            return False
        bucket, name = unquote(found[1] or found[2]), unquote(found[3])
        try:
            resource = self.storage.get_file_obj(bucket, name)
        except NotFound:
            resource = None
        if not resource or first("generation", resource["generation"]) != resource["generation"]:
            self._say(404, {"error": {"code": 404, "message": f"No such object: {bucket}/{name}"}})
            return True
        if method == "DELETE":
            if first("ifGenerationMatch", resource["generation"]) == resource["generation"]:
                return False
            self._say(412, {"error": {"code": 412, "message": "conditionNotMet"}})
            return True
        if found[2] or first("alt") == "media" or path.startswith("/download/"):
            self._media(resource, self.storage.get_file(bucket, name))
        else:
            link = f"{self.gcs.url}/download/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
            self._say(200, {**resource, "mediaLink": f"{link}?alt=media"})
        return True

    def _takes_nothing(self, upload: str) -> bool:
        """Responds to a status query of an upload without bytes: there is no Range header."""
        query = re.fullmatch(r"bytes \*/(\*|[1-9]\d*)", self.headers.get("Content-Range") or "")
        if not query or self.storage.get_resumable_byte_count(upload):
            return False
        self._say(308, b"")
        return True

    def _name_in_body(self) -> str:
        """Returns the name of the object that a multipart upload writes."""
        name = re.search(rb'"name": *("(?:[^"\\]|\\.)*")', self.rfile.getvalue())
        return json.loads(name[1]) if name else ""

    def _media(self, resource: dict[str, Any], data: bytes) -> None:
        total = len(data)
        headers = {
            "ETag": f'"{resource["etag"]}"',
            "Last-Modified": formatdate(usegmt=True),
            "Content-Type": "application/octet-stream",
            "x-goog-generation": resource["generation"],
            "x-goog-hash": f"crc32c={resource['crc32c']},md5={resource['md5Hash']}",
            "x-goog-stored-content-encoding": resource.get("contentEncoding", "identity"),
            "x-goog-stored-content-length": str(total),
        }
        code = 200
        if resource.get("contentEncoding") == "gzip":
            if "gzip" not in self.headers.get("Accept-Encoding", ""):
                self._transcoded(data, headers)
                return
            headers["Content-Encoding"] = "gzip"
            if total > _LONGEST_WITH_LENGTH and "Range" not in self.headers:
                self._chunked(data, headers)
                return
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start, end = int(span[1]), min(total, int(span[2] or total) + 1)
            if start >= total:
                self._say(416, {}, **{"Content-Range": f"bytes */{total}"})
                return
            code, data = 206, data[start:end]
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
        self._say(code, data, **headers)

    def _transcoded(self, data: bytes, headers: dict[str, str]) -> None:
        """Responds with the decompressed object: without length, and without regard of a range."""
        del headers["ETag"]
        headers["x-guploader-response-body-transformations"] = "gunzipped"
        headers["Warning"] = "214 UploadServer gunzipped"
        self._chunked(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, headers)

    def _chunked(self, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for start in range(0, len(data), _CHUNK):
                chunk = data[start : start + _CHUNK]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")

    def _list(self, bucket: str, first: Callable[..., str]) -> None:
        if bucket not in self.storage.buckets:
            self._say(404, {"error": {"code": 404, "message": "The bucket does not exist."}})
            return
        there = self.storage.objects.get(bucket, {})
        if self.gcs.sorted_of != (bucket, len(there)):  # the bucket has changed
            self.gcs.sorted_of, self.gcs.sorted_names = (bucket, len(there)), sorted(there)
        names = self.gcs.sorted_names if len(there) > _PAGE else sorted(there)
        prefix, delimiter, end = first("prefix"), first("delimiter"), first("endOffset")
        begin = bisect.bisect_left(names, max(prefix, first("startOffset")))
        token = first("pageToken")
        most = min(int(first("maxResults", str(_PAGE))), _PAGE)
        if self.gcs.short_pages and most > 1:
            most -= 1
        elif self.gcs.short_pages and not token:
            self._say(200, {"nextPageToken": "\0"})
            return
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        last = ""
        for name in names[begin:]:
            if not name.startswith(prefix) or (end and name >= end):
                break
            head, found, _ = (
                name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            )
            entry = prefix + head + found if found else name
            if (token and entry <= token) or (prefixes and prefixes[-1] == entry):
                continue
            if len(items) + len(prefixes) == most:
                self._say(200, {"items": items, "prefixes": prefixes, "nextPageToken": last})
                return
            last = entry
            if found:
                prefixes.append(entry)
            else:
                wanted = ["name", "size", "generation", "updated", "bucket"]
                wanted += [] if self.gcs.managed_key else ["md5Hash", "crc32c"]
                found = there[name]
                items.append({key: found[key] for key in wanted if key in found})
        self._say(200, {"items": items, "prefixes": prefixes})

    def _say(self, code: int, body: dict[str, Any] | bytes, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers.setdefault("Content-Type", "application/json")
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


for _method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{_method}", partialmethod(_Handler._serve, _method))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256


@contextmanager
def running(*names: str) -> Iterator[GcsServer]:
    """Runs a server with the bucket `bucket` and buckets of these names."""
    gcs = GcsServer()
    gcs.storage._write_config_to_file = lambda: None  # it is in memory
    # The emulator takes names for paths: a//b would be a/b.
    gcs.storage._object_path = lambda bucket, name: f"{bucket}/{name.encode().hex()}"
    for name in ("bucket", *names):
        buckets.create_bucket(name, gcs.storage)
    httpd = _Server(("127.0.0.1", 0), partial(_Handler, gcs))
    gcs.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield gcs
    finally:
        httpd.shutdown()
        httpd.server_close()
