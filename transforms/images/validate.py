"""Validation of image files in the formats that TensorFlow decodes. Pure.

A file is valid if `tf.io.decode_image(..., expand_animations=False)` decodes it in training. The
format is detected from the file's content, not from its name.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from imageshards.transforms.images import gif, headers, jpeg, memory
from imageshards.transforms.images.filetypes import describe, without_content
from imageshards.transforms.images.measure import (
    Appearance,
    decode_file,
    measure,
    measure_image,
    reduced_size,
    reduction_of,
)
from imageshards.transforms.images.resize import MAX_SIDE

Check = Literal["full", "header"]
Level = Literal["full", "header", "lenient"]

MAX_PIXELS = 178_956_970
"""Images with more pixels are rejected before they are decoded: Pillow's own limit."""

IMAGE_SUFFIXES = frozenset((
    "jpg", "jpeg", "jpe", "jfif", "mpo", "png", "apng", "gif", "bmp", "dib", "webp", "avif",
    "avifs", "heic", "heics", "heif", "hif", "jxl", "jp2", "j2k", "j2c", "jpc", "jpf", "jpx",
    "tif", "tiff", "ico", "icns", "cur", "tga", "icb", "vda", "vst", "psd", "pcx", "dcx", "pbm",
    "pgm", "ppm", "pnm", "pfm", "sgi", "qoi", "dds", "ras", "xbm", "xpm", "pcd", "fli", "flc",
))  # fmt: skip
"""Suffixes of the names of image files, in lower case and without the dot."""

_MAGIC = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
)
_UNSUPPORTED_MAGIC = (
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
    (0, b"\xc5\xd0\xd3\xc6", "PostScript"),
    (0, b"SIMPLE  =", "FITS"),
    (0, b"\xd7\xcd\xc6\x9a", "WMF"),
    (0, b"\1\0\x09\0\0\3", "WMF"),
    (40, b" EMF", "EMF"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "FlashPix"),
)
_WITHOUT_DECODER = ("JPEG XL", "PostScript", "FITS", "WMF", "EMF", "FlashPix")
_GIF_END = b";"
_PADDING = b"\0\r\n "
_UNSUPPORTED_REASONS = ("Unsupported", "cannot handle")
"""How Pillow's errors begin for variants of a format that it does not decode."""
_ADDRESS = re.compile(r" ?<[^<>]* at 0x[0-9a-fA-F]+>")
"""The representation of a Python object, which differs from run to run."""


class ImageError(Exception):
    """An image is rejected. The message is one line with the reason.

    Attributes:
      kind: the error type that rejects are counted by: Empty, NotAnImage, Unsupported, TooLarge,
        TooSmall, MultiFrame, Truncated or Corrupt.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True)
class ImageInfo:
    """Format and size of an image in a record.

    Attributes:
      format: the name in TF-slim, such as "JPEG" or "PNG"; "uint8" or "float32" for raw pixels.
      height: the height in pixels.
      width: the width in pixels.
      appearance: what the image looks like, if it was decoded.
    """

    format: str
    height: int
    width: int
    appearance: Appearance | None = field(default=None, compare=False, repr=False)


def is_image_name(name: str) -> bool:
    """Returns whether a file's name has the suffix of an image format; False for hidden files.

    >>> is_image_name("birds/0001.JPEG"), is_image_name("birds/.0001.jpg")
    (True, False)
    """
    base = name.rpartition("/")[2]
    _, dot, suffix = base.rpartition(".")
    return bool(dot) and suffix.lower() in IMAGE_SUFFIXES and not base.startswith(".")


def inspect(data: bytes, check: Level = "full", max_pixels: int = MAX_PIXELS) -> ImageInfo:
    """Validates an image file, and returns its format and size.

    Args:
      data: the whole file.
      check: "full" decodes every pixel; "header" reads only the header and the end of the file. It
        finds empty, unsupported and truncated files, but not files with corrupt pixel data.
        "lenient" decodes every pixel, and accepts damage that TensorFlow's decoders accept.
      max_pixels: images whose header declares more pixels are rejected.

    Raises:
      ImageError: TensorFlow does not decode the file, or not to the size in its header.

    >>> file = io.BytesIO()
    >>> Image.new("RGB", (3, 2)).save(file, "PNG")
    >>> inspect(file.getvalue())
    ImageInfo(format='PNG', height=2, width=3)
    """
    image_format = detect_format(data)
    if image_format == "JPEG":
        return inspect_jpeg(data, headers.read_jpeg(data), check, max_pixels)
    if image_format:
        return _inspect_with_pillow(data, image_format, check, max_pixels)
    if name := unsupported_format(data):
        raise ImageError("Unsupported", f"TensorFlow does not decode {name}")
    raise not_an_image(data)


def detect_format(data: bytes) -> str:
    """Detects "JPEG", "PNG", "GIF" or "BMP" from the first bytes; returns "" for other formats.

    Raises:
      ImageError: the file is empty.
    """
    if not data:
        raise ImageError("Empty", "the file is empty")
    return next((name for magic, name in _MAGIC if data.startswith(magic)), "")


def unsupported_format(data: bytes) -> str:
    """Detects a format that TensorFlow does not decode; returns its name, "" if it is unknown."""
    return next((name for at, magic, name in _UNSUPPORTED_MAGIC if data.startswith(magic, at)), "")


def has_decoder(name: str) -> bool:
    """Returns whether Pillow decodes a format that `unsupported_format` returned."""
    return name not in _WITHOUT_DECODER


def not_an_image(data: bytes) -> ImageError:
    """Returns the error for a file of no known image format."""
    return ImageError("NotAnImage", f"{describe(data)}, not an image")


def check_pixel_count(height: int, width: int, max_pixels: int) -> None:
    """Raises an `ImageError` for an image with more than `max_pixels` pixels, or without any."""
    if height <= 0 or width <= 0:
        raise ImageError("Corrupt", "its header declares a size without pixels")
    if height * width > max_pixels:
        raise ImageError("TooLarge", f"{width} x {height} pixels, more than {max_pixels:,}")


def too_few_bytes(image_format: str, height: int, width: int, data: bytes) -> ImageError:
    """Returns the error for a file that cannot hold the pixels that its header declares."""
    reason = f"{image_format}: {len(data):,} bytes cannot hold {width} x {height} pixels"
    return ImageError("Truncated", reason)


def check_capacity(image: ImageFile, image_format: str, data: bytes) -> None:
    """Raises an `ImageError` for a file with more pixels than its size allows; see `memory`."""
    if memory.can_hold(image, len(data)):
        return
    if memory.is_unbounded(image):  # it may be intact
        raise ImageError(
            "TooLarge",
            f"{image_format}: {image.width} x {image.height} pixels in a file of {len(data):,} "
            "bytes take too much memory to decode",
        )
    raise too_few_bytes(image_format, image.height, image.width, data)


def jpeg_error(error: ValueError, data: bytes) -> ImageError:
    """Returns the `ImageError` for an error of the module `jpeg`."""
    reason = str(error).removeprefix("Error decoding ").strip()
    return ImageError("Corrupt" if jpeg.END in data[-64:] else "Truncated", f"JPEG: {reason}")


def inspect_jpeg(
    data: bytes, header: headers.JpegHeader | None, check: Level, max_pixels: int
) -> ImageInfo:
    """Validates a JPEG as `inspect` does, given the result of `headers.read_jpeg`."""
    if header and not header.is_widely_supported:
        raise ImageError(
            "Unsupported",
            f"TensorFlow does not decode JPEGs of type SOF{header.process} with {header.bits} bits",
        )
    if header and header.components == 2:
        raise ImageError("Unsupported", "TensorFlow does not decode JPEGs with 2 components")
    in_color = header is not None and header.components == 3
    appearance = None
    try:
        height, width = jpeg.read_size(data, header)
        check_pixel_count(height, width, max_pixels)
        if max(height, width) > MAX_SIDE:
            raise ImageError("Unsupported", f"JPEG: a side is longer than {MAX_SIDE:,} pixels")
        if not memory.can_hold_jpeg(height, width, len(data)):
            raise too_few_bytes("JPEG", height, width, data)
        if header:
            jpeg.check_scan_count(data, header.process)
        # Cameras append data to a JPEG: only a decoder can tell whether the image is complete.
        if check != "header" or not data.rstrip(_PADDING).endswith(jpeg.END):
            with memory.turn(height, width):
                pixels = jpeg.check(data, (height, width), not in_color, check != "lenient")
                # Files that only look truncated are no random sample.
                if check != "header" and header:
                    if header.components < 4 and pixels.shape[:2] == reduced_size(height, width):
                        appearance = measure(pixels, reduction_of(height, width))
                    else:  # CMYK, or an unusual subsampling
                        appearance = _measure_file(data)
    except ValueError as error:
        raise jpeg_error(error, data) from error
    return ImageInfo("JPEG", height, width, appearance)


def _measure_file(data: bytes) -> Appearance | None:
    image = decode_file(data)
    return measure_image(image) if image else None


_PILLOW_FILES: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
}


def open_supported(data: bytes, image_format: str) -> ImageFile:
    """Opens an image of a format that `detect_format` returned, with Pillow's class for the format.

    `Image.open` would raise its own error for an image that `check_pixel_count` rejects.
    """
    if image_format == "PNG":
        data = headers.png_without_metadata(data)
    return _PILLOW_FILES[image_format](io.BytesIO(data))


@contextmanager
def image_errors(image_format: str) -> Iterator[None]:
    """Translates every error of Pillow's decoders to an `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, MemoryError) as error:
        # A frame or an embedded image may be larger than the file's header declares.
        raise ImageError("TooLarge", f"{image_format}: {error or 'out of memory'}") from error
    except Exception as error:
        # Corrupt files make decoders raise struct.error, KeyError, zlib.error, AssertionError, ...
        reason = _ADDRESS.sub("", " ".join(str(error).split()))
        kind = "Truncated" if "truncated" in reason.lower() else "Corrupt"
        reason = without_content(reason) or type(error).__name__
        if reason.startswith(_UNSUPPORTED_REASONS):
            kind = "Unsupported"
        raise ImageError(kind, f"{image_format}: {reason}") from error


def _inspect_with_pillow(
    data: bytes, image_format: str, check: Level, max_pixels: int
) -> ImageInfo:
    appearance = None
    with image_errors(image_format):
        image = open_supported(data, image_format)
        width, height = image.size
        check_pixel_count(height, width, max_pixels)
        check_capacity(image, image_format, data)
        with memory.turn(height, width):
            if image_format == "PNG":
                _check_png(data, check)
            elif image_format == "GIF":
                _check_gif(data, image.size, check)
            elif image_format == "BMP":
                _check_bmp(data, height, width)
            if check != "header" and image_format == "GIF":
                appearance = _measure_file(data)  # its first frame
            elif check != "header":
                image.load()
                if image_format == "PNG":
                    check_png_pixels(image, data)
                appearance = measure_image(image)
    return ImageInfo(image_format, height, width, appearance)


def _check_png(data: bytes, check: Level) -> None:
    check_png_end(data)
    header = headers.read_png(data)
    if not header:
        raise ImageError("Unsupported", "TensorFlow does not decode PNGs that begin without IHDR")
    if header.color_type == headers.GREY_WITH_ALPHA:
        raise ImageError("Unsupported", "TensorFlow decodes grey with alpha to 2 channels")
    if header.refused:
        raise ImageError("Unsupported", f"TensorFlow does not decode PNGs with {header.refused}")
    if check != "header":
        check_png_crcs(data)


def check_png_crcs(data: bytes) -> None:
    """Compares the CRCs of a PNG's chunks with their data, which Pillow's load() does not.

    Raises:
      Exception: an error of any type; `image_errors` translates it.
    """
    open_supported(data, "PNG").verify()


def check_png_pixels(image: ImageFile, data: bytes) -> None:
    """Raises an `ImageError` for a PNG whose pixels end early.

    Args:
      image: the image, decoded; Pillow leaves pixels without data at 0.
      data: the whole file.
    """
    width, height = image.size
    last = (image.crop((0, max(row, 0), width, row + 1)) for row in (height - 1, height - 2))
    if all(row.getbbox() for row in last):
        return
    header = headers.read_png(data)
    if header and headers.png_pixel_bytes(data, header.raw_bytes) < header.raw_bytes:
        raise ImageError("Truncated", "PNG: its pixels end early")


def check_png_end(data: bytes) -> None:
    """Raises an `ImageError` for a PNG without its last chunk."""
    if headers.PNG_END not in data:
        raise ImageError("Truncated", "PNG: the IEND chunk is missing")
    if not headers.has_png_end(data):
        raise ImageError("Corrupt", "PNG: its chunks are damaged")


def check_gif_end(data: bytes) -> None:
    """Raises an `ImageError` for a GIF without its trailer."""
    if not data.rstrip(_PADDING).endswith(_GIF_END):
        raise ImageError("Truncated", "GIF: the trailer is missing")


def _check_gif(data: bytes, size: tuple[int, int], check: Level) -> None:
    check_gif_end(data)
    count = sum(1 for _ in gif.frames(data))
    if check != "header" and count > 1 and count * size[0] * size[1] > MAX_PIXELS:
        pixels = f"{count} frames of {size[0]} x {size[1]} pixels"
        raise ImageError("TooLarge", f"{pixels}, which decode to one array")
    try:
        gif.check(data, decode=check != "header")
    except gif.Unsupported as error:
        raise ImageError("Unsupported", f"TensorFlow does not decode a GIF {error}") from None


def _check_bmp(data: bytes, height: int, width: int) -> None:
    missing = _missing_bmp_bytes(data, height, width)
    if missing is None:
        raise ImageError("Unsupported", "TensorFlow decodes only BMPs with 24 bits per pixel")
    if missing > 0:
        raise ImageError("Truncated", f"BMP: the last {missing:,} bytes of the pixels are missing")
    if missing < 0:
        reason = "TensorFlow does not decode a BMP with bytes after its pixels"
        raise ImageError("Unsupported", reason)


def is_supported_bmp(data: bytes, height: int, width: int) -> bool:
    """Returns whether TensorFlow decodes a BMP, or would if the file were not truncated."""
    missing = _missing_bmp_bytes(data, height, width)
    return missing is not None and missing >= 0


def _missing_bmp_bytes(data: bytes, height: int, width: int) -> int | None:
    """Returns how many bytes are missing at the end of an uncompressed BMP with 24 bits per pixel.

    The number is negative if there are bytes after the pixels. For any other BMP it is None.
    """
    # tensorflow/core/kernels/image/decode_image_op.cc supports only rows of 24-bit pixels: it would
    # decode palette indices as grey levels, and cannot change the number of channels.
    pixels_at, header_size = struct.unpack_from("<II", data, 10)
    if header_size < 40:
        return None
    bits, compression = struct.unpack_from("<HI", data, 28)
    if bits != 24 or compression != 0:
        return None
    return int(pixels_at) + (width * 3 + 3) // 4 * 4 * height - len(data)
