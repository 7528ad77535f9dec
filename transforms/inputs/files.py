"""Files as inputs: folders, glob patterns, and single images.

A pattern may also match files that hold many references (archives, TFRecord files, manifests), and
so may a folder of text files. Each of them is a unit of work of its own.

A large input divides itself while it is listed: the worker that has the whole of it lists some
thousands of files, and leaves to other workers the ranges of names (in object stores) or the
subfolders that it has not reached. A small input costs no more than its listing.
"""

from __future__ import annotations

import glob
import os
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, Skipped
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

File = tuple[str, int, int, int, bool]
"""URI, root length, bytes, stamp, whether it is in a hidden folder."""
_Folder = tuple[str, bool]  # path, is hidden
_FEW_ENTRIES = 10_000
"""Files and folders that are listed before a local folder is divided."""
_FEWEST_FOLDERS, _MOST_ENTRIES = 16, 8 * _FEW_ENTRIES
"""A folder is divided into at least so many folders, unless it has fewer after so many entries."""
_PARTS = 64
"""The most units that a local folder is divided into at a time."""


class Files(InputKind):
    """Files that a store lists: images, and files that hold many references."""

    @property
    def is_folder(self) -> bool:
        """Whether it lists the files below its root."""
        return True

    @abstractmethod
    def files(self, part: tuple[Any, ...], options: ListingOptions) -> Iterator[File | WorkUnit]:
        """Yields the files of a part, whatever their names, and units with the others.

        Args:
          part: the part of a unit; empty: all files.
          options: `divide` says whether to yield units at all.

        Raises:
          BuildError: a folder cannot be listed, or a link leads to the output.
        """

    def kind_of_file(self, uri: str) -> type[FileKind] | None:
        """The kind of a file whose references are listed; None for all other files."""
        return None

    def _noun_of(self, uri: str) -> str:
        """What a file that is skipped would be as an input, with its article; empty: nothing."""
        kind = kind_of_name(uri)
        return kind.noun if kind else ""

    def _kind_of(self, file: File, options: ListingOptions) -> type[InputKind] | None:
        """The kind that lists a file; None: the file is skipped."""
        uri, root_length, _, _, is_hidden = file
        if options.is_side_file(uri, root_length):
            return None
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

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed | WorkUnit]:
        """Lists images; files that hold references are units."""
        rows = ListedRows()
        has_required = bool(options.columns.all_required)
        for file in self.files(unit.part, options):
            if isinstance(file, WorkUnit):
                yield file
                continue
            uri, root_length, size, stamp, _ = file
            kind = self._kind_of(file, options)
            if kind is None:
                rows.skip(Skipped.of(uri, "" if options.text_unit else self._noun_of(uri)))
            elif issubclass(kind, FileKind):
                yield kind(self.text, uri).in_input(root_length, size, stamp)
            else:
                if has_required:
                    self.refuse_columns(options)
                rows.add(uri, root_length, size, stamp)
                if rows.is_full:
                    yield rows.take()
        if rows:
            yield rows.take()

    def fingerprint(
        self, unit: WorkUnit, options: ListingOptions
    ) -> Iterator[FileState | WorkUnit]:
        """Yields the files that `list_unit` lists. Files that hold references are not opened."""
        for file in self.files(unit.part, options):
            if isinstance(file, WorkUnit):
                yield file
                continue
            uri, root_length, size, stamp, _ = file
            if self._kind_of(file, options) or options.is_side_file(uri, root_length):
                yield uri, size, stamp

    def _remote_files(
        self, pattern: str, part: tuple[Any, ...], divide: bool
    ) -> Iterator[File | WorkUnit]:
        root_length = len(self.root)
        for found in storage.match_part(pattern, storage.Names(*part), few=divide):
            if isinstance(found, storage.Names):
                yield WorkUnit(self, tuple(found))
                continue
            uri, size, stamp = found
            if not uri.endswith("/"):
                yield uri, root_length, size, stamp, _in_hidden(uri, root_length)


class Folder(Files):
    """A folder, with all folders below it."""

    noun = "a folder"
    empty = "there is no file in it"

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

    def divisions(self, options: ListingOptions) -> int:
        """Parts of a folder may have parts; each text file is a unit."""
        return 3 if options.text_unit else 2

    def files(self, part: tuple[Any, ...], options: ListingOptions) -> Iterator[File | WorkUnit]:
        """Yields the files below the folder; links are followed."""
        if not storage.is_local(self.uri):
            yield from self._remote_files(storage.join(self.root, "**"), part, options.divide)
            return
        folders: tuple[_Folder, ...] = part or ((self.uri, False),)
        above = {path: _identities(self.uri, path) for path, _ in folders}
        for found in _walk(folders, len(self.root), above, options):
            if isinstance(found, list):
                parts = min(_PARTS, len(found))
                yield from (WorkUnit(self, tuple(found[n::parts])) for n in range(parts))
            else:
                yield found


class Pattern(Files):
    """A glob pattern; `**` matches any number of folders."""

    noun = "a pattern"
    empty = "no file matches"

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

    @property
    def is_folder(self) -> bool:
        """Whether it lists the files below its root; a pattern of manifests does not."""
        kind = kind_of_name(self.uri)
        return not (kind and issubclass(kind, FileKind)) or kind.is_file

    def divisions(self, options: ListingOptions) -> int:
        """Names may be divided twice; files that hold references are units, and so are their parts.

        A local pattern is not divided: one worker lists the names.
        """
        names = self._name_divisions
        if options.text_unit:
            return names + 1
        return names + (0 if is_image_name(self.uri) else 1 if self.is_folder else 2)

    @property
    def _name_divisions(self) -> int:
        return 0 if storage.is_local(self.uri) else 2

    def kind_of_file(self, uri: str) -> type[FileKind] | None:
        """The kind of a file; None if the pattern matches every name, such as `photos/*`.

        Only a pattern with a manifest's suffix selects manifests: `photos/*a*` may match notes.
        """
        if not self.uri.rpartition("/")[2].strip("*"):
            return None
        kind = kind_of_name(uri)
        if not (kind and issubclass(kind, FileKind)):
            return None
        return kind if kind.is_file or kind is kind_of_name(self.uri) else None

    def files(self, part: tuple[Any, ...], options: ListingOptions) -> Iterator[File | WorkUnit]:
        """Yields the files that match, and those below folders that match."""
        if not storage.is_local(self.uri):
            yield from self._remote_files(self.uri, part, options.divide)
            return
        root_length = len(self.root)
        whole = replace(options, divide=False)
        for path in glob.iglob(self.uri, recursive=True, include_hidden=True):
            if not os.path.isdir(path):
                yield path, root_length, *storage.stat(path), _in_hidden(path, root_length)
            elif "**" not in self.uri:  # `**` matches the files below a folder itself
                for file in _walk([(path, False)], root_length, {}, whole):
                    assert not isinstance(file, list)
                    yield file

    def sample(self) -> RecordSample | None:
        """The first file by name, if all are TFRecord files; in object stores: all of the first."""
        if is_image_name(self.uri):
            return None
        uris = []
        for uri in self._first_files():
            if not TFRecordFile.recognizes(uri):
                return None
            uris.append(uri)
        return TFRecordFile(self.text, min(uris)).sample() if uris else None

    def _first_files(self) -> Iterator[str]:
        if not storage.is_local(self.uri):
            yield from (uri for uri, *_ in storage.match_first(self.uri))
            return
        for file in self.files((), ListingOptions()):
            assert not isinstance(file, WorkUnit)
            yield file[0]


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

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed | WorkUnit]:
        """Lists the image; a missing one becomes a reject when it is read."""
        self.refuse_columns(options)
        rows = ListedRows()
        size, stamp = storage.stat(self.uri) if storage.is_local(self.uri) else (-1, 0)
        rows.add(self.uri, len(self.root), size, stamp)
        yield rows.take()


def _in_hidden(uri: str, root_length: int) -> bool:
    return any(part.startswith(".") for part in uri[root_length:].split("/")[:-1])


def _identities(root: str, path: str) -> frozenset[tuple[int, int]]:
    """(device, inode) of each folder from a root on, and above a path below it."""
    root = root.rstrip("/")
    names = path[len(root) :].split("/")[1:] if path != root else []
    above = [storage.join(root or "/", *names[:depth]) for depth in range(len(names))]
    try:
        return frozenset((status.st_dev, status.st_ino) for status in map(os.stat, above))
    except OSError as error:
        raise BuildError(f"{path}: cannot be listed: {error.strerror}") from error


def _check_link(path: str, output: str) -> None:
    """Checks that the files of the output are not listed as its inputs.

    Raises:
      BuildError: a link to a folder leads to the output, or above it, or into it.
    """
    target = real_folder(path)
    if output and (output.startswith(target) or target.startswith(output)):
        raise BuildError(
            f"{path}: this link leads to {target}, and --output is {output}: remove the link, or "
            "specify another output folder"
        )


def _walk(
    folders: Iterable[_Folder],
    root_length: int,
    above: Mapping[str, frozenset[tuple[int, int]]],
    options: ListingOptions,
) -> Iterator[File | list[_Folder]]:
    """Yields the files below folders; at the end, the list of the folders that were not listed.

    Args:
      folders: the folders.
      root_length: characters of the paths before the names.
      above: path of a folder -> its `_identities`; none without an entry.
      options: `divide` says whether some folders are not listed.

    Raises:
      BuildError: a folder cannot be listed, or a link leads to the output.
    """
    # Links to folders are followed, since data sets are often trees of links, but not to a folder
    # that contains the link.
    waiting = deque((path, hidden, above.get(path, frozenset())) for path, hidden in folders)
    entries_seen = 0
    while waiting:
        if options.divide and entries_seen >= (
            _FEW_ENTRIES if len(waiting) >= _FEWEST_FOLDERS else _MOST_ENTRIES
        ):
            yield [(path, hidden) for path, hidden, _ in waiting]
            return
        # Breadth first, many folders are waiting soon; depth first, few are.
        here, is_hidden, ancestors = waiting.popleft() if options.divide else waiting.pop()
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
                entries_seen += 1
                try:
                    if entry.is_dir():
                        if entry.is_symlink():
                            _check_link(entry.path, options.output)
                        waiting.append((entry.path, is_hidden or entry.name[0] == ".", inner))
                        continue
                    status = entry.stat()
                    yield entry.path, root_length, status.st_size, status.st_mtime_ns, is_hidden
                except OSError:  # a link to nothing or to itself: it becomes a reject when read
                    yield entry.path, root_length, -1, 0, is_hidden
