"""The positions of the records of a file, in little memory. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

_STEP = 16
_MOST = (1 << 32) - 1


class Index:
    """Offset and stored size of every record of a file, in bytes, and maybe the record's CRC32C.

    Takes 4.5 bytes of memory a record, and 4 more with CRC32Cs. If records do not follow each other
    without a gap, or are stored in groups, it takes 8 more; if one has 4 GiB or more, 4 more.

    >>> index = Index(np.array([[0, 21], [21, 40]]))
    >>> len(index), index.row(1), index.end(1), index.sizes.tolist()
    (2, (21, 40), 61, [21, 40])

    Args:
      rows: int64 [records, 2 or 3]: what `parse_index` returns.

    Attributes:
      sizes: uint32 or int64 [records], the stored sizes. In a group, each record has the group's.

    Raises:
      ValueError: a number is negative, or a CRC32C has more than 32 bits.
    """

    def __init__(self, rows: Rows) -> None:
        offsets, sizes = rows[:, 0], rows[:, 1]
        if len(rows) and rows.min() < 0:
            raise ValueError("a number is negative")
        small = int(sizes.max(initial=0)) <= _MOST
        self.sizes = sizes.astype(np.uint32 if small else np.int64)
        self._crc32cs: npt.NDArray[np.uint32] | None = None
        if rows.shape[1] == 3:
            if int(rows[:, 2].max(initial=0)) > _MOST:
                raise ValueError("a CRC32C has more than 32 bits")
            self._crc32cs = rows[:, 2].astype(np.uint32)
        follow = bool((offsets[:-1] + sizes[:-1] == offsets[1:]).all())
        self._step = _STEP if follow else 1
        self._offsets = offsets[:: self._step].copy()

    def __len__(self) -> int:
        return len(self.sizes)

    def offset(self, row: int) -> int:
        """Returns the offset of a record."""
        number, rest = divmod(row, self._step)
        before: list[int] = self.sizes[row - rest : row].tolist()
        return int(self._offsets[number]) + sum(before)

    def end(self, row: int) -> int:
        """Returns the offset after a record."""
        return self.offset(row) + int(self.sizes[row])

    def row(self, row: int) -> tuple[int, ...]:
        """Returns offset and stored size of a record, and its CRC32C if the index has it."""
        place = self.offset(row), int(self.sizes[row])
        return place if self._crc32cs is None else (*place, int(self._crc32cs[row]))

    def rows(self, begin: int, end: int) -> list[tuple[int, ...]]:
        """Returns `row` of the records [begin, end)."""
        if begin == end:
            return []
        sizes = self.sizes[begin:end].astype(np.int64)
        if self._step == 1:
            offsets = self._offsets[begin:end]
        else:
            offsets = self.offset(begin) + np.cumsum(sizes) - sizes
        columns = [offsets.tolist(), sizes.tolist()]
        if self._crc32cs is not None:
            columns.append(self._crc32cs[begin:end].tolist())
        return list(zip(*columns, strict=True))
