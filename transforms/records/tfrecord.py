"""TFRecord files: framing, masked CRC, names and index. Pure.

Format: tensorflow/core/lib/io/record_writer.h. A record is

    uint64 length, uint32 masked_crc32c(length), bytes data[length], uint32 masked_crc32c(data)

all little-endian. The index is that of NVIDIA DALI's tfrecord2idx: an ASCII line
"offset size" per record, offset of the 8-byte length, size = length + 16.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c

from imageshards.transforms.elements import ShardId

_MASK_DELTA = 0xA282EAD8
_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
FRAME_BYTES = _HEAD.size + _TAIL.size

SUFFIX = ".tfrecord"
GZIP_SUFFIX = ".gz"
_NAME = re.compile(
    r"(?P<split>.+)-(?P<index>\d{5,})-of-(?P<num_shards>\d{5,})\.tfrecord(?P<gzip>\.gz)?"
)
SHARD_LIKE = re.compile(r".+-\d{5,}-of-\d{5,}(\.tfrecords?(\..*)?)?")
"""Matches what readers' globs would take for a shard, with the usual suffixes or none."""


class CorruptRecord(Exception):
    """A TFRecord file that breaks off or whose CRC does not match; says where."""


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The CRC32C of data, masked as TFRecord wants it."""
    return _mask(google_crc32c.value(data))


def frame(parts: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Head and tail of the record whose data is the concatenation of parts.

    The parts are not copied: what stands on disk is head, *parts, tail.
    """
    crc = 0
    length = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
        length += len(part)
    prefix = length.to_bytes(8, "little")
    return prefix + _TAIL.pack(masked_crc32c(prefix)), _TAIL.pack(_mask(crc))


@dataclass(frozen=True)
class RawRecord:
    """A record as it stands in a file.

    Attributes:
      offset: of its frame in the file.
      data: what it holds, or nothing where there is a problem.
      length: bytes of the data.
      problem: why it cannot be read, or empty.
      lost: whether nothing behind it can be found either.
    """

    offset: int
    data: bytes
    length: int
    problem: str = ""
    lost: bool = False

    @property
    def data_offset(self) -> int:
        """Of its data in the file."""
        return self.offset + _HEAD.size


def scan_records(
    file: BinaryIO, *, check: bool = True, longest: int = 1 << 62
) -> Iterator[RawRecord]:
    """Yields every record of an uncompressed TFRecord file, and what is wrong with it.

    Args:
      file: opened for reading bytes, at its beginning.
      check: compare the CRCs of the data.
      longest: bytes of the longest record that is read; the file can then be seeked in.
    """
    offset = 0
    while head := file.read(_HEAD.size):
        if len(head) < _HEAD.size:
            yield RawRecord(offset, b"", 0, "breaks off in its length", lost=True)
            return
        length, length_crc = _HEAD.unpack(head)
        # Always compared: a wrong length would otherwise ask for any amount of memory.
        if masked_crc32c(head[:8]) != length_crc:
            yield RawRecord(offset, b"", 0, "the CRC of its length is wrong", lost=True)
            return
        if length > longest:
            yield RawRecord(offset, b"", length, f"{length:,} bytes, more than {longest:,}")
            file.seek(offset + length + FRAME_BYTES)
        else:
            body = file.read(length + _TAIL.size)
            if len(body) < length + _TAIL.size:
                yield RawRecord(offset, b"", length, "breaks off", lost=True)
                return
            data = body[:length]
            if check and masked_crc32c(data) != _TAIL.unpack_from(body, length)[0]:
                yield RawRecord(offset, b"", length, "the CRC of its data is wrong")
            else:
                yield RawRecord(offset, data, length)
        offset += length + FRAME_BYTES


def read_records(file: BinaryIO, *, check: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, data) of every record of a TFRecord file.

    Args:
      file: opened for reading bytes, at its beginning; `Gunzip` reads a compressed one.
      check: compare the CRCs.

    Raises:
      CorruptRecord: at the first record that is cut off or whose CRC does not match.
    """
    for record in scan_records(file, check=check):
        if record.problem:
            raise CorruptRecord(f"record at byte {record.offset}: {record.problem}")
        yield record.offset, record.data


def unframe(framed: memoryview, *, check: bool = True) -> bytes:
    """The data of one record with its frame.

    Args:
      framed: from the length to the CRC of the data, and no more.
      check: compare the CRC of the data; that of the length always is.

    Raises:
      CorruptRecord: it is cut off, or a CRC is wrong.
    """
    if len(framed) < FRAME_BYTES:
        raise CorruptRecord("breaks off")
    length, length_crc = _HEAD.unpack_from(framed)
    if masked_crc32c(bytes(framed[:8])) != length_crc:
        raise CorruptRecord("the CRC of its length is wrong")
    if length != len(framed) - FRAME_BYTES:
        raise CorruptRecord("is not as long as its index says")
    data = bytes(framed[_HEAD.size : -_TAIL.size])
    if check and masked_crc32c(data) != _TAIL.unpack_from(framed, len(framed) - _TAIL.size)[0]:
        raise CorruptRecord("the CRC of its data is wrong")
    return data


class Gzip:
    """Compresses what is written to a file, as TensorFlow's compression_type="GZIP" reads it.

    Without a time or a name in its header: equal records give equal bytes with the same zlib.
    """

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)

    def add(self, parts: Sequence[bytes]) -> list[bytes]:
        """What is to be written for some more bytes; most often nothing yet."""
        return [data for part in parts if (data := self._compressor.compress(part))]

    def end(self) -> list[bytes]:
        """What is to be written at the end."""
        return [self._compressor.flush()]


_GZIP_LEVEL = 6
_GZIP_FORMAT = 16 + zlib.MAX_WBITS


class Gunzip:
    """Reads what a gzip file holds; a broken one is a `CorruptRecord`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=file)

    def read(self, size: int = -1) -> bytes:
        """As a file does."""
        try:
            return self._file.read(size)
        except (EOFError, OSError, zlib.error) as error:
            raise CorruptRecord(f"gzip: {error}") from error


def shard_name(shard: ShardId) -> str:
    """`train-00000-of-00016.tfrecord`, and `.gz` behind it where it is compressed."""
    return f"{_stem(shard)}{suffix_of(shard.compression)}"


def suffix_of(compression: str) -> str:
    """What ends the names of shards."""
    return SUFFIX + (GZIP_SUFFIX if compression else "")


def _stem(shard: ShardId) -> str:
    return f"{shard.split}-{shard.index:05d}-of-{shard.num_shards:05d}"


def parse_shard_name(name: str) -> ShardId | None:
    """The inverse of `shard_name`, or None for any other name."""
    match = _NAME.fullmatch(name)
    if not match:
        return None
    numbers = int(match["index"]), int(match["num_shards"])
    return ShardId(match["split"], *numbers, "gzip" if match["gzip"] else "")


def index_name(shard: ShardId) -> str:
    """`train-00000-of-00016.idx`."""
    return f"{_stem(shard)}.idx"


def index_line(offset: int, framed_size: int) -> str:
    """A line of the index: `framed_size` is the record's data and its frame, in bytes."""
    return f"{offset} {framed_size}\n"


def parse_index(text: str) -> list[tuple[int, int]]:
    """(offset, framed size) of every record, from the text of an index file."""
    return [(int(offset), int(size)) for offset, size in map(str.split, text.splitlines())]
