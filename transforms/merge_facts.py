"""PTransform `MergeFacts`: merges what the writers of shards report, on all workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam

from imageshards.transforms.failure import Failures
from imageshards.transforms.shards.facts import Fact, Key, Merged, merge
from imageshards.transforms.shards.layout import Layout


@dataclass
class MergeFacts(beam.PTransform):  # type: ignore[misc]
    """Merges facts of shards: (key, value) -> `Totals`, `RejectParts` or `Leaks`, a few hundred.

    Attributes:
      layout: paths of the data set.
      failures: where an error that a retry cannot mend is recorded.
    """

    layout: Layout
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, facts: beam.PCollection[Fact]) -> beam.PCollection[Merged]:
        """Takes the facts in any order."""
        return (
            facts  # (key, value)
            | "GroupFacts" >> beam.GroupByKey()  # (key, [value, ...])
            | "Merge" >> beam.Map(_merge, self.layout, self.failures)
        )


def _merge(element: tuple[Key, Iterable[Any]], layout: Layout, failures: Failures) -> Merged:
    with failures.recording():
        return merge(*element, layout)
