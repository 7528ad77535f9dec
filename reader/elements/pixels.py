"""Decodes, crops and resizes images without TensorFlow. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from imageshards.reader.elements.windows import Window
from imageshards.reader.parse import array_with_channels, decode_image
from imageshards.transforms.images import jpeg

_ENOUGH = 2
"""A JPEG is decoded at a reduced size in which the window has at least twice the wanted sides."""

WindowOf = Callable[[tuple[int, int]], Window]
"""Returns the window of an image, given its height and width."""


def decode_window(
    data: bytes | npt.NDArray[Any], window_of: WindowOf, size: tuple[int, int], channels: int
) -> tuple[npt.NDArray[Any], Window]:
    """Decodes the part of an image that is in a window, and resizes it.

    Args:
      data: an image file, or pixels [height, width, channels].
      window_of: chooses the window.
      size: height and width of the result.
      channels: 1 or 3, or 0 for the image's own.

    Returns:
      uint8 [*size, channels], or of the dtype of the pixels; and the window.

    Raises:
      ValueError: the image is damaged, or of an unknown format. Pillow raises other types too.
    """
    if isinstance(data, np.ndarray):
        pixels = array_with_channels(data, channels)
        window = window_of((pixels.shape[0], pixels.shape[1]))
    elif data.startswith(b"\xff\xd8"):
        pixels, window = _decode_jpeg(data, window_of, size, channels)
    else:
        pixels = decode_image(data, channels)
        window = window_of((pixels.shape[0], pixels.shape[1]))
    return _resized(pixels, window, size), window


def decode_mask(
    data: bytes, window: Window | None, size: tuple[int, int] | None
) -> npt.NDArray[np.uint8]:
    """Decodes a mask, or the part of it that is in the window of its image, without mixing classes.

    Args:
      data: a gray PNG.
      window: the part of the image; None for all of it.
      size: height and width of the part after resizing; needed with a window.

    Returns:
      uint8 [height, width, 1].
    """
    pixels = decode_image(data, 1)
    if window is None or size is None:
        return np.array(pixels)
    bottom, right = window.top + window.height, window.left + window.width
    part = Image.fromarray(pixels[window.top : bottom, window.left : right, 0].copy())
    mask = np.asarray(part.resize(size[::-1], Image.Resampling.NEAREST))[..., None]
    return np.array(mask[:, ::-1] if window.mirrored else mask)


def _decode_jpeg(
    data: bytes, window_of: WindowOf, size: tuple[int, int], channels: int
) -> tuple[npt.NDArray[np.uint8], Window]:
    """Returns all pixels of a JPEG, perhaps at a reduced size, and the window of the full size."""
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (KeyError, ValueError):  # an unusual subsampling
        pixels = decode_image(data, channels)
        return pixels, window_of((pixels.shape[0], pixels.shape[1]))
    window = window_of((height, width))
    scale = _ENOUGH * max(size[0] / window.height, size[1] / window.width)
    gray = channels == 1 or (channels == 0 and space == "Gray")
    pixels = jpeg.decode(
        data,
        strict=False,
        colorspace="GRAY" if gray else "RGB",
        fastdct=True,
        # 0 is the full size.
        min_height=math.ceil(scale * height) if scale < 1 else 0,
        min_width=math.ceil(scale * width) if scale < 1 else 0,
    )
    return pixels, window


def _resized(pixels: npt.NDArray[Any], window: Window, size: tuple[int, int]) -> npt.NDArray[Any]:
    """Returns the window of pixels that may be smaller than the stored image: [*size, channels]."""
    down, across = pixels.shape[0] / window.full[0], pixels.shape[1] / window.full[1]
    top, bottom = window.top * down, (window.top + window.height) * down
    left, right = window.left * across, (window.left + window.width) * across
    first_row, first_column = math.floor(top), math.floor(left)
    part = pixels[first_row : math.ceil(bottom), first_column : math.ceil(right)]
    box = (left - first_column, top - first_row, right - first_column, bottom - first_row)
    if part.shape[:2] == size and box == (0, 0, size[1], size[0]):
        result = part
    elif part.dtype == np.uint8 and part.shape[2] == 3:
        result = _resize_with_pillow(part, box, size)
    else:
        planes = [
            _resize_with_pillow(np.ascontiguousarray(part[..., at]), box, size)
            for at in range(part.shape[2])
        ]
        result = np.stack(planes, -1)
    return result[:, ::-1] if window.mirrored else result


def _resize_with_pillow(
    part: npt.NDArray[Any], box: tuple[float, float, float, float], size: tuple[int, int]
) -> npt.NDArray[Any]:
    image = Image.fromarray(np.ascontiguousarray(part))
    height, width = size
    # A window can end at most a rounding error beyond the image.
    right, bottom = min(box[2], image.width), min(box[3], image.height)
    return np.asarray(
        image.resize(
            (width, height), Image.Resampling.BILINEAR, box=(box[0], box[1], right, bottom)
        )
    )
