"""A source of images, and what is listed of it: columns, in chunks. Pure."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, Literal

from imageshards.transforms.elements import Codec, Problem

CHUNK_ROWS = 1 << 14
"""Rows of a chunk: a manifest of any length passes through a memory of fixed size."""

ARCHIVE_SUFFIXES = (
    ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".zip",
)  # fmt: skip
"""Endings of archives, in small letters; what they hold has them for a folder in its URI."""

Kind = Literal["folder", "glob", "manifest", "file", "archive", "records", "text"]
TextUnit = Literal["line", "paragraph"]


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
      columns: those manifest columns that were asked for and are there, as texts.
      features: manifest columns that become features, as the manifest has their values.
      passed_over: files that were not taken because they are not images by their name.
      problems: row -> what is wrong with it, for those that cannot be images of the data set.
      container: the file of which all rows are byte ranges, or empty.
      codec: of these ranges.
      offsets: where the ranges begin in it.
      lengths: bytes of the ranges.
      unpacked: the file that was made to hold the ranges, if it was.
      blank: lines of a text file without anything on them.
    """

    uris: list[str] = field(default_factory=list)
    roots: array[int] = field(default_factory=lambda: array("I"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    stamps: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, list[str | None]] = field(default_factory=dict)
    features: dict[str, list[Any]] = field(default_factory=dict)
    passed_over: int = 0
    problems: dict[int, Problem] = field(default_factory=dict)
    container: str = ""
    codec: Codec = "stored"
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    unpacked: str = ""
    blank: int = 0

    def add(self, uri: str, root_length: int, size: int, stamp: int) -> None:
        """Appends an image without columns."""
        self.uris.append(uri)
        self.roots.append(root_length)
        self.sizes.append(size)
        self.stamps.append(stamp)

    def add_range(
        self,
        uri: str,
        root_length: int,
        size: int,
        stamp: int,
        offset: int,
        length: int,
        problem: Problem | None = None,
    ) -> None:
        """Appends an image that is a byte range of the container."""
        if problem:
            self.problems[len(self.uris)] = problem
        self.add(uri, root_length, size, stamp)
        self.offsets.append(offset)
        self.lengths.append(length)
