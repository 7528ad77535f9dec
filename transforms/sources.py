"""What `--input` names, listed: folders, globs, manifests and single files. No pixels.

A source is listed in chunks of columns, so that a manifest of any length passes through a
memory of fixed size.
"""

from __future__ import annotations

import csv
import glob
import gzip
import itertools
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal

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
      root_lengths: length of what stands in the URI before the path below the source.
      sizes: bytes or -1.
      stamps: numbers that change with the content, or 0.
      columns: those manifest columns that were asked for and are there.
      passed_over: files that were not taken because they are not images by their name.
    """

    uris: list[str] = field(default_factory=list)
    root_lengths: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    stamps: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, list[str | None]] = field(default_factory=dict)
    passed_over: int = 0

    def add(self, uri: str, root_length: int, size: int, stamp: int) -> None:
        """Appends an image without columns."""
        self.uris.append(uri)
        self.root_lengths.append(root_length)
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

_Rows = Iterator[tuple[str, Sequence[Any]]]  # where (for messages), values in column order


def _list_manifest(
    source: Source, uri_column: str, required: list[str], optional: list[str]
) -> Iterator[Listing]:
    place = source.uri.rpartition("/")[0]
    header, rows = _open_manifest(source, [uri_column, *required, *optional])
    for column in (uri_column, *required):
        if column not in header:
            named = " (--uri_column names another)" if column == uri_column else ""
            raise BuildError(
                f"{source.uri}: no column {column!r}{named}; its columns are: {', '.join(header)}"
            )
    uri_at = header.index(uri_column)
    wanted = {
        name: header.index(name) for name in dict.fromkeys((*required, *optional)) if name in header
    }
    chunk = Listing(columns={name: [] for name in wanted})
    for where, row in rows:
        text = _text(row[uri_at], f"{source.uri}:{where}", uri_column)
        if not text:
            raise BuildError(f"{source.uri}:{where}: no {uri_column}")
        uri, root_length = _absolute(text, place)
        chunk.add(uri, root_length, -1, 0)
        for name, at in wanted.items():
            chunk.columns[name].append(_text(row[at], f"{source.uri}:{where}", name))
        if len(chunk.uris) == CHUNK_ROWS:
            yield chunk
            chunk = Listing(columns={name: [] for name in wanted})
    yield chunk


_ODD_PATH = re.compile(r"//|(^|/)\.\.?(/|$)|/$")


def _absolute(text: str, place: str) -> tuple[str, int]:
    """The URI that a manifest in `place` means, and the length of its root."""
    if text.startswith("/") or not storage.is_local(text):
        uri = (
            storage.normalize(text) if not text.startswith("/") or _ODD_PATH.search(text) else text
        )
        return uri, 1 if uri.startswith("/") else uri.index("//") + 2
    uri = f"{place}/{text}"
    if _ODD_PATH.search(text) and storage.is_local(uri):
        uri = os.path.normpath(uri)
    root = len(place) + 1
    return uri, root if uri.startswith(place + "/") else uri.rindex("/") + 1


def _text(value: Any, where: str, column: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:  # half a surrogate pair, escaped in JSON
                raise BuildError(f"{where}: {column} is not Unicode: {value!r}") from error
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, (bool, int, float)):
        return None if value != value else str(value)  # NaN is how tables say "nothing"
    raise BuildError(f"{where}: {column} must be a text or a number, not {value!r}")


def _open_manifest(source: Source, columns: list[str]) -> tuple[list[str], _Rows]:
    suffix = _MANIFEST.search(source.uri)
    assert suffix is not None
    kind = (suffix[1] or suffix[3]).lower()
    try:
        file = storage.open_read(source.uri)
    except OSError as error:
        raise BuildError(
            f"--input {source.text}: cannot be read: {error.strerror or 'no such file'}"
        ) from error
    if suffix[2]:
        file = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]
    if kind == "parquet":
        return _open_parquet(source, file, columns)
    if kind in ("jsonl", "ndjson"):
        return _open_jsonl(source, file, columns)
    if kind == "txt":
        lines = _lines(source, file)
        return columns[:1], ((str(n), [line.strip()]) for n, line in lines if line.strip())
    return _open_csv(source, file, "\t" if kind == "tsv" else ",")


def _lines(source: Source, file: IO[bytes]) -> Iterator[tuple[int, str]]:
    """(line number, text) with the line's own end kept, as csv wants it."""
    with file:
        try:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise BuildError(
                f"{source.uri}:{number}: not UTF-8 (byte 0x{byte:02x} at {error.start}); "
                "save the manifest as UTF-8"
            ) from error
        except (OSError, EOFError) as error:
            raise BuildError(f"{source.uri}: cannot be read: {error}") from error


def _open_csv(source: Source, file: IO[bytes], delimiter: str) -> tuple[list[str], _Rows]:
    reader = csv.reader(
        (text for _, text in _lines(source, file)), delimiter=delimiter, strict=True
    )
    try:
        header = next(reader)
    except StopIteration:
        raise BuildError(f"{source.uri}: the manifest is empty") from None
    except csv.Error as error:
        raise BuildError(f"{source.uri}:{reader.line_num}: {error}") from error

    def rows() -> _Rows:
        try:
            for row in reader:
                if len(row) != len(header):
                    if not row:
                        continue  # an empty line
                    raise BuildError(
                        f"{source.uri}:{reader.line_num}: {len(row)} values, "
                        f"but the header has {len(header)}"
                    )
                yield str(reader.line_num), row
        except csv.Error as error:
            raise BuildError(f"{source.uri}:{reader.line_num}: {error}") from error

    return header, rows()


def _open_jsonl(source: Source, file: IO[bytes], columns: list[str]) -> tuple[list[str], _Rows]:
    def objects() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in _lines(source, file):
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

    def rows() -> _Rows:
        for number, row in itertools.chain([first], every):
            for column in columns:
                if column in row and column not in first[1]:
                    raise BuildError(
                        f"{source.uri}:{number}: has {column!r}, which line {first[0]} has not; "
                        "every line must have the same columns (null where there is no value)"
                    )
            yield str(number), [row.get(column) for column in header]

    return header, rows()


def _open_parquet(source: Source, file: IO[bytes], columns: list[str]) -> tuple[list[str], _Rows]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(file)
        header = [name for name in dict.fromkeys(columns) if name in table.schema_arrow.names]
        if columns[0] not in header:
            return list(table.schema_arrow.names), iter(())
    except (pyarrow.ArrowException, OSError) as error:
        raise BuildError(f"{source.uri}: not a Parquet file: {error}") from error

    def rows() -> _Rows:
        number = 0
        try:
            for batch in table.iter_batches(batch_size=CHUNK_ROWS, columns=header):
                lists = [batch.column(name).to_pylist() for name in header]
                for row in zip(*lists, strict=True):
                    number += 1
                    yield f"row {number}", row
        except (pyarrow.ArrowException, OSError) as error:
            raise BuildError(f"{source.uri}: row {number + 1}: {error}") from error

    return header, rows()


def check_source(source: Source, uri_column: str, required: Iterable[str]) -> None:
    """Tells at once what is wrong with a source, where that needs no listing.

    Raises:
      BuildError: a manifest without its columns, or columns wanted of what is no manifest.
    """
    required = list(required)
    if source.kind == "manifest" or required:
        # The header is checked before the first row is asked for.
        next(list_source(source, uri_column=uri_column, required=required), None)
