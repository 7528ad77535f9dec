"""Odd BMPs."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from odd import DAMAGED, EXOTIC, Odd
from pictures import HEIGHT, WIDTH, picture, saved


def bmp(
    bits: int, compression: int, rows: bytes, table: bytes = b"", height: int = HEIGHT
) -> bytes:
    """A BMP with a header of 40 bytes; a table is of colours or bit masks."""
    colours = len(table) // 4 if bits <= 8 else 0
    head = struct.pack(
        "<IiiHHIIiiII", 40, WIDTH, height, 1, bits, compression, len(rows), 0, 0, colours, 0
    )
    offset = 14 + len(head) + len(table)
    return struct.pack("<2sIII", b"BM", offset + len(rows), 0, offset) + head + table + rows


def bmps() -> Iterator[tuple[str, Odd]]:
    rng = np.random.default_rng(0)
    table = {bits: rng.bytes(4 << bits) for bits in (1, 4, 8)}

    def rows(bits: int) -> bytes:
        return rng.bytes((WIDTH * bits + 31) // 32 * 4 * HEIGHT)

    for bits in (1, 4, 8, 16, 24, 32):
        yield f"{bits}.bmp", Odd(bmp(bits, 0, rows(bits), table.get(bits, b"")))
        yield f"{bits}-top-down.bmp", Odd(bmp(bits, 0, rows(bits), table.get(bits, b""), -HEIGHT))
    for bits, masks in {16: (0xF800, 0x7E0, 0x1F), 32: (0xFF0000, 0xFF00, 0xFF)}.items():
        yield f"{bits}-bit-fields.bmp", Odd(bmp(bits, 3, rows(bits), struct.pack("<3I", *masks)))
    run8 = bytes([WIDTH, 9, 0, 0]) * HEIGHT + b"\0\1"
    run4 = bytes([WIDTH, 0x9A, 0, 0]) * HEIGHT + b"\0\1"
    literal = (bytes([0, WIDTH]) + rng.bytes(WIDTH + 1) + b"\0\0") * HEIGHT + b"\0\1"
    yield "rle8.bmp", Odd(bmp(8, 1, run8, table[8]))
    yield "rle4.bmp", Odd(bmp(4, 2, run4, table[4]))
    yield "rle8-literal.bmp", Odd(bmp(8, 1, literal, table[8]))
    core = struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, 24)
    yield "os2.bmp", Odd(struct.pack("<2sIII", b"BM", 0, 0, 26) + core + rows(24))
    core = struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, 8)
    yield (
        "os2-palette.bmp",
        Odd(struct.pack("<2sIII", b"BM", 0, 0, 26 + 768) + core + rng.bytes(768) + rows(8)),
    )
    plain = bmp(24, 0, rows(24))
    for size in (108, 124):
        head = struct.pack("<I", size) + plain[18:54] + bytes(size - 40)
        yield (
            f"header{size}.bmp",
            Odd(struct.pack("<2sIII", b"BM", 0, 0, 14 + size) + head + plain[54:]),
        )
    yield "gap.bmp", Odd(plain[:10] + struct.pack("<I", 64) + plain[14:54] + bytes(10) + plain[54:])
    yield "bytes-after-end.bmp", Odd(plain + b"trailer")
    yield "few-bytes.bmp", Odd(plain[:-100], DAMAGED)
    yield "png-inside.bmp", Odd(bmp(24, 5, saved(picture(), "PNG")), EXOTIC)
