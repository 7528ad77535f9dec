"""A picture in any of Pillow's modes -> grey or RGB of 8 bits. Pure.

What TensorFlow does with a PNG of the same kind is done here too: the high byte of 16 bits, no
colour management of RGB.
"""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

_WHITE = 255
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
        return Image.fromarray(_grey_of_floats(np.asarray(image))), ("float-to-8-bit",)
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
    values = np.asarray(image) >> (bits - 8)
    return Image.fromarray(values.astype(np.uint8))


def _grey_of_ints(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    # Pillow scales PGM to 16 bits whatever its largest value.
    if image.format == "PPM" or (low >= 0 and 255 < high <= 65535):
        return Image.fromarray((values >> 8).astype(np.uint8)), ("16-bit-to-8-bit",)
    if low >= 0 and high <= 255:
        return Image.fromarray(values.astype(np.uint8)), ("32-bit-to-8-bit",)
    return Image.fromarray(_stretched(values, low, high)), ("32-bit-to-8-bit",)


def _grey_of_floats(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """8 bits of floats: of 0 to 1 and of 0 to 255 as they are, of all others stretched.

    What is not a number, or infinite, becomes 0.
    """
    finite = np.isfinite(values)
    known = values[finite]
    if not known.size:
        return np.zeros(values.shape, np.uint8)
    low, high = float(known.min()), float(known.max())
    values = np.where(finite, values, np.float32(low))
    if low >= 0 and high <= 255:
        grey: npt.NDArray[np.uint8] = np.rint(values * np.float32(255 if high <= 1 else 1)).astype(
            np.uint8
        )
    else:
        grey = _stretched(values, low, high)
    return np.where(finite, grey, np.uint8(0))


def _stretched(
    values: npt.NDArray[np.int32] | npt.NDArray[np.float32], low: float, high: float
) -> npt.NDArray[np.uint8]:
    share = (values.astype(np.float64) - low) / max(high - low, np.finfo(np.float64).tiny)
    return np.asarray(np.rint(share * 255).astype(np.uint8))
