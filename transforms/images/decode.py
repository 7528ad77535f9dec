"""Opens images of any format that Pillow reads, before memory is spent on them. Pure.

No plugin that runs another program (EPS: Ghostscript), that only hands over to one (GRIB, HDF5,
BUFR, WMF), or that unpacks without a bound (FITS) is ever asked.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import cast

from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from imageshards.transforms.images import headers, validate
from imageshards.transforms.images.validate import ImageError

_FORMATS = (
    "AVIF", "BLP", "BMP", "CUR", "DCX", "DDS", "DIB", "FLI", "FTEX", "GBR", "ICNS", "ICO", "IM",
    "IMT", "JPEG2000", "MCIDAS", "MSP", "PCD", "PCX", "PIXAR", "PPM", "PSD", "QOI", "SGI",
    "SPIDER", "SUN", "TGA", "TIFF", "WEBP", "XBM", "XPM", "XVTHUMB",
)  # fmt: skip

_LOSSY = ("JPEG", "AVIF", "HEIF", "PCD")
_LOSSY_IN_TIFF = ("jpeg", "tiff_jpeg", "webp")
# Of these, what Pillow counts as frames are sizes, layers or previews of one picture.
_ONE_PICTURE = ("JPEG", "ICO", "ICNS", "PSD")


@dataclass(frozen=True)
class Opened:
    """An image of which the header has been read.

    Attributes:
      image: not loaded yet.
      format: as Pillow names it, MPO and the like excepted: those are JPEG.
      lossy: whether its coding loses something, so that a JPEG of it loses little more.
      animated: whether it has more frames or pages than one.
    """

    image: ImageFile
    format: str
    lossy: bool
    animated: bool


def open_image(data: bytes, max_pixels: int) -> Opened:
    """Reads the header of an image.

    Args:
      data: the whole file.
      max_pixels: what is larger, in itself or in a member, is refused.

    Raises:
      ImageError: it is no image, no decoder is there for it, or it is broken or too large.
    """
    known = validate.sniff(data)
    name = known or validate.foreign_name(data)
    with validate.decoding(name or "image"):
        _limit_before_opening(data, max_pixels)
        if known:
            image = validate.open_known(data, known)
        elif name in ("HEIC", "HEIF"):
            image = _open_heif(data)
        elif name in ("JPEG XL", "PostScript"):
            raise ImageError("Unsupported", f"{name} is not decoded")
        else:
            try:
                image = Image.open(io.BytesIO(data), formats=_FORMATS)
            except UnidentifiedImageError:
                if name:
                    raise
                raise validate.not_an_image(data) from None
        width, height = image.size
        validate.limit(height, width, max_pixels)
        _check_cover(image)
        found = known or image.format or name
        return Opened(image, found, _is_lossy(data, image, found), _is_animated(image, found))


def _limit_before_opening(data: bytes, max_pixels: int) -> None:
    # These have an image inside that may be larger than what they declare, or (WebP) are given
    # memory when they are opened.
    sizes = []
    if data[8:12] == b"WEBP" and (webp := headers.read_webp(data)):
        sizes = [(webp.height, webp.width)]
    elif data.startswith((b"\0\0\1\0", b"\0\0\2\0", b"icns")):
        sizes = headers.png_sizes(data) + headers.jpeg2000_sizes(data)
    elif validate.foreign_name(data) == "JPEG 2000":
        sizes = headers.jpeg2000_sizes(data)
    for height, width in sizes:
        validate.limit(height, width, max_pixels)


def _check_cover(image: ImageFile) -> None:
    # Of a TIFF whose strips end before the image does, Pillow gives the rest as zeros: a few bytes
    # could be a hundred million pixels.
    if image.format == "TIFF":
        boxes = (tile.extents or (0, 0, 0, 0) for tile in image.tile)
        covered = sum((right - left) * (low - top) for left, top, right, low in boxes)
        if covered < image.width * image.height:
            raise ImageError("Corrupt", "TIFF: its strips or tiles do not cover it")


def _open_heif(data: bytes) -> ImageFile:
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        raise ImageError(
            "Unsupported", "HEIC: its decoder is not installed (pip install 'imageshards[heic]')"
        ) from None
    return cast(ImageFile, HeifImageFile(io.BytesIO(data)))


def _is_lossy(data: bytes, image: ImageFile, name: str) -> bool:
    if name == "WEBP":
        webp = headers.read_webp(data)
        return webp is not None and not webp.lossless
    if name == "JPEG2000":
        return not headers.is_reversible_jpeg2000(data)
    if name == "TIFF":
        return image.info.get("compression") in _LOSSY_IN_TIFF
    return name in _LOSSY


def _is_animated(image: ImageFile, name: str) -> bool:
    return name not in _ONE_PICTURE and bool(getattr(image, "is_animated", False))
