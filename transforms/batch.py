"""References in batches of columns: what travels through the shuffle.

A URI that is a Beam element of its own costs the local runner about 12 us and 650 bytes at each
GroupByKey; in a batch it is 0.3 us and some 20 bytes, since a batch is pickled as compressed
columns: URIs in random order still share most of their text, and zstd takes 0.1 us to find it.
"""

from __future__ import annotations

import itertools
import operator
import pickle
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard

from imageshards.transforms.elements import ImageRef, Problem


@dataclass(frozen=True)
class RefBatch:
    """References as columns of equal length; the fields are those of `ImageRef`.

    Attributes:
      keys: uint64 shuffle keys.
      uris: URIs.
      labels: class texts or None.
      splits: split names.
      sizes: int64 bytes or -1.
      stamps: int64 numbers that change with the content, or 0.
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

    def __reduce__(self) -> tuple[Any, ...]:
        # No URI and no file name holds a NUL (storage could not open one that does).
        uris = "\0".join(self.uris).encode("utf-8", "surrogateescape") if self.uris else None
        columns = (
            uris, self.keys.tobytes(), list(self.labels), list(self.splits),
            self.sizes.tobytes(), self.stamps.tobytes(), dict(self.problems),
        )  # fmt: skip
        return _unpack, (zstandard.compress(pickle.dumps(columns, pickle.HIGHEST_PROTOCOL), 1),)

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
        offset = 0
        for part in parts:
            problems.update((offset + row, problem) for row, problem in part.problems.items())
            offset += len(part)

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


def _unpack(packed: bytes) -> RefBatch:
    columns = pickle.loads(zstandard.decompress(packed))
    uris, keys, labels, splits, sizes, stamps, problems = columns
    return RefBatch(
        array("Q", keys),
        uris.decode("utf-8", "surrogateescape").split("\0") if uris is not None else [],
        labels,
        splits,
        array("q", sizes),
        array("q", stamps),
        problems,
    )
