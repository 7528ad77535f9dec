"""The rules of TensorFlow's GIF decoder, which are stricter than Pillow's. Pure.

Format: GIF89a. The decoder is giflib with tensorflow/core/lib/gif/gif_io.cc: it decodes all frames,
each on its own, and makes the image as large as the largest frame.
"""

from __future__ import annotations

import io
import operator
import struct
from collections.abc import Iterator
from typing import NamedTuple, cast

from PIL import Image, ImageChops
from PIL.GifImagePlugin import GifImageFile

_HEADER_BYTES = 13
_IMAGE, _EXTENSION, _TRAILER = 0x2C, 0x21, 0x3B
_MAX_CODE_SIZE = 8
_INTERLACED = 0x40
_GREYS = bytes(level for grey in range(256) for level in (grey, grey, grey))
"""A color table with which Pillow decodes to the indices themselves."""


class Frame(NamedTuple):
    """One image of a GIF.

    Attributes:
      size: (width, height) in pixels.
      offset: (left, top) on the canvas.
      colors: the length of its color table, its own or the global one; 0 without a table.
      interlaced: whether its rows are interlaced.
      pixels: its compressed pixels: the LZW code size and the sub-blocks.
    """

    size: tuple[int, int]
    offset: tuple[int, int]
    colors: int
    interlaced: bool
    pixels: bytes

    @property
    def has_pixels(self) -> bool:
        """Whether there are pixels, and giflib supports their code size."""
        code_size, first_block = self.pixels[:2]
        return 0 not in self.size and 0 < code_size <= _MAX_CODE_SIZE and first_block > 0


class Unsupported(ValueError):
    """TensorFlow does not decode a GIF that other decoders do."""


def frames(data: bytes) -> Iterator[Frame]:
    """Yields the frames of a GIF.

    TensorFlow's decoder rejects a GIF with bytes between its blocks; Pillow skips them.

    Raises:
      ValueError: it is not a sequence of valid blocks up to its trailer.
    """
    try:
        at, shared = _color_table(data, 10, _HEADER_BYTES)
        while data[at] != _TRAILER:
            if data[at] == _IMAGE:
                left, top, width, height, flags = struct.unpack_from("<4HB", data, at + 1)
                begin, own = _color_table(data, at + 9, at + 10)
                at = _after_sub_blocks(data, begin + 1)
                yield Frame(
                    (width, height), (left, top), own or shared, bool(flags & _INTERLACED),
                    data[begin:at],
                )  # fmt: skip
            elif data[at] == _EXTENSION:
                at = _after_sub_blocks(data, at + 2)
            else:
                raise ValueError("invalid data between its blocks")
    except (IndexError, struct.error):
        raise ValueError("invalid data between its blocks") from None


def _color_table(data: bytes, flags_at: int, at: int) -> tuple[int, int]:
    """Returns (the offset after a color table, the number of its colors)."""
    flags = data[flags_at]
    colors = 2 << (flags & 7) if flags & 0x80 else 0
    return at + 3 * colors, colors


def _after_sub_blocks(data: bytes, at: int) -> int:
    while data[at]:
        at += data[at] + 1
    return at + 1


def check(data: bytes, decode: bool) -> None:
    """Checks a GIF as TensorFlow decodes it, with or without `expand_animations`.

    Args:
      data: the whole file.
      decode: whether to decode the pixels; False checks the blocks only.

    Raises:
      Unsupported: other decoders read it.
      ValueError: it is damaged. Pillow raises other errors for it.
    """
    first = None
    for frame in frames(data):
        if first is None:
            first = frame
            canvas = struct.unpack_from("<HH", data, 6)
            if frame.offset != (0, 0) or any(map(operator.gt, canvas, frame.size)):
                raise Unsupported("whose first frame is smaller than its canvas")
        if any(map(operator.gt, frame.size, first.size)):
            raise Unsupported("with a frame larger than its canvas")
        if not frame.colors:
            raise Unsupported("without a color table")
        if not frame.has_pixels:
            raise ValueError("a frame has no pixels")
        # The extrema of an image with one band are two numbers.
        if decode and cast(tuple[int, int], indices(frame).getextrema())[1] >= frame.colors:
            raise ValueError("a pixel has an index beyond the palette")
    if first is None:
        raise ValueError("it has no frame")


def check_first_frame(data: bytes) -> None:
    """Decodes the first frame of a GIF, which Pillow would fill if its data ended early.

    Raises:
      ValueError: the data end early. Pillow raises other errors for other damage.
    """
    try:
        first = next(frames(data))
    except (StopIteration, ValueError):
        return  # Pillow may find a frame among other data.
    indices(first)


def indices(frame: Frame) -> Image.Image:
    """Returns the color indices of a frame.

    Raises:
      ValueError: the data end before the last pixel. Pillow raises other errors for other damage.
    """
    if not frame.has_pixels:
        raise ValueError("a frame has no pixels")
    image = _decode(frame, marked=False)
    # Pillow leaves pixels without data as they were: 0 in one of the images and 255 in the other.
    if ImageChops.difference(image, _decode(frame, marked=True)).getbbox():
        raise ValueError("the data of a frame end early")
    return image


def _decode(frame: Frame, marked: bool) -> Image.Image:
    """Returns the color indices of a frame; pixels that have no data are 0, or 255 if `marked`."""
    head = struct.pack("<6sHHBBB", b"GIF89a", *frame.size, 0xF7, 0, 0)
    transparent = struct.pack("<4BHBB", _EXTENSION, 0xF9, 4, 1, 0, 255, 0)
    flags = _INTERLACED if frame.interlaced else 0
    body = struct.pack("<BHHHHB", _IMAGE, 0, 0, *frame.size, flags)
    parts = (head, _GREYS, transparent if marked else b"", body, frame.pixels, bytes([_TRAILER]))
    image = GifImageFile(io.BytesIO(b"".join(parts)))
    image.load()
    return image
