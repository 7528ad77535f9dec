"""PTransform `MergeFacts`: merges what the writers of shards report, on all workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.facts import Fact, Key, Merged, merge
from imageshards.transforms.shards.layout import Layout


@dataclass
class MergeFacts(beam.PTransform):  # type: ignore[misc]
    """Merges facts of shards: (key, value) -> `Totals`, `RejectParts` or `Leaks`, a few hundred.

    Attributes:
      layout: paths of the data set.
      plan: side input, the one Plan.
    """

    layout: Layout
    plan: beam.pvalue.AsSingleton

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, facts: beam.PCollection[Fact]) -> beam.PCollection[Merged]:
        """Takes the facts in any order."""
        return (
            facts  # (key, value)
            | "GroupFacts" >> beam.GroupByKey()  # (key, [value, ...])
            | "Merge" >> beam.Map(_merge, self.plan, self.layout)
        )


def _merge(element: tuple[Key, Iterable[Any]], plan: Plan, layout: Layout) -> Merged:
    return merge(*element, plan, layout)
