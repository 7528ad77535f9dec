"""The types of files that are not images, by their first bytes. Pure.

A reject's reason names the type and never quotes content: a manifest may name any file of the
machine, and rejects are published.
"""

from __future__ import annotations

import codecs
import re

_INSPECTED_BYTES = 1024
_MAGIC = (
    (0, b"\x7fELF", "an ELF program"),
    (0, b"MZ", "a Windows program"),
    (0, b"%PDF-", "a PDF document"),
    (0, b"PK\3\4", "a zip archive"),
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"BZh", "a bzip2 file"),
    (0, b"\xfd7zXZ\0", "an xz file"),
    (0, b"(\xb5/\xfd", "a Zstandard file"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (0, b"Rar!\x1a\7", "a RAR archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"\x89HDF\r\n", "an HDF5 file"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (4, b"ftyp", "a video"),
    (0, b"\x1aE\xdf\xa3", "a video"),
    (8, b"AVI ", "a video"),
    (8, b"WAVE", "a sound"),
    (0, b"ID3", "a sound"),
    (0, b"OggS", "a sound"),
    (0, b"fLaC", "a sound"),
)
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\f\r\x1b"))
_MARKUP = (
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML file"),
)


def describe(data: bytes) -> str:
    """Returns the type of a file that is not an image, with its article.

    >>> describe(b"root:*:19000:0:99999:7:::"), describe(bytes([1, 2, 3]))
    ('a text file', 'a file of an unknown type')
    """
    head = data[:_INSPECTED_BYTES]
    if not data:
        return "an empty file"
    if _is_text(head):
        start = head.lstrip(codecs.BOM_UTF8 + b" \t\r\n").lower()
        if start.startswith(b"<?xml") and b"<svg" in start:
            return "an SVG drawing"
        return next((name for tag, name in _MARKUP if start.startswith(tag)), "a text file")
    if name := next((name for at, magic, name in _MAGIC if head.startswith(magic, at)), ""):
        return name
    if head.startswith(_UTF16_MARKS):
        return "a text file"
    if data.count(0) == len(data):
        return "a file of zero bytes"
    return "a file of an unknown type"


_CONTENT = re.compile(r"""(?<!\w)b?(['"])(?:\\.|(?!\1).)*\1|(?<=: ).*""")
"""Where Pillow and Python quote a file in their errors: in quotes, and behind a colon."""


def without_content(reason: str) -> str:
    """Returns a decoder's error without what it may quote of the file; "" if nothing is left.

    >>> without_content("invalid literal for int() with base 10: b'hunter2'")
    'invalid literal for int() with base 10: ...'
    """
    left = _CONTENT.sub("...", reason)
    return "" if left == "..." else left


def _is_text(head: bytes) -> bool:
    if head.translate(None, _CONTROLS) != head:
        return False
    try:
        # The last character may be cut.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True
