"""Parsers for the headers of image files. Pure: nothing is decoded.

Formats: ITU-T T.81 (JPEG), W3C PNG (third edition), GIF89a, RFC 9649 (WebP), ITU-T T.800
(JPEG 2000), Exif 2.32 in a TIFF 6.0 structure (orientation).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

UPRIGHT = 1
"""The EXIF orientation of an image whose pixels need no rotation or flip."""

_ORIENTATION_TAG = 0x0112
_EXIF = b"Exif\0\0"


def exif_orientation(exif: bytes) -> int:
    r"""Returns the orientation in an EXIF block, 1 to 8; 1 if it has none or is malformed.

    Args:
      exif: a TIFF structure, with or without the prefix `Exif\0\0`.
    """
    tiff = exif.removeprefix(_EXIF)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(tiff[:4]))
    if not order:
        return UPRIGHT
    try:
        (ifd,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, ifd)
        for entry in range(ifd + 2, ifd + 2 + 12 * entries, 12):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
            if tag == _ORIENTATION_TAG and kind == 3 and 1 <= value <= 8:
                return int(value)
    except struct.error:
        pass
    return UPRIGHT


def exif_with_orientation(orientation: int) -> bytes:
    """Returns an EXIF block that holds an orientation (1 to 8) and nothing else."""
    entry = struct.pack(">HHIHH", _ORIENTATION_TAG, 3, 1, orientation, 0)
    return _EXIF + b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)


class JpegHeader(NamedTuple):
    """The frame header of a JPEG.

    Attributes:
      process: n of its SOFn marker, 0 to 15: 0 baseline, 1 extended, 2 progressive.
      bits: per sample.
      height: in pixels, before the EXIF orientation is applied.
      width: in pixels, before the EXIF orientation is applied.
      components: 1 grey, 3 colour, 4 CMYK or YCCK.
      exif: the TIFF structure of the EXIF block; empty without one.
    """

    process: int
    bits: int
    height: int
    width: int
    components: int
    exif: bytes

    @property
    def is_widely_supported(self) -> bool:
        """Whether every JPEG decoder reads it: Huffman-coded, lossy, with 8 bits per sample."""
        return self.process <= 2 and self.bits == 8


_NO_FRAME_HEADER = (0xC4, 0xC8, 0xCC)
_FRAME = struct.Struct(">BHHB")


def read_jpeg(data: bytes) -> JpegHeader | None:
    """Parses the frame header of a JPEG; returns None if no SOFn segment is found."""
    exif = b""
    at = 2
    try:
        while data[at] == 0xFF:
            marker = data[at + 1]
            if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_HEADER:
                bits, height, width, components = _FRAME.unpack_from(data, at + 4)
                return JpegHeader(marker - 0xC0, bits, height, width, components, exif)
            if marker == 0xFF:  # fill byte
                at += 1
            elif marker == 0x01 or 0xD0 <= marker <= 0xD7:
                at += 2
            elif marker in (0xD9, 0xDA):
                return None
            else:
                after = at + 2 + (data[at + 2] << 8 | data[at + 3])
                if marker == 0xE1 and not exif and data.startswith(_EXIF, at + 4):
                    exif = data[at + 10 : after]
                at = after
    except (IndexError, struct.error):
        pass
    return None


GREY_WITH_ALPHA = 4
"""The colour type of PNGs that TensorFlow decodes to two channels."""


def is_16_bit_png(data: bytes) -> bool:
    """Returns whether the file is a PNG with 16 bits per channel."""
    return data.startswith(_PNG_HEAD) and data[24:25] == b"\x10"


@dataclass(frozen=True)
class PngHeader:
    """What the chunks of a PNG declare.

    Attributes:
      height: in pixels, before the EXIF orientation is applied.
      width: in pixels, before the EXIF orientation is applied.
      colour_type: 0 grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGB with alpha.
      animated: whether it has more than one frame.
      exif: the TIFF structure of the eXIf chunk; empty without one.
    """

    height: int
    width: int
    colour_type: int
    animated: bool
    exif: bytes


def read_png(data: bytes) -> PngHeader | None:
    """Parses the chunks of a PNG; returns None if the file does not begin with IHDR."""
    if data[12:16] != b"IHDR" or len(data) < 29:
        return None
    width, height, _, colour_type = struct.unpack_from(">IIBB", data, 16)
    animated = False
    exif = b""
    at = 8
    while at + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        if name == b"acTL" and size == 8 and at + 12 <= len(data):
            animated = struct.unpack_from(">I", data, at + 8)[0] > 1
        elif name == b"eXIf":
            exif = data[at + 8 : at + 8 + size]
        elif name == b"IEND":
            break
        at += size + 12
    return PngHeader(height, width, colour_type, animated, exif)


@dataclass(frozen=True)
class WebpHeader:
    """The canvas of a WebP in pixels, and whether its first frame is lossless."""

    height: int
    width: int
    lossless: bool


def read_webp(data: bytes) -> WebpHeader | None:
    """Parses the chunks of a WebP up to its first frame; returns None if there is no frame."""
    canvas: tuple[int, int] | None = None
    at = 12
    try:
        while at < len(data):
            name, size = struct.unpack_from("<4sI", data, at)
            body = at + 8
            if name == b"VP8X":
                width = int.from_bytes(data[body + 4 : body + 7], "little") + 1
                canvas = (int.from_bytes(data[body + 7 : body + 10], "little") + 1, width)
            elif name == b"ANMF":
                at = body + 16  # the frame's own chunks follow
                continue
            elif name == b"VP8L":
                (bits,) = struct.unpack_from("<I", data, body + 1)
                height, width = canvas or ((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
                return WebpHeader(height, width, lossless=True)
            elif name == b"VP8 ":
                width, height = struct.unpack_from("<HH", data, body + 6)
                height, width = canvas or (height & 0x3FFF, width & 0x3FFF)
                return WebpHeader(height, width, lossless=False)
            at = body + size + size % 2
    except struct.error:
        pass
    return None


_SIZ = b"\xff\x4f\xff\x51"
_COD = b"\xff\x52"


def jpeg2000_sizes(data: bytes) -> list[tuple[int, int]]:
    """Returns the (height, width) of every JPEG 2000 codestream in `data`, at any offset."""
    fields = _fields_after(data, _SIZ, ">4xIIII")
    return [(bottom - top, right - left) for right, bottom, left, top in fields]


def is_reversible_jpeg2000(data: bytes) -> bool:
    """Returns whether a JPEG 2000 uses the reversible wavelet, so that it may be lossless."""
    at = data.find(_COD, max(data.find(_SIZ), 0))
    return 0 <= at < len(data) - 13 and data[at + 13] == 1


_PNG_HEAD = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def png_sizes(data: bytes) -> list[tuple[int, int]]:
    """Returns the (height, width) of every PNG that is found in `data`, at any offset."""
    return [(height, width) for width, height in _fields_after(data, _PNG_HEAD, ">II")]


def _fields_after(data: bytes, magic: bytes, layout: str) -> Iterator[tuple[int, ...]]:
    """Yields the fields of a struct behind each occurrence of some magic bytes."""
    size = struct.calcsize(layout)
    at = data.find(magic) + len(magic)
    while len(magic) <= at <= len(data) - size:
        yield struct.unpack_from(layout, data, at)
        at = data.find(magic, at) + len(magic)


def has_valid_gif_blocks(data: bytes) -> bool:
    """Returns whether a GIF is a sequence of valid blocks up to its trailer.

    TensorFlow's decoder rejects a GIF with bytes between its blocks; Pillow skips them.
    """
    try:
        at = _after_colour_table(data, 10, 13)
        while data[at] != 0x3B:
            if data[at] == 0x2C:  # image: local colour table, LZW code size
                at = _after_colour_table(data, at + 9, at + 10) + 1
            elif data[at] == 0x21:  # extension: its label
                at += 2
            else:
                return False
            while data[at]:  # sub-blocks
                at += data[at] + 1
            at += 1
    except IndexError:
        return False
    return True


def _after_colour_table(data: bytes, flags_at: int, at: int) -> int:
    flags = data[flags_at]
    return at + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
