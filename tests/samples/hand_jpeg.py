"""A JPEG encoder for what Pillow does not write: any sampling, any order of scans, 12 bits.

ITU-T T.81. Every block is flat, so that only its DC coefficient is coded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

# Twelve to sixteen categories of four or five bits, and an AC table with nothing but EOB.
_DC_BITS = 5
_DC_TABLE = bytes([0, 0, 0, 0, 16, *[0] * 11]) + bytes(range(16))
_AC_TABLE = bytes([1, *[0] * 15]) + bytes(1)
_QUANT = 8
"""With it, a DC coefficient is the mean of the block."""


def segment(marker: int, body: bytes) -> bytes:
    """A segment with its length."""
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def jpeg(
    sampling: Sequence[tuple[int, int]] = ((1, 1),) * 3,
    size: tuple[int, int] = (37, 22),
    sof: int = 0,
    bits: int = 8,
    interleaved: bool = True,
    restart: int = 0,
    wide_tables: bool = False,
    extra: bytes = b"",
) -> bytes:
    """A JPEG.

    Args:
      sampling: (horizontal, vertical) factors of each component.
      size: (width, height).
      sof: n of the SOFn marker: 0 baseline, 1 extended, 2 progressive.
      bits: per sample.
      interleaved: whether all components are in one scan.
      restart: MCUs between restart markers; 0 without.
      wide_tables: whether quantization tables have 16 bits.
      extra: segments after SOI.
    """
    ids = range(1, len(sampling) + 1)
    quant = (
        bytes([0x10]) + struct.pack(">H", _QUANT) * 64
        if wide_tables
        else bytes([0, *[_QUANT] * 64])
    )
    frame = struct.pack(">BHHB", bits, size[1], size[0], len(sampling))
    frame += b"".join(bytes([n, h << 4 | v, 0]) for n, (h, v) in zip(ids, sampling, strict=True))
    parts = [b"\xff\xd8", extra, segment(0xDB, quant), segment(0xC0 + sof, frame)]
    parts += [segment(0xC4, b"\0" + _DC_TABLE), segment(0xC4, b"\x10" + _AC_TABLE)]
    if restart:
        parts.append(segment(0xDD, struct.pack(">H", restart)))
    for scan in [list(ids)] if interleaved else [[n] for n in ids]:
        head = bytes([len(scan)]) + b"".join(bytes([n, 0]) for n in scan)
        parts.append(segment(0xDA, head + bytes([0, 0 if sof == 2 else 63, 0])))
        parts.append(_scan(scan, sampling, size, sof == 2, bits, restart))
    return b"".join([*parts, b"\xff\xd9"])


def _scan(
    scan: list[int], sampling: Sequence[tuple[int, int]], size: tuple[int, int],
    progressive: bool, bits: int, restart: int,
) -> bytes:  # fmt: skip
    found, codes, before, marker = b"", "", dict.fromkeys(scan, 0), 0
    for number, mcu in enumerate(_mcus(scan, sampling, size)):
        if restart and number and number % restart == 0:
            found += _bytes(codes) + bytes([0xFF, 0xD0 + marker])
            codes, before, marker = "", dict.fromkeys(scan, 0), (marker + 1) % 8
        for component, column, row in mcu:
            level = (column * 9 + row * 13 + component * 40) % 200 - 100 << bits - 8
            difference, before[component] = level - before[component], level
            category = abs(difference).bit_length()
            codes += f"{category:0{_DC_BITS}b}"
            if category:
                amplitude = difference if difference > 0 else difference + (1 << category) - 1
                codes += f"{amplitude:0{category}b}"
            codes += "" if progressive else "0"
    return found + _bytes(codes)


def _mcus(
    scan: list[int], sampling: Sequence[tuple[int, int]], size: tuple[int, int]
) -> Iterator[list[tuple[int, int, int]]]:
    """Yields the (component, column, row) of the blocks of each MCU."""
    most = [max(factors[axis] for factors in sampling) for axis in (0, 1)]
    if len(scan) == 1:
        factors = sampling[scan[0] - 1]
        spans = [-(-size[axis] * factors[axis] // most[axis]) for axis in (0, 1)]
        columns, rows = (-(-span // 8) for span in spans)
        yield from ([(scan[0], x, y)] for y in range(rows) for x in range(columns))
        return
    columns, rows = (-(-size[axis] // (8 * most[axis])) for axis in (0, 1))
    for y in range(rows):
        for x in range(columns):
            yield [
                (n, x * h + i, y * v + j)
                for n, (h, v) in ((n, sampling[n - 1]) for n in scan)
                for j in range(v)
                for i in range(h)
            ]


def _bytes(codes: str) -> bytes:
    codes += "1" * (-len(codes) % 8)
    packed = int(codes or "0", 2).to_bytes(len(codes) // 8)
    return packed.replace(b"\xff", b"\xff\0")
