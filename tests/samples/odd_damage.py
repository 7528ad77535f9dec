"""Damaged images, and files that are none."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from odd import DAMAGED, EXOTIC, Odd
from odd_png import interlaced
from pictures import corrupted, picture, saved, truncated


def damaged() -> Iterator[tuple[str, Odd]]:
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
        "interlaced.png": interlaced(2, 8, 3),
        "animated.gif": saved(picture(), "GIF", save_all=True, frames=3),
        "progressive.jpg": saved(picture("RGB", (64, 48)), "JPEG", progressive=True),
    }
    for name, data in files.items():
        for number, part in enumerate(truncated(data, 5)[1:]):
            yield f"cut{number}.{name}", Odd(part, DAMAGED)
        for number, broken in enumerate(corrupted(data, 6)):
            yield f"garbled{number}.{name}", Odd(broken, DAMAGED)


FLASHPIX = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)


def not_images() -> Iterator[tuple[str, Odd]]:
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
