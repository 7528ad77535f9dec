"""Where the names of images begin in their URIs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow.compute as pc

from imageshards.transforms.elements import to_bytes
from imageshards.transforms.references.batch import RefBatch


@dataclass(frozen=True)
class Roots:
    """The roots of all inputs of a build: an image's name is its URI below the root of its input.

    If inputs contain each other, names are relative to the outermost one, so that an image that is
    listed by more than one of them has a single name, and is a duplicate. A manifest contains no
    other input: beside it, all other images keep their names.

    Attributes:
      folders: roots of the inputs that list folders, with a slash at their ends.
      files: URIs of the inputs that are single files with a root.
      tables: folders of the inputs that name files of any folder, with a slash at their ends.
      base: a folder, with a slash at its end, below which names are relative to it; empty: none.

    >>> roots = Roots(frozenset({"/d/photos/", "/d/photos/new/"}))
    >>> roots.outermost("/d/photos/new/")
    10
    """

    folders: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    base: str = ""

    def outermost(self, uri: str) -> int:
        """The length of the outermost folder that is an input and contains a URI; 0: none does."""
        return _prefix_length(self._outer_folders, uri)

    @cached_property
    def _outer_folders(self) -> list[str]:
        return _outer(self.folders)

    @cached_property
    def _outer_tables(self) -> list[str]:
        return _outer(self.tables)

    def lengths(self, refs: RefBatch) -> np.ndarray:
        """Characters of each URI before its name; uint32.

        Args:
          refs: references of one input as they were listed, with the roots of this input.
        """
        lengths = refs.roots
        if len(self.folders) + len(self.files) + len(self.tables) > 1:
            lengths = self._among_all(refs)
        if self.base:
            below = pc.starts_with(refs.rows.column("uri"), to_bytes(self.base))
            below = below.to_numpy(zero_copy_only=False)
            lengths = np.where(below, np.uint32(len(self.base)), lengths)
        return lengths

    def length_of(self, uri: str, files: Mapping[str, int]) -> int:
        """Characters of a URI before the name that an image there has.

        Args:
          uri: of an image, or of a part of an input that is a file.
          files: URI of each input that is a file -> length of its root.

        >>> Roots(frozenset({"/d/photos/"})).length_of("/d/photos/cat/1.jpg", {})
        10
        >>> Roots().length_of("/d/photos.zip/cat/1.jpg", {"/d/photos.zip": 14})
        14
        """
        if self.base and uri.startswith(self.base):
            return len(self.base)
        if outermost := self.outermost(uri):
            return outermost
        folder = uri
        while folder and folder not in files:
            folder = folder.rpartition("/")[0]
        return files[folder] if folder else _prefix_length(self._outer_tables, uri)

    def _among_all(self, refs: RefBatch) -> np.ndarray:
        lengths = refs.roots.copy()
        for length in np.unique(refs.roots).tolist():  # an input has one root, and URIs without it
            rows = np.flatnonzero(refs.roots == length)
            root = refs.take(rows[:1]).uris[0][:length]
            if outermost := self.outermost(root):
                lengths[rows] = outermost
            elif refs.are_records:  # names that a feature holds are no URIs
                continue
            elif not root or root in self.tables:
                lengths[rows] = [self._length_of_file(uri) for uri in refs.take(rows).uris]
        return lengths

    def _length_of_file(self, uri: str) -> int:
        """The length of the root of a file that a manifest names."""
        if outermost := self.outermost(uri):
            return outermost
        if uri in self.files:
            return uri.rindex("/") + 1
        return _prefix_length(self._outer_tables, uri)


def _outer(folders: Iterable[str]) -> list[str]:
    """The folders that no other one contains, sorted."""
    found: list[str] = []
    for folder in sorted(folders):  # a folder is sorted before those that it contains
        if not (found and folder.startswith(found[-1])):
            found.append(folder)
    return found


def _prefix_length(outer: list[str], uri: str) -> int:
    """The length of the one of `_outer` folders that contains a URI; 0: none does."""
    # No folder that contains the URI is sorted after it, and no other folder between the two.
    at = bisect_right(outer, uri)
    return len(outer[at - 1]) if at and uri.startswith(outer[at - 1]) else 0
