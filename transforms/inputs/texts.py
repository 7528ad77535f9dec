r"""Text files as inputs (`--features text`): every line or paragraph is a reference.

A text is a byte range of its file, and its name is FILE:NUMBER, the number of its first line. Its
bytes are unchanged, without its line end (`\n` or `\r\n`) and without a byte order mark before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, NamedTuple

from imageshards.transforms import storage
from imageshards.transforms.elements import Problem
from imageshards.transforms.inputs.kind import FileKind, ListingOptions, TextUnit
from imageshards.transforms.inputs.listed import Listed, ListedRows

_SUFFIXES = (".txt", ".text")
_BLOCK_BYTES = 1 << 16
"""Bytes of a line that are read at a time, since a line may be larger than memory."""
_INSPECTED_BYTES = 8000
_BYTE_ORDER_MARKS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))
_UTF8_MARK = b"\xef\xbb\xbf"


class TextFile(FileKind):
    """A text file whose lines or paragraphs are records."""

    noun = "a text file"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a file is a text by its name. Hidden files are not texts."""
        base = uri.rpartition("/")[2]
        return base.lower().endswith(_SUFFIXES) and not base.startswith(".")

    def list_file(
        self, root_length: int, size: int, stamp: int, options: ListingOptions
    ) -> Iterator[Listed]:
        """Lists the lines or paragraphs; a file that is not a text becomes one reject."""
        assert options.text_unit
        self.check_regular()
        rows = ListedRows(container=self.uri)
        try:
            with storage.open_read(self.uri) as file:
                if problem := _problem_of(file.read(_INSPECTED_BYTES)):
                    rows.add(self.uri, root_length, -1, stamp, problem=problem)
                    yield rows.take()
                    return
                file.seek(0)
                for line in _records(_lines(file), options.text_unit):
                    if line.is_blank:
                        rows.blank_lines += 1
                        continue
                    name = f"{self.uri}:{line.number}"
                    rows.add(name, root_length, line.length, stamp, line.offset, line.length)
                    if rows.is_full:
                        yield rows.take()
                if rows:
                    yield rows.take()
        except OSError as error:
            raise self.unreadable(error) from error


class _Line(NamedTuple):
    number: int
    offset: int
    length: int  # without the line end
    is_blank: bool


def _problem_of(head: bytes) -> Problem | None:
    """Why a file is not a text, from its first bytes."""
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
        is_blank = not part.strip()
        before = b""
        while not part.endswith(b"\n"):
            before = part
            part = file.readline(_BLOCK_BYTES)
            if not part:
                break
            offset += len(part)
            is_blank = is_blank and not part.strip()
        end = offset
        if part:
            ends_in_two = part.endswith(b"\r\n") or (part == b"\n" and before.endswith(b"\r"))
            end -= 2 if ends_in_two else 1
        yield _Line(number, start, end - start, is_blank)
        number += 1


def _records(lines: Iterator[_Line], unit: TextUnit) -> Iterator[_Line]:
    """Yields the blank lines and the records; a paragraph is yielded as one long line."""
    if unit == "line":
        yield from lines
        return
    first: _Line | None = None
    end = 0
    for line in lines:
        if line.is_blank:
            if first:
                yield first._replace(length=end - first.offset)
                first = None
            yield line
            continue
        first = first or line
        end = line.offset + line.length
    if first:
        yield first._replace(length=end - first.offset)
