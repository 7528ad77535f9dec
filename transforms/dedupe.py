"""PTransform `TakePixelsOnce` (`--dedupe pixels`): keeps one of each set of equal images.

Images are equal if their pixels are. The other images of a set become rejects that name the one
that is kept. Every image is read and decoded once more for this, before the shuffle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import apache_beam as beam

from imageshards.transforms import storage
from imageshards.transforms.failure import Failures
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.order import mark_same_pixels, partition
from imageshards.transforms.shards.cores import cores
from imageshards.transforms.shards.encoder import ImageEncoder
from imageshards.transforms.shards.workers import REMOTE_READS_IN_FLIGHT

_HASH_BUCKETS = 128


@dataclass
class TakePixelsOnce(beam.PTransform):  # type: ignore[misc]
    """Adds the problem `DuplicatePixels` to duplicates among (bucket, references).

    Attributes:
      encoder: computes the digests of the pixels that would be written.
      failures: where an error that a retry cannot mend is recorded.
    """

    encoder: ImageEncoder
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        super().__init__()

    def expand(
        self, batches: beam.PCollection[tuple[int, RefBatch]]
    ) -> beam.PCollection[tuple[int, RefBatch]]:
        """Takes and returns batches in any order."""
        return (
            batches
            | "DistributeReads" >> beam.Reshuffle()
            | "HashPixels" >> beam.ParDo(_HashPixels(self))  # (hash bucket, references)
            | "GroupByPixels" >> beam.GroupByKey()
            | "MarkSamePixels" >> beam.FlatMap(_mark)  # (bucket, references)
        )


class _HashPixels(beam.DoFn):  # type: ignore[misc]
    def __init__(self, take: TakePixelsOnce) -> None:
        self._encoder = take.encoder
        self._failures = take.failures
        self._decoders: ThreadPoolExecutor
        self._readers: ThreadPoolExecutor

    def setup(self) -> None:
        self._decoders = ThreadPoolExecutor(cores(), "imageshards-pixels")
        self._readers = ThreadPoolExecutor(REMOTE_READS_IN_FLIGHT, "imageshards-remote-pixels")

    def teardown(self) -> None:
        self._decoders.shutdown()
        self._readers.shutdown()

    def process(self, element: tuple[int, RefBatch]) -> Iterator[tuple[int, RefBatch]]:
        _, batch = element
        local = all(map(storage.is_local, batch.files()))
        threads = self._decoders if local else self._readers
        with self._failures.recording():
            digests = list(threads.map(self._encoder.pixel_digest, batch.refs()))
        buckets: dict[int, list[int]] = {}
        for row, digest in enumerate(digests):
            buckets.setdefault(digest[0] % _HASH_BUCKETS if digest else 0, []).append(row)
        hashed = batch.with_pixels(digests)
        for bucket, rows in buckets.items():
            yield bucket, hashed.take(rows)


def _mark(element: tuple[int, Iterable[RefBatch]]) -> Iterator[tuple[int, RefBatch]]:
    yield from partition(mark_same_pixels(RefBatch.concat(element[1])))
