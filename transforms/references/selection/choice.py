"""Which references a data set takes, and for which split: exact numbers, drawn at random.

References are drawn in the order of keys that are independent of those of the data set's order. The
first N of the data set's own order would not do: where classes differ in size, the first 100 of a
large one would all be at the beginning of the data set.

The draw is exact in bounded memory: groups of references count their classes, and each class is cut
at a rank in one of the groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from imageshards.transforms.elements import BuildError
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.keys import KEY_BITS
from imageshards.transforms.references.order import unique_rows
from imageshards.transforms.references.selection.shares import balance, stratified

_MOST = (1 << 63) - 1
_TRAINING = ("train", "training")


def draw_keys(keys: np.ndarray) -> np.ndarray:
    """The keys (uint64) of the draw, from those of the order: SplitMix64's bijection of 64 bits."""
    mixed: np.ndarray = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def draw_order(batches: Iterable[RefBatch]) -> tuple[RefBatch, int]:
    """All references of a group in the order of the draw, and the number of dropped duplicates.

    Raises:
      BuildError: two images have the same name.
    """
    batch = RefBatch.concat(batches)
    values = draw_keys(batch.keys)
    batch, rows = unique_rows(batch, values, np.argsort(values, kind="stable"))
    return batch.take(rows), len(values) - len(rows)


class Census(NamedTuple):
    """The references of some classes in a group that can become records.

    Attributes:
      group: number of the group.
      classes: numbers of the classes (uint64), ascending: hashes of their labels.
      counts: references of each class, int64.
    """

    group: int
    classes: np.ndarray
    counts: np.ndarray

    def divided(self, bits: int) -> Iterator[tuple[int, Census]]:
        """Yields (top bits of the classes, their census)."""
        parts = self.classes >> np.uint64(KEY_BITS - bits)
        numbers, begins = np.unique(parts, return_index=True)
        bounds = [*begins.tolist(), len(parts)]
        for at, number in enumerate(numbers.tolist()):
            rows = slice(bounds[at], bounds[at + 1])
            yield number, Census(self.group, self.classes[rows], self.counts[rows])


class Totals(NamedTuple):
    """The references of some classes in all groups: see `Census`."""

    classes: np.ndarray
    counts: np.ndarray

    @staticmethod
    def of(parts: Iterable[Census]) -> Totals:
        """The totals of all groups of some classes."""
        return _Counted.of(parts).totals

    @staticmethod
    def concat(parts: Iterable[Totals]) -> Totals:
        """The totals of all classes, ascending."""
        every = list(parts)
        classes = np.concatenate([part.classes for part in every])
        order = np.argsort(classes)
        return Totals(classes[order], np.concatenate([part.counts for part in every])[order])


class Cuts(NamedTuple):
    """Where the references of each class are cut, in the order of the draw.

    Attributes:
      classes: numbers of the classes (uint64).
      groups: for each class, and each of its bounds, the group of the cut; int32.
      ranks: the rank of the cut among the class's references in that group; int64.
    """

    classes: np.ndarray
    groups: np.ndarray
    ranks: np.ndarray

    @staticmethod
    def of(parts: Iterable[Census], bounds: np.ndarray) -> Cuts:
        """The cuts of some classes.

        Args:
          parts: the census of these classes in each group.
          bounds: ranks in the order of the draw, one row for each class.
        """
        counted = _Counted.of(parts)
        # A bound is in the first group with which the class has as many references.
        base = counted.ends[counted.begins] - counted.counts[counted.begins]
        wanted = base[:, None] + bounds
        at = np.maximum(np.searchsorted(counted.ends, wanted), counted.begins[:, None])
        ranks = wanted - (counted.ends - counted.counts)[at]
        return Cuts(counted.totals.classes, counted.groups[at].astype(np.int32), ranks)

    @staticmethod
    def concat(parts: Iterable[Cuts]) -> Cuts:
        """The cuts of all classes, ascending."""
        every = list(parts) or [_NO_CUTS]
        classes = np.concatenate([part.classes for part in every])
        order = np.argsort(classes)
        groups, ranks = (
            np.concatenate([part[column] for part in every])[order] for column in (1, 2)
        )
        return Cuts(classes[order], groups, ranks)

    def sections(self, group: int, classes: np.ndarray, good: np.ndarray) -> np.ndarray:
        """The number of bounds that are at or before each reference of a group; int64.

        Args:
          group: number of the group.
          classes: numbers of the references' classes, in the order of the draw.
          good: whether they can become records. Others take no place: they are where the references
            around them are, or in the first section if their class has no good one.
        """
        if not len(self.classes):
            return np.zeros(len(classes), np.int64)
        ranks = _ranks(classes, good)
        row = np.minimum(np.searchsorted(self.classes, classes), len(self.classes) - 1)
        is_cut = self.classes[row] == classes
        groups, bounds = self.groups[row], self.ranks[row]
        before = (groups > group) | ((groups == group) & (ranks[:, None] < bounds))
        return np.where(is_cut, np.count_nonzero(~before, axis=1), 0)


_NO_CUTS = Cuts(np.empty(0, np.uint64), np.empty((0, 1), np.int32), np.empty((0, 1), np.int64))


class _Counted(NamedTuple):
    """The census of some classes in all groups, sorted by class and group.

    Attributes:
      groups: number of the group, for each class and each of its groups.
      counts: references in it.
      ends: sum of all counts up to each.
      begins: index of the first group of each class.
      totals: of the classes.
    """

    groups: np.ndarray
    counts: np.ndarray
    ends: np.ndarray
    begins: np.ndarray
    totals: Totals

    @staticmethod
    def of(parts: Iterable[Census]) -> _Counted:
        every = list(parts)
        classes = np.concatenate([part.classes for part in every])
        groups = np.repeat(
            np.array([part.group for part in every]), [len(part.classes) for part in every]
        )
        order = np.lexsort((groups, classes))
        counts = np.concatenate([part.counts for part in every])[order]
        found, begins = np.unique(classes[order], return_index=True)
        totals = Totals(found, np.add.reduceat(counts, begins))
        return _Counted(groups[order], counts, np.cumsum(counts), begins, totals)


def _ranks(classes: np.ndarray, good: np.ndarray) -> np.ndarray:
    """The number of good rows of the same class before each row."""
    order = np.argsort(classes, kind="stable")
    in_order = classes[order]
    before = np.cumsum(good[order]) - good[order]
    first = np.append(True, in_order[1:] != in_order[:-1]) if len(classes) else np.array([], bool)
    base = np.maximum.accumulate(np.where(first, before, 0))
    ranks = np.empty(len(classes), np.int64)
    ranks[order] = before - base
    return ranks


@dataclass(frozen=True)
class Choice:
    """How many references a data set takes, of all and for each split.

    Attributes:
      limit: at most so many of all; 0: no limit.
      per_class: at most so many of each class; 0: no limit.
      splits: names of the splits that are drawn; empty: references keep their splits.
      ratios: the share of each split, or empty.
      counts: the references of each split, or empty.
      stratify: whether each class is divided among the splits in the same way.
      max_bytes: larger images are rejected, and take no place.

    >>> Choice(per_class=2).bounds(np.array([1, 5])).tolist()
    [[1], [2]]
    >>> Choice(splits=("train", "test"), counts=(4, 2)).bounds(np.array([9])).tolist()
    [[4, 6]]
    """

    limit: int = 0
    per_class: int = 0
    splits: tuple[str, ...] = ()
    ratios: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    stratify: bool = False
    max_bytes: int = _MOST

    def __bool__(self) -> bool:
        """Whether references are drawn at all."""
        return bool(self.limit or self.per_class or self.splits)

    @property
    def by_class(self) -> bool:
        """Whether classes are drawn from one by one."""
        return bool(self.per_class or self.stratify)

    @property
    def reason(self) -> str:
        """The options that leave references out, for messages and build.json."""
        names = {"per_class": self.per_class, "limit": self.limit, "splits": self.counts}
        return " and ".join(f"--{name}" for name, value in names.items() if value)

    def bounds(self, totals: np.ndarray) -> np.ndarray:
        """The ranks in the order of the draw that end each class's parts.

        Args:
          totals: the references of each class that can become records, in the order of the classes'
            numbers, which is random.

        Returns:
          int64, [classes, splits], or [classes, 1] if references keep their splits.

        Raises:
          BuildError: there are fewer references than the splits require.
        """
        chosen: np.ndarray = np.minimum(totals, self.per_class or _MOST)
        if self.limit and chosen.sum() > self.limit:
            # The same fraction of each class, and the limit exactly. Python's integers are exact.
            ends = np.cumsum(chosen).astype(object)
            ends = ends * self.limit // ends[-1]
            chosen = np.diff(ends, prepend=0).astype(np.int64)
        if not self.splits:
            return chosen[:, None]
        preferred = next((at for at, name in enumerate(self.splits) if name in _TRAINING), 0)
        if not self.counts:
            return stratified(chosen, [round(ratio * 1e9) for ratio in self.ratios], preferred)
        rest = int(chosen.sum()) - sum(self.counts)
        if rest < 0:
            parts = zip(self.splits, self.counts, strict=True)
            raise BuildError(
                f"--splits {','.join(f'{name}={count}' for name, count in parts)}: there are "
                f"{chosen.sum():,} images for {sum(self.counts):,}: require fewer, or write "
                "ratios such as train=0.8,test=0.2"
            )
        weights = [*self.counts, rest]
        ends = stratified(chosen, weights, preferred)
        parts_of_classes = np.diff(ends, prepend=0)
        balance(parts_of_classes, weights)
        return np.cumsum(parts_of_classes, axis=1)[:, :-1]

    def classes_of(self, batch: RefBatch) -> np.ndarray:
        """The numbers of the references' classes (uint64); 0: no class, or no difference."""
        if not self.by_class:
            return np.zeros(len(batch), np.uint64)
        encoded = batch.rows.column("label").dictionary_encode()
        hashes = [_class_number(label) for label in encoded.dictionary.to_pylist()]
        table = np.array([*hashes, 0], np.uint64)
        classes: np.ndarray = table[encoded.indices.fill_null(len(hashes)).to_numpy()]
        return classes

    def census(self, group: int, batch: RefBatch) -> Census:
        """Counts the classes of a group's references that can become records."""
        classes = self.classes_of(batch)
        found, counts = np.unique(classes[batch.acceptable(self.max_bytes)], return_counts=True)
        return Census(group, found, counts)

    def take(self, group: int, batch: RefBatch, cuts: Cuts) -> RefBatch:
        """The chosen references of a group, given in the order of the draw."""
        classes = self.classes_of(batch)
        sections = cuts.sections(group, classes, batch.acceptable(self.max_bytes))
        rows = np.flatnonzero(sections < max(len(self.splits), 1))
        taken = batch.take(rows)
        if not self.splits:
            return taken
        return taken.with_splits(pa.array(self.splits).take(pa.array(sections[rows])))


def _class_number(label: bytes) -> int:
    return int.from_bytes(blake2b(label, digest_size=8).digest()) or 1
