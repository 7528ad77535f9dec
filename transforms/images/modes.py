"""A picture in any of Pillow's modes -> grey or RGB of 8 bits. Pure.

What TensorFlow does with a PNG of the same kind is done here too: the high byte of 16 bits, no
colour management of RGB.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

_WHITE = 255
_Scale = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
_BITS_PER_SAMPLE = 258
"""The TIFF tag."""


def to_grey_or_rgb(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Mode L or RGB of an image, without its metadata, and the kinds of what was done.

    Transparency is composed on white: what is under it was not meant to be seen, and is often
    black or noise.

    Args:
      image: loaded, of any mode.
    """
    if image.has_transparency_data and image.mode[0] not in "IF":
        plain = _on_white(image)
        kinds: tuple[str, ...] = ("alpha-on-white",)
    else:
        plain, kinds = _of_mode(image)
    # Savers take profiles, comments and transparency from here.
    plain.info = {}
    return plain, kinds


def _on_white(image: Image.Image) -> Image.Image:
    grey = image.mode in ("1", "L", "LA", "La")
    with_alpha = image.convert("LA" if image.mode == "La" else "RGBA")
    if with_alpha.mode == "LA":
        with_alpha = with_alpha.convert("RGBA")
    paper = Image.new("RGB", image.size, (_WHITE,) * 3)
    paper.paste(with_alpha, mask=with_alpha.getchannel("A"))
    return paper.convert("L") if grey else paper


def _of_mode(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    mode = image.mode
    if mode in ("L", "RGB"):
        return image, ()
    if mode == "1":
        return image.convert("L"), ("1-bit-to-grey",)
    if mode == "P":
        return image.convert("RGB"), ("palette-to-rgb",)
    if mode == "CMYK":
        return _managed(image) or image.convert("RGB"), ("cmyk-to-rgb",)
    if mode == "LAB":
        return _lab_to_rgb(image), ("lab-to-rgb",)
    if mode.startswith("I;16"):
        return _high_bits(image), ("16-bit-to-8-bit",)
    if mode == "I":
        return _grey_of_ints(image)
    if mode == "F":
        return _grey_of_floats(image), ("float-to-8-bit",)
    kind = "ycbcr" if mode == "YCbCr" else mode.partition(";")[0].lower()
    return image.convert("RGB"), (f"{kind}-to-rgb",)


def _managed(image: Image.Image) -> Image.Image | None:
    """A CMYK image in sRGB, by its own ICC profile; None if it has no good one."""
    profile = image.info.get("icc_profile")
    if not profile:
        return None
    try:
        return ImageCms.profileToProfile(
            image,
            ImageCms.ImageCmsProfile(io.BytesIO(profile)),
            ImageCms.createProfile("sRGB"),
            renderingIntent=ImageCms.Intent.PERCEPTUAL,
            outputMode="RGB",
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None


def _lab_to_rgb(image: Image.Image) -> Image.Image:
    transform = ImageCms.buildTransform(
        ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB"
    )
    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None  # only inPlace gives None
    return converted


def _high_bits(image: Image.Image) -> Image.Image:
    bits = 16
    tags = getattr(image, "tag_v2", None)
    if tags and tags.get(_BITS_PER_SAMPLE) == (12,):
        bits = 12
    return _by_rows(np.asarray(image), lambda rows: rows >> (bits - 8))


def _grey_of_ints(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    # Pillow scales PGM to 16 bits whatever its largest value.
    if image.format == "PPM" or (low >= 0 and 255 < high <= 65535):
        return _by_rows(values, lambda rows: rows >> 8), ("16-bit-to-8-bit",)
    if low >= 0 and high <= 255:
        return _by_rows(values, lambda rows: rows), ("32-bit-to-8-bit",)
    return _by_rows(values, _stretch(low, high)), ("32-bit-to-8-bit",)


def _grey_of_floats(image: Image.Image) -> Image.Image:
    """8 bits of floats: of 0 to 1 and of 0 to 255 as they are, of all others stretched.

    What is not a number, or infinite, becomes 0.
    """
    values = np.asarray(image)
    finite = np.isfinite(values)
    low = float(values.min(where=finite, initial=np.inf))
    high = float(values.max(where=finite, initial=-np.inf))
    if low > high:  # nothing is finite
        low = high = 0.0
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    scale = _stretch(low, high)

    def known(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        finite = np.isfinite(rows)
        return np.where(finite, scale(np.where(finite, rows, low)), 0)

    return _by_rows(values, known)


def _stretch(low: float, high: float) -> _Scale:
    span = high - low or 1
    return lambda rows: np.rint((rows.astype(np.float64) - low) * (255 / span))


_ROWS = 64


def _by_rows(values: npt.NDArray[Any], scale: _Scale) -> Image.Image:
    """A grey image of scaled values; some rows at a time, for the wide numbers in between."""
    grey = np.empty(values.shape, np.uint8)
    for top in range(0, len(values), _ROWS):
        grey[top : top + _ROWS] = scale(values[top : top + _ROWS])
    return Image.fromarray(grey)
