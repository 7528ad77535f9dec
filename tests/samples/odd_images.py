"""More than 400 odd image files: every format, what codecs' own test suites hold, and damage.

`odd_images()` returns them by name. An `Odd` says whether it is intact: such a file must become a
record, unless an option rejects its format or its frames.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import hand_gif
import numpy as np
from hand_jpeg import jpeg, segment
from pictures import (
    HEIGHT,
    WIDTH,
    chunk,
    corrupted,
    picture,
    png,
    saved,
    truncated,
    with_orientation,
    written,
)  # fmt: skip
from PIL import Image

from imageshards.transforms.images import headers

INTACT, DAMAGED, EXOTIC = "intact", "damaged", "exotic"
"""EXOTIC files are valid, and some or all decoders do not support them."""


class Odd(NamedTuple):
    """A file, and whether it is intact."""

    data: bytes
    state: str = INTACT


@cache
def odd_images() -> dict[str, Odd]:
    """Name -> file. The suffixes are right, except where a name says otherwise."""
    unreadable = {"ICNS-P", "TIFF-YCbCr"}
    found = {
        f"written/{name}.{name.partition('-')[0].lower()}": Odd(
            data, DAMAGED if name in unreadable else INTACT
        )
        for name, data in written().items()
    }
    for folder, files in (
        ("jpeg", _jpegs()), ("png", _pngs()), ("gif", _gifs()), ("bmp", _bmps()),
        ("tiff", _tiffs()), ("other", _others()), ("orientation", _orientations()),
        ("damaged", _damaged()), ("none", _not_images()),
    ):  # fmt: skip
        for name, odd in files:
            assert f"{folder}/{name}" not in found
            found[f"{folder}/{name}"] = odd
    return found


def _jpegs() -> Iterator[tuple[str, Odd]]:
    for h, v in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3), (4, 1), (1, 4), (3, 2), (4, 2)):
        yield f"sampling{h}x{v}.jpg", Odd(jpeg(sampling=((h, v), (1, 1), (1, 1))))
    yield "sampling-plain.jpg", Odd(jpeg())
    yield "sampling-of-chroma.jpg", Odd(jpeg(sampling=((1, 1), (2, 2), (1, 1))))
    yield "sampling-of-three.jpg", Odd(jpeg(sampling=((2, 2), (1, 2), (1, 1))))
    yield "extended.jpg", Odd(jpeg(sof=1))
    yield "dc-only-progressive.jpg", Odd(jpeg(sof=2))
    yield "16-bit-tables.jpg", Odd(jpeg(sof=1, wide_tables=True))
    yield "a-scan-each.jpg", Odd(jpeg(interleaved=False, sampling=((2, 2), (1, 1), (1, 1))))
    yield "progressive-a-scan-each.jpg", Odd(jpeg(sof=2, interleaved=False))
    for restart in (1, 2, 7):
        yield f"restart{restart}.jpg", Odd(jpeg(restart=restart))
    yield "grey-2x2.jpg", Odd(jpeg(sampling=((2, 2),)))
    yield "cmyk-without-adobe.jpg", Odd(jpeg(sampling=((1, 1),) * 4))
    yield "two-components.jpg", Odd(jpeg(sampling=((1, 1),) * 2), EXOTIC)
    yield "12-bit.jpg", Odd(jpeg(sof=1, bits=12), EXOTIC)
    yield "lossless.jpg", Odd(jpeg(sof=3), EXOTIC)
    yield "arithmetic.jpg", Odd(jpeg(sof=9), EXOTIC)
    for size in ((1, 1), (1, 4000), (4000, 1), (8, 8), (9, 17)):
        yield f"size{size[0]}x{size[1]}.jpg", Odd(jpeg(size=size))
    yield "size65535x1.jpg", Odd(jpeg(size=(65535, 1)), EXOTIC)
    yield "no-height.jpg", Odd(jpeg(size=(37, 0)), EXOTIC)
    adobe = struct.pack(">5sHHHB", b"Adobe", 100, 0, 0, 7)
    icc = b"ICC_PROFILE\0" + bytes([2, 9]) + bytes(100)
    jfif = b"JFIF\0\x09\x09\0\0\1\0\1\0\0"
    for name, extra in {
        "odd-adobe": segment(0xEE, adobe),
        "short-app14": segment(0xEE, b"Adobe"),
        "foreign-app14": segment(0xEE, b"other"),
        "rgb": segment(0xEE, adobe[:-1] + b"\0"),
        "bad-icc": segment(0xE2, icc),
        "odd-jfif": segment(0xE0, jfif),
        "comment": segment(0xFE, b"\xff" * 60_000),
        "photoshop": segment(0xED, b"Photoshop\0x"),
        "bytes-before-marker": segment(0xE5, b"") + b"abcdefgh" * 40,
        "stuffed-bytes": b"\xff\0\xff\0",
        "fill": b"\xff" * 9,
        "empty-app": segment(0xE5, b""),
        "all-app": b"".join(segment(n, b"x") for n in range(0xE3, 0xED)),
        "exif-without-tiff": segment(0xE1, b"Exif\0\0"),
        "xmp": segment(0xE1, xmp(1)),
        "many-warnings": segment(0xE2, icc) + b"zz" + segment(0xEE, adobe) + b"z",
        "thumbnail": segment(0xE1, b"Exif\0\0" + jpeg(size=(8, 8))),
    }.items():
        yield f"{name}.jpg", Odd(jpeg(extra=extra))
    plain = saved(picture(), "JPEG")
    for name, extra in {"zeros": bytes(500), "two": b"\1\2"}.items():
        yield f"{name}-before-end.jpg", Odd(plain[:-2] + extra + plain[-2:])
    for name, extra in {"text": b"trailer", "zeros": bytes(9000), "jpeg": plain}.items():
        yield f"{name}-after-end.jpg", Odd(plain + extra)
    yield "named-jpg.jpg", Odd(saved(picture(), "PNG"))
    yield (
        "progressive-restart.jpg",
        Odd(saved(picture(), "JPEG", progressive=True, restart_marker_rows=1)),
    )
    for subsampling in (0, 1, 2):
        yield f"cmyk{subsampling}.jpg", Odd(saved(picture("CMYK"), "JPEG", subsampling=subsampling))


def xmp(orientation: int, element: bool = False) -> bytes:
    """The content of an APP1 segment: an XMP packet that declares an orientation."""
    stated = f'tiff:Orientation="{orientation}"/>'
    if element:
        stated = f"><tiff:Orientation>{orientation}</tiff:Orientation></rdf:Description>"
    return (
        f"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><rdf:Description {stated}</x:xmpmeta>".encode()
    )


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


def _pngs() -> Iterator[tuple[str, Odd]]:
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
        yield f"interlaced-type{colour}-{depth}.png", Odd(_interlaced(colour, depth, samples))
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
    data = _interlaced(2, 8, 3)
    at = data.index(b"IDAT")
    (length,) = struct.unpack_from(">I", data, at - 4)
    rows = zlib.decompress(data[at + 4 : at + 4 + length])
    last = len(range(1, HEIGHT, 2)) * (1 + 3 * WIDTH)
    return _rebuilt(2, 8, True, rows[:-last])


def _interlaced(colour: int, depth: int, samples: int) -> bytes:
    rng = np.random.default_rng(1)
    rows = b""
    for x, y, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                         (1, 0, 2, 2), (0, 1, 1, 2)):  # fmt: skip
        width, height = len(range(x, WIDTH, dx)), len(range(y, HEIGHT, dy))
        rows += b"".join(
            b"\0" + rng.bytes((width * samples * depth + 7) // 8) for _ in range(height)
        )
    return _rebuilt(colour, depth, True, rows)


def _gifs() -> Iterator[tuple[str, Odd]]:
    whole = hand_gif.frame()
    own = hand_gif.frame(colours=hand_gif.COLOURS)
    small = hand_gif.frame((9, 7), (3, 2))
    comment = b"!\xfe\3abc\0"
    for name, data in {
        "87a": hand_gif.gif([whole], version=b"87a"),
        "own-colours": hand_gif.gif([own], colours=b""),
        "interlaced": hand_gif.gif([hand_gif.frame(flags=64)]),
        "comment": hand_gif.gif([comment, whole, comment]),
        "control": hand_gif.gif([hand_gif.control(), whole]),
        "transparent": hand_gif.gif([hand_gif.control(5), whole]),
        "two": hand_gif.gif([whole, own]),
        "small-second": hand_gif.gif([whole, hand_gif.control(3, disposal=2), small]),
        "disposal3": hand_gif.gif([hand_gif.control(disposal=3), whole, small, small]),
        "loop": hand_gif.gif([b"!\xff\x0bNETSCAPE2.0\3\1\0\0\0", whole, whole]),
        "no-end-code": hand_gif.gif(
            [hand_gif.frame(data=hand_gif.pixels(WIDTH * HEIGHT, end=False))]
        ),
        "plain-text": hand_gif.gif([b"!\1\x0c" + bytes(12) + b"\2hi\0", whole]),
        "bytes-after-end": hand_gif.gif([whole], after=b"\0" * 20),
        "1x1": hand_gif.gif([hand_gif.frame((1, 1))], (1, 1)),
        "4000x1": hand_gif.gif([hand_gif.frame((4000, 1))], (4000, 1)),
        "many-frames": hand_gif.gif([hand_gif.control(), whole] * 30),
        "small-first": hand_gif.gif([small]),
        "large-second": hand_gif.gif([whole, hand_gif.frame((60, 60))]),
        "no-colours": hand_gif.gif([whole], colours=b""),
        "no-colours-in-second": hand_gif.gif([own, whole], colours=b""),
    }.items():
        yield f"{name}.gif", Odd(data)
    empty = bytes([hand_gif.CODE_SIZE, 0])
    few = hand_gif.pixels(WIDTH * HEIGHT // 2)
    for name, data in {
        "no-sub-blocks": hand_gif.gif([hand_gif.frame(data=empty)]),
        "no-sub-blocks-in-second": hand_gif.gif([whole, hand_gif.frame(data=empty)]),
        "few-pixels": hand_gif.gif([hand_gif.frame(data=few)]),
        "few-pixels-in-second": hand_gif.gif([whole, hand_gif.frame(data=few)]),
        "code-size-12": hand_gif.gif([hand_gif.frame(data=b"\x0c\1\1\0")]),
        "no-frame": hand_gif.gif([comment]),
        "bytes-between-blocks": hand_gif.gif([whole, b"abc", whole]),
        "index-without-colour": hand_gif.gif(
            [hand_gif.frame()[:9] + b"\x80" + bytes(6) + hand_gif.pixels(WIDTH * HEIGHT)]
        ),
        "no-trailer": hand_gif.gif([whole])[:-1],
        "frame-without-pixels": hand_gif.gif([hand_gif.frame((0, 0), data=empty)]),
        "canvas0": hand_gif.gif([whole], (0, 0)),
    }.items():
        yield f"{name}.gif", Odd(data, DAMAGED)


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


def _bmps() -> Iterator[tuple[str, Odd]]:
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


def tiff(
    tags: dict[int, tuple[int, ...]], data: bytes, order: str = "<", offsets_tag: int = 273
) -> bytes:
    """A TIFF of one page: its tags (all of type LONG) and the bytes of its strips or tiles."""
    tags = {**tags, offsets_tag: tuple(8 + at for at in tags[offsets_tag])}
    ifd = 8 + len(data) + len(data) % 2
    extra = ifd + 2 + 12 * len(tags) + 4
    entries = values = b""
    for tag, numbers in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(numbers)}I", *numbers)
        if len(numbers) > 1:
            packed, values = struct.pack(f"{order}I", extra + len(values)), values + packed
        entries += struct.pack(f"{order}HHI", tag, 4, len(numbers)) + packed
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", ifd)
    padding = bytes(len(data) % 2)
    count = struct.pack(f"{order}H", len(tags))
    return head + data + padding + count + entries + bytes(4) + values


def _tags(photometric: int, bits: tuple[int, ...], **more: int) -> dict[int, tuple[int, ...]]:
    found = {
        256: (WIDTH,), 257: (HEIGHT,), 258: bits, 259: (1,), 262: (photometric,), 273: (0,),
        277: (len(bits),), 278: (HEIGHT,), 279: (0,),
    }  # fmt: skip
    return found | {int(tag[1:]): (value,) for tag, value in more.items()}


def _tiffs() -> Iterator[tuple[str, Odd]]:
    rgb = np.asarray(picture())
    grey = np.asarray(picture("L"))
    for order, name in (("<", "little"), (">", "big")):
        data = rgb.tobytes()
        tags = _tags(2, (8, 8, 8)) | {279: (len(data),)}
        yield f"{name}.tif", Odd(tiff(tags, data, order))
        deep = (grey.astype(np.uint16) * 257).astype(f"{order}u2").tobytes()
        yield f"{name}-16.tif", Odd(tiff(_tags(1, (16,)) | {279: (len(deep),)}, deep, order))
        floats = (grey / 255).astype(f"{order}f4").tobytes()
        tags = _tags(1, (32,), t339=3) | {279: (len(floats),)}
        yield f"{name}-float.tif", Odd(tiff(tags, floats, order))
    data = grey.tobytes()
    yield "white-is-zero.tif", Odd(tiff(_tags(0, (8,)) | {279: (len(data),)}, data))
    strips = [data[at : at + WIDTH] for at in range(0, len(data), WIDTH)]
    offsets, lengths = tuple(range(0, len(data), WIDTH)), (WIDTH,) * len(strips)
    tags = _tags(1, (8,)) | {273: offsets, 278: (1,), 279: lengths}
    yield "a-strip-each-row.tif", Odd(tiff(tags, data))
    planes = np.moveaxis(rgb, -1, 0).tobytes()
    size = WIDTH * HEIGHT
    tags = _tags(2, (8, 8, 8), t284=2) | {273: (0, size, 2 * size), 279: (size,) * 3}
    yield "planes.tif", Odd(tiff(tags, planes))
    tile = np.zeros((32, 48, 3), np.uint8)
    tile[:HEIGHT, :WIDTH] = rgb
    tiles = [tile[y : y + 16, x : x + 16].tobytes() for y in (0, 16) for x in (0, 16, 32)]
    tags = _tags(2, (8, 8, 8), t322=16, t323=16) | {
        324: tuple(768 * n for n in range(6)), 325: (768,) * 6,
    }  # fmt: skip
    for tag in (273, 278, 279):
        del tags[tag]
    yield "tiles.tif", Odd(tiff(tags, b"".join(tiles), offsets_tag=324))
    for compression in ("tiff_lzw", "tiff_adobe_deflate"):
        for mode in ("L", "RGB", "RGBA"):
            options = {"compression": compression, "tiffinfo": {317: 2}}
            yield (
                f"predictor-{compression}-{mode}.tif",
                Odd(saved(picture(mode), "TIFF", **options)),
            )
    for compression in ("group3", "group4", "tiff_ccitt"):
        yield f"{compression}.tif", Odd(saved(picture("1"), "TIFF", compression=compression))
    yield "pages.tif", Odd(saved(picture(), "TIFF", save_all=True, frames=3))
    yield "bigtiff.tif", Odd(saved(picture(), "TIFF", big_tiff=True))
    yield "exif.tif", Odd(saved(picture(), "TIFF", exif=headers.exif_with_orientation(1)[6:]))
    lzw = saved(picture("RGB", (200, 200)), "TIFF", compression="tiff_lzw")
    yield "half.tif", Odd(lzw[: len(lzw) // 2], DAMAGED)
    yield "garbled-lzw.tif", Odd(lzw[:300] + bytes(400) + lzw[700:], DAMAGED)
    jpeg_inside = saved(picture("RGB", (200, 200)), "TIFF", compression="jpeg")
    yield "garbled-jpeg.tif", Odd(jpeg_inside[:600] + bytes(400) + jpeg_inside[1000:], DAMAGED)


def _others() -> Iterator[tuple[str, Odd]]:
    for size in ((1, 1), (16383, 1), (1, 16383)):
        for lossless in (True, False):
            data = saved(picture("RGB", size), "WEBP", lossless=lossless)
            yield f"size{size[0]}x{size[1]}-{lossless}.webp", Odd(data)
    for mode in ("RGB", "RGBA"):
        for quality in (0, 50, 100):
            yield f"{mode}-{quality}.webp", Odd(saved(picture(mode), "WEBP", quality=quality))
    yield "animated.webp", Odd(saved(picture("RGBA"), "WEBP", save_all=True, frames=3))
    for name, options in {
        "tiled": {"tile_size": (16, 16)},
        "layers": {"quality_layers": [40, 20, 10]},
        "codestream": {"no_jp2": True},
        "irreversible": {"irreversible": True},
        "resolutions": {"num_resolutions": 2},
        "progression": {"progression": "RPCL"},
        "cinema": {"codeblock_size": (16, 16)},
        "plain-colours": {"mct": 0},
    }.items():
        yield f"{name}.jp2", Odd(saved(picture(), "JPEG2000", **options))
    yield (
        "sizes.ico",
        Odd(saved(picture("RGBA", (64, 64)), "ICO", sizes=[(16, 16), (32, 32), (64, 64)])),
    )
    yield "ascii.pbm", Odd(b"P1\n# comment\n3 2\n0 1 0\n1 0 1\n")
    yield "ascii.pgm", Odd(b"P2 3 2 100 0 50 100 7 8 9\n")
    yield "ascii.ppm", Odd(b"P3\n2 1\n65535\n65535 0 0 0 65535 0\n")
    yield "binary.pbm", Odd(b"P4 9 2\n" + bytes([0xAA, 0x80, 0x55, 0]))
    yield "range.pgm", Odd(b"P5 3 2 100\n" + bytes([0, 50, 100, 7, 8, 9]))
    yield "deep.pgm", Odd(b"P5 3 2 65535\n" + bytes(range(12)))
    yield "deep.ppm", Odd(b"P6 1 2 65535\n" + bytes(range(12)))
    yield "floats.pfm", Odd(b"Pf\n3 2\n-1.0\n" + np.linspace(0, 1, 6, dtype="<f4").tobytes())
    for mode in ("L", "P", "RGB", "RGBA"):
        for compression in (None, "tga_rle"):
            for orientation in (1, -1):
                data = saved(picture(mode), "TGA", compression=compression, orientation=orientation)
                yield f"{mode}-{compression}{orientation}.tga", Odd(data)
    for quality in (10, 90):
        yield f"{quality}.avif", Odd(saved(picture(), "AVIF", quality=quality))
    yield "420.avif", Odd(saved(picture(), "AVIF", subsampling="4:2:0"))
    for form in ("DXT1", "DXT3", "DXT5", "BC2", "BC3"):
        yield f"{form}.dds", Odd(saved(picture("RGBA", (40, 24)), "DDS", pixel_format=form))
    yield "rle.qoi", Odd(saved(Image.new("RGB", (90, 90), "red"), "QOI"))


def _orientations() -> Iterator[tuple[str, Odd]]:
    for number in range(1, 9):
        exif = headers.exif_with_orientation(number)
        packet = xmp(number).partition(b"\0")[2]
        for kind in ("JPEG", "PNG", "WEBP"):
            yield f"exif{number}.{kind.lower()}", Odd(with_orientation(number, kind))
        yield f"exif{number}.tif", Odd(saved(picture(), "TIFF", tiffinfo={274: number}))
        yield f"exif{number}.avif", Odd(saved(picture(), "AVIF", exif=exif))
        yield f"exif{number}.heif", Odd(saved(picture(), "HEIF", exif=exif))
        yield (
            f"xmp{number}.jpg",
            Odd(jpeg(extra=segment(0xE1, xmp(number, element=bool(number % 2))))),
        )
        yield (
            f"xmp{number}.png",
            Odd(with_chunks(chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + packet))),
        )
        yield f"xmp{number}.webp", Odd(saved(picture(), "WEBP", lossless=True, xmp=packet))
        yield f"raw{number}.png", Odd(with_chunks(chunk(b"tEXt", raw_profile("exif", exif))))
        text = compressed_text(raw_profile("APP1", exif))
        yield f"raw-compressed{number}.png", Odd(with_chunks(chunk(b"zTXt", text)))


def _damaged() -> Iterator[tuple[str, Odd]]:
    files = {
        "jpg": saved(picture("RGB", (64, 48)), "JPEG"),
        "png": saved(picture("RGB", (64, 48)), "PNG"),
        "gif": saved(picture("RGB", (64, 48)), "GIF"),
        "bmp": saved(picture("RGB", (64, 48)), "BMP"),
        "webp": saved(picture("RGB", (64, 48)), "WEBP"),
        "jp2": saved(picture("RGB", (64, 48)), "JPEG2000"),
        "tif": saved(picture("RGB", (64, 48)), "TIFF", compression="tiff_lzw"),
        "avif": saved(picture("RGB", (64, 48)), "AVIF"),
        "qoi": saved(picture("RGB", (64, 48)), "QOI"),
        "tga": saved(picture("RGB", (64, 48)), "TGA"),
        "heif": saved(picture("RGB", (64, 48)), "HEIF"),
        "ico": saved(picture("RGBA", (64, 48)), "ICO"),
        "interlaced.png": _interlaced(2, 8, 3),
        "animated.gif": saved(picture(), "GIF", save_all=True, frames=3),
        "progressive.jpg": saved(picture("RGB", (64, 48)), "JPEG", progressive=True),
    }
    for name, data in files.items():
        for number, part in enumerate(truncated(data, 5)[1:]):
            yield f"cut{number}.{name}", Odd(part, DAMAGED)
        for number, broken in enumerate(corrupted(data, 6)):
            yield f"garbled{number}.{name}", Odd(broken, DAMAGED)


FLASHPIX = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)


def _not_images() -> Iterator[tuple[str, Odd]]:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
    for name, data in {
        "empty.jpg": b"",
        "text.jpg": b"not an image\n",
        "html.png": b"<html><body>404",
        "one.gif": b"G",
        "zeros.bmp": bytes(1000),
        "magic.jpg": b"\xff\xd8\xff",
        "magic.png": b"\x89PNG\r\n\x1a\n",
        "magic.gif": b"GIF89a",
        "magic.bmp": b"BM",
        "magic.tif": b"II*\0",
        "magic.webp": b"RIFF\0\0\0\0WEBP",
        "magic.avif": b"\0\0\0\x18ftypavif",
        "magic.heic": b"\0\0\0\x18ftypheic",
        "magic.ico": b"\0\0\1\0",
        "magic.psd": b"8BPS",
        "magic.jp2": b"\0\0\0\x0cjP  \r\n\x87\n",
        "eoi.jpg": b"\xff\xd8\xff\xd9",
        "archive.jpg": b"PK\3\4" + bytes(99),
        "document.jpg": b"%PDF-1.7\n",
        "drawing.png": b"<svg xmlns=",
        "negative.jp2": b"\xff\x4f\xff\x51\0\x29\0\0"
        + struct.pack(">4I", 5, 5, 9, 0xF0000000)
        + bytes(60),
    }.items():
        yield name, Odd(data, DAMAGED)
    for name, data in {
        "drawing.eps": postscript,
        "dos.eps": struct.pack(
            "<4sIIIIIIH", b"\xc5\xd0\xd3\xc6", 30, len(postscript), 0, 0, 0, 0, 0xFFFF
        )
        + postscript,
        "stars.fits": b"SIMPLE  =                    T".ljust(2880),
        "placed.wmf": b"\xd7\xcd\xc6\x9a" + bytes(90),
        "bare.wmf": b"\1\0\x09\0\0\3" + bytes(90),
        "drawing.emf": b"\1\0\0\0" + bytes(36) + b" EMF" + bytes(60),
        "flash.fpx": FLASHPIX,
        "bare.jxl": b"\xff\x0a" + bytes(50),
        "boxes.jxl": b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(50),
    }.items():
        yield name, Odd(data, EXOTIC)


def may_reject(odd: Odd, kind: str, convert: str, multi_frame: str) -> bool:
    """Whether a build with these options may reject a file with an error of this kind."""
    if odd.state == DAMAGED:
        return True
    if odd.state == EXOTIC:
        return kind in ("Unsupported", "Corrupt")
    return (
        (kind in ("Unsupported", "NotAnImage") and (convert == "never" or multi_frame == "all"))
        or (kind == "MultiFrame" and multi_frame != "first")
        or (kind == "TooLarge" and convert == "jpeg")  # a side is longer than JPEG's limit
    )


def write_odd_images(
    folder: Path, wanted: Callable[[str, Odd], bool] = lambda name, odd: True
) -> list[str]:
    """Writes the odd images below a folder; returns their names."""
    names = [name for name, odd in odd_images().items() if wanted(name, odd)]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(odd_images()[name].data)
    return names
