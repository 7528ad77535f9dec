"""Files as inputs: folders, glob patterns, and single images.

A pattern may also match files that hold many references (archives and TFRecord files), and so may a
folder of text files.
"""

from __future__ import annotations

import glob
import os
import re
from abc import abstractmethod
from collections.abc import Iterator
from fnmatch import fnmatchcase

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.images.validate import is_image_name
from imageshards.transforms.inputs.kind import (
    FileKind,
    FileState,
    InputKind,
    ListingOptions,
    RecordSample,
    WorkUnit,
    kind_of_name,
    real_folder,
)
from imageshards.transforms.inputs.listed import Listed, ListedRows
from imageshards.transforms.inputs.texts import TextFile
from imageshards.transforms.inputs.tfrecords import TFRecordFile

_WILDCARD = re.compile(r"[*?\[]")

_File = tuple[str, int, int, int, bool]  # URI, root length, bytes, stamp, is in a hidden folder


class Files(InputKind):
    """Files that a store lists: images, and files that hold many references."""

    is_folder = True

    @abstractmethod
    def files(self, options: ListingOptions) -> Iterator[_File]:
        """Yields the files, whatever their names."""

    def kind_of_file(self, uri: str) -> type[FileKind] | None:
        """The kind of a file whose references are listed; None for all other files."""
        return None

    def _kind_of(self, file: _File, options: ListingOptions) -> type[InputKind] | None:
        """The kind that lists a file; None: the file is skipped."""
        uri, *_, is_hidden = file
        is_hidden = is_hidden or uri[uri.rfind("/") + 1] == "."
        if options.text_unit:
            is_listed = options.include_all or (TextFile.recognizes(uri) and not is_hidden)
            return TextFile if is_listed else None
        if not is_hidden:
            if is_image_name(uri):
                return SingleFile
            if kind := self.kind_of_file(uri):
                return kind
        return SingleFile if options.include_all else None

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed]:
        """Lists the files in the order of the store."""
        rows = ListedRows()
        has_required = bool(options.columns.all_required)
        for file in self.files(options):
            uri, root_length, size, stamp, _ = file
            kind = self._kind_of(file, options)
            if kind is None:
                rows.passed_over += 1
            elif issubclass(kind, FileKind):
                yield from kind(self.text, uri).list_file(root_length, size, stamp, options)
            else:
                if has_required:
                    self.refuse_columns(options)
                rows.add(uri, root_length, size, stamp)
                if rows.is_full:
                    yield rows.take()
        if rows:
            yield rows.take()

    def fingerprint(self, unit: WorkUnit, options: ListingOptions) -> Iterator[FileState]:
        """Yields the files that `list_unit` lists. Files that hold references are not opened."""
        for file in self.files(options):
            if self._kind_of(file, options):
                uri, _, size, stamp, _ = file
                yield uri, size, stamp


class Folder(Files):
    """A folder, with all folders below it."""

    noun = "a folder"

    @property
    def root(self) -> str:
        """The folder."""
        return self.uri.rstrip("/") + "/"

    def holds(self, folder: str) -> bool:
        """Whether this is the folder, or is above it."""
        return real_folder(folder).startswith(real_folder(self.root))

    def check(self, options: ListingOptions) -> None:
        """Raises a BuildError if columns are required: folders do not have any."""
        self.refuse_columns(options)

    def files(self, options: ListingOptions) -> Iterator[_File]:
        """Yields the files below the folder; links are followed."""
        if storage.is_local(self.uri):
            return _walk(self.uri, len(self.root))
        return _remote_files(storage.join(self.root, "**"), len(self.root))


class Pattern(Files):
    """A glob pattern; `**` matches any number of folders."""

    noun = "a pattern"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a URI holds a wildcard."""
        return _WILDCARD.search(uri) is not None

    @property
    def root(self) -> str:
        """The last folder before the first wildcard."""
        wildcard = _WILDCARD.search(self.uri)
        assert wildcard
        return self.uri[: self.uri.rindex("/", 0, wildcard.start()) + 1]

    def holds(self, folder: str) -> bool:
        """Whether the pattern matches the folder, a folder above it, or files of a build in it."""
        root, below = real_folder(self.root), real_folder(folder)
        if not below.startswith(root):
            return False
        names = below.removeprefix(root).split("/")[:-1]
        parts = self.uri.removeprefix(self.root).split("/")
        matches_files = not is_image_name(self.uri)  # no file of a build has the name of an image
        for name, part in zip(names, parts, strict=False):
            if "**" in part:
                return matches_files
            if not fnmatchcase(name, part):
                return False
        if len(parts) > len(names):  # the rest of the pattern is about files below the folder
            return matches_files and (len(parts) == len(names) + 1 or "**" in parts[len(names)])
        return storage.is_local(self.uri)  # a folder that matches is listed

    def kind_of_file(self, uri: str) -> type[FileKind] | None:
        """The kind of a file; None if the pattern matches every name, such as `photos/*`."""
        if not self.uri.rpartition("/")[2].strip("*"):
            return None
        kind = kind_of_name(uri)
        return kind if kind and issubclass(kind, FileKind) else None

    def files(self, options: ListingOptions) -> Iterator[_File]:
        """Yields the files that match, and those below folders that match."""
        root_length = len(self.root)
        if not storage.is_local(self.uri):
            yield from _remote_files(self.uri, root_length)
            return
        for path in glob.iglob(self.uri, recursive=True, include_hidden=True):
            if not os.path.isdir(path):
                yield path, root_length, *storage.stat(path), _in_hidden(path, root_length)
            elif "**" not in self.uri:  # `**` matches the files below a folder itself
                yield from _walk(path, root_length)

    def advice_on_skipped(self, options: ListingOptions) -> str:
        """Suggests single inputs if this pattern matches only files such as manifests."""
        nouns = set()
        for uri, *_ in () if options.text_unit else self.files(options):
            kind = kind_of_name(uri)
            nouns.add(kind.noun if kind else "")
        if not nouns or "" in nouns:
            return super().advice_on_skipped(options)
        return f"this pattern does not select {' or '.join(sorted(nouns))}: write --input for each"

    def sample(self) -> RecordSample | None:
        """The first file by name, if all are TFRecord files."""
        uris = [uri for uri, *_ in self.files(ListingOptions())]
        if uris and all(map(TFRecordFile.recognizes, uris)):
            return TFRecordFile(self.text, min(uris)).sample()
        return None


class SingleFile(InputKind):
    """One image with any name, or one URL."""

    noun = "a file"
    is_file = True

    @property
    def root(self) -> str:
        """Its folder; empty for a URL, whose name is the whole URL."""
        return super().root if storage.can_list(self.uri) else ""

    def check(self, options: ListingOptions) -> None:
        """Raises a BuildError if columns are required: an image does not have any."""
        self.refuse_columns(options)

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed]:
        """Lists the image; a missing one becomes a reject when it is read."""
        self.refuse_columns(options)
        rows = ListedRows()
        size, stamp = storage.stat(self.uri) if storage.is_local(self.uri) else (-1, 0)
        rows.add(self.uri, len(self.root), size, stamp)
        yield rows.take()


def _in_hidden(uri: str, root_length: int) -> bool:
    return any(part.startswith(".") for part in uri[root_length:].split("/")[:-1])


def _walk(folder: str, root_length: int) -> Iterator[_File]:
    # Links to folders are followed, since data sets are often trees of links, but not to a folder
    # that contains the link.
    stack: list[tuple[str, bool, frozenset[tuple[int, int]]]] = [(folder, False, frozenset())]
    while stack:
        here, is_hidden, ancestors = stack.pop()
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
                        stack.append((entry.path, is_hidden or entry.name[0] == ".", inner))
                        continue
                    status = entry.stat()
                    yield entry.path, root_length, status.st_size, status.st_mtime_ns, is_hidden
                except OSError:  # a link to nothing or to itself: it becomes a reject when read
                    yield entry.path, root_length, -1, 0, is_hidden


def _remote_files(pattern: str, root_length: int) -> Iterator[_File]:
    for uri, size, stamp in storage.match(pattern):
        if not uri.endswith("/"):
            yield uri, root_length, size, stamp, _in_hidden(uri, root_length)
