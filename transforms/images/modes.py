"""Conversion of any Pillow mode to 8-bit grey or RGB. Pure.

The results match what TensorFlow decodes from a PNG: the high byte of 16-bit samples, and no color
management of RGB.
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
"""The number of a TIFF tag."""


def to_grey_or_rgb(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Converts an image to mode L or RGB, and drops its metadata.

    Transparent pixels are composed on white, because the colors that they hide are often black or
    noise.

    Args:
      image: an image of any mode, with decoded pixels.

    Returns:
      The image, and the names of the conversions applied, such as "cmyk-to-rgb".
    """
    if image.has_transparency_data and image.mode[0] not in "IF":
        converted = _composed_on_white(image)
        conversions: tuple[str, ...] = ("alpha-on-white",)
    else:
        converted, conversions = _without_alpha(image)
    # Pillow's encoders would write the profiles, comments and transparency in `info`.
    converted.info = {}
    return converted, conversions


def _composed_on_white(image: Image.Image) -> Image.Image:
    grey = image.mode in ("1", "L", "LA", "La")
    with_alpha = image.convert("LA" if image.mode == "La" else "RGBA")
    if with_alpha.mode == "LA":
        with_alpha = with_alpha.convert("RGBA")
    background = Image.new("RGB", image.size, (_WHITE,) * 3)
    background.paste(with_alpha, mask=with_alpha.getchannel("A"))
    return background.convert("L") if grey else background


def _without_alpha(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    mode = image.mode
    if mode in ("L", "RGB"):
        return image, ()
    if mode == "1":
        return image.convert("L"), ("1-bit-to-grey",)
    if mode == "P":
        return image.convert("RGB"), ("palette-to-rgb",)
    if mode == "CMYK":
        return _cmyk_by_profile(image) or image.convert("RGB"), ("cmyk-to-rgb",)
    if mode == "LAB":
        return _lab_to_rgb(image), ("lab-to-rgb",)
    if mode.startswith("I;16"):
        return _high_byte(image), ("16-bit-to-8-bit",)
    if mode == "I":
        return _ints_to_grey(image)
    if mode == "F":
        return _floats_to_grey(image), ("float-to-8-bit",)
    kind = "ycbcr" if mode == "YCbCr" else mode.partition(";")[0].lower()
    return image.convert("RGB"), (f"{kind}-to-rgb",)


def _cmyk_by_profile(image: Image.Image) -> Image.Image | None:
    """Converts CMYK to sRGB by the embedded ICC profile; None if there is no valid profile."""
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
    assert converted is not None  # it is None only with inPlace=True
    return converted


def _high_byte(image: Image.Image) -> Image.Image:
    tags = getattr(image, "tag_v2", {})
    bits = 12 if tags.get(_BITS_PER_SAMPLE) == (12,) else 16
    return _by_rows(np.asarray(image), lambda rows: rows >> (bits - 8))


def _ints_to_grey(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    # Pillow scales every PGM to 16 bits, whatever maximum the file declares.
    if image.format == "PPM" or (low >= 0 and 255 < high <= 65535):
        return _by_rows(values, lambda rows: rows >> 8), ("16-bit-to-8-bit",)
    if low >= 0 and high <= 255:
        return _by_rows(values, lambda rows: rows), ("32-bit-to-8-bit",)
    return _by_rows(values, _stretch(low, high)), ("32-bit-to-8-bit",)


def _floats_to_grey(image: Image.Image) -> Image.Image:
    """Converts floats to 8 bits.

    Values within 0..1 or 0..255 keep that range; other ranges are stretched to 0..255. NaN and
    infinities become 0.
    """
    values = np.asarray(image)
    finite = np.isfinite(values)
    low = float(values.min(where=finite, initial=np.inf))
    high = float(values.max(where=finite, initial=-np.inf))
    if low > high:  # no value is finite
        low = high = 0.0
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    scale = _stretch(low, high)

    def finite_or_zero(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        finite = np.isfinite(rows)
        return np.where(finite, scale(np.where(finite, rows, low)), 0)

    return _by_rows(values, finite_or_zero)


def _stretch(low: float, high: float) -> _Scale:
    span = high - low or 1
    return lambda rows: np.rint((rows.astype(np.float64) - low) * (255 / span))


_ROWS = 64


def _by_rows(values: npt.NDArray[Any], scale: _Scale) -> Image.Image:
    """Returns a grey image of scaled values. Scales 64 rows at a time, to save memory."""
    grey = np.empty(values.shape, np.uint8)
    for top in range(0, len(values), _ROWS):
        grey[top : top + _ROWS] = scale(values[top : top + _ROWS])
    return Image.fromarray(grey)
