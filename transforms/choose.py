"""PTransform `ChooseReferences`: takes an exact number of references, drawn at random.

References are grouped by the keys of the draw, sorted and counted by class in each group. Counts
are added up by class, and each class is cut in one of its groups. Besides the references of a
group, memory holds the counts of some of the classes in all groups, or the cuts of all classes. The
references are shuffled once more for this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import AsIter, TaggedOutput

from imageshards.transforms.failure import Failures
from imageshards.transforms.grouping import Collect, Divide, merged
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.selection.choice import (
    Census,
    Choice,
    Cuts,
    Totals,
    draw_keys,
    draw_order,
)
from imageshards.transforms.references.tally import Tally, bits_of

_GROUPS_OF_CLASSES = 5
"""Counts are added up in so many bits fewer groups than there are groups of references."""


class Chosen(NamedTuple):
    """The references that a data set takes.

    Attributes:
      batches: (bucket, references), without duplicates.
      tallies: those of the listing; and the duplicates and the references that are left out.
    """

    batches: beam.PCollection[tuple[int, RefBatch]]
    tallies: beam.PCollection[Tally]


@dataclass
class ChooseReferences(beam.PTransform):  # type: ignore[misc]
    """Takes some of (batches, tallies), as `ReadReferences` returns them.

    Attributes:
      choice: how many references to take.
      failures: where an error that a retry cannot mend is recorded.
    """

    choice: Choice
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        super().__init__()

    def expand(
        self, listed: tuple[beam.PCollection[tuple[int, RefBatch]], beam.PCollection[Tally]]
    ) -> Chosen:
        """Takes (batches, tallies); returns those of the chosen references."""
        batches, tallies = listed
        sizes = merged(tallies, "Sizes", only_sizes=True)
        drawn = (
            batches  # (bucket, references)
            | "Divide"
            >> beam.ParDo(Divide(_draw_keys), sizes).with_output_types(tuple[int, RefBatch])
            | "GroupByDraw" >> beam.GroupByKey()  # (group, [references, ...])
            | "Draw" >> beam.ParDo(_Draw(self), sizes).with_outputs("census", "tallies", main="all")
        )  # (group, references in the order of the draw); census: (group of classes, Census)
        by_class = drawn.census | "GroupByClass" >> beam.GroupByKey()
        totals = by_class | "Totals" >> beam.MapTuple(_totals)
        cuts = by_class | "Cut" >> beam.ParDo(_Cut(self), AsIter(totals))
        taken = drawn.all | "Take" >> beam.ParDo(_Take(self), AsIter(cuts)).with_outputs(
            "tallies", main="batches"
        )
        return Chosen(
            taken.batches,
            (tallies, drawn.tallies, taken.tallies) | "AllTallies" >> beam.Flatten(),
        )


def _draw_keys(batch: RefBatch) -> np.ndarray:
    return draw_keys(batch.keys)


class _Draw(beam.DoFn):  # type: ignore[misc]
    """Sorts a group, drops its duplicates, and counts its classes."""

    def __init__(self, choose: ChooseReferences) -> None:
        self._choice = choose.choice
        self._failures = choose.failures
        self._bits: int | None = None

    def process(
        self, element: tuple[int, Iterable[RefBatch]], sizes: Iterable[Tally]
    ) -> Iterator[tuple[int, RefBatch] | TaggedOutput]:
        if self._bits is None:
            self._bits = bits_of(sizes) - _GROUPS_OF_CLASSES
        group, batches = element
        with self._failures.recording():
            batch, duplicates = draw_order(batches)
        yield group, batch
        yield TaggedOutput("tallies", Tally(duplicates=duplicates))
        for part in self._choice.census(group, batch).divided(self._bits):
            yield TaggedOutput("census", part)


def _totals(_: int, parts: Iterable[Census]) -> Totals:
    return Totals.of(parts)


class _Cut(beam.DoFn):  # type: ignore[misc]
    """(group of classes, [Census, ...]) -> Cuts."""

    def __init__(self, choose: ChooseReferences) -> None:
        self._choice = choose.choice
        self._failures = choose.failures
        self._all: tuple[Totals, np.ndarray] | None = None

    def process(
        self, element: tuple[int, Iterable[Census]], totals: Iterable[Totals]
    ) -> Iterator[Cuts]:
        if self._all is None:
            every = Totals.concat(totals)
            with self._failures.recording():
                self._all = every, self._choice.bounds(every.counts)
        parts = list(element[1])
        every, bounds = self._all
        rows = np.searchsorted(every.classes, Totals.of(parts).classes)
        yield Cuts.of(parts, bounds[rows])


class _Take(Collect):
    """Takes the chosen references of each group."""

    def __init__(self, choose: ChooseReferences) -> None:
        super().__init__()
        self._choice = choose.choice
        self._cuts: Cuts | None = None

    def process(
        self, element: tuple[int, RefBatch], cuts: Iterable[Cuts]
    ) -> Iterator[tuple[int, RefBatch] | TaggedOutput]:
        if self._cuts is None:
            self._cuts = Cuts.concat(cuts)
        group, batch = element
        taken = self._choice.take(group, batch, self._cuts)
        left_out = {self._choice.reason: len(batch) - len(taken)}
        yield TaggedOutput("tallies", Tally(left_out=left_out))
        yield from self.collect(taken)
