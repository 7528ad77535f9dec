"""A local Cloud Storage server for tests: gcp-storage-emulator, corrected, with injected faults.

It adds concurrent requests, lists with pages and offsets, generations, preconditions, HEAD
requests, uploads of which a part is received, objects with `Content-Encoding: gzip`, the headers
that clients require, and names with `#` and `?`.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.storage import Storage
from gcs_faults import Fault
from gcs_handler import Handler


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
    httpd = _Server(("127.0.0.1", 0), partial(Handler, gcs))
    gcs.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield gcs
    finally:
        httpd.shutdown()
        httpd.server_close()
