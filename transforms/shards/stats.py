"""Counts of the records in a shard, and their sum over shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from imageshards.transforms.elements import ShardId, ShardReport
from imageshards.transforms.images.convert import is_changed
from imageshards.transforms.images.validate import ImageInfo
from imageshards.transforms.shards.profile import Profile

SIZE_CLASSES = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
"""Upper bounds, in pixels, of the classes that long sides are counted in; 0 is beyond the last."""


def size_class(height: int, width: int) -> int:
    """Returns the upper bound of the class of an image's long side; 0 beyond the last.

    >>> size_class(200, 300)
    384
    """
    side = max(height, width)
    return next((bound for bound in SIZE_CLASSES if side <= bound), 0)


class ShardStats:
    """Counts records while they are written or read, or sums up the reports of shards."""

    def __init__(self, reports: Iterable[ShardReport] = ()) -> None:
        self.records = 0
        self.bytes = 0
        self.shards = 0
        self._labels: Counter[int] = Counter()
        self._formats: Counter[str] = Counter()
        self._sides: Counter[int] = Counter()
        self._smallest: tuple[int, int] | None = None
        self._largest: tuple[int, int] = (0, 0)
        self._converted = 0
        self._conversions: Counter[str] = Counter()
        self._annotations: Counter[str] = Counter()
        self.profile = Profile()
        for report in reports:
            self.add_report(report)

    def add(
        self, info: ImageInfo, labels: Iterable[int], conversions: tuple[str, ...] = ()
    ) -> None:
        """Counts one record."""
        if conversions:
            self.add_conversions(conversions)
        self.records += 1
        self._formats[info.format] += 1
        self._sides[size_class(info.height, info.width)] += 1
        self._labels.update(labels)
        size = (info.height, info.width)
        self._add_sizes(size, size)

    def add_conversions(self, kinds: tuple[str, ...], records: int = 1) -> None:
        """Counts the conversions of records that are counted already."""
        self._converted += records * is_changed(kinds)
        for kind in kinds:
            self._conversions[kind] += records

    def add_annotations(self, counts: Mapping[str, int]) -> None:
        """Counts annotations: kind -> number of them."""
        self._annotations.update(counts)

    def add_report(self, report: ShardReport) -> None:
        """Adds the counts of a shard."""
        self.shards += 1
        self.records += report.records
        self.bytes += report.bytes
        self._labels.update(report.labels)
        self._formats.update(report.formats)
        self._sides.update(report.long_sides)
        self._converted += report.converted
        self._conversions.update(report.conversions)
        self._annotations.update(report.annotations)
        self.profile.merge_json(report.profile)
        if report.records:
            self._add_sizes(report.smallest, report.largest)

    def merge(self, other: ShardStats) -> None:
        """Adds the counts of other shards."""
        self.shards += other.shards
        self.records += other.records
        self.bytes += other.bytes
        self._labels.update(other._labels)
        self._formats.update(other._formats)
        self._sides.update(other._sides)
        self._converted += other._converted
        self._conversions.update(other._conversions)
        self._annotations.update(other._annotations)
        self.profile.merge(other.profile)
        if other._smallest is not None:
            self._add_sizes(other._smallest, other._largest)

    def _add_sizes(self, small: tuple[int, int], large: tuple[int, int]) -> None:
        if self._smallest is None or _by_pixels(small) < _by_pixels(self._smallest):
            self._smallest = small
        if _by_pixels(large) > _by_pixels(self._largest):
            self._largest = large

    def values(self) -> dict[str, Any]:
        """Returns the counts under the names of `ShardReport`, each in sorted order."""
        return {
            "labels": dict(sorted(self._labels.items())),
            "formats": dict(sorted(self._formats.items())),
            "converted": self._converted,
            "conversions": dict(sorted(self._conversions.items())),
            "annotations": dict(sorted(self._annotations.items())),
            "long_sides": dict(sorted(self._sides.items())),
            "smallest": self._smallest or (0, 0),
            "largest": self._largest,
            "profile": self.profile.to_json(),
        }

    def report(self, shard: ShardId, size: int, crc32c: int, sha256: str = "") -> ShardReport:
        """Returns the report of a shard whose file has `size` bytes and these checksums."""
        return ShardReport(shard, self.records, size, crc32c, **self.values(), sha256=sha256)


def _by_pixels(size: tuple[int, int]) -> tuple[int, int, int]:
    return size[0] * size[1], *size
