"""The positions of the records of a file, in little memory. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from imageshards.transforms.elements import BuildError
from imageshards.transforms.records.container import parse_index

Rows = npt.NDArray[np.int64]

_STEP = 16
_MOST = (1 << 32) - 1
_NEWLINE = ord("\n")
_LINES_PER_BLOCK = 64
_RECORDS_PER_READ = 256
"""To parse all lines takes 0.1 us a record, to read and parse one 30 us (ArrayRecord)."""


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


class LazyIndex:
    r"""An `Index` of an index file, of which blocks of 64 lines are read when they are needed.

    The lines of an index file differ in length and have no numbers. Therefore the line of a record
    is found by counting: once, when the file is opened. This object keeps the positions of the
    blocks: 0.1 bytes a record. If one in 256 records has been looked up, or a long range or all
    sizes are needed, the whole file is parsed, and this is an `Index` from then on.

    >>> content = b"0 21\n21 40\n"
    >>> index = LazyIndex("1.idx", content, lambda begin, end: content[begin:end])
    >>> len(index), index.row(1), index.end(1), index.sizes.tolist()
    (2, (21, 40), 61, [21, 40])

    Args:
      uri: the index file, for errors.
      content: its content, which is not kept.
      read: returns the bytes [begin, end) of it.

    Raises:
      ValueError: its last line does not end.
    """

    def __init__(self, uri: str, content: bytes, read: Callable[[int, int], bytes]) -> None:
        if not content.endswith(b"\n"):
            raise ValueError("breaks off in its last line")
        self._uri = uri
        self._read = read
        self._columns = len(content.partition(b"\n")[0].split())
        ends = np.flatnonzero(np.frombuffer(content, np.uint8) == _NEWLINE) + 1
        self._records = len(ends)
        inner = ends[_LINES_PER_BLOCK - 1 : -1 : _LINES_PER_BLOCK]
        self._begins = np.concatenate([[0], inner, [len(content)]]).astype(np.int64)
        self._last = -1, b""
        self._reads = 0
        self._whole: Index | None = None

    def __len__(self) -> int:
        return self._records

    @property
    def sizes(self) -> npt.NDArray[Any]:
        """See `Index`. Reads all lines."""
        return self._parsed().sizes

    def offset(self, row: int) -> int:
        """Returns the offset of a record; see `row`."""
        return self.row(row)[0]

    def end(self, row: int) -> int:
        """Returns the offset after a record; see `row`."""
        offset, size, *_ = self.row(row)
        return offset + size

    def row(self, row: int) -> tuple[int, ...]:
        """Returns offset and stored size of a record, and its CRC32C if the index has it.

        Raises:
          BuildError: the index file is damaged, has changed or cannot be read.
        """
        if self._whole is not None:
            return self._whole.row(row)
        number, line = divmod(row, _LINES_PER_BLOCK)
        held, block = self._last
        if held != number:
            self._reads += 1
            if self._reads * _RECORDS_PER_READ > self._records:
                return self._parsed().row(row)
            block = self._read(*self._begins[number : number + 2].tolist())
            self._last = number, block
        return self._checked(block.split(b"\n")[line])

    def rows(self, begin: int, end: int) -> list[tuple[int, ...]]:
        """Returns `row` of the records [begin, end)."""
        if end - begin > _LINES_PER_BLOCK:
            return self._parsed().rows(begin, end)
        return [self.row(row) for row in range(begin, end)]

    def _checked(self, line: bytes) -> tuple[int, ...]:
        numbers = line.split()
        if (
            len(numbers) not in (2, 3)
            or len(numbers) != self._columns
            or not all(map(bytes.isdigit, numbers))
        ):
            raise BuildError(f"{self._uri}: damaged: {line[:64]!r} is not the line of a record")
        return tuple(map(int, numbers))

    def _parsed(self) -> Index:
        # Two threads may do it at a time, which is rare: a lock could not be pickled.
        if self._whole is None:
            content = self._read(0, int(self._begins[-1]))
            try:
                whole = Index(parse_index(content))
            except ValueError as error:
                raise BuildError(f"{self._uri}: damaged: {error}") from error
            if len(whole) != self._records:
                raise BuildError(f"{self._uri}: damaged: it has empty lines")
            self._whole = whole
        return self._whole
