"""Parsers for the headers of image files. Pure: nothing is decoded.

Formats: ITU-T T.81 (JPEG), W3C PNG (third edition), RFC 9649 (WebP), ITU-T T.800 (JPEG 2000), Exif
2.32 in a TIFF 6.0 structure and XMP (orientation).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

UPRIGHT = 1
"""The EXIF orientation of an image whose pixels need no rotation or flip."""

ORIENTATION_TAG = 0x0112
"""The number of the EXIF tag that declares the orientation."""
_EXIF = b"Exif\0\0"
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION = re.compile(rb"tiff:Orientation\s*(?:=\s*[\"']|>)\s*([1-8])\s*[\"'<]")


def orientation(exif: bytes, xmp: bytes) -> int:
    r"""Returns the orientation that the metadata of an image declares, 1 to 8; 1 if there is none.

    Args:
      exif: a TIFF structure, with or without the prefix `Exif\0\0`; it has priority.
      xmp: an XMP packet.
    """
    found = _orientation_tag(exif)
    if found is None and (match := _XMP_ORIENTATION.search(xmp)):
        found = int(match[1])
    return found or UPRIGHT


def _orientation_tag(exif: bytes) -> int | None:
    tiff = exif.removeprefix(_EXIF)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(tiff[:4]))
    if not order:
        return None
    try:
        (ifd,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, ifd)
        for entry in range(ifd + 2, ifd + 2 + 12 * entries, 12):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
            if tag == ORIENTATION_TAG and kind == 3 and 1 <= value <= 8:
                return int(value)
    except struct.error:
        pass
    return None


def exif_with_orientation(orientation: int) -> bytes:
    """Returns an EXIF block that holds an orientation (1 to 8) and nothing else."""
    entry = struct.pack(">HHIHH", ORIENTATION_TAG, 3, 1, orientation, 0)
    return _EXIF + b"MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)


class JpegHeader(NamedTuple):
    """The frame header of a JPEG.

    Attributes:
      process: n of its SOFn marker, 0 to 15: 0 baseline, 1 extended, 2 progressive.
      bits: per sample.
      height: in pixels, before the EXIF orientation is applied.
      width: in pixels, before the EXIF orientation is applied.
      components: 1 grey, 3 color, 4 CMYK or YCCK.
      exif: the TIFF structure of the EXIF block; empty without one.
      xmp: the XMP packet; empty without one.
    """

    process: int
    bits: int
    height: int
    width: int
    components: int
    exif: bytes
    xmp: bytes

    @property
    def orientation(self) -> int:
        """The orientation that the metadata declares, 1 to 8."""
        return orientation(self.exif, self.xmp) if self.exif or self.xmp else UPRIGHT

    @property
    def is_widely_supported(self) -> bool:
        """Whether every JPEG decoder reads it: Huffman-coded, lossy, with 8 bits per sample."""
        return self.process <= 2 and self.bits == 8


_NO_FRAME_HEADER = (0xC4, 0xC8, 0xCC)
_FRAME = struct.Struct(">BHHB")


def read_jpeg(data: bytes) -> JpegHeader | None:
    """Parses the frame header of a JPEG; returns None if no SOFn segment is found."""
    exif = xmp = b""
    at = 2
    try:
        while True:
            if data[at] != 0xFF:  # libjpeg skips bytes before a marker
                at = data.index(b"\xff", at)
            marker = data[at + 1]
            if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_HEADER:
                bits, height, width, components = _FRAME.unpack_from(data, at + 4)
                return JpegHeader(marker - 0xC0, bits, height, width, components, exif, xmp)
            if marker == 0xFF:  # fill byte
                at += 1
            elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD7:
                at += 2
            elif marker in (0xD9, 0xDA):
                return None
            else:
                after = at + 2 + (data[at + 2] << 8 | data[at + 3])
                if marker == 0xE1:
                    if not exif and data.startswith(_EXIF, at + 4):
                        exif = data[at + 10 : after]
                    elif not xmp and data.startswith(_XMP, at + 4):
                        xmp = data[at + 4 + len(_XMP) : after]
                at = after
    except (IndexError, ValueError, struct.error):
        pass
    return None


GREY_WITH_ALPHA = 4
"""The color type of PNGs that TensorFlow decodes to two channels."""


def is_16_bit_png(data: bytes) -> bool:
    """Returns whether the file is a PNG with 16 bits per channel."""
    return data.startswith(_PNG_HEAD) and data[24:25] == b"\x10"


@dataclass(frozen=True)
class PngHeader:
    """What the chunks of a PNG declare.

    Attributes:
      height: in pixels, before the EXIF orientation is applied.
      width: in pixels, before the EXIF orientation is applied.
      color_type: 0 grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGB with alpha.
      animated: whether it has more than one frame.
      orientation: the one that eXIf, a raw profile or XMP declares, 1 to 8.
      refused: what libpng refuses in its critical chunks; "" if there is nothing.
      raw_bytes: the size of the pixels that IDAT chunks have to hold, with the filter bytes.
    """

    height: int
    width: int
    color_type: int
    animated: bool
    orientation: int
    refused: str
    raw_bytes: int


def read_png(data: bytes) -> PngHeader | None:
    """Parses the chunks of a PNG; returns None if the file does not begin with IHDR."""
    if data[12:16] != b"IHDR" or len(data) < 29:
        return None
    width, height, depth, color_type, *methods = struct.unpack_from(">IIBBBBB", data, 16)
    animated = False
    refused = ""
    if data[8:12] != b"\0\0\0\x0d" or methods not in ([0, 0, 0], [0, 0, 1]):
        refused = "an invalid IHDR"
    pixels_at = palette = texts = 0
    profiles: dict[str, bytes] = {}
    for name, at, end in _png_chunks(data):
        if name == b"IDAT":
            pixels_at = pixels_at or at
        elif name == b"acTL" and end - at == 20 and end <= len(data):
            animated = struct.unpack_from(">I", data, at + 8)[0] > 1
        elif name == b"eXIf":
            profiles.setdefault("exif", data[at + 8 : end - 4])
        elif name in _PNG_TEXTS:
            kind = _PNG_PROFILES.get(data[at + 8 : at + 8 + _KEYWORD].partition(b"\0")[0])
            if kind and kind not in profiles and texts < _MAX_PROFILES:
                texts += 1
                profiles = _png_profile(name, data[at + 8 : end - 4]) | profiles
        elif (name == b"IHDR" and at > 8) or (name == b"PLTE" and palette):
            refused = refused or f"a second {name.decode()}"
        elif name == b"PLTE":
            palette = at
            if color_type == _PALETTE and (pixels_at or (end - at - 12) not in _PALETTE_BYTES):
                refused = refused or "an invalid PLTE"
        elif name not in _PNG_CRITICAL and name.isalpha() and name[:1].isupper():
            refused = refused or f"the chunk {name.decode('ascii')}"
    exif = profiles.get("exif") or profiles.get("raw exif", b"")
    turned = orientation(exif, profiles.get("xmp", b"")) if profiles else UPRIGHT
    if color_type == _PALETTE and not palette:
        refused = refused or "a palette that is missing"
    raw = _png_raw_bytes(width, height, depth * _PNG_SAMPLES.get(color_type, 1), methods[2] == 1)
    return PngHeader(height, width, color_type, animated, turned, refused, raw)


_PALETTE = 3
_PALETTE_BYTES = range(3, 769, 3)
_PNG_SAMPLES = {2: 3, 4: 2, 6: 4}
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
          (0, 1, 1, 2))  # fmt: skip
"""(left, top, step right, step down) of each pass over an interlaced PNG."""


def _png_raw_bytes(width: int, height: int, bits: int, interlaced: bool) -> int:
    passes = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    sizes = ((-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in passes)
    return sum(
        rows * (1 + (columns * bits + 7) // 8) for columns, rows in sizes if columns > 0 < rows
    )


def png_pixel_bytes(data: bytes, most: int) -> int:
    """Returns how many bytes of pixels the IDAT chunks of a PNG hold, counted up to `most`.

    Raises:
      zlib.error: they are damaged.
    """
    inflate = zlib.decompressobj()
    count = 0
    for name, at, end in _png_chunks(data):
        if name == b"IDAT" and count < most:
            part = inflate.decompress(data[at + 8 : end - 4], _INFLATED)
            while part:
                count += len(part)
                part = inflate.decompress(inflate.unconsumed_tail, _INFLATED)
    return count


_INFLATED = 1 << 18


_PNG_CRITICAL = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
"""The last chunk of a PNG."""
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_MAX_PROFILE = 1 << 20
"""A compressed text of a PNG is decompressed up to this many bytes, to search its orientation."""
_MAX_PROFILES = 8
"""Texts of a PNG that are read for its orientation: a hostile file may have thousands."""
_KEYWORD = 80
"""The most bytes of a keyword with its end."""


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields the name, the begin and the end of each chunk of a PNG, up to IEND.

    The end of a truncated chunk is beyond the end of the data.
    """
    at = 8
    while at + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        yield name, at, at + size + 12
        if name == b"IEND":
            return
        at += size + 12


def has_png_end(data: bytes) -> bool:
    """Returns whether the chunks of a PNG end with an undamaged IEND."""
    return any(data[at:end] == PNG_END for name, at, end in _png_chunks(data) if name == b"IEND")


def png_without_metadata(data: bytes) -> bytes:
    """Returns a PNG without the chunks that do not affect its pixels: profiles, texts, frames.

    Pillow rejects long texts and profiles, which TensorFlow ignores. Chunks with a wrong CRC stay,
    for Pillow to reject them.
    """
    kept: list[bytes] = []
    begin = 0
    for name, at, end in _png_chunks(data):
        if not name.isalpha() or name[:1].isupper() or name == b"tRNS":
            continue
        if data[end - 4 : end] == zlib.crc32(data[at + 4 : end - 4]).to_bytes(4):
            kept.append(data[begin:at])
            begin = end
    return b"".join([*kept, data[begin:]]) if kept else data


_PNG_PROFILES = {
    b"XML:com.adobe.xmp": "xmp",
    b"Raw profile type xmp": "xmp",
    b"Raw profile type exif": "raw exif",
    b"Raw profile type APP1": "raw exif",
}
"""Keywords of texts that hold metadata. ImageMagick writes the raw profiles, in hexadecimal."""


def _png_profile(name: bytes, body: bytes) -> dict[str, bytes]:
    """Returns the XMP packet or the EXIF block in a text chunk, as {kind: content}."""
    keyword, _, text = body.partition(b"\0")
    kind = _PNG_PROFILES.get(keyword)
    if not kind:
        return {}
    compressed = name == b"zTXt"
    if compressed:
        text = text[1:]
    elif name == b"iTXt":
        compressed = text[:1] == b"\1"
        text = text[2:].split(b"\0", 2)[-1]
    try:
        if compressed:
            text = zlib.decompressobj().decompress(text, _MAX_PROFILE)
        if keyword.startswith(b"Raw"):
            # An empty line, the type and the length come before the digits.
            digits = b"".join(text.split(b"\n")[3:])
            text = bytes.fromhex(digits[: len(digits) // 2 * 2].decode("ascii"))
    except (zlib.error, ValueError):
        return {}
    if text.startswith(_XMP):
        kind = "xmp"
    return {kind: text}


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
    """Returns the (height, width) of every JPEG 2000 codestream in `data`, at any offset.

    A malformed header may give sizes that are not positive.
    """
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
