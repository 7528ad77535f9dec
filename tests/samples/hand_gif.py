"""A GIF encoder for what Pillow does not write: colour tables, frames and damage of any kind."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pictures import HEIGHT, WIDTH

CODE_SIZE = 7
"""With it all codes are bytes, as long as the table is cleared before it has 256 entries."""
_CLEAR, _END = 128, 129
COLOURS = bytes(level for n in range(128) for level in (n, 2 * n, 255 - n))


def pixels(count: int, end: bool = True, highest: int = 127) -> bytes:
    """Compressed pixels: the code size and the sub-blocks."""
    codes = bytearray()
    for begin in range(0, count, 100):
        codes += bytes(
            [_CLEAR, *(n % (highest + 1) for n in range(begin, min(begin + 100, count)))]
        )
    codes += bytes([_END]) if end else b""
    blocks = (codes[at : at + 255] for at in range(0, len(codes), 255))
    return bytes([CODE_SIZE]) + b"".join(bytes([len(b)]) + b for b in blocks) + b"\0"


def frame(
    size: tuple[int, int] = (WIDTH, HEIGHT),
    offset: tuple[int, int] = (0, 0),
    colours: bytes = b"",
    flags: int = 0,
    data: bytes | None = None,
) -> bytes:
    """An image block; `colours` is its own table of 128 colours, 64 is the flag of interlacing."""
    head = struct.pack("<BHHHHB", 0x2C, *offset, *size, flags | (0x86 if colours else 0))
    return head + colours + (pixels(size[0] * size[1]) if data is None else data)


def gif(
    frames: Sequence[bytes],
    size: tuple[int, int] = (WIDTH, HEIGHT),
    colours: bytes = COLOURS,
    version: bytes = b"89a",
    after: bytes = b"",
) -> bytes:
    """A GIF; `colours` is its global table of 128 colours, or empty."""
    head = struct.pack("<3s3sHHBBB", b"GIF", version, *size, 0xF6 if colours else 0x70, 0, 0)
    return head + colours + b"".join(frames) + b";" + after


def control(transparent: int | None = None, disposal: int = 0, delay: int = 5) -> bytes:
    """A graphic control extension."""
    flags = disposal << 2 | (transparent is not None)
    return struct.pack("<4BHBB", 0x21, 0xF9, 4, flags, delay, transparent or 0, 0)
