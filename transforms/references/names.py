"""Where the names of images begin in their URIs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from imageshards.transforms.elements import to_bytes
from imageshards.transforms.references.batch import RefBatch


@dataclass(frozen=True)
class Roots:
    """The roots of all inputs of a build: an image's name is its URI below the root of its input.

    If inputs contain each other, names are relative to the outermost one, so that an image that
    several of them list has a single name, and is a duplicate.

    Attributes:
      folders: roots of the inputs that list folders, with a slash at their ends.
      files: URIs of the inputs that are single files.
      base: a folder, with a slash at its end, below which names are relative to it; empty: none.

    >>> roots = Roots(frozenset({"/d/photos/", "/d/photos/new/"}))
    >>> roots.outermost("/d/photos/new/")
    10
    """

    folders: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    base: str = ""

    def outermost(self, root: str) -> int:
        """The length of the outermost root of an input that contains this root."""
        return next((end for end in _folder_ends(root) if root[:end] in self.folders), len(root))

    def lengths(self, refs: RefBatch) -> np.ndarray:
        """Characters of each URI before its name; uint32.

        Args:
          refs: references as they were listed, with the roots of their own inputs.
        """
        lengths = refs.roots
        if len(self.folders) + len(self.files) > 1:
            lengths = self._outermost_of(refs)
        if self.base:
            below = pc.starts_with(refs.rows.column("uri"), to_bytes(self.base))
            below = below.to_numpy(zero_copy_only=False)
            lengths = np.where(below, np.uint32(len(self.base)), lengths)
        return lengths

    def _outermost_of(self, refs: RefBatch) -> np.ndarray:
        known: dict[str, int] = {}
        lengths = refs.roots.tolist()
        are_records = refs.are_records
        for row, (uri, length) in enumerate(zip(refs.uris, lengths, strict=True)):
            if length:
                root = uri[:length]
                if root not in known:
                    known[root] = self.outermost(root)
                lengths[row] = known[root]
            elif not are_records:  # a manifest names files of any folder; records may name others
                lengths[row] = self._root_of_file(uri)
        return np.array(lengths, np.uint32)

    def _root_of_file(self, uri: str) -> int:
        """The length of the root of a file that the manifest's own root does not contain."""
        if end := next((end for end in _folder_ends(uri) if uri[:end] in self.folders), 0):
            return end
        return uri.rindex("/") + 1 if uri in self.files else 0


def _folder_ends(path: str) -> Iterator[int]:
    """Yields the length of each folder above a path, outermost first, with its slash."""
    end = path.find("/") + 1
    while end:
        yield end
        end = path.find("/", end) + 1
