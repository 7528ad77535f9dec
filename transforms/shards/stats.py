"""What is counted of the records of a shard. Pure."""

from __future__ import annotations

from collections import Counter

from imageshards.transforms.elements import ShardId, ShardReport
from imageshards.transforms.images.convert import is_changed
from imageshards.transforms.images.validate import ImageInfo

SIZE_CLASSES = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
"""Upper bounds in pixels of the classes by which long sides are counted; 0 is beyond the last."""


def size_class(height: int, width: int) -> int:
    """The class of an image by its long side."""
    side = max(height, width)
    return next((bound for bound in SIZE_CLASSES if side <= bound), 0)


class ShardStats:
    """Counts records as they are written or read."""

    def __init__(self) -> None:
        self.records = 0
        self._labels: Counter[int] = Counter()
        self._formats: Counter[str] = Counter()
        self._sides: Counter[int] = Counter()
        self._smallest: tuple[int, int] | None = None
        self._largest: tuple[int, int] = (0, 0)
        self._converted = 0
        self._conversions: Counter[str] = Counter()

    def add(self, info: ImageInfo, label: int | None, conversions: tuple[str, ...] = ()) -> None:
        """Counts one record."""
        if conversions:
            self.add_conversions(conversions)
        self.records += 1
        self._formats[info.format] += 1
        self._sides[size_class(info.height, info.width)] += 1
        if label is not None:
            self._labels[label] += 1
        size = (info.height, info.width)
        if self._smallest is None or _order(size) < _order(self._smallest):
            self._smallest = size
        if _order(size) > _order(self._largest):
            self._largest = size

    def add_conversions(self, kinds: tuple[str, ...], records: int = 1) -> None:
        """Counts records that are there already, to whose images the same was done."""
        self._converted += records * is_changed(kinds)
        for kind in kinds:
            self._conversions[kind] += records

    def report(self, shard: ShardId, size: int, crc32c: int) -> ShardReport:
        """The report of a shard of `size` bytes."""
        return ShardReport(
            shard=shard,
            records=self.records,
            bytes=size,
            crc32c=crc32c,
            labels=dict(sorted(self._labels.items())),
            formats=dict(sorted(self._formats.items())),
            long_sides=dict(sorted(self._sides.items())),
            smallest=self._smallest or (0, 0),
            largest=self._largest,
            converted=self._converted,
            conversions=dict(sorted(self._conversions.items())),
        )


def _order(size: tuple[int, int]) -> tuple[int, int, int]:
    return size[0] * size[1], *size
