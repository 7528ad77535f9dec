"""Members of tars, including tars inside tars, found by walking from header to header.

The standard library's tarfile parses the headers. This module detects errors that tarfile ignores:
members outside of the file, negative sizes, and tars that are cut off.
"""

from __future__ import annotations

import posixpath
import re
import tarfile
import zlib
from collections.abc import Generator, Iterator
from typing import Any, Self

from imageshards.transforms.elements import LOST, quoted
from imageshards.transforms.inputs.archives.members import (
    Member,
    NotAnArchive,
    View,
    member,
    rejected,
    unreadable_from,
)

LARGE_INNER_BYTES = 16 << 20
"""Bytes of a tar inside a tar that is listed by itself, if the outer one is divided."""
_MAX_DEPTH = 8
_MAX_LINKS = 40  # in a chain, as in Linux
_BLOCK = tarfile.BLOCKSIZE
_MAX_PADDING_BYTES = 1 << 20
"""A tar has ended if this many zeros follow; a sparse file may hold any number of zeros."""

# Files, and the headers that only describe the next one.
_PLAIN_TYPES = (
    tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME,
)  # fmt: skip

# What tarfile takes from an extended header, except for owners and times.
_PAX_NEEDED = re.compile(rb" (path|linkpath|size|hdrcharset|GNU\.sparse[^=]*)=")

# Errors that tarfile raises for bytes that are not a tar, intended or not.
_TAR_ERRORS = (
    tarfile.TarError, NotAnArchive, ValueError, OverflowError, IndexError, RecursionError,
    zlib.error,
)  # fmt: skip


class _Header(tarfile.TarInfo):
    """A header that parses only what listing needs; tarfile parses the unusual ones.

    tarfile spends 13 us on owners, modes and times, half the time of listing a member.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        kind = bytes(buf[156:157])
        if len(buf) != _BLOCK or kind not in _PLAIN_TYPES:
            return super().frombuf(buf, encoding, errors)
        try:
            checksum = int(buf[148:156].strip(b" \0"), 8)
            size = int(buf[124:136].strip(b" \0"), 8)
        except ValueError:
            return super().frombuf(buf, encoding, errors)
        # In the sum, the field of the checksum counts as eight blanks.
        if checksum != sum(buf) - sum(buf[148:156]) + 8 * ord(" "):
            return super().frombuf(buf, encoding, errors)
        header = cls(buf[:100].partition(b"\0")[0].decode(encoding, errors))
        header.size = size
        header.chksum = checksum
        header.type = kind
        if buf[345] and kind not in tarfile.GNU_TYPES:
            prefix = buf[345:500].partition(b"\0")[0].decode(encoding, errors)
            header.name = f"{prefix}/{header.name}"
        return header

    def _proc_pax(self, tar: Any) -> tarfile.TarInfo:
        """Parses the extended header of a member only if it has what listing needs.

        The webdataset package writes one for the time of each member; tarfile takes 40 us for it.
        """
        if self.type == tarfile.XHDTYPE and not tar.pax_headers:
            begin = tar.fileobj.tell()
            size = -(-self.size // _BLOCK) * _BLOCK
            if not _PAX_NEEDED.search(tar.fileobj.read(size)):
                try:
                    found = self.fromtarfile(tar)
                except tarfile.HeaderError as error:
                    raise tarfile.SubsequentHeaderError(str(error)) from error  # type: ignore[attr-defined]
                found.offset = self.offset
                return found
            tar.fileobj.seek(begin)
        return super()._proc_pax(tar)  # type: ignore[misc,no-any-return]


class Headers:
    """The headers of a tar from an offset to its next end mark.

    Attributes:
      end: offset at which the member of the last yielded header ends.
      error: after the last header: why no other one can be read; empty if an end mark follows.
    """

    def __init__(self, view: View, begin: int) -> None:
        self._view = view
        self._begin = self.end = begin
        self.error = ""

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        view = self._view
        view.seek(self._begin)
        try:
            tar: Any = tarfile.TarFile(
                fileobj=view,
                mode="r",
                tarinfo=_Header,
                encoding="utf-8",
                errors="surrogateescape",
            )
            info = tar.next()
            while info:
                if tar.offset <= self.end or info.size < 0:
                    raise NotAnArchive("a size below 0")
                self.end = tar.offset
                yield info
                if self.end > view.size:
                    return  # the member is cut off, and `_members_from` rejects it
                tar.members.clear()  # tarfile would keep them all in memory
                info = tar.next()
        except _TAR_ERRORS as error:
            self.error = str(error) or type(error).__name__
            return
        # tarfile treats everything that it cannot parse as the end.
        view.seek(self.end)
        block = view.read(_BLOCK)
        if self.end <= view.size and len(block) < _BLOCK:
            self.error = "no mark of its end: it may be cut off between two members"
        elif self.end <= view.size and block.strip(b"\0"):
            self.error = "no header where one must be"


def tar_members(view: View, depth: int = 0, divide: bool = False) -> Iterator[Member]:
    """Yields the files of a tar, and of the tars in it.

    Args:
      view: the tar.
      depth: number of tars that contain this one.
      divide: whether to yield large inner tars themselves (`is_tar`), and not their files.

    Raises:
      NotAnArchive: its first header is not that of a tar.
    """
    begin = 0
    links: dict[str, str] = {}
    while begin >= 0:
        end = yield from _members_from(view, begin, depth, links, divide)
        # Tars that were joined by `cat` have zeros between them.
        begin = _next_header(view, end)
    if links:
        yield from _resolve(view, links)


def _next_header(view: View, position: int) -> int:
    """The offset of the first header after an end mark, or -1."""
    view.seek(position)
    for _ in range(_MAX_PADDING_BYTES // _BLOCK):
        block = view.read(_BLOCK)
        if len(block) < _BLOCK:
            return -1
        if block.strip(b"\0"):
            return view.tell() - _BLOCK
    return -1


def _members_from(
    view: View, begin: int, depth: int, links: dict[str, str], divide: bool
) -> Generator[Member, None, int]:
    """Yields the files up to an end mark, adds links to `links`, returns the offset of the end."""
    headers = Headers(view, begin)
    end = begin
    for info in headers:
        end = info.offset_data + (-(-info.size // _BLOCK) * _BLOCK if info.isreg() else 0)
        if info.isdir():
            continue
        found = member(info.name, view.start + info.offset_data, info.size, info.size)
        whole = info.offset_data + info.size <= view.size
        if not found.problem and (info.issym() or info.islnk()):
            folder = "" if info.islnk() else posixpath.dirname(found.path)
            links[found.path] = posixpath.normpath(posixpath.join(folder, info.linkname))
        elif found.problem:
            yield found
        elif not info.isreg():
            yield rejected(found.path, "NotAFile", "a device or a pipe")
        elif info.issparse():
            yield rejected(found.path, "Unreadable", "stored as a sparse file")
        elif found.path.lower().endswith(".tar") and not found.is_hidden:
            inner = view.part(info.offset_data, min(info.size, view.size - info.offset_data))
            if divide and inner.size >= LARGE_INNER_BYTES:
                yield Member(found.path, inner.start, inner.size, inner.size, is_tar=True)
            else:
                yield from inner_members(inner, found.path, depth + 1)
        elif whole:
            yield found
        else:
            yield rejected(
                found.path, LOST, "the archive ends here: whatever came behind is not in it"
            )
    if not headers.error:
        return headers.end
    if not begin and not end:
        raise NotAnArchive(f"not a tar: {headers.error}")
    yield unreadable_from(view.start + end, headers.error)
    return view.size


def inner_members(view: View, path: str, depth: int = 1) -> Iterator[Member]:
    """Yields the files of a tar inside a tar. If it is damaged, the outer one is still read."""
    try:
        if depth > _MAX_DEPTH:
            raise NotAnArchive(f"more than {_MAX_DEPTH} tars in one another")
        for found in tar_members(view, depth):
            yield found.below(path)
    except NotAnArchive as error:
        yield unreadable_from(view.start, str(error)).below(path)


def _resolve(view: View, links: dict[str, str]) -> Iterator[Member]:
    """Yields the links of a tar (path -> target) as the files that they lead to."""
    targets: dict[str, str] = {}
    for name in links:
        target, steps = links[name], 0
        while target in links and steps < _MAX_LINKS:
            target, steps = links[target], steps + 1
        targets[name] = target
    wanted = set(targets.values())
    found: dict[str, tarfile.TarInfo] = {}
    begin = 0
    while begin >= 0:
        headers = Headers(view, begin)
        for info in headers:
            if info.isreg() and not info.issparse():
                path = posixpath.normpath(info.name)
                if path in wanted and info.offset_data + info.size <= view.size:
                    found[path] = info
        begin = -1 if headers.error else _next_header(view, headers.end)
    for name, target in targets.items():
        if target in found:
            info = found[target]
            yield Member(name, view.start + info.offset_data, info.size, info.size)
        else:
            yield rejected(
                name, "Missing", f"a link to {quoted(target)}, which is not in the archive"
            )
