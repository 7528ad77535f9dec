"""Odd JPEGs."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hand_jpeg import jpeg, segment
from odd import EXOTIC, Odd
from pictures import picture, saved


def jpegs() -> Iterator[tuple[str, Odd]]:
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
