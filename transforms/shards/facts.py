"""What the writers of shards report, gathered so that no value grows with the data set.

A writer adds each finished shard to a `Collector`, which yields (key, value) pairs with one value
for many shards. The values of one key are merged, on any worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from imageshards.transforms.elements import RejectReport
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.layout import SHARDS_PER_MERGE, Layout, joined_part
from imageshards.transforms.shards.leaked import (
    RECORDS_PER_PART,
    Leaks,
    compact,
    cut,
    find_leaks,
    parts_bits,
    positions,
)
from imageshards.transforms.shards.rejects import concatenate
from imageshards.transforms.shards.state import ShardResult
from imageshards.transforms.shards.totals import Totals

# Parts of rejects.jsonl are "joined" where there are many.
_TOTALS, _REJECTS, _JOINED, _DIGESTS = "totals", "rejects", "joined", "digests"

Key: TypeAlias = tuple[str, str, int]
"""The kind of the values; for rejects their split; and a number."""
Fact: TypeAlias = tuple[Key, Any]
"""A key, and a value of the kind: `Totals`, [(index of shard, part)], or (numbers of the splits'
first shards, bytes of a table of digests)."""


@dataclass(frozen=True, order=True)
class RejectParts:
    """Consecutive parts of rejects.jsonl.

    Attributes:
      split: the split of the rejects.
      number: increases with the shards of the split.
      names: names of the parts, in order.
      temporary: whether the part is a copy of others, to delete at the end.
    """

    split: str
    number: int
    names: tuple[str, ...]
    temporary: bool = False


class Collector:
    """Gathers the results of shards in one process.

    Attributes:
      plan: of the build.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._first_shards = plan.first_shards
        self._rejects_kind = _JOINED if plan.num_shards > SHARDS_PER_MERGE else _REJECTS
        self._bits = parts_bits(plan.images)
        self._merges = -(-plan.num_shards // SHARDS_PER_MERGE)
        self._clear()

    def _clear(self) -> None:
        self._totals: Totals | None = None
        self._merge = 0
        self._rejects: dict[tuple[str, int], list[tuple[int, str]]] = {}
        self._clear_digests()

    def _clear_digests(self) -> None:
        self._tables: list[np.ndarray] = []
        self._records = 0

    def add(self, result: ShardResult) -> Iterator[Fact]:
        """Adds a shard; yields digests if many are held."""
        shard = result.report.shard
        number = self._first_shards[shard.split] + shard.index
        if self._totals is None:
            self._totals = Totals()
            self._merge = number % self._merges
        self._totals.add(result.report)
        if result.rejects:
            self._totals.errors.update(result.rejects.errors)
            key = shard.split, shard.index // SHARDS_PER_MERGE
            self._rejects.setdefault(key, []).append((shard.index, result.rejects.part))
        if result.digests:
            self._tables.append(positions(result.digests, number))
            self._records += len(self._tables[-1])
        if self._records >= RECORDS_PER_PART:
            yield from self._cut()

    def flush(self) -> Iterator[Fact]:
        """Yields what is held."""
        if self._totals is not None:
            yield (_TOTALS, "", self._merge), self._totals
        for (split, number), parts in self._rejects.items():
            yield (self._rejects_kind, split, number), parts
        yield from self._cut()
        self._clear()

    def _cut(self) -> Iterator[Fact]:
        if not self._tables:
            return
        first_shards = tuple(self._first_shards.values())
        table = compact(self._tables, first_shards)
        self._clear_digests()
        for part, rows in cut(table, self._bits):
            # Bytes: at five billion images a table has one row, and a pickled array ten times that.
            yield (_DIGESTS, "", part), (first_shards, rows.tobytes())


def facts_of_rejects(report: RejectReport) -> Iterator[Fact]:
    """Yields the facts of a part of rejects.jsonl that holds all rejects of a split."""
    totals = Totals()
    totals.errors.update(report.errors)
    yield (_TOTALS, "", 0), totals
    yield (_REJECTS, report.split, 0), [(0, report.part)]


Merged: TypeAlias = Totals | RejectParts | Leaks


def merge(key: Key, values: Iterable[Any], layout: Layout) -> Merged:
    """Merges all values of a key. Writes the concatenation of many parts of rejects.jsonl.

    Args:
      key: of the values.
      values: in any order.
      layout: paths of the data set.
    """
    kind, split, number = key
    if kind == _TOTALS:
        return Totals.of(values)
    if kind == _DIGESTS:
        rest = iter(values)
        first_shards, first = next(rest)
        return find_leaks(chain([first], (table for _, table in rest)), first_shards)
    found = tuple(part for _, part in sorted(pair for value in values for pair in value))
    if kind == _REJECTS or len(found) == 1:
        return RejectParts(split, number, found)
    joined = joined_part(split, number)
    concatenate(layout, found, layout.rejects_part(joined))
    return RejectParts(split, number, (joined,), temporary=True)
