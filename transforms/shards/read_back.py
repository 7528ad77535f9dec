"""Reads a shard's file: its records, its index and its counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import google_crc32c

from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId, ShardReport
from imageshards.transforms.images.digests import image_digest
from imageshards.transforms.images.validate import ImageInfo, inspect
from imageshards.transforms.records import example
from imageshards.transforms.records.container import index_line, with_crc32c
from imageshards.transforms.records.containers import container_of, container_of_file
from imageshards.transforms.records.schemas import SHAPE_STRUCT, Schema
from imageshards.transforms.shards.profile import Profiler
from imageshards.transforms.shards.stats import ShardStats


@dataclass(frozen=True)
class Record:
    """A parsed record.

    Attributes:
      offset: offset of its first stored byte in the file.
      size: as stored, in bytes.
      values: key -> list of values: bytes, int or float.
    """

    offset: int
    size: int
    values: dict[str, list[Any]]

    def first(self, key: str | None, default: Any = None) -> Any:
        """Returns the first value of a feature."""
        values = self.values.get(key) if key else None
        return values[0] if values else default


class CountingFile:
    """A file that is read once, and whose size and checksums are known at the end."""

    def __init__(self, file: BinaryIO, sha256: bool = False) -> None:
        self._file = file
        self.size = 0
        self.crc32c = 0
        self._sha256 = hashlib.sha256() if sha256 else None

    def read(self, size: int = -1) -> bytes:
        """Reads at most `size` bytes."""
        data = self._file.read(size)
        self.size += len(data)
        self.crc32c = google_crc32c.extend(self.crc32c, data)
        if self._sha256:
            self._sha256.update(data)
        return data

    @property
    def sha256(self) -> str:
        """The SHA-256 of what was read, in hexadecimal; empty if not requested."""
        return self._sha256.hexdigest() if self._sha256 else ""


def read_shard(uri: str) -> Iterator[Record]:
    """Yields the parsed records of a shard.

    Raises:
      CorruptRecord: a record is truncated or damaged.
      CorruptExample: a record is not a tf.train.Example.
    """
    container = container_of_file(uri)
    with storage.open_read(uri) as file:
        for offset, size, data in container.read(cast(BinaryIO, file)):
            yield Record(offset, size, example.decode(data))


def read_record(uri: str, offset: int, size: int, crc32c: int | None = None) -> Record:
    """Returns the parsed record at a position that the index file gives.

    Args:
      uri: the file.
      offset: the offset of its first stored byte.
      size: the number of stored bytes.
      crc32c: of its data, if the index has it.

    Raises:
      CorruptRecord: the position holds no record, or a damaged one.
      CorruptExample: it is not a tf.train.Example.
    """
    container = container_of_file(uri)
    with storage.open_read(uri) as file:
        file.seek(offset)
        records = container.records_at(memoryview(file.read(size)), offset)
    if crc32c is None:
        (data,) = records
    else:
        data = with_crc32c(records, crc32c)
    return Record(offset, size, example.decode(data))


def scan_shard(
    uri: str,
    shard: ShardId,
    schema: Schema,
    conversions: Iterable[tuple[tuple[str, ...], int]] = (),
    annotations: Mapping[str, int] | None = None,
    sha256: bool = False,
) -> tuple[ShardReport, bytes, bytes]:
    """Returns the report, the index and the digests of a shard, from its file.

    Args:
      uri: the file.
      shard: the shard.
      schema: schema of its records.
      conversions: (kinds, records) for the report, since records do not contain them.
      annotations: kind -> number of annotations, for the report.
      sha256: whether to compute the SHA-256 of the file.

    Raises:
      CorruptRecord: a record is truncated or damaged.
    """
    stats = ShardStats()
    profiler = Profiler(stats.profile, shard, schema)
    for kinds, records in conversions:
        stats.add_conversions(kinds, records)
    stats.add_annotations(annotations or {})
    index: list[str] = []
    digests: list[bytes] = []
    with storage.open_read(uri) as raw:
        file = CountingFile(cast(BinaryIO, raw), sha256)
        container = container_of(shard)
        for stored in container.read(cast(BinaryIO, file)):
            record = Record(stored.offset, stored.size, example.decode(stored.data))
            index.append(index_line(*container.index_row(stored)))
            info = info_of(record, schema)
            content = record.first(schema.key_of(schema.holds), b"")
            profiler.add(content, info, position=stats.records, row=stats.records)
            stats.add(info, record.values.get(schema.class_key or "", ()))
            digests.append(image_digest(content, schema.holds == "encoded"))
    report = stats.report(shard, file.size, file.crc32c, file.sha256)
    return report, "".join(index).encode(), b"".join(digests)


def info_of(record: Record, schema: Schema) -> ImageInfo:
    """Returns the format and size that a record declares for its image; for a text, its length.

    Raises:
      ImageError: the record declares none, and its image cannot be measured.
    """
    content = schema.content
    if content and schema.holds == "text":
        return ImageInfo("text", 1, len(record.first(content.key, b"")))
    if content and content.array:
        shape = content.array.shape
        if shape is None:
            shape = SHAPE_STRUCT.unpack(
                record.first(schema.key_of("shape"), bytes(SHAPE_STRUCT.size))
            )
        return ImageInfo(content.array.dtype, shape[0], shape[1])
    if content and not all(map(schema.key_of, ("format", "height", "width"))):
        return inspect(record.first(content.key, b""), "header")
    return ImageInfo(
        record.first(schema.key_of("format"), b"").decode("ascii", "replace"),
        record.first(schema.key_of("height"), 0),
        record.first(schema.key_of("width"), 0),
    )
