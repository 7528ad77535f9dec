r"""Text files as inputs (`--features text`): every line or paragraph is a reference. Pure.

A text is a byte range of its file, and is called FILE:NUMBER by the number of its first line. It
keeps its own bytes: what ends it is left out (`\n` or `\r\n`), and a byte order mark before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, NamedTuple

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, Problem
from imageshards.transforms.inputs import listing
from imageshards.transforms.inputs.listing import Listing, Source, TextUnit

SUFFIXES = (".txt", ".text")
"""Endings of files that are texts by their name."""

_BLOCK_BYTES = 1 << 16
"""Of a line that is read at a time: a file without any line end costs no more memory."""
_LOOKED_AT_BYTES = 8000
_BYTE_ORDER_MARKS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))
_UTF8_MARK = b"\xef\xbb\xbf"


def is_text_name(name: str) -> bool:
    """Whether a file is a text by its name. Hidden files are not."""
    base = name.rpartition("/")[2]
    return base.lower().endswith(SUFFIXES) and not base.startswith(".")


class _Line(NamedTuple):
    number: int
    offset: int
    length: int  # without the line end
    blank: bool


def list_texts(source: Source, stamp: int, root_length: int, unit: TextUnit) -> Iterator[Listing]:
    """Lists a text file.

    Args:
      source: the file, or what it was found by.
      stamp: changes with its content, or 0.
      root_length: of the URI, what stands before the path by which folders are splits.
      unit: what is a record.

    Raises:
      BuildError: it cannot be read.
    """
    uri = source.uri
    chunk = Listing(container=uri)
    try:
        with storage.open_read(uri) as file:
            if problem := _not_a_text(file.read(_LOOKED_AT_BYTES)):
                chunk.add_range(uri, root_length, -1, stamp, 0, 0, problem)
                yield chunk
                return
            file.seek(0)
            for line in _units(_lines(file), unit):
                if line.blank:
                    chunk.blank += 1
                    continue
                name = f"{uri}:{line.number}"
                length = line.length
                chunk.add_range(name, root_length, length, stamp, line.offset, length)
                if len(chunk.uris) == listing.CHUNK_ROWS:
                    yield chunk
                    chunk = Listing(container=uri)
            if chunk.uris or chunk.blank:
                yield chunk
    except OSError as error:
        raise BuildError(f"{uri}: cannot be read: {error.strerror or 'no such file'}") from error


def _not_a_text(head: bytes) -> Problem | None:
    if head.startswith(b"\x1f\x8b"):
        return Problem("read", "NotText", "a gzip file: gunzip it first")
    for mark, name in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return Problem("read", "NotText", f"{name}: write it as UTF-8")
    if b"\0" in head:
        return Problem("read", "NotText", "a binary file: there is a NUL in its beginning")
    return None


def _lines(file: IO[bytes]) -> Iterator[_Line]:
    number, offset = 1, 0
    while part := file.readline(_BLOCK_BYTES):
        start = offset
        if offset == 0 and part.startswith(_UTF8_MARK):
            start = len(_UTF8_MARK)
            part = part[start:]
        offset = start + len(part)
        blank = not part.strip()
        before = b""
        while not part.endswith(b"\n"):
            before = part
            part = file.readline(_BLOCK_BYTES)
            if not part:
                break
            offset += len(part)
            blank = blank and not part.strip()
        end = offset
        if part:
            ends_in_two = part.endswith(b"\r\n") or (part == b"\n" and before.endswith(b"\r"))
            end -= 2 if ends_in_two else 1
        yield _Line(number, start, end - start, blank)
        number += 1


def _units(lines: Iterator[_Line], unit: TextUnit) -> Iterator[_Line]:
    if unit == "line":
        yield from lines
        return
    first: _Line | None = None
    end = 0
    for line in lines:
        if line.blank:
            if first:
                yield first._replace(length=end - first.offset)
                first = None
            yield line
            continue
        first = first or line
        end = line.offset + line.length
    if first:
        yield first._replace(length=end - first.offset)
