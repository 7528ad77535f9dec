"""Bytes that TensorFlow decodes -> a checked and measured image. Pure.

What passes is what `tf.io.decode_image(..., expand_animations=False)` decodes in training; the
format comes from the content, never from a file's name.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import simplejpeg
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from imageshards.transforms.images import headers

Check = Literal["full", "header"]

MAX_PIXELS = 178_956_970
"""Larger images are rejected before memory is spent on them: Pillow's own limit."""

IMAGE_SUFFIXES = frozenset(
    suffix
    for group in (
        ("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "apng", "gif", "bmp", "dib"),
        ("webp", "avif", "avifs", "heic", "heics", "heif", "hif", "jxl"),
        ("jp2", "j2k", "j2c", "jpc", "jpf", "jpx", "tif", "tiff", "ico", "icns", "cur"),
        ("tga", "icb", "vda", "vst", "psd", "pcx", "dcx", "pbm", "pgm", "ppm", "pnm", "pfm"),
        ("sgi", "qoi", "dds", "ras", "xbm", "xpm", "pcd", "fli", "flc"),
    )
    for suffix in group
)
"""Endings of files that are images by their name."""

_MAGIC = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
)
_FOREIGN_MAGIC = (
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (8, b"WEBP", "WebP"),
    (4, b"ftypavi", "AVIF"),
    (4, b"ftyphe", "HEIC"),
    (4, b"ftypmif1", "HEIF"),
    (4, b"ftypmsf1", "HEIF"),
    (4, b"jP  ", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"\xff\x0a", "JPEG XL"),
    (4, b"JXL ", "JPEG XL"),
    (0, b"8BPS", "Photoshop"),
    (0, b"\0\0\1\0", "ICO"),
    (0, b"%!PS", "PostScript"),
)
_JPEG_END = b"\xff\xd9"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_GIF_END = b";"
_PADDING = b"\0\r\n "
_MAX_SCANS = 500
"""Of a progressive JPEG, as in libjpeg-turbo's own programs: each scan costs a pass over all."""


class ImageError(Exception):
    """An image that does not go into the data set.

    Attributes:
      kind: its type for counting: Empty, NotAnImage, Unsupported, TooLarge, TooSmall, MultiFrame,
        Truncated, Corrupt.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True)
class ImageInfo:
    """What a record says of its image: format as TF-slim spells it, pixels."""

    format: str
    height: int
    width: int


def is_image_name(name: str) -> bool:
    """Whether a file is an image by its name. Hidden files are not."""
    base = name.rpartition("/")[2]
    _, dot, suffix = base.rpartition(".")
    return bool(dot) and suffix.lower() in IMAGE_SUFFIXES and not base.startswith(".")


def inspect(data: bytes, check: Check = "full", max_pixels: int = MAX_PIXELS) -> ImageInfo:
    """Checks an image of a format that TensorFlow decodes, and measures it.

    Args:
      data: the whole file.
      check: "full" decodes every pixel; "header" looks at the header and at the end, which
        finds files that are empty, foreign or cut off, but not those garbled inside.
      max_pixels: larger ones are rejected by their header.

    Raises:
      ImageError: it would not decode in training, or not to what it was.
    """
    image_format = sniff(data)
    if image_format == "JPEG":
        return inspect_jpeg(data, headers.read_jpeg(data), check, max_pixels)
    if image_format:
        return _inspect_with_pillow(data, image_format, check, max_pixels)
    if name := foreign_name(data):
        raise ImageError("Unsupported", f"TensorFlow does not decode {name}")
    raise not_an_image(data)


def sniff(data: bytes) -> str:
    """JPEG, PNG, GIF or BMP, by the first bytes; empty if it is none of them.

    Raises:
      ImageError: there are no bytes.
    """
    if not data:
        raise ImageError("Empty", "the file is empty")
    return next((name for magic, name in _MAGIC if data.startswith(magic)), "")


def foreign_name(data: bytes) -> str:
    """The name of a format that TensorFlow does not decode, by the first bytes; or empty."""
    return next((name for at, magic, name in _FOREIGN_MAGIC if data.startswith(magic, at)), "")


def not_an_image(data: bytes) -> ImageError:
    """What is wrong with bytes of no known format."""
    return ImageError("NotAnImage", f"no image format begins with {data[:8]!r}")


def limit(height: int, width: int, max_pixels: int) -> None:
    """Refuses what has too many pixels.

    Raises:
      ImageError: it has.
    """
    if height * width > max_pixels:
        raise ImageError("TooLarge", f"{width} x {height} pixels, more than {max_pixels:,} in all")


def jpeg_error(error: ValueError, data: bytes) -> ImageError:
    """The ImageError of what simplejpeg raised."""
    reason = str(error).removeprefix("Error decoding ").strip()
    return ImageError("Truncated" if _JPEG_END not in data[-64:] else "Corrupt", f"JPEG: {reason}")


def limit_scans(data: bytes, header: headers.JpegHeader) -> None:
    """Refuses a progressive JPEG that would take minutes to decode.

    Raises:
      ImageError: it has too many scans.
    """
    if header.process == 2 and data.count(b"\xff\xda") > _MAX_SCANS:
        raise ImageError("Corrupt", f"JPEG: more than {_MAX_SCANS} scans")


def inspect_jpeg(
    data: bytes, header: headers.JpegHeader | None, check: Check, max_pixels: int
) -> ImageInfo:
    """`inspect` of a JPEG, of which the header is known; None if there is none."""
    if header and not header.is_plain:
        raise ImageError("Unsupported", "TensorFlow does not decode this kind of JPEG")
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        limit(height, width, max_pixels)
        if header:
            limit_scans(data, header)
        # Cameras append to a JPEG: only the decoder knows whether the image itself is whole.
        if check == "full" or not data.rstrip(_PADDING).endswith(_JPEG_END):
            # Entropy decoding finds what is broken; an eighth of the size and luma alone
            # spare the rest of the work: 1.1 ms for 108 kB where Pillow in full takes 1.9.
            simplejpeg.decode_jpeg(data, colorspace="GRAY", min_factor=8, fastdct=True)
    except ValueError as error:
        raise jpeg_error(error, data) from error
    return ImageInfo("JPEG", height, width)


_PILLOW_FILES: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
}


def open_known(data: bytes, image_format: str) -> ImageFile:
    """Opens what `sniff` knows, with the format's own class.

    Not Image.open: the format is known, and Image.open would raise for what `limit` rejects.
    """
    return _PILLOW_FILES[image_format](io.BytesIO(data))


@contextmanager
def decoding(image_format: str) -> Iterator[None]:
    """Turns whatever Pillow's decoders raise into an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, MemoryError) as error:
        # Of a frame or a member that is larger than its image.
        raise ImageError("TooLarge", f"{image_format}: {error or 'out of memory'}") from error
    except Exception as error:
        # Broken files make them raise errors of every type: struct.error, KeyError, zlib.error,
        # AssertionError, ...
        reason = " ".join(str(error).split()) or type(error).__name__
        kind = "Truncated" if "truncated" in reason.lower() else "Corrupt"
        raise ImageError(kind, f"{image_format}: {reason}") from error


def _inspect_with_pillow(
    data: bytes, image_format: str, check: Check, max_pixels: int
) -> ImageInfo:
    with decoding(image_format):
        image = open_known(data, image_format)
        width, height = image.size
        limit(height, width, max_pixels)
        if image_format == "PNG":
            _check_png(data)
        if image_format == "GIF":
            _check_gif(image, data)
        if image_format == "BMP":
            _check_bmp(data, height, width)
        if check == "full":
            if image_format == "PNG":
                # load() does not compare the CRCs of pixel data, verify() does.
                image.verify()
                image = open_known(data, image_format)
            frames = getattr(image, "n_frames", 1) if image_format == "GIF" else 1
            if frames * height * width > MAX_PIXELS and frames > 1:
                raise ImageError(
                    "TooLarge", f"{frames} frames of {width} x {height}, which decode into one"
                )
            for frame in range(frames):
                image.seek(frame)
                image.load()
                if frame == 0 and image.mode == "P":
                    _check_palette(image)
    return ImageInfo(image_format, height, width)


def _check_png(data: bytes) -> None:
    check_png_end(data)
    header = headers.read_png(data)
    if header and header.colour == headers.GREY_WITH_ALPHA:
        raise ImageError("Unsupported", "TensorFlow decodes grey with alpha to 2 channels")


def check_png_end(data: bytes) -> None:
    """Finds a PNG that breaks off.

    Raises:
      ImageError: it does.
    """
    if _PNG_END not in data:
        raise ImageError("Truncated", "PNG: its IEND chunk is missing")


def check_gif_end(data: bytes) -> None:
    """Finds a GIF that breaks off.

    Raises:
      ImageError: it does.
    """
    if not data.rstrip(_PADDING).endswith(_GIF_END):
        raise ImageError("Truncated", "GIF: its trailer is missing")


def _check_gif(image: ImageFile, data: bytes) -> None:
    check_gif_end(data)
    if not headers.is_gif_of_blocks(data):
        raise ImageError("Corrupt", "GIF: its blocks do not lead to its trailer")
    # tensorflow/core/lib/gif/gif_io.cc takes the size of the first frame for that of the image.
    if image.tile and image.tile[0].extents != (0, 0, *image.size):
        raise ImageError("Unsupported", "TensorFlow decodes no GIF whose first frame is smaller")


def _check_palette(image: ImageFile) -> None:
    # There it is an error, too, if an index has no colour.
    colours = len(image.palette.palette) // 3 if image.palette else 256
    most = image.getextrema()[1]
    if isinstance(most, int | float) and most >= colours:
        raise ImageError("Corrupt", "GIF: an index is outside of its palette")


def _check_bmp(data: bytes, height: int, width: int) -> None:
    missing = _missing_of_plain_bmp(data, height, width)
    if missing is None:
        raise ImageError("Unsupported", "TensorFlow decodes BMPs of 24 bits a pixel alone")
    if missing > 0:
        raise ImageError("Truncated", "BMP: its pixel data breaks off")
    if missing < 0:
        raise ImageError("Unsupported", "TensorFlow decodes no BMP with bytes after its pixels")


def is_plain_bmp(data: bytes, height: int, width: int) -> bool:
    """Whether TensorFlow decodes a BMP, or would if it did not break off."""
    missing = _missing_of_plain_bmp(data, height, width)
    return missing is not None and missing >= 0


def _missing_of_plain_bmp(data: bytes, height: int, width: int) -> int | None:
    """Bytes that a BMP of 24 bits lacks, negative if it has too many; None if it is another."""
    # tensorflow/core/kernels/image/decode_image_op.cc knows rows of 24 bits; it takes a palette
    # for grey levels and cannot change the number of channels.
    pixels_at, header_size = struct.unpack_from("<II", data, 10)
    if header_size < 40:
        return None
    bits, compression = struct.unpack_from("<HI", data, 28)
    if bits != 24 or compression != 0:
        return None
    return int(pixels_at) + (width * 3 + 3) // 4 * 4 * height - len(data)
