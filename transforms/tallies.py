"""Tallies as side inputs, which every worker reads as a whole, and what needs only their sizes.

References are grouped several times, by different keys, in as many groups as their number requires.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsIter
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from imageshards.transforms.references.batch import Held, RefBatch
from imageshards.transforms.references.order import divide
from imageshards.transforms.references.plan import Tally, bits_of
from imageshards.transforms.runner import has_one_worker

_MERGED_BITS = 6
_HELD_BYTES = 1 << 24
"""Packed references that are divided at a time: some 500,000."""


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


class Divide(beam.DoFn):  # type: ignore[misc]
    """(bucket, references) -> (group, references), by the top bits of a key of each reference.

    `process` has the side input `merged(..., only_sizes=True)`, which determines the number of
    groups. Many small groups make small elements, so that they are cut from large batches.
    """

    def __init__(
        self, keys: Callable[[RefBatch], np.ndarray] | None = None, least_bits: int = 0
    ) -> None:
        """Divides by `keys`, a uint64 for each reference; None: the keys of the references.

        Args:
          keys: computes the keys.
          least_bits: bits of the groups, if there are few references.
        """
        self._keys = keys
        self._least_bits = least_bits
        self._bits: int | None = None
        self._held = Held(_HELD_BYTES)

    def start_bundle(self) -> None:
        """Begins to collect references."""
        self._held = Held(_HELD_BYTES)

    def process(
        self, element: tuple[int, RefBatch], sizes: Iterable[Tally]
    ) -> Iterator[tuple[int, RefBatch]]:
        """Collects references, and yields groups when there are many."""
        self.bits(sizes)
        if self._held.add(element[1]):
            yield from self._flush()

    def bits(self, sizes: Iterable[Tally]) -> int:
        """Returns how many bits the number of a group has."""
        if self._bits is None:
            self._bits = max(self._least_bits, bits_of(sizes))
        return self._bits

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yields the groups of the rest."""
        yield from map(GlobalWindows.windowed_value, self._flush())

    def _flush(self) -> Iterator[tuple[int, RefBatch]]:
        batch = self._held.take()
        if batch and self._bits is not None:
            yield from divide(batch, self._keys(batch) if self._keys else batch.keys, self._bits)
