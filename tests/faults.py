"""The faults of Google's storage testbench, as a table, and what a build makes of each.

`tests/integration/test_faults.py` asserts the table; `benchmarks/faults.py` prints it with seconds
and requests. The names are those of the testbench's instructions, where it has one:
https://github.com/googleapis/storage-testbench#force-failures
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import gcs_server
import numpy as np
import pytest
from gcs_faults import (
    Fault,
    Send,
    broken_json,
    chunk_without_end,
    corrupt,
    first_bytes,
    flipped,
    incomplete,
    refused,
    reset,
    reset_at,
    short_body,
    silent,
    stall_at,
    status,
    unchanged,
)
from gcs_server import GcsServer
from helpers import image_bytes, told
from PIL import Image

from imageshards.launch.cli import main
from imageshards.transforms.storage import gcs_read, objects, retry
from imageshards.transforms.storage.retry import Pace, RetryPolicy

IMAGES = 60
ALWAYS = 1 << 60
MEDIA = r"GET /bucket/photos"
LARGE = r"GET /bucket/photos.*large"
LIST = r"GET /storage/v1/b/bucket/o\?"
UPLOAD = r"(POST|PUT) /upload/"
LAST_OF_SHARD = r"PUT /upload/.*tfrecord"
QUICK = RetryPolicy(silence=0.4, total=4.0, first_wait=0.02, longest_wait=0.2)
"""The policy of clients in this process: they give up within seconds."""
_256K = 256 << 10


class Row(NamedTuple):
    """A fault, and the outcome of a build that meets it.

    Attributes:
      instruction: its name.
      send: sends something else instead of the response.
      requests: pattern of `METHOD path?query` of the affected requests.
      times: number of requests that meet it.
      says: pattern of the one line of the build's failure; empty if the build has equal bytes.
      after: number of matching requests that succeed first.
      before: the request is not executed; otherwise only its response is lost.
      receive: the body of a request -> the bytes that the server receives of it; not with `before`.
    """

    instruction: str
    send: Send
    requests: str
    times: int = ALWAYS
    says: str = ""
    after: int = 0
    before: bool = True
    receive: Callable[[bytes], bytes] | None = None

    @property
    def fault(self) -> Fault:
        """The fault that the server injects."""
        return Fault(self.send, self.requests, self.after, self.times, self.before, self.receive)

    @property
    def name(self) -> str:
        """The fault, its requests and how often they meet it, for reports."""
        often = "always" if self.times == ALWAYS else f"{self.times} times"
        return f"{self.instruction} {often}: {self.requests}"


_UNREADABLE = r"photos/c\d/(\d+|large)\.png: cannot be read: "

READS = [
    Row("return-503", status(503), MEDIA, 20),
    Row("return-429", status(429), MEDIA, 20),
    Row("return-408", status(408), MEDIA, 20),
    Row("return-504", status(504), MEDIA, 20),
    Row("return-503", status(503), MEDIA, says=_UNREADABLE + "status 503"),
    Row("return-429", status(429), MEDIA, says=_UNREADABLE + "status 429"),
    Row("return-503", status(503), LIST, 2),
    Row("return-503-after-256K", reset_at(_256K), LARGE, 2),
    Row("return-broken-stream", reset_at(4), MEDIA, 20),
    Row("return-broken-stream", reset_at(4), MEDIA, says=_UNREADABLE),
    Row("return-broken-stream-after-256K", reset_at(_256K), LARGE, 3),
    # Each attempt receives another 256 KiB.
    Row("return-broken-stream-after-256K", reset_at(_256K), LARGE),
    Row("return-reset-connection", reset, MEDIA, 20),
    Row("truncated body", short_body, MEDIA, 20),
    Row("truncated body", short_body, MEDIA, says=_UNREADABLE),
    Row("chunked body without its end", chunk_without_end, MEDIA, 20),
    Row("return-corrupted-data", corrupt, MEDIA, 20),
    Row("return-corrupted-data", corrupt, MEDIA, says=_UNREADABLE + ".*CRC-32C"),
    Row("return-corrupted-data", corrupt, LARGE, 2),
    Row("stall-always", silent, MEDIA, 3),
    Row("stall-always", silent, MEDIA, says=_UNREADABLE),
    Row("stall-at-256KiB", stall_at(_256K), LARGE, 2),
    Row("stall-at-256KiB", stall_at(_256K), LARGE),
]

_UNWRITTEN = "tfrecord: cannot be written: "
_10K = first_bytes(10_000)
_GONE = refused(410, "The upload session is gone.", "gone")
_NOT_FOUND = refused(404, "Not Found", "notFound")
SMALL = r"POST /upload/.*report"

UPLOADS = [
    Row("return-503", status(503), UPLOAD, 3),
    Row("return-503", status(503), LAST_OF_SHARD, 3, after=1),
    Row("return-503", status(503), LAST_OF_SHARD, says=_UNWRITTEN + "status 503"),
    Row("return-429", status(429), UPLOAD, 3),
    Row("return-429", status(429), LAST_OF_SHARD, 3, after=1),
    Row("return-429", status(429), LAST_OF_SHARD, says=_UNWRITTEN + "status 429"),
    Row("return-408", status(408), LAST_OF_SHARD, 3),
    Row("return-503-after-10K", status(503), LAST_OF_SHARD, 3, before=False, receive=_10K),
    Row("308 with a short range", unchanged, LAST_OF_SHARD, 100, before=False, receive=_10K),
    Row("308 without a range", incomplete(), LAST_OF_SHARD, 2),
    Row("308 without a range", incomplete(), LAST_OF_SHARD, says=_UNWRITTEN + "the server rec"),
    Row("308 with a shorter range than before", incomplete(1000), LAST_OF_SHARD, 1, after=1),
    Row("return-reset-connection", reset, LAST_OF_SHARD, 3),
    Row("return-reset-connection", reset, LAST_OF_SHARD, 3, before=False),
    Row("return-reset-connection", reset, LAST_OF_SHARD, says=_UNWRITTEN),
    Row("truncated answer", short_body, LAST_OF_SHARD, 3, before=False),
    Row("truncated answer of the whole length", broken_json, LAST_OF_SHARD, 3, before=False),
    Row("truncated answer of the whole length", broken_json, SMALL, 2, before=False),
    Row("stall-always", silent, LAST_OF_SHARD, 2),
    Row("stall-always", silent, LAST_OF_SHARD, says=_UNWRITTEN),
    Row("return-404 (session lost)", _NOT_FOUND, LAST_OF_SHARD, 1),
    Row("return-410 (session lost)", _GONE, LAST_OF_SHARD, 1),
    Row("return-410 (session lost)", _GONE, LAST_OF_SHARD, 2, after=1),
    Row("return-410 (session lost)", _GONE, LAST_OF_SHARD, says=_UNWRITTEN + "the service "),
    Row("inject-upload-data-error", unchanged, LAST_OF_SHARD, 1, before=False, receive=flipped),
    Row("inject-upload-data-error", unchanged, SMALL, 1, before=False, receive=flipped),
    Row(
        "inject-upload-data-error", unchanged, LAST_OF_SHARD, before=False, receive=flipped,
        says=_UNWRITTEN + "its size or CRC-32C differs",
    ),
]  # fmt: skip

TABLE = [*READS, *UPLOADS]


class Run(NamedTuple):
    """A build in this process: its exit code, its lines on stderr, and its seconds."""

    code: int
    lines: list[str]
    seconds: float


def run(output: str, *options: str) -> Run:
    """Builds gs://bucket/photos into gs://bucket/OUTPUT."""
    begin = time.monotonic()
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        errors.reconfigure = lambda **_: None  # type: ignore[attr-defined]
        patch.setattr("sys.stderr", errors)
        code = main(
            ["build", "--input=gs://bucket/photos", f"--output=gs://bucket/{output}", "--name=x",
             "--num_shards=3", "--splits=train=0.7,test=0.3", "--workers=1", *options]
        )  # fmt: skip
    return Run(code, told(errors.getvalue()), time.monotonic() - begin)


@contextmanager
def running() -> Iterator[GcsServer]:
    """Runs a server with images; clients in this process use it and give up within seconds."""
    with pytest.MonkeyPatch.context() as patch, gcs_server.running() as server:
        patch.setattr(retry, "POLICY", QUICK)
        patch.setattr(gcs_read, "PACE", Pace())
        # Shards are uploaded in several requests, other files in one.
        patch.setattr(objects, "UPLOAD_BYTES", 1 << 16)
        for name, value in server.environment.items():
            patch.setenv(name, value)
        for number in range(IMAGES):
            # Large enough that half a body is not all of it.
            server.put(f"photos/c{number % 3}/{number}.png", image_bytes(number, "PNG", (80, 60)))
        yield server


def put_large(server: GcsServer) -> None:
    """Adds an image of 600 kB."""
    noise = np.random.default_rng(0).integers(0, 255, (400, 500, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "PNG")
    server.put("photos/c0/large.png", out.getvalue())


@dataclass
class Measured:
    """The outcome of a row.

    Attributes:
      outcome: `equal bytes`, `one line`, or `wrong: ` and what is.
      seconds: duration of the build.
      requests: requests of the build.
      failed: requests that met the fault.
    """

    outcome: str
    seconds: float
    requests: int
    failed: int


def measure(server: GcsServer, row: Row, whole: dict[str, bytes]) -> Measured:
    """Builds while the server has the fault of a row; a failed build is resumed without it.

    Args:
      server: the server; gs://bucket/out is written and deleted.
      row: the fault.
      whole: the files of a build without faults.
    """
    server.requests.clear()
    server.failed = 0
    with server.failing(row.fault):
        done = run("out")
    requests, failed = server.requests.total(), server.failed
    outcome = _judge(server, row, whole, done) if failed else "wrong: no request met it"
    for name in server.names("out/"):
        server.delete(name)
    return Measured(outcome, done.seconds, requests, failed)


def _judge(server: GcsServer, row: Row, whole: dict[str, bytes], done: Run) -> str:
    if not row.says:
        if (done.code, done.lines) != (0, []):
            return f"wrong: exit code {done.code}, {done.lines}"
        return "equal bytes" if server.contents("out") == whole else "wrong: other bytes"
    if done.code != 1 or len(done.lines) != 1 or not re.search(row.says, done.lines[0]):
        return f"wrong: exit code {done.code}, {done.lines}"
    if "dataset_info.json" in server.contents("out"):
        return "wrong: reported as complete"
    resumed = run("out")
    if resumed.code or server.contents("out") != whole:
        return f"wrong: resumed with exit code {resumed.code}, {resumed.lines}"
    return "one line"
