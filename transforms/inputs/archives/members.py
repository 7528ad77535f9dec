"""Members of archives, and the view of a file through which their headers are read."""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import Callable
from functools import partial
from typing import IO, NamedTuple

from imageshards.transforms import storage
from imageshards.transforms.elements import LOST, Problem
from imageshards.transforms.images.validate import is_image_name

_LONGEST_HEADER_BYTES = 1 << 20
"""Genuine headers, with names and attributes, are shorter; a forged one may have any length."""


class NotAnArchive(OSError):
    """A file that cannot be listed as an archive; the message says why.

    This is an OSError because zipfile reports an OSError as a bad zip file.
    """


class Member(NamedTuple):
    """A file in an archive.

    Attributes:
      path: its path in the archive.
      offset: offset of its first byte (in a zip: of its local header) in the outermost file.
      length: bytes that it occupies there.
      size: bytes of its content, or -1.
      problem: why it cannot be an image of the data set, or None.
      is_rest: it represents all members that cannot be read, because the archive is damaged.
      is_tar: it is a tar whose members are to be listed by themselves.
    """

    path: str
    offset: int = 0
    length: int = 0
    size: int = -1
    problem: Problem | None = None
    is_rest: bool = False
    is_tar: bool = False

    @property
    def is_image(self) -> bool:
        """Whether the name is that of an image. Hidden files are not images."""
        return self.is_rest or (is_image_name(self.path) and not self.is_hidden)

    @property
    def is_hidden(self) -> bool:
        """Whether its name, or that of a folder above it, begins with a dot."""
        return (self.path[0] == "." or "/." in self.path) and any(
            part[:1] == "." and part != ".." for part in self.path.split("/")
        )

    def below(self, folder: str) -> Member:
        """The same member, for an archive that is itself a member at `folder`."""
        return self._replace(path=f"{folder}/{self.path}")


def rejected(path: str, error: str, reason: str) -> Member:
    """A member that becomes a reject."""
    return Member(path, problem=Problem("read", error, reason))


def unreadable_from(offset: int, reason: str) -> Member:
    """A reject that represents all members after an offset."""
    problem = Problem("read", LOST, f"the archive cannot be read from there on: {reason}")
    return Member(f"(from byte {offset})", problem=problem, is_rest=True)


def member(name: str, offset: int, length: int, size: int) -> Member:
    """A member with a normalized path; a reject if its name is unsafe."""
    if "\0" in name:
        return rejected(name.replace("\0", "\\0"), "UnsafeName", "its name holds a NUL")
    if name.startswith("/"):
        return rejected(name, "UnsafeName", "its name is an absolute path")
    path = posixpath.normpath(name)
    if path == ".." or path.startswith("../"):
        return rejected(name, "UnsafeName", "its name leads out of the archive")
    return Member(path, offset, length, size)


ReadAt = Callable[[int, int], bytes]
"""Number of bytes, offset -> data."""


def reads_at(file: IO[bytes], uri: str) -> ReadAt:
    """Random access to an open file."""
    if storage.is_local(uri):
        # Headers are far apart: filling a buffer for each would cost more than reading it.
        return partial(os.pread, file.fileno())

    def read_at(size: int, offset: int) -> bytes:
        file.seek(offset)
        return file.read(size)

    return read_at


class View(io.RawIOBase):
    """A part of a file, as a file. It refuses reads that no genuine archive causes.

    Attributes:
      read_at: reads from the file, not from the part.
      start: offset of the part in the file.
      size: bytes of the part.
      longest_read: bytes; a longer read raises `NotAnArchive`.
    """

    def __init__(self, read_at: ReadAt, start: int, size: int) -> None:
        self.read_at = read_at
        self.start = start
        self.size = size
        self.longest_read = _LONGEST_HEADER_BYTES
        self._position = 0

    def part(self, start: int, size: int) -> View:
        """A view of a part of this part."""
        return View(self.read_at, self.start + start, size)

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """The offset of the next read, in this part."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset; raises NotAnArchive for one before the part."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise NotAnArchive("it points before its own beginning")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Reads at most `size` bytes; raises NotAnArchive for more than `longest_read`."""
        left = max(0, self.size - self._position)
        if size < 0:
            size = left
        if size > self.longest_read:
            raise NotAnArchive(f"a header of {size:,} bytes")
        data = self.read_at(min(size, left), self.start + self._position)
        self._position += len(data)
        return data
