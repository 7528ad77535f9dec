"""Archives, listed: every image in one is a byte range of it. Nothing is unpacked.

A tar is walked from header to header, tars in it included; of a zip the directory at its end is
read. The standard library's tarfile and zipfile parse them; here stands what they leave to their
callers: what is outside of the file, on top of itself, or silently cut off.

Names in an archive are data and never paths: they go into URIs and labels, and no further.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, Any, NamedTuple, Self

from imageshards.transforms import storage
from imageshards.transforms.elements import LOST, BuildError, Codec, Problem
from imageshards.transforms.images.validate import is_image_name
from imageshards.transforms.inputs import listing as listings
from imageshards.transforms.inputs import unpack
from imageshards.transforms.inputs.listing import ARCHIVE_SUFFIXES, Listing, Source

_MAX_DEPTH = 8
_MOST_LINKS = 40  # to one file, as the system has it
_BLOCK = tarfile.BLOCKSIZE
_TAR_HEADER_BYTES = 1 << 20
"""No honest header of a tar is longer, names and attributes included; a forged one could be as long
as the file."""
_ZIP_DIRECTORY_BYTES = 1 << 30
_ZEROS_BYTES = 1 << 20
"""After so many zeros a tar has ended: more of them are padding, or a hole without end."""

_ZIP_LOCAL_HEADER_BYTES = 30
_ENCRYPTED, _UTF8 = 0x1, 0x800


def is_archive(uri: str) -> bool:
    """Whether a URI is that of an archive, by its ending."""
    return uri.lower().endswith(ARCHIVE_SUFFIXES)


def list_archive(
    source: Source, size: int, stamp: int, root_length: int, include_all: bool, scratch: str
) -> Iterator[Listing]:
    """Lists an archive.

    Args:
      source: an archive, or what it was found by.
      size: of it, in bytes.
      stamp: changes with its content, or 0.
      root_length: of the URI, what stands before the path by which folders are splits.
      include_all: take members whatever their name.
      scratch: the folder in which a compressed tar is unpacked into a plain one.

    Raises:
      BuildError: it cannot be listed at all.
    """
    container = source.uri
    unpacked = ""
    if unpack.is_compressed_tar(source.uri):
        container = unpacked = unpack.unpack(source.uri, size, stamp, scratch)
    codec: Codec = "zip" if source.uri.lower().endswith(".zip") else "stored"

    def new_chunk() -> Listing:
        return Listing(container=container, codec=codec, unpacked=unpacked)

    chunk = new_chunk()
    try:
        with storage.open_read(container) as file:
            file.seek(0, io.SEEK_END)
            view = _View(_reads_at(file, container), 0, file.tell())
            for member in _zip_members(view) if codec == "zip" else _tar_members(view):
                if not (include_all or member.is_image):
                    chunk.passed_over += 1
                    continue
                chunk.add_range(
                    f"{source.uri}/{member.path}", root_length, member.size, stamp,
                    member.offset, member.length, member.problem,
                )  # fmt: skip
                if len(chunk.uris) == listings.CHUNK_ROWS:
                    yield chunk
                    chunk = new_chunk()
    except _NotAnArchive as error:
        raise BuildError(f"{source.uri}: {error}") from error
    except OSError as error:
        raise BuildError(
            f"{source.uri}: cannot be read: {error.strerror or 'no such file'}"
        ) from error
    if chunk.uris or chunk.passed_over:
        yield chunk


class _NotAnArchive(OSError):
    """Nothing of an archive can be listed; says why. To zipfile, a file that cannot be read so."""


class _Member(NamedTuple):
    """A file in an archive.

    Attributes:
      path: below the archive.
      offset: of its first byte (in a zip: of its local header) in the outermost file.
      length: bytes that it takes there.
      size: bytes that it is.
      problem: why it is not an image of the data set, or None.
      stands_for_more: it is not a file but a place from which on the archive cannot be read.
    """

    path: str
    offset: int = 0
    length: int = 0
    size: int = -1
    problem: Problem | None = None
    stands_for_more: bool = False

    @property
    def is_image(self) -> bool:
        """Whether it is taken, by its name: hidden files and folders are not."""
        return self.stands_for_more or (is_image_name(self.path) and not self.is_hidden)

    @property
    def is_hidden(self) -> bool:
        """Whether a folder above it begins with a dot, or it does."""
        return (self.path[0] == "." or "/." in self.path) and any(
            part[:1] == "." and part != ".." for part in self.path.split("/")
        )

    def below(self, folder: str) -> _Member:
        """The same member of an archive that is itself a member."""
        return self._replace(path=f"{folder}/{self.path}")


def _rejected(path: str, error: str, reason: str) -> _Member:
    return _Member(path, problem=Problem("read", error, reason))


def _broken(offset: int, reason: str) -> _Member:
    """Stands for all that would have come from this byte on."""
    problem = Problem("read", LOST, f"the archive cannot be read from there on: {reason}")
    return _Member(f"(from byte {offset})", problem=problem, stands_for_more=True)


def _member(name: str, offset: int, length: int, size: int) -> _Member:
    """A member under one spelling of its name, or a reject if that is none for an archive."""
    if "\0" in name:
        return _rejected(name.replace("\0", "\\0"), "UnsafeName", "its name holds a NUL")
    if name.startswith("/"):
        return _rejected(name, "UnsafeName", "its name is an absolute path")
    path = posixpath.normpath(name)
    if path == ".." or path.startswith("../"):
        return _rejected(name, "UnsafeName", "its name leads out of the archive")
    return _Member(path, offset, length, size)


_ReadAt = Callable[[int, int], bytes]  # bytes, offset -> data


def _reads_at(file: IO[bytes], uri: str) -> _ReadAt:
    if storage.is_local(uri):
        # Headers are far from each other: filling a buffer for each costs more than reading it.
        return partial(os.pread, file.fileno())

    def read_at(size: int, offset: int) -> bytes:
        file.seek(offset)
        return file.read(size)

    return read_at


class _View(io.RawIOBase):
    """A part of a file, as a file. Reads that no honest archive asks for are refused."""

    def __init__(self, read_at: _ReadAt, start: int, size: int) -> None:
        self._read_at = read_at
        self.start = start
        self.size = size
        self.longest_read = _TAR_HEADER_BYTES
        self._position = 0

    def part(self, start: int, size: int) -> _View:
        """A part of the part."""
        return _View(self._read_at, self.start + start, size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise _NotAnArchive("it points before its own beginning")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self.size - self._position)
        if size < 0:
            size = left
        if size > self.longest_read:
            raise _NotAnArchive(f"a header of {size:,} bytes")
        data = self._read_at(min(size, left), self.start + self._position)
        self._position += len(data)
        return data


class _Header(tarfile.TarInfo):
    """A header of a tar, of which only that is parsed which a listing needs.

    tarfile takes 13 us longer for owners, modes and times, half of what listing a member takes.
    What is not plain here, it parses.
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
        # That field counts as eight blanks.
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


# Files, and the headers that only say more of the next one.
_PLAIN_TYPES = (
    tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME,
)  # fmt: skip


# What tarfile raises at bytes that are no tar; some of it by mistake.
_TAR_ERRORS = (
    tarfile.TarError, _NotAnArchive, ValueError, OverflowError, IndexError, RecursionError,
    zlib.error,
)  # fmt: skip


def _tar_members(view: _View, depth: int = 0) -> Iterator[_Member]:
    """The files of a tar, and those of the tars in it.

    Raises:
      _NotAnArchive: it is none, from its first header on.
    """
    begin = 0
    links: dict[str, str] = {}
    while True:
        end = yield from _tar_members_from(view, begin, depth, links)
        # Tars that were joined by `cat` have zeros between them.
        begin = _next_header(view, end)
        if begin < 0:
            break
    if links:
        yield from _resolve(view, links)


def _next_header(view: _View, position: int) -> int:
    """Where a tar goes on behind its end, or -1."""
    view.seek(position)
    for _ in range(_ZEROS_BYTES // _BLOCK):
        block = view.read(_BLOCK)
        if len(block) < _BLOCK:
            return -1
        if block.strip(b"\0"):
            return view.tell() - _BLOCK
    return -1


def _headers(view: _View, begin: int) -> Iterator[tarfile.TarInfo | int | str]:
    """The headers from one of them on; at the end where it is, after what is wrong there."""
    view.seek(begin)
    end = begin
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
            if tar.offset <= end or info.size < 0:
                raise _NotAnArchive("a size below 0")
            end = tar.offset
            yield info
            if end > view.size:
                break  # the member is cut off, which its reader has seen
            tar.members.clear()  # it would keep them all in memory
            info = tar.next()
    except _TAR_ERRORS as error:
        yield str(error) or type(error).__name__
    else:
        # tarfile takes whatever it cannot read for the end.
        view.seek(end)
        block = view.read(_BLOCK)
        if end <= view.size and len(block) < _BLOCK:
            yield "no mark of its end: it may be cut off between two members"
        elif end <= view.size and block.strip(b"\0"):
            yield "no header where one must be"
    yield end


def _tar_members_from(
    view: _View, begin: int, depth: int, links: dict[str, str]
) -> Generator[_Member, None, int]:
    """The files from a header on to a mark of the end; returns where that is."""
    end = begin
    for info in _headers(view, begin):
        if isinstance(info, int):
            return info
        if isinstance(info, str):
            if not begin and not end:
                raise _NotAnArchive(f"not a tar: {info}")
            yield _broken(view.start + end, info)
            return view.size
        end = info.offset_data + (-(-info.size // _BLOCK) * _BLOCK if info.isreg() else 0)
        if info.isdir():
            continue
        member = _member(info.name, view.start + info.offset_data, info.size, info.size)
        whole = info.offset_data + info.size <= view.size
        if not member.problem and (info.issym() or info.islnk()):
            folder = "" if info.islnk() else posixpath.dirname(member.path)
            links[member.path] = posixpath.normpath(posixpath.join(folder, info.linkname))
        elif member.problem:
            yield member
        elif not info.isreg():
            yield _rejected(member.path, "NotAFile", "a device or a pipe")
        elif info.issparse():
            yield _rejected(member.path, "Unreadable", "stored as a sparse file")
        elif member.path.lower().endswith(".tar") and not member.is_hidden:
            inner = view.part(info.offset_data, min(info.size, view.size - info.offset_data))
            yield from _inner_members(inner, member.path, depth + 1)
        elif whole:
            yield member
        else:
            yield _rejected(
                member.path, LOST, "the archive ends here: whatever came behind is not in it"
            )
    raise AssertionError("_headers ends with a number")


def _inner_members(view: _View, path: str, depth: int) -> Iterator[_Member]:
    """The files of a tar in a tar; it is no worse for the outer one if it is none."""
    try:
        if depth > _MAX_DEPTH:
            raise _NotAnArchive(f"more than {_MAX_DEPTH} tars in one another")
        for member in _tar_members(view, depth):
            yield member.below(path)
    except _NotAnArchive as error:
        yield _broken(view.start, str(error)).below(path)


def _resolve(view: _View, links: dict[str, str]) -> Iterator[_Member]:
    """The links of a tar, as the files to which they lead."""
    targets: dict[str, str] = {}
    for name in links:
        target, steps = links[name], 0
        while target in links and steps < _MOST_LINKS:
            target, steps = links[target], steps + 1
        targets[name] = target
    wanted = set(targets.values())
    found: dict[str, tarfile.TarInfo] = {}
    begin = 0
    while begin >= 0:
        for info in _headers(view, begin):
            if isinstance(info, int):
                begin = _next_header(view, info)
            elif isinstance(info, str):
                begin = -1
                break
            elif info.isreg() and not info.issparse():
                path = posixpath.normpath(info.name)
                if path in wanted and info.offset_data + info.size <= view.size:
                    found[path] = info
    for name, target in targets.items():
        if target in found:
            info = found[target]
            yield _Member(name, view.start + info.offset_data, info.size, info.size)
        else:
            yield _rejected(name, "Missing", f"a link to {target!r}, which is not in the archive")


def _zip_members(view: _View) -> Iterator[_Member]:
    """The files of a zip, as its directory tells them.

    Raises:
      _NotAnArchive: it has no directory that can be read.
    """
    view.longest_read = _ZIP_DIRECTORY_BYTES
    try:
        with zipfile.ZipFile(view) as archive:
            infos = archive.infolist()
            directory = archive.start_dir
    except (
        zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError, MemoryError,
    ) as error:  # fmt: skip
        raise _NotAnArchive(f"not a zip, or cut off: {error}") from error
    infos.sort(key=lambda info: info.header_offset)
    on_top = _overlapping(infos)
    for place, info in enumerate(infos):
        if info.is_dir():
            continue
        name = _zip_name(info)
        member = _member(name, info.header_offset, info.compress_size, info.file_size)
        if member.problem:
            yield member
        elif problem := _zip_problem(info, _zip_end(info) > directory, place in on_top):
            yield _rejected(member.path, "Unreadable", problem)
        else:
            yield member


def _zip_end(info: zipfile.ZipInfo) -> int:
    """The least offset at which a member can end: nothing is known yet of its local header."""
    return info.header_offset + _ZIP_LOCAL_HEADER_BYTES + info.compress_size


def _overlapping(infos: list[zipfile.ZipInfo]) -> set[int]:
    """Places of members, sorted by their offsets, of which some bytes are those of others too."""
    found: set[int] = set()
    reaches = longest = 0
    for place, info in enumerate(infos):
        if info.header_offset < reaches:
            found |= {longest, place}
        if _zip_end(info) > reaches:
            reaches, longest = _zip_end(info), place
    return found


def _zip_problem(info: zipfile.ZipInfo, outside: bool, on_top: bool) -> str:
    if info.flag_bits & _ENCRYPTED:
        return "encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"compressed by method {info.compress_type}; stored and deflated are read"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a link"
    if info.header_offset < 0 or outside:
        return "the zip's directory puts it outside of the file"
    if on_top:
        return "the zip's directory puts it on top of another member"
    return ""


def _zip_name(info: zipfile.ZipInfo) -> str:
    """Its name; those that are UTF-8 without saying so are read as UTF-8."""
    if not info.flag_bits & _UTF8:
        with suppress(UnicodeError):
            return info.orig_filename.encode("cp437").decode("utf-8")
    return info.orig_filename
