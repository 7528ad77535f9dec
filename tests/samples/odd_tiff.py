"""Odd TIFFs."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from odd import DAMAGED, Odd
from pictures import HEIGHT, WIDTH, picture, saved

from imageshards.transforms.images import headers


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


def tiffs() -> Iterator[tuple[str, Odd]]:
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
