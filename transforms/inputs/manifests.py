"""Manifests: CSV, TSV, JSONL, Parquet and plain lists of URIs, read by column.

Every message says the line, or the row, on which it was found.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import os
import posixpath
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, NamedTuple

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.inputs import listing
from imageshards.transforms.inputs.listing import Listing, Source

_SUFFIX = re.compile(r"\.(csv|tsv|jsonl|ndjson|txt)(\.gz)?$|\.(parquet)$", re.IGNORECASE)


def is_manifest(uri: str) -> bool:
    """Whether a URI is that of a manifest, by its ending."""
    return _SUFFIX.search(uri) is not None


class _Rows(NamedTuple):
    """Some rows of a manifest: columns by name; where a row stands."""

    columns: Mapping[str, Sequence[Any]]
    where: Callable[[int], str]


_Manifest = tuple[list[str], Iterator[_Rows]]  # header, rows


def list_manifest(
    source: Source,
    uri_column: str,
    required: list[str],
    optional: list[str],
    features: list[str],
) -> Iterator[Listing]:
    """Lists a manifest.

    Args:
      source: a manifest.
      uri_column: the column of URIs; relative ones start at the manifest's own place.
      required: columns that must be there.
      optional: columns that are taken where they are.
      features: columns that must be there and are taken as they are.

    Raises:
      BuildError: it cannot be read, or is not what it must be.
    """
    header, chunks = _open_manifest(source, [uri_column, *required, *optional, *features])
    for column in (uri_column, *required, *features):
        if column not in header:
            named = " (--uri_column names another)" if column == uri_column else ""
            if len(header) == 1 and ";" in header[0]:
                named = ": it seems to be separated by semicolons, write commas"
            raise BuildError(
                f"{source.uri}: no column {column!r}{named}; its columns are: {', '.join(header)}"
            )
    for name in optional:
        near = [other for other in header if other != name and other.strip().lower() == name]
        if near and name not in header:
            raise BuildError(
                f"{source.uri}: its column {near[0]!r} is not {name!r}: rename it, or write "
                f"--{name}s 'column:{near[0]}' (or --{name}s with another rule)"
            )
    wanted = [name for name in dict.fromkeys((*required, *optional)) if name in header]
    for rows in chunks:
        texts = {
            name: _texts(rows.columns[name], name, rows.where)
            for name in dict.fromkeys((uri_column, *wanted))
        }
        if not all(texts[uri_column]):
            row = texts[uri_column].index(None)
            raise BuildError(f"{rows.where(row)}: no {uri_column}")
        uris, roots = _absolute(texts[uri_column], source.uri.rpartition("/")[0])  # type: ignore[arg-type]
        unknown = len(uris)
        yield Listing(
            uris,
            roots,
            array("q", [-1]) * unknown,
            array("q", [0]) * unknown,
            {name: texts[name] for name in wanted},
            {name: list(rows.columns[name]) for name in features},
        )


# What may make a URI need more than a prefix, in texts joined by line breaks. Substrings and not
# a pattern: `in` looks through a gigabyte a second, `re` through 15 MB.
_ODD = ("/.", "\n.", "/\n", "\n~", "\nfile:", "\0")


def _is_odd(texts: list[str]) -> bool:
    joined = "\n".join(("", *texts, ""))
    return joined.count("//") != joined.count("://") or any(sign in joined for sign in _ODD)


def _absolute(texts: list[str], place: str) -> tuple[list[str], array[int]]:
    """The URIs that a manifest in `place` means, and the lengths of their roots."""
    prefix = place + "/"
    if _is_odd(texts):
        uris = [_normal(text, prefix) for text in texts]
    else:
        uris = [t if t[0] == "/" or "://" in t else prefix + t for t in texts]
    below = len(prefix)
    roots = array(
        "I",
        [
            below if uri.startswith(prefix) else 1 if uri[0] == "/" else uri.index("//") + 2
            for uri in uris
        ],
    )
    return uris, roots


def _normal(text: str, prefix: str) -> str:
    if "\0" in text:
        raise BuildError(f"{prefix}: the URI {text!r} holds a NUL")
    if text[0] in "/~" or not storage.is_local(text):
        return storage.normalize(text)
    if storage.is_local(prefix):
        return os.path.normpath(prefix + text)
    scheme, _, path = prefix.partition("://")
    return f"{scheme}://{posixpath.normpath(path + text)}"


_NOTHING = type(None)


def _texts(values: Sequence[Any], column: str, where: Callable[[int], str]) -> list[str | None]:
    """Texts and numbers as texts; None where there is nothing."""
    if {*map(type, values)} <= {str, _NOTHING}:
        texts = [value or None for value in values]
    else:
        texts = [_text(value, column, where, row) for row, value in enumerate(values)]
    try:
        "".join(filter(None, texts)).encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, escaped in JSON
        row = next(i for i, text in enumerate(texts) if text and error.object[error.start] in text)
        raise BuildError(f"{where(row)}: {column} is not Unicode: {texts[row]!r}") from error
    return texts


def _text(value: Any, column: str, where: Callable[[int], str], row: int) -> str | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value == "" or value != value:  # NaN is how tables say "nothing"
        return None
    if isinstance(value, (str, bool, int, float)):
        return str(value)
    raise BuildError(f"{where(row)}: {column} must be a text or a number, not {value!r}")


def _open_manifest(source: Source, columns: list[str]) -> _Manifest:
    suffix = _SUFFIX.search(source.uri)
    assert suffix is not None
    kind = (suffix[1] or suffix[3]).lower()
    if kind == "parquet":
        return _open_parquet(source, columns)
    if kind in ("jsonl", "ndjson"):
        return _open_jsonl(source, columns)
    if kind == "txt":
        return columns[:1], _text_rows(source, columns[0])
    return _open_csv(source, "\t" if kind == "tsv" else ",", columns)


def _open_binary(source: Source) -> IO[bytes]:
    try:
        file = storage.open_read(source.uri)
    except OSError as error:
        raise BuildError(
            f"--input {source.text}: cannot be read: {error.strerror or 'no such file'}"
        ) from error
    if source.uri.lower().endswith(".gz"):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    return file


@contextmanager
def _open_text(source: Source) -> Iterator[Iterator[str]]:
    """Lines with their own ends, as csv wants them; tells what is wrong with them."""
    with _open_binary(source) as file:
        try:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            raise BuildError(f"{_not_utf8(source)}; save the manifest as UTF-8") from error
        except (OSError, EOFError, zlib.error) as error:
            raise BuildError(f"{source.uri}: cannot be read: {error}") from error


def _not_utf8(source: Source) -> str:
    # Text is decoded in blocks: only a second look finds the line.
    with _open_binary(source) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start]
                return f"{source.uri}:{number}: not UTF-8 (byte 0x{byte:02x} at {error.start})"
    return f"{source.uri}: not UTF-8"


def _chunked(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(rows, listing.CHUNK_ROWS)):
        yield chunk


def _open_csv(source: Source, delimiter: str, columns: list[str]) -> _Manifest:
    with _open_text(source) as lines:
        try:
            header = next(filter(None, csv.reader(lines, delimiter=delimiter)), None)
        except csv.Error as error:
            raise BuildError(f"{source.uri}:1: {error}") from error
    if header is None:
        raise BuildError(f"{source.uri}: the manifest is empty")
    wanted = [name for name in dict.fromkeys(columns) if name in header]
    return header, _read_csv(source, delimiter, wanted)


def _read_csv(source: Source, delimiter: str, wanted: list[str]) -> Iterator[_Rows]:
    # Arrow parses five times as fast as the csv module, which can say on which line it is.
    import pyarrow
    from pyarrow import csv as arrow

    def line_of(row: int) -> str:
        lines = _csv_lines(source, delimiter)
        return f"{source.uri}:{next(itertools.islice(lines, row + 1, None))[0]}"

    before = 0
    try:
        with (
            _open_binary(source) as file,
            arrow.open_csv(
                quotes := _QuoteCounter(file),
                parse_options=arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=arrow.ConvertOptions(
                    include_columns=wanted,
                    column_types={name: pyarrow.string() for name in wanted},
                ),
            ) as batches,
        ):
            for batch in batches:
                columns = {name: batch.column(name).to_pylist() for name in wanted}
                yield _Rows(columns, partial(_shifted, line_of, before))
                before += batch.num_rows
        if quotes.count % 2:
            # Arrow takes a quote that is never closed for one that is closed at the end.
            for _ in _csv_lines(source, delimiter):
                pass
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        for _ in _csv_lines(source, delimiter):
            pass  # raises where it finds what is wrong
        raise BuildError(f"{source.uri}: cannot be read: {error}") from error


class _QuoteCounter(io.RawIOBase):
    """A file that counts the quotes that are read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.count += data.count(b'"')
        return data


def _csv_lines(source: Source, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line on which it ends, values) of every row, the header among them; checks them."""
    with _open_text(source) as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        width = 0
        try:
            for row in filter(None, reader):  # an empty line is no row
                width = width or len(row)
                if len(row) != width:
                    raise BuildError(
                        f"{source.uri}:{reader.line_num}: {len(row)} values, "
                        f"but the header has {width}"
                    )
                yield reader.line_num, row
        except csv.Error as error:
            raise BuildError(f"{source.uri}:{reader.line_num}: {error}") from error


def _shifted(where: Callable[[int], str], before: int, row: int) -> str:
    return where(before + row)


def _numbered(source: Source, numbers: Sequence[int], row: int) -> str:
    return f"{source.uri}:{numbers[row]}"


def _text_rows(source: Source, column: str) -> Iterator[_Rows]:
    with _open_text(source) as lines:
        stripped = ((n, line.strip()) for n, line in enumerate(lines, 1) if line.strip())
        for chunk in _chunked(stripped):
            numbers, texts = zip(*chunk, strict=True)
            yield _Rows({column: texts}, partial(_numbered, source, numbers))


def _read_jsonl(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not empty."""
    with _open_text(source) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise BuildError(f"{source.uri}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise BuildError(f"{source.uri}:{number}: not a JSON object")
            yield number, row


def _open_jsonl(source: Source, columns: list[str]) -> _Manifest:
    every = _read_jsonl(source)
    first = next(every, None)
    if first is None:
        raise BuildError(f"{source.uri}: the manifest is empty")
    header = list(first[1])
    unheard = [column for column in columns if column not in header]

    def chunks() -> Iterator[_Rows]:
        for chunk in _chunked(itertools.chain([first], every)):
            numbers, rows = zip(*chunk, strict=True)
            for number, row in chunk if unheard else ():
                if late := next((column for column in unheard if column in row), None):
                    raise BuildError(
                        f"{source.uri}:{number}: has {late!r}, which line {first[0]} has not; "
                        "every line must have the same columns (null where there is no value)"
                    )
            values = {column: [row.get(column) for row in rows] for column in header}
            yield _Rows(values, partial(_numbered, source, numbers))

    return header, chunks()


def _open_parquet(source: Source, columns: list[str]) -> _Manifest:
    import pyarrow
    from pyarrow import parquet

    file = _open_binary(source)
    try:
        table = parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise BuildError(f"{source.uri}: not a Parquet file: {error}") from error
    header = list(table.schema_arrow.names)
    wanted = [name for name in dict.fromkeys(columns) if name in header]

    def chunks() -> Iterator[_Rows]:
        before = 1
        try:
            for batch in table.iter_batches(batch_size=listing.CHUNK_ROWS, columns=wanted):
                values = {name: batch.column(name).to_pylist() for name in wanted}
                yield _Rows(
                    values, partial(_shifted, lambda row: f"{source.uri}: row {row}", before)
                )
                before += batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise BuildError(f"{source.uri}: after row {before - 1}: {error}") from error

    return header, chunks()
