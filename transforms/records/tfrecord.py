"""The TFRecord container: framing, masked CRC32C and gzip. Pure.

Format: tensorflow/core/lib/io/record_writer.h. A record is

    uint64 length, uint32 masked_crc32c(length), bytes data[length], uint32 masked_crc32c(data)

all little-endian. With gzip, the whole file is one gzip stream, as TensorFlow's
`compression_type="GZIP"` reads it.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

import google_crc32c

from imageshards.transforms.records.container import (
    Container,
    CorruptRecord,
    IndexedWriter,
    RecordWriter,
    StoredRecord,
)

if TYPE_CHECKING:
    from imageshards.transforms.storage import Sink

_MASK_DELTA = 0xA282EAD8
_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
FRAME_BYTES = _HEAD.size + _TAIL.size
"""Bytes that a file stores for a record in addition to its data."""

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_LEVEL = 6
_GZIP_FORMAT = 16 + zlib.MAX_WBITS
_GZIP_NOTE = (
    "gzip: TensorFlow reads the shards with compression_type='GZIP'; TensorFlow Datasets cannot "
    "read them; no index files, because compressed files have no random access"
)


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Returns the CRC32C of `data`, masked as TFRecord stores it."""
    return _mask(google_crc32c.value(data))


def frame(parts: Sequence[bytes]) -> list[bytes]:
    """Returns the parts of a stored record: head, the given parts (not copied), and tail."""
    crc = 0
    length = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
        length += len(part)
    prefix = length.to_bytes(8, "little")
    return [prefix + _TAIL.pack(masked_crc32c(prefix)), *parts, _TAIL.pack(_mask(crc))]


@dataclass(frozen=True)
class RawRecord:
    """A record found in a file, valid or damaged.

    Attributes:
      offset: the offset of its first stored byte in the file.
      data: the record; empty if there is a problem.
      length: the length of the data, in bytes.
      problem: why the record cannot be read; empty if it can.
      lost: whether the position of the next record is unknown, so that reading ends here.
    """

    offset: int
    data: bytes
    length: int
    problem: str = ""
    lost: bool = False

    @property
    def data_offset(self) -> int:
        """Offset of the first byte of its data in the file."""
        return self.offset + _HEAD.size


def scan_records(
    file: BinaryIO, *, check: bool = True, longest: int = 1 << 62
) -> Iterator[RawRecord]:
    """Yields every record of an uncompressed TFRecord file, including damaged ones.

    Args:
      file: opened for reading, at its beginning.
      check: whether to compare the CRCs of the data.
      longest: longer records, in bytes, are not read but yielded with a problem.
    """
    offset = 0
    while head := file.read(_HEAD.size):
        if len(head) < _HEAD.size:
            yield RawRecord(offset, b"", 0, "breaks off in its length", lost=True)
            return
        length, length_crc = _HEAD.unpack(head)
        # Always compared, because a wrong length could require any amount of memory.
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


class TFRecord(Container):
    """TFRecord files, optionally compressed with gzip.

    With gzip there is neither random access nor an index file, since a gzip stream can only be read
    from its beginning. TensorFlow Datasets does not read compressed files, but dataset_info.json
    declares their names.

    >>> TFRecord().suffix, TFRecord("gzip").suffix
    ('.tfrecord', '.tfrecord.gz')
    """

    name = "tfrecord"
    library = "zlib"
    compressions = ("gzip",)
    beam_writer = True
    tfds_format = "tfrecord"
    media_type = "application/x-tfrecord"
    shard_like = r"\.tfrecords?(\..*)?"

    def __init__(self, compression: Literal["", "gzip"] = "") -> None:
        self.compression = compression
        self.random_access = self.has_index = not compression
        self.tfds_suffix = ".gz" if compression else ""
        self.suffix = ".tfrecord" + self.tfds_suffix
        self.note = _GZIP_NOTE if compression else ""

    @property
    def versions(self) -> dict[str, str]:
        """The version of zlib, if it compresses the records."""
        return {self.library: zlib.ZLIB_RUNTIME_VERSION} if self.compression else {}

    @property
    def variants(self) -> Sequence[TFRecord]:
        """Uncompressed and with gzip."""
        return [TFRecord(), TFRecord("gzip")]

    def recognizes(self, name: str) -> bool:
        """Returns whether the name ends in `.gz` (compressed) or `.tfrecord` (uncompressed)."""
        return name.endswith(".gz" if self.compression else ".tfrecord")

    def writer(self, sink: Sink) -> RecordWriter:
        """Returns a writer that streams records to `sink`."""
        return _GzipWriter(sink) if self.compression else IndexedWriter(sink, frame)

    def read(self, file: BinaryIO, *, check: bool = True) -> Iterator[StoredRecord]:
        """Yields every record; see `Container.read`."""
        for record in scan_records(self.uncompressed(file), check=check):
            if record.problem:
                raise CorruptRecord(f"record at byte {record.offset}: {record.problem}")
            yield StoredRecord(record.offset, record.length + FRAME_BYTES, record.data)

    def data_of(self, stored: memoryview, offset: int, *, check: bool = True) -> bytes:
        """Removes the frame of a record. The CRC of its length is always compared."""
        if len(stored) < FRAME_BYTES:
            raise CorruptRecord("breaks off")
        end = len(stored) - _TAIL.size
        parts = stored[: _HEAD.size], stored[_HEAD.size : end], stored[end:]
        return self.data_of_parts([bytes(part) for part in parts], check=check)

    def parts_of(self, size: int) -> Sequence[int]:
        """Returns the sizes of head, data and tail."""
        if self.compression or size < FRAME_BYTES:
            return ()
        return _HEAD.size, size - FRAME_BYTES, _TAIL.size

    def data_of_parts(self, parts: Sequence[bytes], *, check: bool = True) -> bytes:
        """Returns the data of head, data and tail. The CRC of the length is always compared."""
        head, data, tail = parts
        if len(tail) < _TAIL.size:
            raise CorruptRecord("breaks off")
        length, length_crc = _HEAD.unpack(head)
        if masked_crc32c(head[:8]) != length_crc:
            raise CorruptRecord("the CRC of its length is wrong")
        if length != len(data):
            raise CorruptRecord("its length is not the one in the index")
        if check and masked_crc32c(data) != _TAIL.unpack(tail)[0]:
            raise CorruptRecord("the CRC of its data is wrong")
        return data

    def locate(self, file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
        """Yields (offset, stored size) of every record; reads only the records' heads."""
        if self.compression:
            yield from super().locate(file, size)
            return
        offset = 0
        while offset < size:
            file.seek(offset)
            head = file.read(_HEAD.size)
            length, crc = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, -1)
            stored = length + FRAME_BYTES
            if masked_crc32c(head[:8]) != crc or offset + stored > size:
                is_gzip = not offset and head.startswith(_GZIP_MAGIC)
                hint = "; the file is gzip: rename it to end in .gz" if is_gzip else ""
                raise CorruptRecord(f"not a TFRecord file, or damaged at byte {offset:,}{hint}")
            yield offset, stored
            offset += stored

    def uncompressed(self, file: BinaryIO) -> BinaryIO:
        """Returns the file itself, or one that decompresses it."""
        return cast(BinaryIO, _Gunzip(file)) if self.compression else file


class _GzipWriter:
    """Compresses framed records.

    The gzip header contains no time and no name, so the file is reproducible with one zlib version.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)

    def write(self, parts: Sequence[bytes]) -> None:
        self._add(frame(parts))

    def copy(self, stored: bytes, sizes: Sequence[int]) -> None:
        self._add([stored])

    def close(self) -> None:
        self._sink.write([self._compressor.flush()])

    def _add(self, parts: Sequence[bytes]) -> None:
        self._sink.write([data for part in parts if (data := self._compressor.compress(part))])


class _Gunzip:
    """A file that decompresses another; reading raises CorruptRecord if that is damaged."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=file)

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except (EOFError, OSError, zlib.error) as error:
            raise CorruptRecord(f"gzip: {error}") from error
