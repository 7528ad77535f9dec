"""A few bytes by which two records are known to hold the same image. Pure."""

from __future__ import annotations

import struct
from hashlib import blake2b

from PIL import Image

_SAMPLE_BYTES = 1024


def image_digest(data: bytes, coded: bool = True) -> bytes:
    """Eight bytes that are equal for images of equal coded pixels.

    Args:
      data: the image.
      coded: whether it is an image file, and not raw pixels or a text.

    Returns:
      The digest: of a JPEG without what EXIF, comments and colour profiles add, and of a long one
      of the length and three samples, which costs 3 us where all of it costs 100: its bits differ
      all along.
    """
    if not coded or not data.startswith(b"\xff\xd8"):
        return blake2b(data, digest_size=8).digest()
    start = _end_of_jpeg_metadata(data)
    length = len(data) - start
    state = blake2b(length.to_bytes(8, "little"), digest_size=8)
    if length <= 3 * _SAMPLE_BYTES:
        state.update(data[start:])
    else:
        for at in (start, start + (length - _SAMPLE_BYTES) // 2, len(data) - _SAMPLE_BYTES):
            state.update(data[at : at + _SAMPLE_BYTES])
    return state.digest()


def pixel_digest(image: Image.Image) -> bytes:
    """16 bytes that are equal for images of equal size and equal colours; of RGBA alpha too."""
    if image.mode != "RGBA":
        image = image.convert("RGB")
    head = struct.pack("<II4s", *image.size, image.mode.encode())
    return blake2b(head + image.tobytes(), digest_size=16).digest()


def file_digest(data: bytes) -> bytes:
    """16 bytes that are equal for equal files."""
    return blake2b(data, digest_size=16).digest()


def _end_of_jpeg_metadata(data: bytes) -> int:
    """Where the APPn and COM segments at the beginning of a JPEG end."""
    at = 2
    while data[at : at + 1] == b"\xff" and (
        data[at + 1 : at + 2] == b"\xfe" or 0xE0 <= int.from_bytes(data[at + 1 : at + 2]) <= 0xEF
    ):
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return at
