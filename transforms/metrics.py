"""The metrics of a build, as Beam reports them: stable names in the namespace `imageshards`.

| metric | kind | what it counts |
|---|---|---|
| `units_listed` | counter | units of work whose listing has ended: inputs, and parts of them |
| `images_listed` | counter | references that were listed, duplicates included |
| `groups_sorted` | counter | groups of references that were sorted |
| `shards_written` | counter | shards that were written, without those that were resumed |
| `images_written` | counter | records of these shards |
| `bytes_written` | counter | bytes of these shards |
| `shards_resumed` | counter | shards that an earlier run had written |
| `rejects/ERROR` | counter | rejects of each error type; after a resumed run also earlier ones |
| `bytes_read` | counter | bytes of images and of other ranges of files that were read |
| `retries` | counter | requests to a store, and units of work, that failed and were tried again |
| `encode_ms` | distribution | milliseconds to read and encode an image; `--writer beam` only |
| `image_bytes` | distribution | bytes of a record; `--writer beam` only |

Images per second are the growth of `images_written` in time. `bytes_read` does not include files
that are read as streams: archives and TFRecord files while they are listed, compressed manifests.

Some runners count attempts: what a failed bundle had counted before it failed is counted again.
The counts in build.json and in the result of a build are exact.
"""

from __future__ import annotations

import threading

from apache_beam.metrics import Metrics

from imageshards.transforms.storage import usage

NAMESPACE = "imageshards"

UNITS_LISTED = Metrics.counter(NAMESPACE, "units_listed")
IMAGES_LISTED = Metrics.counter(NAMESPACE, "images_listed")
GROUPS_SORTED = Metrics.counter(NAMESPACE, "groups_sorted")
IMAGES_WRITTEN = Metrics.counter(NAMESPACE, "images_written")
BYTES_WRITTEN = Metrics.counter(NAMESPACE, "bytes_written")
SHARDS_WRITTEN = Metrics.counter(NAMESPACE, "shards_written")
SHARDS_RESUMED = Metrics.counter(NAMESPACE, "shards_resumed")
BYTES_READ = Metrics.counter(NAMESPACE, "bytes_read")
RETRIES = Metrics.counter(NAMESPACE, "retries")
ENCODE_MS = Metrics.distribution(NAMESPACE, "encode_ms")
IMAGE_BYTES = Metrics.distribution(NAMESPACE, "image_bytes")


def count_rejects(error: str, count: int) -> None:
    """Counts rejects of an error type."""
    Metrics.counter(NAMESPACE, f"rejects/{error}").inc(count)


def count_usage(used: usage.Usage | None = None) -> None:
    """Counts what reads have used; None: those of this process since it was last called."""
    used = usage.take() if used is None else used
    if used.bytes_read:
        BYTES_READ.inc(used.bytes_read)
    if used.retries:
        RETRIES.inc(used.retries)


class Count:
    """A number that several threads increase.

    >>> count = Count()
    >>> count.add(3)
    >>> count.value
    3
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self, number: int) -> None:
        """Adds a number."""
        with self._lock:
            self.value += number


LISTED = Count()
"""References that this process has listed since it started, for the progress of a build: runners
report metrics at the end of a job only. A worker process has a count of its own."""

COMPARED = Count()
"""Images of which this process has compared the pixels (`--dedupe pixels`), likewise."""
