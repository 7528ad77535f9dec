"""Odd images of other formats, and orientations in every format."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hand_jpeg import jpeg, segment
from odd import Odd
from odd_jpeg import xmp
from odd_png import compressed_text, raw_profile, with_chunks
from pictures import chunk, picture, saved, with_orientation
from PIL import Image

from imageshards.transforms.images import headers


def others() -> Iterator[tuple[str, Odd]]:
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


def orientations() -> Iterator[tuple[str, Odd]]:
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
