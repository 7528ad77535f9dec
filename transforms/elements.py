"""The elements that flow through the graph. Standard library only.

References travel in batches of columns, not one by one: a URI that is a Beam element of its
own costs the local runner about 12 us and 650 bytes at each GroupByKey, a URI in a batch a
tenth of it.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


class BuildError(Exception):
    """A build that cannot go on for a reason that its user can mend.

    The message is one line that says what is wrong, where, and what to do. It reaches the
    terminal as it is, whatever runner carried it.
    """


class UsageError(ValueError):
    """An option with a bad value: one line that says what to write instead."""


@dataclass(frozen=True, order=True)
class ShardId:
    """One output file: shard `index` of `num_shards` of a split."""

    split: str
    index: int
    num_shards: int


@dataclass(frozen=True)
class Problem:
    """Why an image is not in the data set: the stage that met it, its type, its reason."""

    stage: str
    error: str
    reason: str


@dataclass(frozen=True)
class Reject:
    """An image that is not in the data set: a line of rejects.jsonl."""

    uri: str
    split: str
    problem: Problem


@dataclass(frozen=True)
class ImageRef:
    """Where an image is and what is known of it without opening it.

    Attributes:
      uri: where its bytes are; its identity.
      label: the text of its class, or None.
      size: bytes, or -1 where the listing did not say.
      stamp: a number that changes with the content (local: mtime in ns), or 0.
      problem: what is wrong with the reference itself, or None.
    """

    uri: str
    label: str | None = None
    size: int = -1
    stamp: int = 0
    problem: Problem | None = None


@dataclass(frozen=True)
class RefBatch:
    """References as columns of equal length; the fields are those of `ImageRef`.

    Attributes:
      keys: uint64 shuffle keys.
      uris: URIs.
      labels: class texts or None.
      splits: split names.
      sizes: bytes or -1.
      stamps: numbers that change with the content, or 0.
      problems: row -> Problem, for the few rows that have one.
    """

    keys: array[int]
    uris: Sequence[str]
    labels: Sequence[str | None]
    splits: Sequence[str]
    sizes: array[int]
    stamps: array[int]
    problems: Mapping[int, Problem] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.uris)

    def take(self, rows: Sequence[int]) -> RefBatch:
        """The given rows, in the given order."""
        if not rows:
            return self[0:0]
        # itemgetter runs in C; for a single row it returns no tuple.
        pick = operator.itemgetter(*rows) if len(rows) > 1 else lambda column: (column[rows[0]],)
        problems: dict[int, Problem] = {}
        if self.problems:
            problems = {i: self.problems[row] for i, row in enumerate(rows) if row in self.problems}
        return RefBatch(
            keys=array("Q", pick(self.keys)),
            uris=pick(self.uris),
            labels=pick(self.labels),
            splits=pick(self.splits),
            sizes=array("q", pick(self.sizes)),
            stamps=array("q", pick(self.stamps)),
            problems=problems,
        )

    def __getitem__(self, rows: slice) -> RefBatch:
        """A contiguous run of rows."""
        start, stop, _ = rows.indices(len(self))
        return RefBatch(
            keys=self.keys[start:stop],
            uris=self.uris[start:stop],
            labels=self.labels[start:stop],
            splits=self.splits[start:stop],
            sizes=self.sizes[start:stop],
            stamps=self.stamps[start:stop],
            problems={
                row - start: problem
                for row, problem in self.problems.items()
                if start <= row < stop
            },
        )

    @staticmethod
    def concat(batches: Iterable[RefBatch]) -> RefBatch:
        """All rows of the batches, in their order."""
        parts = list(batches)
        if len(parts) == 1:
            return parts[0]
        problems: dict[int, Problem] = {}
        for part, offset in zip(
            parts, itertools.accumulate((len(p) for p in parts), initial=0), strict=False
        ):
            problems.update((offset + row, problem) for row, problem in part.problems.items())

        def ints(typecode: str, columns: Iterable[array[int]]) -> array[int]:
            return array(typecode, b"".join(column.tobytes() for column in columns))

        chain = itertools.chain.from_iterable
        return RefBatch(
            keys=ints("Q", (p.keys for p in parts)),
            uris=list(chain(p.uris for p in parts)),
            labels=list(chain(p.labels for p in parts)),
            splits=list(chain(p.splits for p in parts)),
            sizes=ints("q", (p.sizes for p in parts)),
            stamps=ints("q", (p.stamps for p in parts)),
            problems=problems,
        )

    def refs(self) -> Iterator[ImageRef]:
        """The rows, one by one."""
        columns = zip(self.uris, self.labels, self.sizes, self.stamps, strict=True)
        for row, (uri, label, size, stamp) in enumerate(columns):
            yield ImageRef(uri, label, size, stamp, self.problems.get(row))


@dataclass(frozen=True)
class ShardReport:
    """What one finished shard holds.

    Attributes:
      shard: which file.
      records: number of records.
      bytes: size of the file.
      crc32c: of the whole file.
      labels: label number -> records.
      formats: image/format -> records.
      long_sides: upper bound of a size class in pixels -> records (see `stats.size_class`).
      smallest: (height, width) of the image with the fewest pixels.
      largest: (height, width) of the image with the most pixels.
    """

    shard: ShardId
    records: int
    bytes: int
    crc32c: int
    labels: Mapping[int, int]
    formats: Mapping[str, int]
    long_sides: Mapping[int, int]
    smallest: tuple[int, int]
    largest: tuple[int, int]


@dataclass(frozen=True)
class RejectReport:
    """A part of rejects.jsonl that is already written: its file name, error type -> rejects."""

    split: str
    part: str
    errors: Mapping[str, int]
