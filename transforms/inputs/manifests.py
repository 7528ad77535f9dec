"""Manifests as inputs: CSV, TSV, JSONL, Parquet, and plain lists of URIs.

Only the columns that are needed are read. An error message contains the line or row.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import (
    BuildError,
    Problem,
    enumerated,
    quoted,
    to_bytes,
    to_text,
)
from imageshards.transforms.inputs import spans, tables
from imageshards.transforms.inputs.kind import (
    FileKind,
    FileState,
    ListingOptions,
    WorkUnit,
    list_references,
    register,
)
from imageshards.transforms.inputs.listed import Listed
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.references.batch import RefBatch

_PIECE_BYTES = 1 << 20
_LONGEST_URI = 1 << 13
"""More characters than a path, an object's name or a signed URL has."""


@register
class Manifest(FileKind):
    """A table with a column of URIs. Relative URIs are relative to the manifest's folder.

    URIs below this folder are named by their path below it, all others by the whole URI. With a
    pattern, names begin at the pattern's folder instead.
    """

    noun = "a manifest"
    is_file = False

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a URI has the suffix of a manifest."""
        return tables.SUFFIX.search(uri) is not None

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

    def divisions(self, options: ListingOptions) -> int:
        """A large table is divided into ranges of rows, unless it is compressed."""
        return 1

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed | WorkUnit]:
        """Lists the rows; if it is large, yields ranges of them."""
        whole = spans.Span(self)
        root_length = len(self.root)
        if unit.part:
            root_length, *span = unit.part
            whole = spans.Span(self, *span)
        elif options.divide:
            whole = spans.Span(self, *storage.stat(self.uri))
        parts = spans.divided(whole) if options.divide and whole.is_whole else []
        if len(parts) > 1:
            yield from (WorkUnit(self, (root_length, *part.place)) for part in parts)
        else:
            yield from self._list(whole, root_length, options)

    def list_file(
        self, root_length: int, size: int, stamp: int, options: ListingOptions
    ) -> Iterator[Listed]:
        """Lists all rows."""
        return self._list(spans.Span(self, size, stamp), root_length, options)

    def _list(
        self, span: spans.Span, root_length: int, options: ListingOptions
    ) -> Iterator[Listed]:
        columns = options.columns
        names = (*columns.required, *columns.optional)
        header, chunks = tables.open_table(
            span, [options.uri_column, *names, *columns.feature_names]
        )
        self._check_header(header, options)
        texts = [name for name in dict.fromkeys(names) if name in header]
        root = self.uri[:root_length]
        for rows in chunks:
            yield Listed(self._references(rows, root, options.uri_column, texts, columns.features))

    def _references(
        self,
        rows: tables.Rows,
        root: str,
        uri_column: str,
        names: list[str],
        features: Sequence[FeatureColumn],
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
        folder = self.uri.rpartition("/")[0]
        uris = _absolute(texts[uri_column], folder)  # type: ignore[arg-type]
        roots = array("I", [len(root) if uri.startswith(root) else 0 for uri in uris])
        refs = RefBatch.listed(uris, roots).with_texts({name: texts[name] for name in names})
        values: dict[FeatureColumn, list[Any]] = {}
        problems: dict[int, Problem] = {}
        for feature in features:
            values[feature], wrong = feature.values(rows.columns[feature.column])
            if feature.role == "uri":
                found = _absolute([to_text(value) for value in values[feature] if value], folder)
                known = iter(map(to_bytes, found))
                values[feature] = [value and next(known) for value in values[feature]]
            for row, reason in wrong.items():
                problems.setdefault(row, Problem("features", "NoFeature", reason))
        return (refs.with_problems(problems) if problems else refs).with_features(values)

    def _check_header(self, header: list[str], options: ListingOptions) -> None:
        """Raises a BuildError if a required column is missing, or an optional one is misspelled."""
        for column in (options.uri_column, *options.columns.all_required):
            if column not in header:
                named = options.columns.advice(column)
                if column == options.uri_column:
                    named = " (--uri_column specifies another one)"
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


# URIs, joined by line breaks, that contain none of these need at most a prefix to become absolute.
# `in` searches 1 GB/s, a regular expression 15 MB/s.
_UNUSUAL = ("/.", "\n.", "/\n", "\n~", "\nfile:", "\0")


def _have_unusual(texts: list[str]) -> bool:
    joined = "\n".join(("", *texts, ""))
    return joined.count("//") != joined.count("://") or any(part in joined for part in _UNUSUAL)


def _absolute(texts: list[str], folder: str) -> list[str]:
    """The absolute URIs of a manifest in `folder`."""
    prefix = folder + "/"
    if _have_unusual(texts):
        return [_normal(text, prefix) for text in texts]
    return [t if t[0] == "/" or "://" in t else prefix + t for t in texts]


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
