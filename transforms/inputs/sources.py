"""What `--input` names, listed: folders, globs, manifests, archives, files. No pixels.

A source is listed in chunks of columns, so that a manifest of any length passes through a
memory of fixed size.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.images.validate import is_image_name
from imageshards.transforms.inputs.archives import is_archive, list_archive
from imageshards.transforms.inputs.listing import CHUNK_ROWS, Kind, Listing, Source, TextUnit
from imageshards.transforms.inputs.manifests import is_manifest, list_manifest
from imageshards.transforms.inputs.texts import is_text_name, list_texts
from imageshards.transforms.inputs.tfrecords import RecordKeys, is_records, list_records

_WILDCARD = re.compile(r"[*?\[]")


def identify(text: str, unit: TextUnit | None = None) -> Source:
    """Tells what an `--input` is.

    Args:
      text: as it was written.
      unit: what of a text file is a record, where inputs are texts; None: they are images.

    Raises:
      BuildError: there is nothing of that name.
    """
    if not text:
        raise BuildError("--input is empty: name a folder, a pattern or a manifest")
    uri = storage.normalize(text)
    kind = _kind_by_name(uri)
    if unit:
        kind = _kind_of_text(text, uri, kind)
    if not storage.can_list(uri):
        if kind == "file" and not uri.endswith("/"):
            return Source(text, uri, kind)
        raise BuildError(
            f"--input {text}: from the web, only images are read: download a manifest or an "
            "archive; a folder cannot be listed there, name its images in a manifest"
        )
    if storage.is_local(uri):
        if os.path.isdir(uri):
            return Source(text, uri, "folder")
        if uri.lower().endswith(".json") and not unit:
            raise BuildError(f"--input {text}: write it as JSONL, an object a line (.jsonl)")
        if os.path.lexists(uri):
            return Source(text, uri, kind)
    elif not _WILDCARD.search(uri):
        is_folder = kind == "file" and not is_image_name(uri)
        return Source(text, uri, "folder" if is_folder else kind)
    if _WILDCARD.search(uri):
        return Source(text, uri, "glob")
    raise BuildError(f"--input {text}: there is no such file or folder")


def _kind_of_text(text: str, uri: str, kind: Kind) -> Kind:
    if not storage.can_list(uri):
        raise BuildError(f"--input {text}: texts are not read from the web: download it first")
    if kind in ("archive", "records") or (kind == "manifest" and not is_text_name(uri)):
        what = {"archive": "an archive", "records": "a TFRecord file"}.get(kind, "a manifest")
        if not os.path.isdir(uri) and not _WILDCARD.search(uri):
            raise BuildError(f"--input {text}: {what}, where --features text takes text files")
    # What is there under a name without an ending is a folder, on places that have none.
    return "text" if is_text_name(uri) else "file"


def _kind_by_name(uri: str) -> Kind:
    if is_manifest(uri):
        return "manifest"
    if is_archive(uri):
        return "archive"
    return "records" if is_records(uri) else "file"


def list_source(
    source: Source,
    *,
    uri_column: str = "uri",
    required: Iterable[str] = (),
    optional: Iterable[str] = (),
    features: Iterable[str] = (),
    include_all: bool = False,
    exclude: str = "",
    scratch: str = "",
    keys: RecordKeys | None = None,
    unit: TextUnit | None = None,
) -> Iterator[Listing]:
    """Lists a source.

    Args:
      source: from `identify`.
      uri_column: the manifest's column of URIs.
      required: manifest columns without which the build makes no sense.
      optional: manifest columns that are taken where they are.
      features: manifest columns that become features, without which the build makes no sense.
      include_all: take files whatever their name.
      exclude: a folder that is not walked into: the output.
      scratch: the folder in which compressed tars are unpacked.
      keys: which features of the records of TFRecord files are what.
      unit: what of a text file is a record, where inputs are texts; None: they are images.

    Raises:
      BuildError: nothing was found, or a manifest is not what it must be.
    """
    found = passed_over = 0
    if source.kind == "manifest":
        chunks = list_manifest(source, uri_column, list(required), list(optional), list(features))
    else:
        lister = _Lister(
            source,
            list(required),
            list(optional),
            list(features),
            include_all,
            exclude,
            scratch,
            keys or RecordKeys(),
            unit,
        )
        chunks = lister.list(_files(source, exclude))
    for chunk in chunks:
        found += len(chunk.uris)
        passed_over += chunk.passed_over
        yield chunk
    if not found:
        hint = ""
        if passed_over:
            files_were = "1 file was" if passed_over == 1 else f"{passed_over:,} files were"
            hint = f" ({files_were} passed over by name; --include_all takes them)"
        what = "text" if unit else "image"
        raise BuildError(f"--input {source.text}: no {what} there{hint}")


_File = tuple[str, int, int, int, bool]  # uri, root length, bytes, stamp, hidden


@dataclass(frozen=True)
class _Lister:
    """Lists the files of a source that is no manifest: images, and archives where it names them."""

    source: Source
    required: list[str]
    optional: list[str]
    features: list[str]
    include_all: bool
    output: str
    scratch: str
    keys: RecordKeys
    unit: TextUnit | None = None

    def list(self, files: Iterator[_File]) -> Iterator[Listing]:
        if self.unit:
            yield from self._texts(files)
            return
        opened = self._opened
        named = self.source.kind != "glob"
        include_all = self.include_all or self.source.kind == "file"
        chunk = Listing()
        for file in files:
            uri, root_length, size, stamp, hidden = file
            hidden = hidden or uri[uri.rfind("/") + 1] == "."
            if opened and (named or not hidden) and (kind := _kind_by_name(uri)) in opened:
                yield from self._inside(kind, uri, root_length, size, stamp)
            elif include_all or (is_image_name(uri) and not hidden):
                self._check_columns()
                chunk.add(uri, root_length, size, stamp)
                if len(chunk.uris) == CHUNK_ROWS:
                    yield chunk
                    chunk = Listing()
            else:
                chunk.passed_over += 1
        if chunk.uris or chunk.passed_over:
            yield chunk

    def _texts(self, files: Iterator[_File]) -> Iterator[Listing]:
        assert self.unit
        include_all = self.include_all or self.source.kind in ("file", "text")
        rest = Listing()
        for uri, root_length, _, stamp, hidden in files:
            if not include_all and (hidden or not is_text_name(uri)):
                rest.passed_over += 1
                continue
            if storage.is_local(uri) and not os.path.isfile(uri):  # a pipe would not end
                raise BuildError(f"{uri}: not a regular file")
            source = Source(self.source.text, uri, "text")
            yield from list_texts(source, stamp, root_length, self.unit)
        if rest.passed_over:
            yield rest

    @property
    def _opened(self) -> tuple[Kind, ...]:
        """What is looked into: what the source names, and not what happens to lie in a folder."""
        if self.source.kind in ("archive", "records"):
            return (self.source.kind,)
        pattern = self.source.kind == "glob" and self.source.uri.rpartition("/")[2].strip("*")
        return ("archive", "records") if pattern else ()

    def _inside(
        self, kind: Kind, uri: str, root_length: int, size: int, stamp: int
    ) -> Iterator[Listing]:
        source = Source(self.source.text, uri, kind)
        if storage.is_local(uri) and not os.path.isfile(uri):  # opening a pipe would not end
            raise BuildError(f"{uri}: not a regular file")
        if kind == "records" and self.output and uri.rpartition("/")[0] == self.output:
            # With --overwrite they would be deleted before they are read.
            raise BuildError(f"{uri}: lies in --output itself: name another folder for the output")
        if kind == "archive":
            self._check_columns()
            return list_archive(source, size, stamp, root_length, self.include_all, self.scratch)
        return list_records(source, stamp, root_length, self.keys, self.required, self.optional)

    def _check_columns(self) -> None:
        if wanted := (*self.required, *self.features):
            raise BuildError(
                f"--input {self.source.text} is not a manifest and has no column "
                f"{wanted[0]!r}: columns come from CSV, JSONL or Parquet files"
            )


def _files(source: Source, exclude: str) -> Iterator[_File]:
    if not storage.is_local(source.uri):
        yield from _remote_files(source)
    elif source.kind == "folder":
        yield from _walk(source.uri, len(source.uri.rstrip("/")) + 1, exclude)
    elif source.kind in ("file", "text"):
        yield _local_file(source.uri, len(os.path.dirname(source.uri).rstrip("/")) + 1)
    elif source.kind in ("archive", "records"):
        yield _local_file(source.uri, len(source.uri) + 1)
    else:
        fixed = source.uri[: _WILDCARD.search(source.uri).start()]  # type: ignore[union-attr]
        root_length = fixed.rindex("/") + 1
        for path in glob.iglob(source.uri, recursive=True, include_hidden=True):
            if not os.path.isdir(path):
                yield _local_file(path, root_length)
            elif "**" not in source.uri:  # which yields all that is below a folder by itself
                yield from _walk(path, root_length, exclude)


def _local_file(path: str, root_length: int) -> _File:
    hidden = any(part.startswith(".") for part in path[root_length:].split("/")[:-1])
    return path, root_length, *storage.stat(path), hidden


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
                try:
                    if entry.is_dir():
                        if entry.path != exclude:
                            stack.append((entry.path, hidden or entry.name[0] == ".", inner))
                        continue
                    status = entry.stat()
                    yield entry.path, root_length, status.st_size, status.st_mtime_ns, hidden
                except OSError:  # a link to nothing or to itself: a reject, later
                    yield entry.path, root_length, -1, 0, hidden


def _remote_files(source: Source) -> Iterator[_File]:
    uri = source.uri
    if source.kind == "folder":
        root_length = len(uri.rstrip("/")) + 1
        pattern = uri.rstrip("/") + "/**"
    elif source.kind == "file":
        yield uri, uri.rindex("/") + 1, -1, 0, False
        return
    elif source.kind in ("archive", "records", "text"):
        size, stamp = storage.stat(uri)
        root_length = uri.rindex("/") + 1 if source.kind == "text" else len(uri) + 1
        yield uri, root_length, size, stamp, False
        return
    else:
        fixed = uri[: _WILDCARD.search(uri).start()]  # type: ignore[union-attr]
        root_length = fixed.rindex("/") + 1
        pattern = uri
    for path, size, when in storage.match(pattern):
        if not path.endswith("/"):
            hidden = any(part.startswith(".") for part in path[root_length:].split("/")[:-1])
            yield path, root_length, size, when, hidden


def first_records(source: Source) -> str | None:
    """The first TFRecord file by name of those that a source names; None where it names others."""
    if source.kind not in ("records", "glob"):
        return None
    files = [uri for uri, *_ in _files(source, "")]
    if not files or any(_kind_by_name(uri) != "records" for uri in files):
        return None
    return min(files)


def check_source(
    source: Source,
    uri_column: str,
    required: Sequence[str],
    optional: Sequence[str],
    features: Sequence[str],
) -> None:
    """Tells at once what is wrong with a source, where that needs no listing.

    Raises:
      BuildError: a manifest without its columns, or columns wanted of what is no manifest.
    """
    if source.kind == "manifest" or (
        (required or features) and source.kind in ("folder", "file", "archive")
    ):
        # The header is checked before the first row is asked for.
        listing = list_source(
            source,
            uri_column=uri_column,
            required=required,
            optional=optional,
            features=features,
        )
        next(listing, None)
