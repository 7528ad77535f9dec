"""Tallies as side inputs, which every worker reads as a whole."""

from __future__ import annotations

import random
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.pvalue import AsIter

from imageshards.transforms.references.plan import Tally
from imageshards.transforms.runner import has_one_worker

_MERGED_BITS = 6


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
