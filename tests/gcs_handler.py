"""How the Cloud Storage server of the tests answers requests."""

from __future__ import annotations

import bisect
import gzip
import json
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partialmethod
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import NotFound
from gcs_faults import Send, denied, first_bytes, refused, status, unchanged

if TYPE_CHECKING:
    from gcs_server import GcsServer

_OBJECT = re.compile(
    r"/(?:(?:download/)?storage/v1/b/([^/]+)/o/|(?!upload/|storage/|b/)([^/]+)/)(.+)"
)
_LIST = re.compile(r"/storage/v1/b/([^/]+)/o/?")
_PAGE = 1000
_CHUNK = 1 << 16
_LONGEST_WITH_LENGTH = 8 << 20
"""The responses of longer objects with `Content-Encoding: gzip` have no Content-Length."""


def _kind(method: str, path: str, query: dict[str, list[str]]) -> str:
    if _LIST.fullmatch(path):
        return f"{method} list"
    if path.startswith("/upload/"):
        return f"{method} upload"
    if method == "GET" and ("/storage/v1/" not in path or query.get("alt") == ["media"]):
        return "GET media"
    return f"{method} object"


class Handler(emulator.RequestHandler):
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
    setattr(Handler, f"do_{_method}", partialmethod(Handler._serve, _method))
