"""Bounds the memory of decoders: large images take turns, and hostile sizes are refused.

The bounds are for each process, whatever the number of its threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL.ImageFile import ImageFile

TURN_PIXELS = 32 << 20
"""Images that are decoded at the same time have at most this many pixels, or there is only one."""
_SMALL = 1 << 20
"""Smaller images take no turns: 8 threads decode them in about 100 MB."""

_free = TURN_PIXELS
_changed = threading.Condition()


@contextmanager
def turn(height: int, width: int) -> Iterator[None]:
    """Waits until an image of this size may be decoded; the context is its turn."""
    global _free
    pixels = min(height * width, TURN_PIXELS)
    if pixels < _SMALL:
        yield
        return
    with _changed:
        _changed.wait_for(lambda: _free >= pixels)
        _free -= pixels
    try:
        yield
    finally:
        with _changed:
            _free += pixels
            _changed.notify_all()


_MOST_EXPANSION = 4096
"""LZW decodes at most 2,730 bytes from a byte, deflate 1,032, and run lengths less."""
_UNBOUNDED = ("AVIF", "FLI", "HEIF", "ICNS", "ICO", "JPEG2000", "MSP", "SGI", "WEBP")
_BOUNDED_IN_TIFF = ("raw", "packbits", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "jpeg")
_ALLOWED = 1 << 30
_JPEG_PIXELS = 512
"""A Huffman-coded block of 64 pixels takes at least one bit."""


def bytes_per_pixel(image_format: str) -> int:
    """Returns the bytes that a conversion takes at most; tests measure them."""
    return 26 if image_format == "JPEG2000" else 18


def is_unbounded(image: ImageFile) -> bool:
    """Returns whether the format encodes an empty picture of any size in next to no bytes."""
    compression = image.info.get("compression", "raw")
    if image.format == "TIFF":
        return compression not in _BOUNDED_IN_TIFF
    return image.format in _UNBOUNDED or compression in (1, 2)  # run lengths of BMP


def can_hold(image: ImageFile, size: int) -> bool:
    """Returns whether a file of `size` bytes can hold the pixels that its header declares.

    Pillow allocates them before it reads the first one. Decoders of unbounded formats may allocate
    `_ALLOWED` bytes, and more for larger files.
    """
    pixels = image.width * image.height
    if is_unbounded(image):
        needed = pixels * bytes_per_pixel(str(image.format))
        return needed <= max(_ALLOWED, size * _MOST_EXPANSION)
    # With several bands, a pixel has at least 15 bits.
    raw = pixels // 8 if len(image.getbands()) == 1 else pixels
    return raw <= size * _MOST_EXPANSION


def can_hold_jpeg(height: int, width: int, size: int) -> bool:
    """Returns whether a Huffman-coded JPEG of `size` bytes can hold that many pixels."""
    return height * width <= _JPEG_PIXELS * size
