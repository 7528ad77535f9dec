"""Counts and statistics of many shards, in memory that does not grow with their statistics."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

import numpy as np

from imageshards.transforms.elements import ShardReport
from imageshards.transforms.shards.stats import ShardStats

SHARD_ROW = np.dtype([("index", "<u4"), ("records", "<u8"), ("bytes", "<u8"), ("crc32c", "<u4")])
"""What is known of each shard: its number in its split, records, size and CRC32C of its file."""
_PACK = struct.Struct("<IQQI").pack


class Totals:
    """The sum of shard reports: statistics of each split, and 24 bytes for each shard.

    Sums are merged in any order, with the same result.

    Attributes:
      stats: split -> its statistics.
      errors: type of error -> rejects.
    """

    def __init__(self) -> None:
        self.stats: dict[str, ShardStats] = {}
        self.errors: Counter[str] = Counter()
        self._rows: dict[str, bytearray] = {}

    def add(self, report: ShardReport) -> None:
        """Adds the report of one shard."""
        split = report.shard.split
        self.stats.setdefault(split, ShardStats()).add_report(report)
        self._rows.setdefault(split, bytearray()).extend(
            _PACK(report.shard.index, report.records, report.bytes, report.crc32c)
        )

    def merge(self, other: Totals) -> None:
        """Adds another sum, of other shards."""
        for split, stats in other.stats.items():
            self.stats.setdefault(split, ShardStats()).merge(stats)
        for split, rows in other._rows.items():
            self._rows.setdefault(split, bytearray()).extend(rows)
        self.errors.update(other.errors)

    @staticmethod
    def of(parts: Iterable[Totals]) -> Totals:
        """The sum of sums."""
        total = Totals()
        for part in parts:
            total.merge(part)
        return total

    def of_split(self, split: str) -> ShardStats:
        """The statistics of one split; zeros if it has no shard."""
        return self.stats.get(split) or ShardStats()

    @property
    def all_splits(self) -> ShardStats:
        """The statistics of all splits together."""
        total = ShardStats()
        for stats in self.stats.values():
            total.merge(stats)
        return total

    @property
    def records(self) -> int:
        """Records in all shards."""
        return sum(stats.records for stats in self.stats.values())

    def rows(self, split: str) -> np.ndarray:
        """The shards of a split in order, as a table of `SHARD_ROW`."""
        # A copy of the bytes: an array that views a bytearray would prevent it from growing.
        table = np.frombuffer(bytes(self._rows.get(split, b"")), SHARD_ROW)
        return table[np.argsort(table["index"], kind="stable")]
