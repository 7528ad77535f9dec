"""PTransform `TakePixelsOnce` (`--dedupe pixels`): keeps one of each set of equal images.

Images are equal if their pixels are. The other images of a set become rejects that name the one
that is kept. Every image is read and decoded once more for this, before the shuffle. The references
of all images with the same pixels are in the memory of one worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from imageshards.transforms import metrics, storage
from imageshards.transforms.failure import Failures
from imageshards.transforms.references.batch import Held, RefBatch
from imageshards.transforms.references.order import divide, mark_same_pixels, partition
from imageshards.transforms.references.plan import Tally, bits_of
from imageshards.transforms.shards.cores import cores
from imageshards.transforms.shards.encoder import ImageEncoder
from imageshards.transforms.shards.workers import REMOTE_READS_IN_FLIGHT
from imageshards.transforms.tallies import merged

_HELD_BYTES = 1 << 25
"""References that are divided at a time, by their digests or by their keys: some 200,000."""


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
        self, listed: tuple[beam.PCollection[tuple[int, RefBatch]], beam.PCollection[Tally]]
    ) -> beam.PCollection[tuple[int, RefBatch]]:
        """Takes (batches, tallies), as `ReadReferences` returns them; returns batches."""
        batches, tallies = listed
        return (
            batches
            | "DistributeReads" >> beam.Reshuffle()
            | "HashPixels"
            >> beam.ParDo(
                _HashPixels(self), merged(tallies, "Sizes", only_sizes=True)
            ).with_output_types(tuple[int, RefBatch])  # (group of digests, references)
            | "GroupByPixels" >> beam.GroupByKey()
            | "MarkSamePixels" >> beam.FlatMap(_mark)  # (bucket, references)
        )


class _HashPixels(beam.DoFn):  # type: ignore[misc]
    def __init__(self, take: TakePixelsOnce) -> None:
        self._encoder = take.encoder
        self._failures = take.failures
        self._bits: int | None = None
        self._held = Held(_HELD_BYTES)
        self._decoders: ThreadPoolExecutor
        self._readers: ThreadPoolExecutor

    def setup(self) -> None:
        self._decoders = ThreadPoolExecutor(cores(), "imageshards-pixels")
        self._readers = ThreadPoolExecutor(REMOTE_READS_IN_FLIGHT, "imageshards-remote-pixels")

    def teardown(self) -> None:
        self._decoders.shutdown()
        self._readers.shutdown()

    def start_bundle(self) -> None:
        self._held = Held(_HELD_BYTES)

    def process(
        self, element: tuple[int, RefBatch], tallies: Iterable[Tally]
    ) -> Iterator[tuple[int, RefBatch]]:
        _, batch = element
        if self._bits is None:
            self._bits = bits_of(tallies)
        local = all(map(storage.is_local, batch.files()))
        threads = self._decoders if local else self._readers
        with self._failures.recording():
            digests = []
            for digest in threads.map(self._encoder.pixel_digest, batch.refs()):
                digests.append(digest)
                metrics.COMPARED.add(1)
        # Digests scatter the references of a small batch over as many groups.
        if self._held.add(batch.with_pixels(digests)):
            yield from self._flush()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from map(GlobalWindows.windowed_value, self._flush())

    def _flush(self) -> Iterator[tuple[int, RefBatch]]:
        batch = self._held.take()
        if batch and self._bits is not None:
            _, digests = batch.pop_pixels()
            # What cannot be decoded has no duplicates, and may be in any group.
            values = [
                int.from_bytes(digest[:8]) if digest else key
                for digest, key in zip(digests, batch.keys.tolist(), strict=True)
            ]
            yield from divide(batch, np.array(values, np.uint64), self._bits)


def _mark(element: tuple[int, Iterable[RefBatch]]) -> Iterator[tuple[int, RefBatch]]:
    """Marks the duplicates of a group: (group of digests, references) -> (bucket, references).

    Most groups give each bucket one batch. An image with millions of copies makes a larger group,
    of which a part is in memory at a time.
    """
    held = Held(_HELD_BYTES)
    for batch in mark_same_pixels(element[1]):
        if held.add(batch) and (together := held.take()):
            yield from partition(together)
    if rest := held.take():
        yield from partition(rest)
