"""Members of zips, as the directory of a zip lists them.

The standard library's zipfile parses the directory. This module detects errors that zipfile
ignores: members outside of the file, and members that overlap.
"""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import suppress

from imageshards.transforms.inputs.archives.members import (
    Member,
    NotAnArchive,
    View,
    member,
    rejected,
)

_ZIP_DIRECTORY_BYTES = 1 << 30
_ZIP_LOCAL_HEADER_BYTES = 30
_ENCRYPTED, _UTF8 = 0x1, 0x800


def zip_members(view: View) -> Iterator[Member]:
    """Yields the files of a zip, as its directory lists them.

    Raises:
      NotAnArchive: it has no directory that can be read.
    """
    view.longest_read = _ZIP_DIRECTORY_BYTES
    try:
        with zipfile.ZipFile(view) as archive:
            infos = archive.infolist()
            directory = archive.start_dir
    except (
        zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError, MemoryError,
    ) as error:  # fmt: skip
        raise NotAnArchive(f"not a zip, or cut off: {error}") from error
    infos.sort(key=lambda info: info.header_offset)
    overlapping = _overlapping(infos)
    for index, info in enumerate(infos):
        if info.is_dir():
            continue
        found = member(_zip_name(info), info.header_offset, info.compress_size, info.file_size)
        if found.problem:
            yield found
        elif problem := _zip_problem(info, _zip_end(info) > directory, index in overlapping):
            yield rejected(found.path, "Unreadable", problem)
        else:
            yield found


def _zip_end(info: zipfile.ZipInfo) -> int:
    """The smallest offset at which a member can end; its local header has not been read."""
    return info.header_offset + _ZIP_LOCAL_HEADER_BYTES + info.compress_size


def _overlapping(infos: list[zipfile.ZipInfo]) -> set[int]:
    """Indices of members, sorted by offset, that share bytes with others."""
    found: set[int] = set()
    reaches = longest = 0
    for index, info in enumerate(infos):
        if info.header_offset < reaches:
            found |= {longest, index}
        if _zip_end(info) > reaches:
            reaches, longest = _zip_end(info), index
    return found


def _zip_problem(info: zipfile.ZipInfo, outside: bool, overlaps: bool) -> str:
    if info.flag_bits & _ENCRYPTED:
        return "encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"compressed by method {info.compress_type}; stored and deflated are read"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "a link"
    if info.header_offset < 0 or outside:
        return "the zip's directory puts it outside of the file"
    if overlaps:
        return "the zip's directory puts it on top of another member"
    return ""


def _zip_name(info: zipfile.ZipInfo) -> str:
    """The name of a member. UTF-8 is recognized without its flag too."""
    if not info.flag_bits & _UTF8:
        with suppress(UnicodeError):
            return info.orig_filename.encode("cp437").decode("utf-8")
    return info.orig_filename
