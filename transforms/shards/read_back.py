"""Reads a shard back: records, index and counts. Pure but for reading the file."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

import google_crc32c

from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId, ShardReport
from imageshards.transforms.images.digests import image_digest
from imageshards.transforms.images.validate import ImageInfo, inspect
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.records.tfrecord import (
    FRAME_BYTES,
    GZIP_SUFFIX,
    Gunzip,
    index_line,
    read_records,
)
from imageshards.transforms.shards.stats import ShardStats

_SHAPE = struct.Struct("<3i")


@dataclass(frozen=True)
class Record:
    """One parsed record: where it stands, its bytes on disk, key -> list of values."""

    offset: int
    framed_size: int
    values: dict[str, list[Any]]

    def first(self, key: str | None, default: Any = None) -> Any:
        """The first value of a feature."""
        values = self.values.get(key) if key else None
        return values[0] if values else default


class CountingFile:
    """A file whose size and CRC32C are known when it has been read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.crc32c = 0

    def read(self, size: int = -1) -> bytes:
        """Reads and counts."""
        data = self._file.read(size)
        self.size += len(data)
        self.crc32c = google_crc32c.extend(self.crc32c, data)
        return data


def uncompressed(file: IO[bytes] | CountingFile, name: str) -> BinaryIO:
    """A shard as its records stand in it, whether or not its name says that it is compressed."""
    return cast(BinaryIO, Gunzip(cast(BinaryIO, file)) if name.endswith(GZIP_SUFFIX) else file)


def read_shard(uri: str) -> Iterator[Record]:
    """Yields the parsed records of a shard.

    Raises:
      CorruptRecord: a record breaks off, or its CRC is wrong.
      CorruptExample: a record is no tf.train.Example.
    """
    with storage.open_read(uri) as file:
        for offset, data in read_records(uncompressed(file, uri)):
            yield Record(offset, len(data) + FRAME_BYTES, example.decode(data))


def read_record(uri: str, offset: int, framed_size: int) -> Record:
    """One record, of which the index says where it is.

    Raises:
      CorruptRecord: there is none.
      CorruptExample: it is no tf.train.Example.
    """
    with storage.open_read(uri) as file:
        file.seek(offset)
        _, data = next(read_records(io.BytesIO(file.read(framed_size))))
    return Record(offset, framed_size, example.decode(data))


def scan_shard(
    uri: str,
    shard: ShardId,
    schema: Schema,
    conversions: Iterable[tuple[tuple[str, ...], int]] = (),
) -> tuple[ShardReport, str, bytes]:
    """The report, the index and the digests of a shard, from its file.

    Args:
      uri: of the file.
      shard: which it is.
      schema: of its records.
      conversions: (kinds, records), which the file does not tell, for the report.
    """
    stats = ShardStats()
    for kinds, records in conversions:
        stats.add_conversions(kinds, records)
    index: list[str] = []
    digests: list[bytes] = []
    with storage.open_read(uri) as raw:
        file = CountingFile(cast(BinaryIO, raw))
        for offset, data in read_records(uncompressed(file, uri)):
            record = Record(offset, len(data) + FRAME_BYTES, example.decode(data))
            index.append(index_line(offset, record.framed_size))
            stats.add(info_of(record, schema), record.first(schema.key_of("label")))
            content = record.first(schema.key_of(schema.holds), b"")
            digests.append(image_digest(content, schema.holds == "encoded"))
    return stats.report(shard, file.size, file.crc32c), "".join(index), b"".join(digests)


def info_of(record: Record, schema: Schema) -> ImageInfo:
    """What a record says of its image; of a text its length.

    Raises:
      ImageError: it says nothing, and its image cannot be measured.
    """
    content = schema.content
    if content and schema.holds == "text":
        return ImageInfo("text", 1, len(record.first(content.key, b"")))
    if content and content.array:
        shape = content.array.shape
        if shape is None:
            shape = _SHAPE.unpack(record.first(schema.key_of("shape"), bytes(_SHAPE.size)))
        return ImageInfo(content.array.dtype, shape[0], shape[1])
    if content and not all(map(schema.key_of, ("format", "height", "width"))):
        return inspect(record.first(content.key, b""), "header")
    return ImageInfo(
        record.first(schema.key_of("format"), b"").decode("ascii", "replace"),
        record.first(schema.key_of("height"), 0),
        record.first(schema.key_of("width"), 0),
    )
