"""What `--input` names, listed: folders, globs, manifests and single files. No pixels.

A source is listed in chunks of columns, so that a manifest of any length passes through a
memory of fixed size.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import itertools
import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal, NamedTuple

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.images import is_image_name

CHUNK_ROWS = 1 << 16
_MANIFEST = re.compile(r"\.(csv|tsv|jsonl|ndjson|txt)(\.gz)?$|\.(parquet)$", re.IGNORECASE)
_WILDCARD = re.compile(r"[*?\[]")

Kind = Literal["folder", "glob", "manifest", "file"]


@dataclass(frozen=True)
class Source:
    """One `--input`, told apart.

    Attributes:
      text: as it was written, for messages.
      uri: normalized.
      kind: what it is.
    """

    text: str
    uri: str
    kind: Kind


@dataclass
class Listing:
    """Some images of a source, as columns.

    Attributes:
      uris: URIs.
      roots: length of what stands in the URI before the path below the source.
      sizes: bytes or -1.
      stamps: numbers that change with the content, or 0.
      columns: those manifest columns that were asked for and are there.
      passed_over: files that were not taken because they are not images by their name.
    """

    uris: list[str] = field(default_factory=list)
    roots: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    stamps: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, list[str | None]] = field(default_factory=dict)
    passed_over: int = 0

    def add(self, uri: str, root_length: int, size: int, stamp: int) -> None:
        """Appends an image without columns."""
        self.uris.append(uri)
        self.roots.append(root_length)
        self.sizes.append(size)
        self.stamps.append(stamp)


def identify(text: str) -> Source:
    """Tells what an `--input` is.

    Raises:
      BuildError: there is nothing of that name.
    """
    if not text:
        raise BuildError("--input is empty: name a folder, a pattern or a manifest")
    uri = storage.normalize(text)
    manifest = _MANIFEST.search(uri) is not None
    if storage.is_local(uri):
        if os.path.isdir(uri):
            return Source(text, uri, "folder")
        if os.path.lexists(uri):
            return Source(text, uri, "manifest" if manifest else "file")
    elif not _WILDCARD.search(uri):
        if manifest:
            return Source(text, uri, "manifest")
        return Source(text, uri, "file" if is_image_name(uri) else "folder")
    if _WILDCARD.search(uri):
        return Source(text, uri, "glob")
    raise BuildError(f"--input {text}: there is no such file or folder")


def list_source(
    source: Source,
    *,
    uri_column: str = "uri",
    required: Iterable[str] = (),
    optional: Iterable[str] = (),
    include_all: bool = False,
    exclude: str = "",
) -> Iterator[Listing]:
    """Lists a source.

    Args:
      source: from `identify`.
      uri_column: the manifest's column of URIs.
      required: manifest columns without which the build makes no sense.
      optional: manifest columns that are taken where they are.
      include_all: take files whatever their name.
      exclude: a folder that is not walked into: the output.

    Raises:
      BuildError: nothing was found, or a manifest is not what it must be.
    """
    if source.kind != "manifest" and (missing := next(iter(required), None)):
        raise BuildError(
            f"--input {source.text} is not a manifest and has no column {missing!r}: "
            "columns come from CSV, JSONL or Parquet files"
        )
    found = passed_over = 0
    if source.kind == "manifest":
        chunks = _list_manifest(source, uri_column, list(required), list(optional))
    else:
        files = _files(source, exclude)
        chunks = _list_files(files, include_all or source.kind == "file")
    for chunk in chunks:
        found += len(chunk.uris)
        passed_over += chunk.passed_over
        yield chunk
    if not found:
        hint = ""
        if passed_over:
            files_were = "1 file was" if passed_over == 1 else f"{passed_over:,} files were"
            hint = f" ({files_were} passed over by name; --include_all takes them)"
        raise BuildError(f"--input {source.text}: no image there{hint}")


_File = tuple[str, int, int, int, bool]  # uri, root length, bytes, stamp, hidden


def _list_files(files: Iterator[_File], include_all: bool) -> Iterator[Listing]:
    chunk = Listing()
    for uri, root_length, size, when, hidden in files:
        if include_all or (is_image_name(uri) and not hidden):
            chunk.add(uri, root_length, size, when)
            if len(chunk.uris) == CHUNK_ROWS:
                yield chunk
                chunk = Listing()
        else:
            chunk.passed_over += 1
    yield chunk


def _files(source: Source, exclude: str) -> Iterator[_File]:
    if not storage.is_local(source.uri):
        yield from _remote_files(source)
    elif source.kind == "folder":
        yield from _walk(source.uri, len(source.uri.rstrip("/")) + 1, exclude)
    elif source.kind == "file":
        yield _local_file(source.uri, len(os.path.dirname(source.uri).rstrip("/")) + 1)
    else:
        fixed = source.uri[: _WILDCARD.search(source.uri).start()]  # type: ignore[union-attr]
        root_length = fixed.rindex("/") + 1
        for path in glob.iglob(source.uri, recursive=True):
            if os.path.isdir(path):
                # `**` yields the folders and what is in them.
                if not source.uri.endswith("**"):
                    yield from _walk(path, root_length, exclude)
            else:
                yield _local_file(path, root_length)


def _local_file(path: str, root_length: int) -> _File:
    return path, root_length, *storage.stamp(path), False


def _walk(folder: str, root_length: int, exclude: str) -> Iterator[_File]:
    # Links to folders are followed, since data sets are often trees of links; a folder that is
    # its own ancestor is not.
    stack: list[tuple[str, bool, frozenset[tuple[int, int]]]] = [(folder, False, frozenset())]
    while stack:
        here, hidden, ancestors = stack.pop()
        try:
            status = os.stat(here)
            entries = os.scandir(here)
        except OSError as error:
            raise BuildError(f"{here}: cannot be listed: {error.strerror}") from error
        identity = (status.st_dev, status.st_ino)
        if identity in ancestors:
            continue
        inner = ancestors | {identity}
        with entries:
            for entry in entries:
                if entry.is_dir():
                    if entry.path != exclude:
                        stack.append((entry.path, hidden or entry.name[0] == ".", inner))
                    continue
                try:
                    status = entry.stat()
                    yield entry.path, root_length, status.st_size, status.st_mtime_ns, hidden
                except OSError:  # a link to nothing: a reject with a reason, later
                    yield entry.path, root_length, -1, 0, hidden


def _remote_files(source: Source) -> Iterator[_File]:
    uri = source.uri
    if source.kind == "folder":
        root_length = len(uri.rstrip("/")) + 1
        pattern = uri.rstrip("/") + "/**"
    elif source.kind == "file":
        yield uri, uri.rindex("/") + 1, -1, 0, False
        return
    else:
        fixed = uri[: _WILDCARD.search(uri).start()]  # type: ignore[union-attr]
        root_length = fixed.rindex("/") + 1
        pattern = uri
    for path, size, when in storage.match(pattern):
        if not path.endswith("/"):
            hidden = any(part.startswith(".") for part in path[root_length:].split("/")[:-1])
            yield path, root_length, size, when, hidden


# Manifests


class _Rows(NamedTuple):
    """Some rows of a manifest: columns in the order of the header; where a row stands."""

    columns: Sequence[Sequence[Any]]
    where: Callable[[int], str]


_Manifest = tuple[list[str], Iterator[_Rows]]  # header, rows


def _list_manifest(
    source: Source, uri_column: str, required: list[str], optional: list[str]
) -> Iterator[Listing]:
    header, chunks = _open_manifest(source, [uri_column, *required, *optional])
    for column in (uri_column, *required):
        if column not in header:
            named = " (--uri_column names another)" if column == uri_column else ""
            raise BuildError(
                f"{source.uri}: no column {column!r}{named}; its columns are: {', '.join(header)}"
            )
    wanted = [name for name in dict.fromkeys((*required, *optional)) if name in header]
    for rows in chunks:
        texts = {
            name: _texts(rows.columns[header.index(name)], name, rows.where)
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
        )


_ODD = re.compile(r"(?<!:)//|(^|/)\.\.?(/|$)|/$|^~|^file:|\0", re.MULTILINE)


def _absolute(texts: list[str], place: str) -> tuple[list[str], array[int]]:
    """The URIs that a manifest in `place` means, and the lengths of their roots."""
    prefix = place + "/"
    if _ODD.search("\n".join(texts)):
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
    uri = prefix + text
    return os.path.normpath(uri) if storage.is_local(uri) else uri


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
    suffix = _MANIFEST.search(source.uri)
    assert suffix is not None
    kind = (suffix[1] or suffix[3]).lower()
    if kind == "parquet":
        return _open_parquet(source, columns)
    if kind in ("jsonl", "ndjson"):
        return _open_jsonl(source, columns)
    if kind == "txt":
        return columns[:1], _text_rows(source)
    return _open_csv(source, "\t" if kind == "tsv" else ",")


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


def _lines(source: Source) -> Iterator[str]:
    """Lines with their own ends, as csv wants them."""
    with _open_binary(source) as file:
        try:
            yield from io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            raise BuildError(f"{_not_utf8(source)}; save the manifest as UTF-8") from error
        except (OSError, EOFError) as error:
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
    while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
        yield chunk


def _open_csv(source: Source, delimiter: str) -> _Manifest:
    reader = csv.reader(_lines(source), delimiter=delimiter, strict=True)

    def read() -> Iterator[list[str]]:
        try:
            yield from filter(None, reader)  # an empty line is no row
        except csv.Error as error:
            raise BuildError(f"{source.uri}:{reader.line_num}: {error}") from error

    rows = read()
    header = next(rows, None)
    if header is None:
        raise BuildError(f"{source.uri}: the manifest is empty")

    def line_of(number: int) -> str:
        # A value may hold line breaks: only reading again tells on which line a row ends.
        again = csv.reader(_lines(source), delimiter=delimiter)
        next(itertools.islice(filter(None, again), number + 1, None))
        return f"{source.uri}:{again.line_num}"

    def chunks() -> Iterator[_Rows]:
        before = 0
        for chunk in _chunked(rows):
            for row, values in enumerate(chunk):
                if len(values) != len(header):
                    raise BuildError(
                        f"{line_of(before + row)}: {len(values)} values, "
                        f"but the header has {len(header)}"
                    )
            first = before
            yield _Rows(list(zip(*chunk, strict=True)), lambda row, n=first: line_of(n + row))  # type: ignore[misc]
            before += len(chunk)

    return header, chunks()


def _text_rows(source: Source) -> Iterator[_Rows]:
    lines = ((n, line.strip()) for n, line in enumerate(_lines(source), 1) if line.strip())
    for chunk in _chunked(lines):
        numbers, texts = zip(*chunk, strict=True)
        yield _Rows([texts], lambda row, n=numbers: f"{source.uri}:{n[row]}")  # type: ignore[misc]


def _open_jsonl(source: Source, columns: list[str]) -> _Manifest:
    def objects() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(_lines(source), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise BuildError(f"{source.uri}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise BuildError(f"{source.uri}:{number}: not a JSON object")
            yield number, row

    every = objects()
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
            values = [[row.get(column) for row in rows] for column in header]
            yield _Rows(values, lambda row, n=numbers: f"{source.uri}:{n[row]}")  # type: ignore[misc]

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
            for batch in table.iter_batches(batch_size=CHUNK_ROWS, columns=wanted):
                values = [batch.column(name).to_pylist() for name in wanted]
                first = before
                yield _Rows(values, lambda row, n=first: f"{source.uri}: row {n + row}")  # type: ignore[misc]
                before += batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise BuildError(f"{source.uri}: after row {before - 1}: {error}") from error

    # Of a table without the column of URIs all names are told.
    return (wanted if columns[0] in header else header), chunks()


def check_source(source: Source, uri_column: str, required: Iterable[str]) -> None:
    """Tells at once what is wrong with a source, where that needs no listing.

    Raises:
      BuildError: a manifest without its columns, or columns wanted of what is no manifest.
    """
    required = list(required)
    if source.kind == "manifest" or required:
        # The header is checked before the first row is asked for.
        next(list_source(source, uri_column=uri_column, required=required), None)
