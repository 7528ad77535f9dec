"""Reads the rows of tables, in chunks: CSV, TSV, JSONL, Parquet, and plain lists of URIs.

Memory is bounded, whatever a table holds: a chunk ends after some rows or some bytes, and a line or
row that is too long is an error.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, NamedTuple

from imageshards.transforms.elements import BuildError, check_unique, counted, quoted
from imageshards.transforms.inputs import listed
from imageshards.transforms.inputs.spans import Span

SUFFIX = re.compile(r"\.(csv|tsv|jsonl|ndjson|txt)(\.gz)?$|\.(parquet)$", re.IGNORECASE)
"""The suffixes of tables."""
_LONGEST_ROW = 4 << 20
"""Characters of a line or a row. A row of a manifest has an URI, a label and some features."""
_BLOCK_BYTES = 1 << 20
_CHUNK_BYTES = 16 << 20


class Rows(NamedTuple):
    """Some rows of a table.

    Attributes:
      columns: name -> values.
      where: index of a row -> the file and line (or row) for messages.
    """

    columns: Mapping[str, Sequence[Any]]
    where: Callable[[int], str]


Table = tuple[list[str], Iterator[Rows]]
"""Header, rows."""


def open_table(span: Span, columns: list[str]) -> Table:
    """Opens a table, or a part of it.

    Args:
      span: the part.
      columns: names of the columns to read, if there are any; of a list of URIs, the first is the
        name of its only column.

    Raises:
      BuildError: it cannot be read, or is malformed. Reading the rows raises it too.
    """
    header, rows = _open(span, columns)
    check_unique(span.uri, header, columns)
    return header, rows


def _open(span: Span, columns: list[str]) -> Table:
    suffix = SUFFIX.search(span.uri)
    assert suffix is not None
    kind = (suffix[1] or suffix[3]).lower()
    if kind == "parquet":
        return _open_parquet(span, columns)
    if kind in ("jsonl", "ndjson"):
        return _open_jsonl(span, columns)
    if kind == "txt":
        return columns[:1], _text_rows(span, columns[0])
    return _open_csv(span, "\t" if kind == "tsv" else ",", columns)


class _Lines:
    """The lines of a text, with their ends, as the csv module requires.

    Attributes:
      row_size: characters read since the last row ended. Whoever finds that end sets it to 0.
    """

    def __init__(self, span: Span, text: io.TextIOWrapper) -> None:
        self._span = span
        self._text = text
        self._number = 0
        self.row_size = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(_LONGEST_ROW):
            self._number += 1
            self.row_size += len(line)
            if self.row_size >= _LONGEST_ROW:
                number = self._span.line(self._number)
                raise BuildError(
                    f"{self._span.uri}:{number}: a row of more than {_LONGEST_ROW:,} characters, "
                    "which is no row of a manifest"
                )
            yield line

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yields (number in the text, line) of each line; each is a row."""
        for line in self:
            self.row_size = 0
            yield self._number, line


@contextmanager
def _open_text(span: Span) -> Iterator[_Lines]:
    """Opens a text; the errors of reading it are BuildErrors."""
    # Only the beginning of the file may have a byte order mark that is not text.
    encoding = "utf-8-sig" if span.head or span.has_first_row else "utf-8"
    with span.open() as file:
        try:
            yield _Lines(span, io.TextIOWrapper(file, encoding=encoding, newline=""))
        except UnicodeDecodeError as error:
            raise BuildError(f"{_not_utf8(span)}; save the manifest as UTF-8") from error
        except (OSError, EOFError, zlib.error) as error:
            raise span.unreadable(error) from error


def _not_utf8(span: Span) -> str:
    # Text is decoded in blocks, so the line is found by reading the file again.
    with span.open() as file:
        number = 1
        while line := file.readline(_LONGEST_ROW):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                if error.end < len(line) or line.endswith(b"\n"):
                    byte, where = line[error.start], f"{span.uri}:{span.line(number)}"
                    return f"{where}: not UTF-8 (byte 0x{byte:02x} at {error.start})"
            number += line.endswith(b"\n")
    return f"{span.uri}: not UTF-8"


def _chunked(rows: Iterator[tuple[int, str | dict[str, Any], int]]) -> Iterator[list[Any]]:
    """Yields lists of (line, row); the third value of a row is its size."""
    chunk: list[Any] = []
    size = 0
    for number, row, length in rows:
        chunk.append((number, row))
        size += length
        if len(chunk) >= listed.CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _open_csv(span: Span, delimiter: str, columns: list[str]) -> Table:
    with _open_text(span) as lines:
        try:
            header = next(filter(None, csv.reader(lines, delimiter=delimiter)), None)
        except csv.Error as error:
            raise BuildError(f"{span.uri}:1: {error}") from error
    if header is None:
        raise BuildError(f"{span.uri}: the manifest is empty")
    needed = [name for name in dict.fromkeys(columns) if name in header]
    return header, _read_csv(span, delimiter, needed)


def _read_csv(span: Span, delimiter: str, needed: list[str]) -> Iterator[Rows]:
    # Arrow parses five times as fast as the csv module, which finds the line of an error.
    import pyarrow
    from pyarrow import csv as arrow

    def line_of(before: int, row: int) -> str:
        lines = _csv_lines(span, delimiter)
        number = next(itertools.islice(lines, before + row + 1, None))[0]
        return f"{span.uri}:{span.line(number)}"

    before = 0
    try:
        with (
            span.open() as file,
            arrow.open_csv(
                quotes := _QuoteCounter(file),
                read_options=arrow.ReadOptions(block_size=_BLOCK_BYTES),
                parse_options=arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=arrow.ConvertOptions(
                    include_columns=needed,
                    column_types={name: pyarrow.string() for name in needed},
                ),
            ) as batches,
        ):
            for batch in batches:
                columns = {name: batch.column(name).to_pylist() for name in needed}
                yield Rows(columns, partial(line_of, before))
                before += batch.num_rows
        if quotes.count % 2:
            # Arrow closes an open quote at the end of the file.
            for _ in _csv_lines(span, delimiter):
                pass
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        for _ in _csv_lines(span, delimiter):
            pass  # raises an error that names the line
        raise span.unreadable(error) from error


class _QuoteCounter(io.RawIOBase):
    """A file that counts the quotes in the data that is read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.count += data.count(b'"')
        return data


def _csv_lines(span: Span, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line on which it ends, values) of the header and every row, and checks them.

    Lines are counted in the text of the part; see `Span.line`.
    """
    with _open_text(span) as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        width = 0
        try:
            for row in filter(None, reader):  # empty lines are not rows
                lines.row_size = 0
                width = width or len(row)
                if len(row) != width:
                    raise BuildError(
                        f"{span.uri}:{span.line(reader.line_num)}: {counted(len(row), 'value')}, "
                        f"but the header has {width}"
                    )
                yield reader.line_num, row
        except csv.Error as error:
            raise BuildError(f"{span.uri}:{span.line(reader.line_num)}: {error}") from error


def _line_of(span: Span, numbers: Sequence[int]) -> Callable[[int], str]:
    return lambda row: f"{span.uri}:{span.line(numbers[row])}"


def _text_rows(span: Span, column: str) -> Iterator[Rows]:
    with _open_text(span) as lines:
        rows = ((n, text, len(line)) for n, line in lines.numbered() if (text := line.strip()))
        for chunk in _chunked(rows):
            numbers, texts = zip(*chunk, strict=True)
            yield Rows({column: texts}, _line_of(span, numbers))


def _read_jsonl(span: Span) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Yields (line in the text, object, size) of every line that is not empty."""
    with _open_text(span) as lines:
        for number, line in lines.numbered():
            if not line.strip():
                continue
            try:
                row = json.loads(line, object_pairs_hook=_unique)
            except _RepeatedKey as error:
                raise BuildError(
                    f"{span.uri}:{span.line(number)}: an object has the key {error} twice: rename "
                    "one of them"
                ) from error
            except (ValueError, RecursionError) as error:
                raise BuildError(f"{span.uri}:{span.line(number)}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise BuildError(f"{span.uri}:{span.line(number)}: not a JSON object")
            yield number, row, len(line)


class _RepeatedKey(Exception):
    """An object of JSON has a key twice; the message is the key in quotes."""


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKey(quoted(next(name for name in names if names.count(name) > 1)))
    return found


def _open_jsonl(span: Span, columns: list[str]) -> Table:
    every = _read_jsonl(span)
    first = next(every, None)
    if first is None:
        raise BuildError(f"{span.uri}: the manifest is empty")
    header = list(first[1])
    absent = [column for column in columns if column not in header]
    rows = itertools.chain([first], every) if span.has_first_row else every

    def chunks() -> Iterator[Rows]:
        for chunk in _chunked(rows):
            numbers, objects = zip(*chunk, strict=True)
            for number, row in chunk if absent else ():
                if late := next((column for column in absent if column in row), None):
                    raise BuildError(
                        f"{span.uri}:{span.line(number)}: has {late!r}, which line {first[0]} "
                        "does not; every line must have the same columns (null where there is no "
                        "value)"
                    )
            values = {column: [row.get(column) for row in objects] for column in header}
            yield Rows(values, _line_of(span, numbers))

    return header, chunks()


def _open_parquet(span: Span, columns: list[str]) -> Table:
    import pyarrow
    from pyarrow import parquet

    file = span.open_file()
    try:
        table = parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise span.unreadable(error, "not a Parquet file") from error
    header = list(table.schema_arrow.names)
    needed = [name for name in dict.fromkeys(columns) if name in header]
    groups = range(span.begin, span.end or table.num_row_groups)

    def row_of(before: int, row: int) -> str:
        return f"{span.uri}: row {before + row}"

    def chunks() -> Iterator[Rows]:
        before = 1 + span.head
        try:
            for batch in table.iter_batches(
                batch_size=_rows_at_a_time(table, groups, header, needed),
                columns=needed,
                row_groups=groups,
            ):
                values = {name: batch.column(name).to_pylist() for name in needed}
                yield Rows(values, partial(row_of, before))
                before += batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise span.unreadable(error, f"after row {before - 1}") from error

    return header, chunks()


def _rows_at_a_time(table: Any, groups: Sequence[int], header: list[str], needed: list[str]) -> int:
    """Rows of a chunk, fewer if they are large. A value that a dictionary repeats counts once."""
    wanted = set(needed)
    rows = size = 0
    for group in groups:
        found = table.metadata.row_group(group)
        rows += found.num_rows
        for index in range(found.num_columns):
            column = found.column(index)
            if column.path_in_schema.partition(".")[0] in wanted:
                size += column.total_uncompressed_size
    return max(1, min(listed.CHUNK_ROWS, rows * _CHUNK_BYTES // max(size, 1)))
