"""Finds images that are in more than one split, by the digests of their records. Pure.

A table of digests has two columns (uint64): the digest of a record, and its position. Tables are
cut by the top bits of the digests, so that each part fits in memory and is searched by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LEAKS_LISTED = 1000
"""The maximum number of lines in leaks.jsonl; all leaks are counted."""
RECORDS_LISTED = 20
"""The maximum number of records of one leak that are listed."""
RECORDS_PER_PART = 1 << 20
"""Records that are compared at a time, on average: 16 MiB."""
_ROW = np.dtype((np.uint64, 2)).itemsize
_SHARD_BITS = np.uint64(32)


def positions(digests: bytes, shard: int) -> np.ndarray:
    """The table of one shard.

    Args:
      digests: the digests of its records, eight bytes each.
      shard: its number in the data set.

    >>> positions(bytes(16), shard=1)
    array([[         0, 4294967296],
           [         0, 4294967297]], dtype=uint64)
    """
    found = np.frombuffer(digests, "<u8")
    table = np.empty((len(found), 2), np.uint64)
    table[:, 0] = found
    table[:, 1] = np.arange(len(found), dtype=np.uint64) | (np.uint64(shard) << _SHARD_BITS)
    return table


def position_of(number: int) -> tuple[int, int]:
    """The number of the shard and of the record in it, of a position."""
    return number >> 32, number & 0xFFFFFFFF


def parts_bits(records: int) -> int:
    """How many top bits of the digests tables are cut by, for this number of records."""
    return max(0, (records - 1).bit_length() - (RECORDS_PER_PART.bit_length() - 1))


def compact(tables: Iterable[np.ndarray], first_shards: Sequence[int]) -> np.ndarray:
    """Joins tables, sorts them, and drops rows that can change neither count nor list of leaks.

    Args:
      tables: of any records.
      first_shards: the number of the first shard of each split.

    Returns:
      A table in the order of its columns, with at most `RECORDS_LISTED` records, the first ones,
      of each digest and split: however often one image is repeated, the table stays small.
    """
    table = np.concatenate([np.empty((0, 2), np.uint64), *tables])
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    begins = np.flatnonzero(_changes(table, _splits(table, first_shards)))
    rank = np.arange(len(table)) - np.repeat(begins, np.diff(np.append(begins, len(table))))
    return table[rank < RECORDS_LISTED]


def cut(table: np.ndarray, bits: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (part, its rows) of a sorted table; a part has one value of the digests' top bits."""
    if not bits:
        yield 0, table
        return
    parts = table[:, 0] >> np.uint64(64 - bits)
    values, begins = np.unique(parts, return_index=True)
    for part, begin, end in zip(
        values.tolist(), begins, np.append(begins, len(table))[1:], strict=True
    ):
        yield part, table[begin:end]


@dataclass(frozen=True)
class Leaks:
    """The leaks among some records.

    Attributes:
      count: images that are in more than one split.
      listed: the first of these images, those with the smallest digests: of each the digest, and
        the positions of its records, in order.
    """

    count: int = 0
    listed: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def merged(self, other: Leaks) -> Leaks:
        """The leaks of both."""
        listed = sorted((*self.listed, *other.listed))[:LEAKS_LISTED]
        return Leaks(self.count + other.count, tuple(listed))


def find_leaks(tables: Iterable[bytes], first_shards: Sequence[int]) -> Leaks:
    """Finds the leaks of one part.

    Tables are read one at a time, and joined and compacted whenever they have doubled: a part of
    many millions of copies of one image takes no more memory than another one.

    Args:
      tables: the bytes of all tables of the part (see `cut`), in any order.
      first_shards: the number of the first shard of each split.
    """
    table = compact([], first_shards)
    held = bytearray()
    for data in tables:
        held += data
        if len(held) >= _ROW * max(RECORDS_PER_PART, len(table)):
            table = compact([table, _table(held)], first_shards)
            held = bytearray()
    table = compact([table, _table(held)], first_shards)
    splits = _splits(table, first_shards)
    begins = np.flatnonzero(_changes(table))
    ends = np.append(begins, len(table))[1:]
    # Shards are numbered split by split, so the first and the last record of an image differ in
    # their splits if any do.
    leaked = np.flatnonzero(splits[begins] != splits[ends - 1])
    listed = [
        (int(table[begins[row], 0]), tuple(table[begins[row] : ends[row], 1].tolist()))
        for row in leaked[:LEAKS_LISTED].tolist()
    ]
    return Leaks(len(leaked), tuple(listed))


def _table(data: bytes | bytearray) -> np.ndarray:
    return np.frombuffer(data, np.uint64).reshape(-1, 2)


def _splits(table: np.ndarray, first_shards: Sequence[int]) -> np.ndarray:
    shards = table[:, 1] >> _SHARD_BITS
    return np.searchsorted(np.array(first_shards, np.uint64), shards, side="right")


def _changes(table: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """Where a row differs from the one before in its digest or in one of the columns; bool."""
    changed = np.ones(len(table), bool)
    changed[1:] = table[1:, 0] != table[:-1, 0]
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed
