r"""Parts of tables, which workers list in parallel: byte ranges of text, row groups of Parquet.

A part of a text file is a table of its own: the bytes of the header, then those of its rows. Rows
are never cut, because a part begins after a line break that ends a row:

- In JSONL and in lists of URIs, each `\n` ends a row. Lines of white space are no rows there; in
  CSV and TSV only empty lines are none.
- In CSV and TSV, a `\n` ends a row unless it is inside quotes. A field is quoted if its first byte
  is a quote; in it, two quotes are one, and a single quote ends the quoted part. So take the quotes
  of the file in order, and call every other one, from the first on, an opening one. If each opening
  quote is the first byte of a field, or follows another quote immediately, then a byte is inside
  quotes if and only if the number of quotes before it is odd. Proof, by induction over the quotes:
  before the first one nothing is quoted. An opening quote at the beginning of a field begins a
  quoted part. The next quote, a closing one, ends this part, unless a third one follows it
  immediately: then the two are a quote in a part that continues, just as if the closing one ended
  it and the opening one began it again. All quotes are counted in one pass, before the rows are
  parsed. A file with another opening quote, as in `5" disk`, is not divided.
- A `\r` alone ends a row too, for some programs. That affects neither of these rules, because a
  part may hold any number of rows; but a header that contains one is not found, and its file is not
  divided.
"""

from __future__ import annotations

import io
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any, cast

import numpy as np

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, to_bytes
from imageshards.transforms.inputs import ranges
from imageshards.transforms.inputs.archives.members import View
from imageshards.transforms.inputs.kind import InputKind
from imageshards.transforms.inputs.unpack import gunzip
from imageshards.transforms.storage import ReadError, StoreError
from imageshards.transforms.storage.objects import ReadAhead
from imageshards.transforms.storage.protocol import AGAIN

_LOG = logging.getLogger(__name__)
_PART_BYTES = 16 << 20
"""Bytes of a part of a text file: some 200,000 rows."""
_PART_ROWS = 1 << 18
_PART_GROUP_BYTES = 256 << 20
"""Fewest rows or bytes of a part of a Parquet file, which consists of whole row groups."""
_MOST_PARTS = 4096
_PIECE_BYTES = 4 << 20
_READS_IN_FLIGHT = 16
_LINE_BYTES = 1 << 16
_LONE_RETURN = re.compile(rb"\r(?!\n)")
_EMPTY = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*")
_MARK_BYTES = 3


class NotDivisible(Exception):
    """A table that is listed as a whole; the message says why."""


@dataclass(frozen=True)
class Span:
    """A manifest, or a part of it.

    Attributes:
      source: the manifest.
      size: its bytes, or -1 if unknown.
      stamp: its stamp, or 0 if unknown.
      head: bytes of the header, or number of rows before the part of a Parquet file.
      begin: offset at or after which the rows of the part begin, or its first row group.
      end: offset at or after which the row after the part begins, or the row group after it; 0: the
        whole manifest.
    """

    source: InputKind
    size: int = -1
    stamp: int = 0
    head: int = 0
    begin: int = 0
    end: int = 0

    @property
    def uri(self) -> str:
        """The URI of the manifest."""
        return self.source.uri

    @property
    def place(self) -> tuple[int, ...]:
        """The attributes without the manifest."""
        return self.size, self.stamp, self.head, self.begin, self.end

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole manifest."""
        return not self.end

    @property
    def has_first_row(self) -> bool:
        """Whether it holds the first row, which is the header of some formats."""
        return self.begin <= self.head

    @property
    def is_gzip(self) -> bool:
        """Whether the name of the manifest says that it is compressed."""
        return self.uri.lower().endswith(".gz")

    def unreadable(self, error: Exception, where: str = "cannot be read") -> BuildError:
        """The error of a manifest that cannot be read."""
        return self.source.unreadable(error, where)

    def open(self) -> IO[bytes]:
        """Opens the text, decompressed: the header, and the rows of the part.

        Raises:
          BuildError: it cannot be read.
        """
        if self.is_whole:
            return self.open_file()
        begin = self.head if self.has_first_row else self._line_start(self.begin)
        places = [(0, self.head), (begin, max(begin, self._line_start(self.end)))]
        return ReadAhead(_Places(self.read_at, places), _PIECE_BYTES)

    def open_file(self) -> IO[bytes]:
        """Opens the whole file, decompressed.

        Raises:
          BuildError: it cannot be read.
        """
        if not self.is_whole:
            view = View(self.read_at, 0, self.size)
            view.longest_read = self.size
            return cast(IO[bytes], view)
        try:
            file = storage.open_read(self.uri)
        except OSError as error:
            raise self.unreadable(error) from error
        return gunzip(file) if self.is_gzip else file

    def read_at(self, size: int, offset: int) -> bytes:
        """Reads a range of the version that was listed.

        Raises:
          StoreError: there is another version now.
        """
        try:
            return storage.read_range(self.uri, offset, size, self.stamp)
        except ReadError as error:
            raise StoreError(f"{self.uri}: changed while it was listed; {AGAIN}") from error

    def line(self, number: int) -> int:
        """The number of a line in the file, from its number in the text of the part; from 1 on."""
        if self.is_whole or self.has_first_row:
            return number
        header = self._count_lines(0, self.head)
        if number <= header:
            return number
        return number + self._count_lines(self.head, self._line_start(self.begin))

    def _count_lines(self, begin: int, end: int) -> int:
        lines, last = 0, b""
        for offset in range(begin, end, _PIECE_BYTES):
            piece = self.read_at(min(_PIECE_BYTES, end - offset), offset)
            lines += piece.count(b"\n") + piece.count(b"\r") - piece.count(b"\r\n")
            lines -= last == b"\r" and piece[:1] == b"\n"
            last = piece[-1:]
        return lines

    def _line_start(self, offset: int) -> int:
        """The first offset from this one on at which a line begins."""
        while 0 < offset < self.size:
            piece = self.read_at(_LINE_BYTES, offset - 1)
            found = piece.find(b"\n")
            if found >= 0:
                return offset + found
            offset += len(piece)
            if not piece:
                break
        return min(offset, self.size)


class _Places(io.RawIOBase):
    """The ranges of a file, one after the other, as a file."""

    def __init__(
        self, read_at: Callable[[int, int], bytes], places: Iterable[tuple[int, int]]
    ) -> None:
        self._read_at = read_at
        self._places = deque(place for place in places if place[0] < place[1])

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._places:
            return 0
        begin, end = self._places.popleft()
        data = self._read_at(min(len(buffer), end - begin), begin)
        buffer[: len(data)] = data
        if data and begin + len(data) < end:
            self._places.appendleft((begin + len(data), end))
        return len(data)


def divided(whole: Span) -> list[Span]:
    """Divides a manifest into parts that together hold all of its rows, each once.

    Returns:
      The parts; none if it is listed as a whole.

    Raises:
      BuildError: it cannot be read.
    """
    suffix = whole.uri.lower().rpartition(".")[2]
    try:
        if suffix == "parquet":
            return _row_groups(whole)
        if whole.is_gzip or whole.size < 2 * _PART_BYTES:
            return []
        _check_ranges(whole)
        if suffix in ("csv", "tsv"):
            return _csv_parts(whole, b"\t" if suffix == "tsv" else b",")
        return _line_parts(whole, has_header=suffix != "txt")
    except NotDivisible as error:
        _LOG.info("%s: listed by one worker, because %s", whole.uri, error)
        return []


def _check_ranges(whole: Span) -> None:
    try:
        ranges.check_readable(whole.uri, whole.stamp)
    except StoreError as error:
        raise NotDivisible(f"its ranges cannot be read: {error}") from error


def _step(size: int) -> int:
    return max(_PART_BYTES, size // _MOST_PARTS)


def _row_groups(whole: Span) -> list[Span]:
    import pyarrow
    from pyarrow import parquet

    try:
        with whole.open_file() as file:
            found = parquet.ParquetFile(file).metadata
    except (pyarrow.ArrowException, OSError) as error:
        raise whole.unreadable(error, "not a Parquet file") from error
    parts = []
    rows = begin = before = size = 0
    for group in range(found.num_row_groups):
        rows += found.row_group(group).num_rows
        size += found.row_group(group).total_byte_size
        if (
            rows - before >= _PART_ROWS
            or size >= _PART_GROUP_BYTES
            or group == found.num_row_groups - 1
        ):
            parts.append(replace(whole, head=before, begin=begin, end=group + 1))
            begin, before, size = group + 1, rows, 0
    return parts


def _line_parts(whole: Span, has_header: bool) -> list[Span]:
    head = 0
    if has_header:
        # The first row has the names of the columns: each part needs it.
        head = _header_end(whole.read_at(_PIECE_BYTES, 0))
    return _parts(whole, head, range(head + _step(whole.size), whole.size, _step(whole.size)))


def _csv_parts(whole: Span, delimiter: bytes) -> list[Span]:
    head, *starts = row_starts(_pieces(whole), delimiter, _step(whole.size))
    return _parts(whole, head, starts)


def _parts(whole: Span, head: int, starts: Iterable[int]) -> list[Span]:
    begins = [head, *(start for start in starts if start < whole.size)]
    ends = [*begins[1:], whole.size]
    return [
        replace(whole, head=head, begin=begin, end=end)
        for begin, end in zip(begins, ends, strict=True)
    ]


def _header_end(piece: bytes) -> int:
    """The offset after the first line that is not blank, of a JSONL file that begins with a piece.

    Raises:
      NotDivisible: it is not found.
    """
    text = piece.decode("utf-8-sig", "surrogateescape")
    first = len(piece) - len(to_bytes(text.lstrip()))
    end = piece.find(b"\n", first) + 1
    if not end:
        raise NotDivisible(f"its first row is not in its first {len(piece):,} bytes")
    if _LONE_RETURN.search(piece, 0, end):
        raise NotDivisible("its lines end with carriage returns alone")
    return end


def row_starts(pieces: Iterable[bytes], delimiter: bytes, step: int) -> list[int]:
    """Offsets in a CSV file at which rows begin.

    Args:
      pieces: the bytes of the file.
      delimiter: the byte between fields.
      step: bytes between two results, at least.

    Returns:
      The offset after the header, and offsets of further rows, in order.

    Raises:
      NotDivisible: the beginnings of rows cannot be found.
    """
    starts: list[int] = []
    offset = quotes_before = 0
    last = b"\n"
    target = 0
    before_a_quote = np.frombuffer(b'\n\r"' + delimiter, np.uint8)
    for piece in pieces:
        if not offset:
            empty = _EMPTY.match(piece)
            assert empty
            target = empty.end()
        quotes = np.flatnonzero(np.frombuffer(piece, np.uint8) == ord('"'))
        opening = quotes[quotes_before % 2 :: 2]
        if not offset and piece.startswith(b"\xef\xbb\xbf"):
            opening = opening[opening != _MARK_BYTES]
        before = np.frombuffer(last + piece, np.uint8)[opening]
        if not np.isin(before, before_a_quote).all():
            raise NotDivisible("a value that is not quoted contains a quote")
        end = piece.find(b"\n", max(0, target - offset))
        while end >= 0:
            inner = int(np.searchsorted(quotes, end))
            if (quotes_before + inner) % 2 == 0:
                starts.append(offset + end + 1)
                target = starts[-1] + step
                end = piece.find(b"\n", max(0, target - offset))
            elif inner == len(quotes):
                break  # the quoted part ends in a later piece
            else:
                end = piece.find(b"\n", int(quotes[inner]) + 1)
        if not offset and (not starts or _LONE_RETURN.search(piece, 0, starts[0])):
            raise NotDivisible("its header is long, or its lines end with carriage returns alone")
        quotes_before += len(quotes)
        offset += len(piece)
        last = piece[-1:]
    return starts


def _pieces(whole: Span) -> Iterator[bytes]:
    """The bytes of a file in order, read by concurrent requests where these have latency."""
    reads = (partial(whole.read_at, _PIECE_BYTES, at) for at in range(0, whole.size, _PIECE_BYTES))
    if storage.is_local(whole.uri):
        yield from (read() for read in reads)
        return
    waiting: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_READS_IN_FLIGHT, "imageshards-scan") as threads:
        for read in reads:
            waiting.append(threads.submit(read))
            if len(waiting) > _READS_IN_FLIGHT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
