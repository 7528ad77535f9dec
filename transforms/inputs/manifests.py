"""Manifests as inputs: CSV, TSV, JSONL, Parquet, and plain lists of URIs.

Only the columns that are needed are read. An error message contains the line or row.
"""

from __future__ import annotations

import itertools
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, enumerated, quoted
from imageshards.transforms.images.validate import is_image_name
from imageshards.transforms.inputs import spans, tables
from imageshards.transforms.inputs.columns import texts_of, with_features
from imageshards.transforms.inputs.embedded.parquet import ImageTable
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

_TEXT = re.compile(r"\.txt(\.gz)?$", re.IGNORECASE)
_LOOKED_AT = 100
"""Rows that show whether a text is a list of URIs."""
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
    empty = "it has no rows"
    is_file = False

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a URI has the suffix of a manifest."""
        return tables.SUFFIX.search(uri) is not None

    def check(self, options: ListingOptions) -> None:
        """Reads the header and the first rows."""
        if images := self._images(spans.Span(self), options):
            images.check()
            return
        first = next(list_references(WorkUnit(self), options), None)
        if first and _TEXT.search(self.uri) and not options.uri_template:
            self._check_list(first.refs[:_LOOKED_AT].uris)

    def _check_list(self, uris: Sequence[str]) -> None:
        """Raises a BuildError if the first URIs of a list of URIs are other texts.

        They are URIs if one of them has the suffix of an image or no blank, exists or is remote.
        Names without a suffix have no blank: `pipeline/missing.py` suggests what they lack.
        """
        folder = self.uri.rpartition("/")[0] + "/"
        for uri in uris:
            has_blank = len(uri.removeprefix(folder).split()) > 1
            if is_image_name(uri) or not storage.is_local(uri) or not has_blank:
                return
            if os.path.exists(uri):
                return
        text = uris[0].removeprefix(folder)
        advice = "for a data set of texts, set --features text"
        if any(map(is_image_name, text.split())):
            advice = "write labels and other values into a .csv file with the header uri,label"
        raise BuildError(
            f"{self.uri}: {quoted(text)} is no image: a .txt file has one URI per line; {advice}"
        )

    def fingerprint(
        self, unit: WorkUnit, options: ListingOptions
    ) -> Iterator[FileState | WorkUnit]:
        """Yields a digest of the content: manifests are often rewritten without a change."""
        if self._images(spans.Span(self), options):
            yield from super().fingerprint(unit, options)
            return
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
        if images := self._images(span, options):
            yield from images.references(root_length)
            return
        columns = options.columns
        names = (*columns.required, *columns.optional)
        uris = Uris.of(options)
        header, chunks = tables.open_table(
            span, [*uris.columns, *names, *columns.feature_names, FILE_NAME]
        )
        uris = uris.of_header(header)
        self._check_header(header, uris, options)
        texts = [name for name in dict.fromkeys(names) if name in header]
        root = self.uri[:root_length]
        for rows in chunks:
            yield Listed(self._references(rows, root, uris, texts, columns.features))

    def _images(self, span: spans.Span, options: ListingOptions) -> ImageTable | None:
        """The images inside a Parquet file; None if this is a table of URIs."""
        return ImageTable.of(span, options) if self.uri.lower().endswith(".parquet") else None

    def _references(
        self,
        rows: tables.Rows,
        root: str,
        uris: Uris,
        names: list[str],
        features: Sequence[FeatureColumn],
    ) -> RefBatch:
        texts = {
            name: texts_of(rows.columns[name], name, rows.where)
            for name in dict.fromkeys((*uris.columns, *names))
        }
        folder = self.uri.rpartition("/")[0]
        found = _absolute(uris.texts(texts, rows.where), folder, rows.where)
        roots = array("I", [len(root) if uri.startswith(root) else 0 for uri in found])
        refs = RefBatch.listed(found, roots).with_texts({name: texts[name] for name in names})
        absolute = partial(_absolute, folder=folder, where=lambda _: self.uri)
        return with_features(refs, rows.columns, features, absolute)

    def _check_header(self, header: list[str], uris: Uris, options: ListingOptions) -> None:
        """Raises a BuildError if a required column is missing, or an optional one is misspelled."""
        for column in (*uris.columns, *options.columns.all_required):
            if column not in header:
                named = uris.hint if column in uris.columns else options.columns.origin(column)
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


_URI = "uri"
FILE_NAME = "file_name"
"""The column of URIs in the `imagefolder` layout of Hugging Face `datasets`."""


@dataclass(frozen=True)
class Uris:
    """Makes the URIs of a manifest.

    Attributes:
      template: a URI with columns in braces.
      columns: the names of these columns.
      hint: what to add to the message that a column is missing.

    >>> uris = Uris("train/{id}.jpg", ("id",))
    >>> uris.texts({"id": ["12", "13"]}, str)
    ['train/12.jpg', 'train/13.jpg']
    """

    template: str
    columns: tuple[str, ...]
    hint: str = ""

    @classmethod
    def of(cls, options: ListingOptions) -> Uris:
        """The URIs that options describe."""
        if options.uri_template:
            columns = dict.fromkeys(_FIELD.findall(options.uri_template))
            return cls(options.uri_template, tuple(columns), " of --uri_template")
        hint = (
            " (--uri_column specifies another one, and --uri_template 'train/{id}.jpg' makes URIs "
            "of columns)"
        )
        return cls(f"{{{options.uri_column}}}", (options.uri_column,), hint)

    def of_header(self, header: Sequence[str]) -> Uris:
        """The URIs of a manifest with certain columns: `uri`, else `file_name`."""
        if self.columns == (_URI,) and _URI not in header and FILE_NAME in header:
            return Uris(f"{{{FILE_NAME}}}", (FILE_NAME,))
        return self

    def texts(
        self, columns: Mapping[str, Sequence[str | None]], where: Callable[[int], str]
    ) -> list[str]:
        """The URIs, relative to the manifest or absolute.

        Args:
          columns: name -> texts, None without a value.
          where: row -> where it is, for messages.

        Raises:
          BuildError: a value is missing, or a URI is too long.
        """
        for name in self.columns:
            if not all(columns[name]):
                row = columns[name].index(None)
                raise BuildError(f"{where(row)}: no value in the column {name!r}")
        parts = _FIELD.split(self.template)  # every other one is the name of a column
        pieces: list[Any] = [
            columns[part] if number % 2 else itertools.repeat(part)
            for number, part in enumerate(parts)
        ]
        is_column = self.template == f"{{{self.columns[0]}}}"
        texts = pieces[1] if is_column else list(map("".join, zip(*pieces, strict=False)))
        if max(map(len, texts)) > _LONGEST_URI:
            raise _too_long(texts, self.template, where)
        return texts


_FIELD = re.compile(r"\{([^{}]+)\}")

# URIs, joined by line breaks, that contain none of these need at most a prefix to become absolute.
# `in` searches 1 GB/s, a regular expression 15 MB/s.
_UNUSUAL = ("/.", "\n.", "/\n", "\n~", "\nfile:", "\0")


def _have_unusual(texts: list[str]) -> bool:
    joined = "\n".join(("", *texts, ""))
    return joined.count("//") != joined.count("://") or any(part in joined for part in _UNUSUAL)


def _absolute(texts: list[str], folder: str, where: Callable[[int], str]) -> list[str]:
    """The absolute URIs of a manifest in `folder`.

    Raises:
      BuildError: one has a NUL; `where` returns where its index is.
    """
    prefix = folder + "/"
    if _have_unusual(texts):
        if row := next((row for row, text in enumerate(texts, 1) if "\0" in text), 0):
            raise BuildError(f"{where(row - 1)}: the URI {quoted(texts[row - 1])} has a NUL")
        return [_normal(text, prefix) for text in texts]
    return [t if t[0] == "/" or "://" in t else prefix + t for t in texts]


def _normal(text: str, prefix: str) -> str:
    if text[0] in "/~" or not storage.is_local(text):
        return storage.normalize(text)
    if storage.is_local(prefix):
        return os.path.normpath(prefix + text)
    # Names of objects are no paths: `a//b` and `a/../b` are other objects than `a/b` and `b`. Only
    # a `./` at the beginning, as `find .` prints it, is taken for the folder.
    return prefix + _THIS_FOLDER.sub("", text)


def _too_long(uris: list[str], template: str, where: Callable[[int], str]) -> BuildError:
    row = next(row for row, uri in enumerate(uris) if len(uri) > _LONGEST_URI)
    return BuildError(
        f"{where(row)}: {template} is no URI, but {quoted(uris[row])} of "
        f"{len(uris[row]):,} characters (--uri_column specifies another one)"
    )


_THIS_FOLDER = re.compile(r"^(\./)+")
