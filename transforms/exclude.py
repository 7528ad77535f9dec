"""PTransform `ExcludeReferences` (`--exclude`): leaves out the images that lists name.

The lists may be as long as the inputs: lines and references are grouped by the keys of their names,
and compared in each group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from imageshards.transforms.failure import Failures
from imageshards.transforms.grouping import Collect, Divide, merged
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.names import Roots
from imageshards.transforms.references.selection.exclusion import compare, read_list
from imageshards.transforms.references.tally import Tally

_EXAMPLES = 3
"""Lines of a group that may be shown."""


class Remaining(NamedTuple):
    """The references that no list names.

    Attributes:
      batches: (bucket, references).
      tallies: those of the listing; and what is left out.
    """

    batches: beam.PCollection[tuple[int, RefBatch]]
    tallies: beam.PCollection[Tally]


@dataclass
class ExcludeReferences(beam.PTransform):  # type: ignore[misc]
    """Leaves out some of (batches, tallies), as `ReadReferences` returns them.

    Attributes:
      lists: URIs of text files with one name or URI per line.
      roots: of the inputs: where names begin in URIs.
      files: URI of each input that is a file -> length of its root.
      seed: of the data set.
      failures: where an error that a retry cannot mend is recorded.
    """

    lists: Sequence[str]
    roots: Roots
    files: Mapping[str, int]
    seed: int
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        super().__init__()

    def expand(
        self, listed: tuple[beam.PCollection[tuple[int, RefBatch]], beam.PCollection[Tally]]
    ) -> Remaining:
        """Takes (batches, tallies); returns those of the other references."""
        batches, tallies = listed
        sizes = merged(tallies, "Sizes", only_sizes=True)
        lines = (
            batches.pipeline
            | "Lists" >> beam.Create(list(self.lists), reshuffle=False)
            | "Lines" >> beam.FlatMap(_lines, self.roots, self.files, self.seed, self.failures)
            | "DivideLines" >> beam.ParDo(Divide(), sizes)
        )
        refs = batches | "Divide" >> beam.ParDo(Divide(), sizes)
        rest = (
            {"refs": refs, "lines": lines}
            | "GroupByName" >> beam.CoGroupByKey()
            | "Compare" >> beam.ParDo(_Compare()).with_outputs("tallies", main="batches")
        )
        return Remaining(rest.batches, (tallies, rest.tallies) | "AllTallies" >> beam.Flatten())


def _lines(
    uri: str, roots: Roots, files: Mapping[str, int], seed: int, failures: Failures
) -> Iterator[tuple[int, RefBatch]]:
    with failures.recording():
        for batch in read_list(uri, roots, files, seed):
            yield 0, batch


class _Compare(Collect):
    """(group, references and lines) -> (bucket, the other references), and tallies."""

    def process(
        self, element: tuple[int, Mapping[str, Iterable[RefBatch]]]
    ) -> Iterator[tuple[int, RefBatch] | TaggedOutput]:
        refs, lines = (_together(element[1][name]) for name in ("refs", "lines"))
        found = compare(refs, lines)
        yield TaggedOutput(
            "tallies",
            Tally(
                left_out={"--exclude": len(refs) - len(found.others)},
                lines=found.lines,
                unknown=len(found.unknown),
                unknown_lines=frozenset(sorted(found.unknown)[:_EXAMPLES]),
            ),
        )
        yield from self.collect(found.others)


def _together(batches: Iterable[RefBatch]) -> RefBatch:
    every = list(batches)
    return RefBatch.concat(every) if every else RefBatch.listed([], [])
