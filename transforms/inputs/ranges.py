"""Reads images that are byte ranges of other files: archive members and records of TFRecord files.

Formats: a tar stores the data of a member unchanged. In a zip, a local header of variable length
precedes the data (PKWARE APPNOTE 4.3.7). A record of a TFRecord file is a serialized
tf.train.Example.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import ByteRange
from imageshards.transforms.inputs import unpack
from imageshards.transforms.records import example
from imageshards.transforms.storage import MAX_BYTES, ReadError

_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_ENCRYPTED, _SIZE_FOLLOWS = 1, 8
_IN_EXTRA_FIELD = 0xFFFFFFFF
STORED, DEFLATED = 0, 8
_LONG_HEADER_BYTES = 512
_PIECE_BYTES = 1 << 24


def read(place: ByteRange, stamp: int, limit: int = MAX_BYTES) -> bytes:
    """Reads the content of an archive member.

    Args:
      place: the member's byte range.
      stamp: the archive's stamp in the listing, or 0; see `storage.read_range`.
      limit: the largest member to read, in bytes.

    Raises:
      ReadError: the member cannot be read, and another attempt would not help.
    """
    if place.size > limit:
        raise ReadError("TooLarge", f"{place.size:,} bytes, more than {limit:,}")
    stamp = stamp_of(place.uri, stamp)
    if place.codec == "zip":
        return _read_zip_member(place, stamp, limit)
    return _read_exactly(place.uri, place.offset, place.size, stamp)


def check_readable(uri: str, stamp: int) -> None:
    """Raises a `StoreError` if the store cannot read ranges of a file, before images are listed."""
    with suppress(ReadError):  # the file has changed: each of its images will be a reject
        storage.read_range(uri, 0, 1, stamp_of(uri, stamp))


def read_record(place: ByteRange, stamp: int, image_key: str) -> tuple[bytes, dict[str, list[Any]]]:
    """Reads a serialized tf.train.Example.

    Returns:
      The bytes of its image, and a dict of key -> values for all its features.

    Raises:
      ReadError: the record cannot be read, and another attempt would not help.
    """
    if place.size > MAX_BYTES:
        raise ReadError("TooLarge", f"a record of {place.size:,} bytes, more than {MAX_BYTES:,}")
    data = _read_exactly(place.uri, place.offset, place.size, stamp_of(place.uri, stamp))
    try:
        values = example.decode(data)
    except example.CorruptExample as error:
        raise ReadError("Unreadable", str(error)) from error
    images = values.get(image_key)
    if not images or not isinstance(images[0], bytes):
        raise ReadError("Missing", f"the record has no image in {image_key!r}")
    return images[0], values


def stamp_of(uri: str, stamp: int) -> int:
    """Returns the stamp with which a file is read that was listed with another one."""
    # The name of an unpacked archive contains its stamp; only a local copy has it as its mtime too.
    return 0 if unpack.is_unpacked(uri) and not storage.is_local(uri) else stamp


def _read_exactly(uri: str, offset: int, size: int, stamp: int) -> bytes:
    data = storage.read_range(uri, offset, size, stamp)
    if len(data) < size:
        raise ReadError(
            "Changed", f"the file that holds it ends {size - len(data):,} bytes before it does"
        )
    return data


def _read_zip_member(place: ByteRange, stamp: int, limit: int) -> bytes:
    # If requests have latency, one request reads both the header and the data.
    ahead = 0 if storage.is_local(place.uri) else place.size + _LONG_HEADER_BYTES
    known = storage.read_range(place.uri, place.offset, _LOCAL_HEADER.size + ahead, stamp)
    if len(known) < _LOCAL_HEADER.size:
        raise ReadError("Changed", "the archive ends before the image does")
    magic, _, flags, method, _, _, _, size, _, name_size, extra_size = _LOCAL_HEADER.unpack_from(
        known
    )
    sized = not flags & _SIZE_FOLLOWS and size != _IN_EXTRA_FIELD
    if (
        magic != b"PK\3\4"
        or flags & _ENCRYPTED
        or method not in (STORED, DEFLATED)
        or (sized and size != place.size)
    ):
        raise ReadError("Unreadable", "the zip's directory and the member's header differ")
    start = _LOCAL_HEADER.size + name_size + extra_size
    data = known[start : start + place.size]
    if len(data) < place.size:
        data = _read_exactly(place.uri, place.offset + start, place.size, stamp)
    return data if method == STORED else _inflate(data, limit)


def _inflate(data: bytes, limit: int) -> bytes:
    # In pieces, because a decompression bomb may expand to any size.
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    parts = []
    size = 0
    try:
        while not inflater.eof:
            part = inflater.decompress(data, _PIECE_BYTES)
            data = inflater.unconsumed_tail
            if not part and not data:
                break
            parts.append(part)
            size += len(part)
            if size > limit:
                raise ReadError("TooLarge", f"expands to more than {limit:,} bytes")
    except zlib.error as error:
        raise ReadError("Unreadable", f"cannot be inflated: {error}") from error
    if not inflater.eof:
        raise ReadError("Unreadable", "cannot be inflated: its data breaks off")
    return b"".join(parts)
