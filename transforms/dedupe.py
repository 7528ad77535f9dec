"""PTransform `TakePixelsOnce` (`--dedupe pixels`): keeps one of each set of equal images.

Images are equal if their pixels are. The other images of a set become rejects that name the one
that is kept. Every image is read and decoded once more for this, before the shuffle. References are
grouped by the digests of their pixels, except those with the most frequent digests: they are marked
wherever they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsSingleton, TaggedOutput

from imageshards.transforms import metrics, storage
from imageshards.transforms.failure import Failures
from imageshards.transforms.grouping import Collect, merged
from imageshards.transforms.references.batch import Held, RefBatch
from imageshards.transforms.references.order import divide, partition
from imageshards.transforms.references.selection.pixels import (
    COUNTERS,
    Firsts,
    firsts,
    frequent,
    mark,
    mark_group,
    merge_firsts,
    with_most,
)
from imageshards.transforms.references.tally import Tally, bits_of
from imageshards.transforms.shards.cores import cores
from imageshards.transforms.shards.encoder import ImageEncoder
from imageshards.transforms.shards.workers import REMOTE_READS_IN_FLIGHT

_HELD_BYTES = 1 << 25
"""References that are divided at a time, by their digests or by their keys: some 200,000."""
_COUNTERS_HELD = 8 * COUNTERS
"""Digests that a worker counts before it drops the rare ones."""


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
        hashed = (
            batches
            | "DistributeReads" >> beam.Reshuffle()
            | "HashPixels" >> beam.ParDo(_HashPixels(self))  # references with digests
        )
        frequent = hashed | "Frequent" >> beam.CombineGlobally(_Frequent())  # one set of digests
        firsts = (
            hashed
            | "FirstOfFrequent" >> beam.FlatMap(_firsts, AsSingleton(frequent))
            | "Firsts" >> beam.CombineGlobally(merge_firsts)
        )  # one `Firsts`
        divided = hashed | "Divide" >> beam.ParDo(
            _Divide(), merged(tallies, "Sizes", only_sizes=True), AsSingleton(firsts)
        ).with_outputs("marked", main="groups")
        # groups: (group of digests, references); marked: (bucket, references)
        grouped = (
            divided.groups
            | "GroupByPixels" >> beam.GroupByKey()
            | "MarkSamePixels" >> beam.FlatMap(_mark)
        )  # (bucket, references)
        return (grouped, divided.marked) | "AllMarked" >> beam.Flatten()


class _HashPixels(beam.DoFn):  # type: ignore[misc]
    """(bucket, references) -> references with the digests of their pixels."""

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

    def process(self, element: tuple[int, RefBatch]) -> Iterator[RefBatch]:
        _, batch = element
        local = all(map(storage.is_local, batch.files()))
        threads = self._decoders if local else self._readers
        with self._failures.recording():
            digests = []
            for digest in threads.map(self._encoder.pixel_digest, batch.refs()):
                digests.append(digest)
                metrics.COMPARED.add(1)
        yield batch.with_pixels(digests)


class _Frequent(beam.CombineFn):  # type: ignore[misc]
    """References with digests -> the digests that have many images."""

    def create_accumulator(self) -> Counter[bytes]:
        return Counter()

    def add_input(self, counts: Counter[bytes], batch: RefBatch) -> Counter[bytes]:
        counts.update(digest for digest in copy(batch).pop_pixels()[1] if digest)
        return with_most(counts) if len(counts) > _COUNTERS_HELD else counts

    def merge_accumulators(self, accumulators: Iterable[Counter[bytes]]) -> Counter[bytes]:
        counts: Counter[bytes] = Counter()
        for found in accumulators:
            counts.update(found)
            counts = with_most(counts)
        return counts

    def compact(self, counts: Counter[bytes]) -> Counter[bytes]:
        return with_most(counts)

    def extract_output(self, counts: Counter[bytes]) -> frozenset[bytes]:
        return frequent(with_most(counts))


def _firsts(batch: RefBatch, digests: frozenset[bytes]) -> Iterator[Firsts]:
    if digests and (found := firsts(digests, [batch])):
        yield found


class _Divide(Collect):
    """References with digests -> (group of digests, references); (bucket, references) if marked."""

    def __init__(self) -> None:
        super().__init__(_HELD_BYTES)
        self._bits: int | None = None
        self._firsts: Firsts = {}

    def process(
        self, batch: RefBatch, tallies: Iterable[Tally], firsts: Firsts
    ) -> Iterator[tuple[int, RefBatch] | TaggedOutput]:
        if self._bits is None:
            self._bits = bits_of(tallies)
        self._firsts = firsts
        # Digests scatter the references of a small batch over as many groups.
        yield from self.collect(batch)

    def divided(self, batch: RefBatch) -> Iterator[tuple[int, RefBatch] | TaggedOutput]:
        assert self._bits is not None
        _, digests = copy(batch).pop_pixels()
        if self._firsts:
            rows = np.array([digest in self._firsts for digest in digests])
            of_frequent, found = batch.take(np.flatnonzero(rows)).pop_pixels()
            for part in partition(mark(of_frequent, found, self._firsts)) if rows.any() else ():
                yield TaggedOutput("marked", part)
            batch = batch.take(np.flatnonzero(~rows))
            _, digests = copy(batch).pop_pixels()
        if not len(batch):
            return
        # What cannot be decoded has no duplicates, and may be in any group.
        values = [
            int.from_bytes(digest[:8]) if digest else key
            for digest, key in zip(digests, batch.keys.tolist(), strict=True)
        ]
        yield from divide(batch, np.array(values, np.uint64), self._bits)


def _mark(element: tuple[int, Iterable[RefBatch]]) -> Iterator[tuple[int, RefBatch]]:
    """Marks the duplicates of a group: (group of digests, references) -> (bucket, references)."""
    held = Held(_HELD_BYTES)
    for batch in mark_group(element[1]):
        if held.add(batch) and (together := held.take()):
            yield from partition(together)
    if rest := held.take():
        yield from partition(rest)
