"""Manifests as inputs: CSV, TSV, JSONL, Parquet, and plain lists of URIs.

Only the columns that are needed are read. An error message contains the line or row.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import IO, Any, NamedTuple

from imageshards.transforms import storage
from imageshards.transforms.elements import (
    BuildError,
    Problem,
    counted,
    enumerated,
    quoted,
)
from imageshards.transforms.inputs import listed
from imageshards.transforms.inputs.kind import (
    FileState,
    InputKind,
    ListingOptions,
    WorkUnit,
    list_references,
    register,
)
from imageshards.transforms.inputs.listed import Listed
from imageshards.transforms.inputs.unpack import gunzip
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.references.batch import RefBatch

_SUFFIX = re.compile(r"\.(csv|tsv|jsonl|ndjson|txt)(\.gz)?$|\.(parquet)$", re.IGNORECASE)
_PIECE_BYTES = 1 << 20
_LONGEST_URI = 1 << 13
"""More characters than a path, an object's name or a signed URL has."""


class _Rows(NamedTuple):
    """Some rows of a manifest.

    Attributes:
      columns: name -> values.
      where: index of a row -> the file and line (or row) for messages.
    """

    columns: Mapping[str, Sequence[Any]]
    where: Callable[[int], str]


_Manifest = tuple[list[str], Iterator[_Rows]]  # header, rows


@register
class Manifest(InputKind):
    """A table with a column of URIs. Relative URIs are relative to the manifest's folder.

    URIs below this folder are named by their path below it, all others by the whole URI.
    """

    noun = "a manifest"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a URI has the suffix of a manifest."""
        return _SUFFIX.search(uri) is not None

    def check(self, options: ListingOptions) -> None:
        """Reads the header and the first rows."""
        next(list_references(WorkUnit(self), options), None)

    def fingerprint(self, unit: WorkUnit, options: ListingOptions) -> Iterator[FileState]:
        """Yields a digest of the content: manifests are often rewritten without a change."""
        digest, size = blake2b(digest_size=16), 0
        try:
            with storage.open_read(self.uri) as file:
                while data := file.read(_PIECE_BYTES):
                    digest.update(data)
                    size += len(data)
        except OSError as error:
            raise self.unreadable(error) from error
        yield self.uri, size, digest.hexdigest()

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed]:
        """Lists the rows."""
        columns = options.columns
        names = (*columns.required, *columns.optional)
        header, chunks = self._open([options.uri_column, *names, *columns.feature_names])
        self._check_header(header, options)
        texts = [name for name in dict.fromkeys(names) if name in header]
        for rows in chunks:
            yield Listed(self._references(rows, options.uri_column, texts, columns.features))

    def _references(
        self, rows: _Rows, uri_column: str, names: list[str], features: Sequence[FeatureColumn]
    ) -> RefBatch:
        texts = {
            name: _texts(rows.columns[name], name, rows.where)
            for name in dict.fromkeys((uri_column, *names))
        }
        if not all(texts[uri_column]):
            row = texts[uri_column].index(None)
            raise BuildError(f"{rows.where(row)}: no value in the column {uri_column!r}")
        if max(map(len, texts[uri_column])) > _LONGEST_URI:  # type: ignore[arg-type]
            raise _too_long(texts[uri_column], uri_column, rows.where)  # type: ignore[arg-type]
        uris, roots = _absolute(texts[uri_column], self.uri.rpartition("/")[0])  # type: ignore[arg-type]
        refs = RefBatch.listed(uris, roots).with_texts({name: texts[name] for name in names})
        values: dict[FeatureColumn, list[Any]] = {}
        problems: dict[int, Problem] = {}
        for feature in features:
            values[feature], wrong = feature.values(rows.columns[feature.column])
            for row, reason in wrong.items():
                problems.setdefault(row, Problem("features", "NoFeature", reason))
        return (refs.with_problems(problems) if problems else refs).with_features(values)

    def _check_header(self, header: list[str], options: ListingOptions) -> None:
        """Raises a BuildError if a required column is missing, or an optional one is misspelled."""
        for column in (options.uri_column, *options.columns.all_required):
            if column not in header:
                named = (
                    " (--uri_column specifies another one)" if column == options.uri_column else ""
                )
                if len(header) == 1 and ";" in header[0]:
                    named = "; it seems to be separated by semicolons: use commas"
                raise BuildError(
                    f"{self.uri}: no column {column!r}{named}; its columns are: "
                    f"{enumerated(header)}"
                )
        for name in options.columns.optional:
            near = [other for other in header if other != name and other.strip().lower() == name]
            if near and name not in header:
                raise BuildError(
                    f"{self.uri}: its column {near[0]!r} is not named {name!r}: rename it, or "
                    f"write --{name}s 'column:{near[0]}' (or another rule for --{name}s)"
                )

    def _open(self, columns: list[str]) -> _Manifest:
        suffix = _SUFFIX.search(self.uri)
        assert suffix is not None
        kind = (suffix[1] or suffix[3]).lower()
        if kind == "parquet":
            return _open_parquet(self, columns)
        if kind in ("jsonl", "ndjson"):
            return _open_jsonl(self, columns)
        if kind == "txt":
            return columns[:1], _text_rows(self, columns[0])
        return _open_csv(self, "\t" if kind == "tsv" else ",", columns)


# URIs, joined by line breaks, that contain none of these need at most a prefix to become absolute.
# `in` searches 1 GB/s, a regular expression 15 MB/s.
_UNUSUAL = ("/.", "\n.", "/\n", "\n~", "\nfile:", "\0")


def _have_unusual(texts: list[str]) -> bool:
    joined = "\n".join(("", *texts, ""))
    return joined.count("//") != joined.count("://") or any(part in joined for part in _UNUSUAL)


def _absolute(texts: list[str], folder: str) -> tuple[list[str], array[int]]:
    """The absolute URIs of a manifest in `folder`, and the lengths of their roots."""
    prefix = folder + "/"
    if _have_unusual(texts):
        uris = [_normal(text, prefix) for text in texts]
    else:
        uris = [t if t[0] == "/" or "://" in t else prefix + t for t in texts]
    below = len(prefix)
    roots = array("I", [below if uri.startswith(prefix) else 0 for uri in uris])
    return uris, roots


def _normal(text: str, prefix: str) -> str:
    if "\0" in text:
        raise BuildError(f"{prefix}: the URI {quoted(text)} holds a NUL")
    if text[0] in "/~" or not storage.is_local(text):
        return storage.normalize(text)
    if storage.is_local(prefix):
        return os.path.normpath(prefix + text)
    # Names of objects are no paths: `a//b` and `a/../b` are other objects than `a/b` and `b`. Only
    # a `./` at the beginning, as `find .` prints it, is taken for the folder.
    return prefix + _THIS_FOLDER.sub("", text)


def _too_long(uris: list[str], column: str, where: Callable[[int], str]) -> BuildError:
    row = next(row for row, uri in enumerate(uris) if len(uri) > _LONGEST_URI)
    return BuildError(
        f"{where(row)}: the column {column!r} does not have URIs, but {quoted(uris[row])} of "
        f"{len(uris[row]):,} characters (--uri_column specifies another one)"
    )


_THIS_FOLDER = re.compile(r"^(\./)+")
_NOTHING = type(None)


def _texts(values: Sequence[Any], column: str, where: Callable[[int], str]) -> list[str | None]:
    """Converts texts and numbers to texts; None means no value."""
    if {*map(type, values)} <= {str, _NOTHING}:
        texts = [value or None for value in values]
    else:
        texts = [_text(value, column, where, row) for row, value in enumerate(values)]
    try:
        "".join(filter(None, texts)).encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, escaped in JSON
        row = next(i for i, text in enumerate(texts) if text and error.object[error.start] in text)
        raise BuildError(f"{where(row)}: {column} is not Unicode: {quoted(texts[row])}") from error
    return texts


def _text(value: Any, column: str, where: Callable[[int], str], row: int) -> str | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value == "" or value != value:  # tables write NaN for a missing value
        return None
    if isinstance(value, (str, bool, int, float)):
        return str(value)
    raise BuildError(f"{where(row)}: {column} must be a text or a number, not {quoted(value)}")


def _open_binary(source: Manifest) -> IO[bytes]:
    try:
        file = storage.open_read(source.uri)
    except OSError as error:
        raise source.unreadable(error) from error
    return gunzip(file) if source.uri.lower().endswith(".gz") else file


@contextmanager
def _open_text(source: Manifest) -> Iterator[Iterator[str]]:
    """The lines, with their ends, as the csv module requires; its errors are BuildErrors."""
    with _open_binary(source) as file:
        try:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            raise BuildError(f"{_not_utf8(source)}; save the manifest as UTF-8") from error
        except (OSError, EOFError, zlib.error) as error:
            raise source.unreadable(error) from error


def _not_utf8(source: Manifest) -> str:
    # Text is decoded in blocks, so the line is found by reading the file again.
    with _open_binary(source) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start]
                return f"{source.uri}:{number}: not UTF-8 (byte 0x{byte:02x} at {error.start})"
    return f"{source.uri}: not UTF-8"


def _chunked(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(rows, listed.CHUNK_ROWS)):
        yield chunk


def _open_csv(source: Manifest, delimiter: str, columns: list[str]) -> _Manifest:
    with _open_text(source) as lines:
        try:
            header = next(filter(None, csv.reader(lines, delimiter=delimiter)), None)
        except csv.Error as error:
            raise BuildError(f"{source.uri}:1: {error}") from error
    if header is None:
        raise BuildError(f"{source.uri}: the manifest is empty")
    needed = [name for name in dict.fromkeys(columns) if name in header]
    return header, _read_csv(source, delimiter, needed)


def _read_csv(source: Manifest, delimiter: str, needed: list[str]) -> Iterator[_Rows]:
    # Arrow parses five times as fast as the csv module, which finds the line of an error.
    import pyarrow
    from pyarrow import csv as arrow

    def line_of(before: int, row: int) -> str:
        lines = _csv_lines(source, delimiter)
        return f"{source.uri}:{next(itertools.islice(lines, before + row + 1, None))[0]}"

    before = 0
    try:
        with (
            _open_binary(source) as file,
            arrow.open_csv(
                quotes := _QuoteCounter(file),
                parse_options=arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=arrow.ConvertOptions(
                    include_columns=needed,
                    column_types={name: pyarrow.string() for name in needed},
                ),
            ) as batches,
        ):
            for batch in batches:
                columns = {name: batch.column(name).to_pylist() for name in needed}
                yield _Rows(columns, partial(line_of, before))
                before += batch.num_rows
        if quotes.count % 2:
            # Arrow closes an open quote at the end of the file.
            for _ in _csv_lines(source, delimiter):
                pass
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        for _ in _csv_lines(source, delimiter):
            pass  # raises an error that names the line
        raise source.unreadable(error) from error


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


def _csv_lines(source: Manifest, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line on which it ends, values) of the header and every row, and checks them."""
    with _open_text(source) as lines:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        width = 0
        try:
            for row in filter(None, reader):  # empty lines are not rows
                width = width or len(row)
                if len(row) != width:
                    raise BuildError(
                        f"{source.uri}:{reader.line_num}: {counted(len(row), 'value')}, "
                        f"but the header has {width}"
                    )
                yield reader.line_num, row
        except csv.Error as error:
            raise BuildError(f"{source.uri}:{reader.line_num}: {error}") from error


def _line_of(source: Manifest, numbers: Sequence[int]) -> Callable[[int], str]:
    return lambda row: f"{source.uri}:{numbers[row]}"


def _text_rows(source: Manifest, column: str) -> Iterator[_Rows]:
    with _open_text(source) as lines:
        stripped = ((n, line.strip()) for n, line in enumerate(lines, 1) if line.strip())
        for chunk in _chunked(stripped):
            numbers, texts = zip(*chunk, strict=True)
            yield _Rows({column: texts}, _line_of(source, numbers))


def _read_jsonl(source: Manifest) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) of every line that is not empty."""
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


def _open_jsonl(source: Manifest, columns: list[str]) -> _Manifest:
    every = _read_jsonl(source)
    first = next(every, None)
    if first is None:
        raise BuildError(f"{source.uri}: the manifest is empty")
    header = list(first[1])
    absent = [column for column in columns if column not in header]

    def chunks() -> Iterator[_Rows]:
        for chunk in _chunked(itertools.chain([first], every)):
            numbers, rows = zip(*chunk, strict=True)
            for number, row in chunk if absent else ():
                if late := next((column for column in absent if column in row), None):
                    raise BuildError(
                        f"{source.uri}:{number}: has {late!r}, which line {first[0]} does not; "
                        "every line must have the same columns (null where there is no value)"
                    )
            values = {column: [row.get(column) for row in rows] for column in header}
            yield _Rows(values, _line_of(source, numbers))

    return header, chunks()


def _open_parquet(source: Manifest, columns: list[str]) -> _Manifest:
    import pyarrow
    from pyarrow import parquet

    file = _open_binary(source)
    try:
        table = parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise source.unreadable(error, "not a Parquet file") from error
    header = list(table.schema_arrow.names)
    needed = [name for name in dict.fromkeys(columns) if name in header]

    def row_of(before: int, row: int) -> str:
        return f"{source.uri}: row {before + row}"

    def chunks() -> Iterator[_Rows]:
        before = 1
        try:
            for batch in table.iter_batches(batch_size=listed.CHUNK_ROWS, columns=needed):
                values = {name: batch.column(name).to_pylist() for name in needed}
                yield _Rows(values, partial(row_of, before))
                before += batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise source.unreadable(error, f"after row {before - 1}") from error

    return header, chunks()
