"""Odd PNGs."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from odd import DAMAGED, EXOTIC, Odd
from odd_jpeg import xmp
from pictures import HEIGHT, WIDTH, chunk, picture, png, saved


def with_chunks(*chunks: bytes, after: bytes = b"") -> bytes:
    """A PNG with chunks before and after its IDAT."""
    data = saved(picture(), "PNG")
    end = data.index(b"IEND") - 4
    return data[:33] + b"".join(chunks) + data[33:end] + after + data[end:]


def raw_profile(kind: str, content: bytes) -> bytes:
    """The text of a PNG in which ImageMagick stores a profile."""
    digits = content.hex()
    lines = [digits[at : at + 72] for at in range(0, len(digits), 72)]
    return (
        f"Raw profile type {kind}\0".encode()
        + "\n".join(["", kind, f"{len(content):8}", *lines, ""]).encode()
    )


def compressed_text(text: bytes) -> bytes:
    """The body of a zTXt chunk."""
    keyword, _, content = text.partition(b"\0")
    return keyword + b"\0\0" + zlib.compress(content)


def pngs() -> Iterator[tuple[str, Odd]]:
    rng = np.random.default_rng(0)
    noise = rng.bytes(1_500_000)
    packet = xmp(1).partition(b"\0")[2]
    for name, body in {
        "long-icc": chunk(b"iCCP", b"x\0\0" + zlib.compress(noise)),
        "long-ztxt": chunk(b"zTXt", compressed_text(b"x\0" + bytes(2_000_000))),
        "long-text": chunk(b"tEXt", b"x\0" + b"y" * 3_000_000),
        "long-itxt": chunk(b"iTXt", b"x\0\1\0\0\0" + zlib.compress(b"y" * 3_000_000)),
        "bad-icc": chunk(b"iCCP", b"x\0\0not a stream"),
        "short-chrm": chunk(b"cHRM", b"x"),
        "short-phys": chunk(b"pHYs", b"x"),
        "private": chunk(b"abCd", bytes(99)),
        "xmp": chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + packet),
        "text-of-many": b"".join(chunk(b"tEXt", b"k%d\0v" % n) for n in range(300)),
        "srgb": chunk(b"sRGB", b"\0"),
        "gamma": chunk(b"gAMA", struct.pack(">I", 45455)),
        "empty-exif": chunk(b"eXIf", b""),
        "time": chunk(b"tIME", b"\x07\xe0\1\1\0\0\0"),
    }.items():
        yield f"{name}.png", Odd(with_chunks(body))
        if name.startswith("long"):
            yield (
                f"{name}-at-end.png",
                Odd(with_chunks(after=body) if name != "long-icc" else with_chunks(body)),
            )
    short = with_chunks()
    taller = struct.pack(">IIBBBBB", WIDTH, 2 * HEIGHT, 8, 2, 0, 0, 0)
    yield "few-rows.png", Odd(short[:8] + chunk(b"IHDR", taller) + short[33:], DAMAGED)
    yield "few-passes.png", Odd(_without_last_pass(), DAMAGED)
    palette = png(3, 8, 1)
    at = palette.index(b"PLTE") - 4
    table = palette[at : at + 780]
    yield "two-palettes.png", Odd(palette[:at] + table + palette[at:], EXOTIC)
    yield "no-palette.png", Odd(palette[:at] + palette[at + 780 :], DAMAGED)
    yield "two-headers.png", Odd(short[:33] + short[8:], EXOTIC)
    yield (
        "unknown-filter-method.png",
        Odd(short[:8] + chunk(b"IHDR", short[16:27] + b"\1\0") + short[33:], EXOTIC),
    )
    yield (
        "long-header.png",
        Odd(short[:8] + chunk(b"IHDR", short[16:29] + b"\0") + short[33:], EXOTIC),
    )
    yield "damaged-end.png", Odd(short[:-4] + bytes(4) + short[-12:], DAMAGED)
    yield "critical-extension.png", Odd(with_chunks(chunk(b"ABCD", b"x")), EXOTIC)
    yield "apple.png", Odd(_before_header(chunk(b"CgBI", b"P\0 \6")), EXOTIC)
    yield "bytes-after-end.png", Odd(with_chunks() + b"trailer")
    yield "wrong-crc-of-text.png", Odd(with_chunks(chunk(b"tEXt", b"k\0v")[:-1] + b"!"), DAMAGED)
    for size in ((1, 1), (65535, 1), (1, 65535), (3, 70000)):
        yield f"size{size[0]}x{size[1]}.png", Odd(saved(picture("RGB", size), "PNG"))
    for number in (1, 7, 100):
        yield f"idat{number}.png", Odd(_split_idat(number))
    for colour, depth, samples in (
        (0, 1, 1),
        (0, 16, 1),
        (2, 8, 3),
        (3, 4, 1),
        (6, 8, 4),
        (6, 16, 4),
    ):
        for kind in range(5):
            yield (
                f"filter{kind}-type{colour}-{depth}.png",
                Odd(_filtered(colour, depth, samples, kind)),
            )
        yield f"interlaced-type{colour}-{depth}.png", Odd(interlaced(colour, depth, samples))
    yield "animated.png", Odd(saved(picture(), "PNG", save_all=True, frames=3))
    yield "animated-alpha.png", Odd(saved(picture("RGBA"), "PNG", save_all=True, frames=2))


def _before_header(extra: bytes) -> bytes:
    data = saved(picture(), "PNG")
    return data[:8] + extra + data[8:]


def _split_idat(size: int) -> bytes:
    data = saved(picture(), "PNG")
    at = data.index(b"IDAT")
    (length,) = struct.unpack_from(">I", data, at - 4)
    body = data[at + 4 : at + 4 + length]
    parts = [chunk(b"IDAT", body[n : n + size]) for n in range(0, length, size)]
    return data[: at - 4] + chunk(b"IDAT", b"") + b"".join(parts) + data[at + 8 + length :]


def _rebuilt(colour: int, depth: int, interlaced: bool, rows: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, colour, 0, 0, interlaced)
    table = chunk(b"PLTE", bytes(range(3 << depth))) if colour == 3 else b""
    body = chunk(b"IHDR", head) + table + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _filtered(colour: int, depth: int, samples: int, kind: int) -> bytes:
    rng = np.random.default_rng(kind)
    row = (WIDTH * samples * depth + 7) // 8
    return _rebuilt(
        colour, depth, False, b"".join(bytes([kind]) + rng.bytes(row) for _ in range(HEIGHT))
    )


def _without_last_pass() -> bytes:
    data = interlaced(2, 8, 3)
    at = data.index(b"IDAT")
    (length,) = struct.unpack_from(">I", data, at - 4)
    rows = zlib.decompress(data[at + 4 : at + 4 + length])
    last = len(range(1, HEIGHT, 2)) * (1 + 3 * WIDTH)
    return _rebuilt(2, 8, True, rows[:-last])


def interlaced(colour: int, depth: int, samples: int) -> bytes:
    rng = np.random.default_rng(1)
    rows = b""
    for x, y, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                         (1, 0, 2, 2), (0, 1, 1, 2)):  # fmt: skip
        width, height = len(range(x, WIDTH, dx)), len(range(y, HEIGHT, dy))
        rows += b"".join(
            b"\0" + rng.bytes((width * samples * depth + 7) // 8) for _ in range(height)
        )
    return _rebuilt(colour, depth, True, rows)
