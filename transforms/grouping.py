"""Groups of references: DoFns that form them, and the side input that determines their number.

References are grouped several times, by different keys, in as many groups as their number requires.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsIter, TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from imageshards.transforms.references.batch import Held, RefBatch
from imageshards.transforms.references.order import divide, partition
from imageshards.transforms.references.tally import Tally, bits_of
from imageshards.transforms.runner import has_one_worker

_MERGED_BITS = 6
_HELD_BYTES = 1 << 24
"""Packed references that are collected at a time: some 500,000."""


def merged(
    tallies: beam.PCollection[Tally], name: str = "MergeTallies", only_sizes: bool = False
) -> AsIter:
    """Returns tallies as a side input; with several workers, merged to at most 64.

    There is a tally for each unit of work and for each sorted group, and thousands of groups may
    have the same labels. One worker has counted all of them anyway: there, more steps would only
    take time.

    Args:
      tallies: in any order.
      name: of the steps.
      only_sizes: whether only `listed` and `ref_bytes` are needed, for `bits_of`.
    """
    if has_one_worker(tallies.pipeline):
        return AsIter(tallies)
    return AsIter(
        tallies
        | f"{name}Key" >> beam.ParDo(_WithKey(only_sizes))
        | name >> beam.CombinePerKey(Tally.merge)
        | f"{name}Values" >> beam.Values()
    )


class _WithKey(beam.DoFn):  # type: ignore[misc]
    """Adds a random key to tallies, one for each bundle: its tallies are merged where they are."""

    def __init__(self, only_sizes: bool) -> None:
        self._only_sizes = only_sizes
        self._key = 0

    def start_bundle(self) -> None:
        self._key = random.getrandbits(_MERGED_BITS)

    def process(self, tally: Tally) -> Iterator[tuple[int, Tally]]:
        if self._only_sizes:
            tally = Tally(listed=tally.listed, ref_bytes=tally.ref_bytes)
        yield self._key, tally


def windowed(outputs: Iterable[object]) -> Iterator[WindowedValue | TaggedOutput]:
    """Yields outputs as `finish_bundle` must: as values of the global window."""
    for output in outputs:
        if isinstance(output, TaggedOutput):
            yield TaggedOutput(output.tag, GlobalWindows.windowed_value(output.value))
        else:
            yield GlobalWindows.windowed_value(output)


class Collect(beam.DoFn):  # type: ignore[misc]
    """Collects references of a bundle, and divides them together: here, by bucket.

    Groups of a small batch would be many small elements. Subclasses call `collect` in `process`.
    """

    def __init__(self, most_bytes: int = _HELD_BYTES) -> None:
        """Collects at most about `most_bytes` of packed references."""
        self._most_bytes = most_bytes
        self._held = Held(most_bytes)

    def start_bundle(self) -> None:
        """Begins to collect references."""
        self._held = Held(self._most_bytes)

    def collect(self, batch: RefBatch) -> Iterator[Any]:
        """Adds references, and yields what `divided` yields of all, when there are many."""
        if len(batch) and self._held.add(batch):
            yield from self._flush()

    def finish_bundle(self) -> Iterator[WindowedValue | TaggedOutput]:
        """Yields the groups of the rest."""
        yield from windowed(self._flush())

    def divided(self, batch: RefBatch) -> Iterator[Any]:
        """Yields the groups of references, here (bucket, references), and any tagged outputs."""
        yield from partition(batch)

    def _flush(self) -> Iterator[Any]:
        if batch := self._held.take():
            yield from self.divided(batch)


class Divide(Collect):
    """(bucket, references) -> (group, references), by the top bits of a key of each reference.

    `process` has the side input `merged(..., only_sizes=True)`, which determines the number of
    groups.
    """

    def __init__(
        self, keys: Callable[[RefBatch], np.ndarray] | None = None, least_bits: int = 0
    ) -> None:
        """Divides by `keys`, a uint64 for each reference; None: the keys of the references.

        Args:
          keys: computes the keys.
          least_bits: bits of the groups, if there are few references.
        """
        super().__init__()
        self._keys = keys
        self._least_bits = least_bits
        self._bits: int | None = None

    def process(
        self, element: tuple[int, RefBatch], sizes: Iterable[Tally]
    ) -> Iterator[tuple[int, RefBatch]]:
        """Collects references, and yields groups when there are many."""
        self.bits(sizes)
        yield from self.collect(element[1])

    def bits(self, sizes: Iterable[Tally]) -> int:
        """Returns how many bits the number of a group has."""
        if self._bits is None:
            self._bits = max(self._least_bits, bits_of(sizes))
        return self._bits

    def divided(self, batch: RefBatch) -> Iterator[tuple[int, RefBatch]]:
        """Yields (group, references)."""
        assert self._bits is not None
        yield from divide(batch, self._keys(batch) if self._keys else batch.keys, self._bits)
