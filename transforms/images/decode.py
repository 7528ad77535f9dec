"""Opens images of all formats that Pillow reads, without decoding their pixels. Pure.

Some of Pillow's plugins are never used: those that run another program (EPS: Ghostscript), that
require a handler (GRIB, HDF5, BUFR, WMF), or that decompress without a limit (FITS).
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import cast

from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from imageshards.transforms import extras
from imageshards.transforms.images import headers, validate
from imageshards.transforms.images.validate import ImageError

_FORMATS = (
    "AVIF", "BLP", "BMP", "CUR", "DCX", "DDS", "DIB", "FLI", "FTEX", "GBR", "ICNS", "ICO", "IM",
    "IMT", "JPEG2000", "MCIDAS", "MSP", "PCD", "PCX", "PIXAR", "PPM", "PSD", "QOI", "SGI",
    "SPIDER", "SUN", "TGA", "TIFF", "WEBP", "XBM", "XPM", "XVTHUMB",
)  # fmt: skip

_LOSSY = ("JPEG", "AVIF", "HEIF", "PCD")
_LOSSY_IN_TIFF = ("jpeg", "tiff_jpeg", "webp")
# In files of these formats, Pillow reports sizes, layers or previews of one image as frames.
_SINGLE_FRAME = ("JPEG", "ICO", "ICNS", "PSD")


@dataclass(frozen=True)
class Opened:
    """An image whose header has been read.

    Attributes:
      image: the image; its pixels are not decoded yet.
      format: Pillow's name of the format; "JPEG" for variants such as MPO.
      lossy: whether its compression is lossy, so that writing it as a JPEG loses little more.
      animated: whether it has more than one frame or page.
    """

    image: ImageFile
    format: str
    lossy: bool
    animated: bool


def open_image(data: bytes, max_pixels: int) -> Opened:
    """Reads the header of an image.

    Args:
      data: the whole file.
      max_pixels: an image with more pixels, or with an embedded image that has more, is rejected.

    Raises:
      ImageError: the file is not an image, has no decoder, is corrupt, or has too many pixels.
    """
    known = validate.detect_format(data)
    name = known or validate.unsupported_format(data)
    with validate.image_errors(name or "image"):
        _check_pixel_count_before_opening(data, max_pixels)
        if known:
            image = validate.open_supported(data, known)
        elif name in ("HEIC", "HEIF"):
            image = _open_heif(data)
        elif name and not validate.has_decoder(name):
            raise ImageError("Unsupported", f"there is no decoder for {name}")
        else:
            try:
                image = Image.open(io.BytesIO(data), formats=_FORMATS)
            except UnidentifiedImageError:
                if name:
                    raise ImageError("Corrupt", f"{name}: its header is invalid") from None
                raise validate.not_an_image(data) from None
        width, height = image.size
        validate.check_pixel_count(height, width, max_pixels)
        _check_tiff_is_covered(image)
        found = known or image.format or name
        validate.check_capacity(image, found, data)
        return Opened(image, found, _is_lossy(data, image, found), _is_animated(image, found))


def _check_pixel_count_before_opening(data: bytes, max_pixels: int) -> None:
    # Pillow allocates the pixels of a WebP when it opens it. The other formats embed an image that
    # may be larger than the file declares.
    sizes = []
    if data[8:12] == b"WEBP" and (webp := headers.read_webp(data)):
        sizes = [(webp.height, webp.width)]
    elif data.startswith((b"\0\0\1\0", b"\0\0\2\0", b"icns")):
        sizes = headers.png_sizes(data) + headers.jpeg2000_sizes(data)
    elif validate.unsupported_format(data) == "JPEG 2000":
        sizes = headers.jpeg2000_sizes(data)
    for height, width in sizes:
        validate.check_pixel_count(height, width, max_pixels)


def _check_tiff_is_covered(image: ImageFile) -> None:
    # Pillow fills the area outside of a TIFF's strips or tiles with zeros, so that a file of a few
    # bytes could become a hundred million pixels.
    if image.format == "TIFF":
        boxes = (tile.extents or (0, 0, 0, 0) for tile in image.tile)
        covered = sum((right - left) * (low - top) for left, top, right, low in boxes)
        if covered < image.width * image.height:
            raise ImageError("Corrupt", "TIFF: the strips or tiles do not cover the image")


def _open_heif(data: bytes) -> ImageFile:
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        reason = f"HEIC: the decoder is not installed: {extras.installation('heic')}"
        raise ImageError("Unsupported", reason) from None
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
    return name not in _SINGLE_FRAME and bool(getattr(image, "is_animated", False))
