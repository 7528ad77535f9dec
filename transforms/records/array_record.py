"""The ArrayRecord container, which Grain and TensorFlow Datasets read at random.

The array_record package writes the files; its writer only takes a path. For a local output that is
the file that the sink writes. For a remote one it is a file in memory, which is emptied into the
sink whenever it has grown, so that the memory of a shard has an upper bound and nothing is written
to a disk. Reading does not need the package.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import google_crc32c

from imageshards.transforms import extras
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records import riegeli
from imageshards.transforms.records.container import (
    Container,
    CorruptRecord,
    RecordWriter,
    StoredRecord,
    index_line,
)

if TYPE_CHECKING:
    from imageshards.transforms.storage import Sink

_POSTSCRIPT_BYTES = 1 << 16
_MAGIC = 0x71930E704FDAE05E
_PIECE_BYTES = 1 << 18


class ArrayRecord(Container):
    """ArrayRecord files.

    A group of records is stored as a Riegeli chunk. By default it has one record, as random access
    requires, and is not compressed, as images are compressed already. The name of a file does not
    depend on that, nor does reading. The lines of an index file also have the CRC32C of the
    record's data; those of a group have the same offset.

    >>> ArrayRecord().suffix, ArrayRecord("zstd,group_size:8").options
    ('.array_record', 'group_size:8,zstd')
    """

    name = "array_record"
    library = "array_record"
    compressions = ("zstd", "brotli", "snappy")
    has_groups = True
    suffix = ".array_record"
    tfds_format = "array_record"
    media_type = "application/x-array-record"
    has_footer = True
    permuted = True
    can_copy = False

    def __init__(self, compression: str = "") -> None:
        self.compression = compression

    @property
    def versions(self) -> dict[str, str]:
        """The version of the package that writes the files."""
        return {self.library: metadata.version("array_record")}

    @property
    def options(self) -> str:
        """The options of the package's writer."""
        parts = self.compression.split(",") if self.compression else []
        groups = [part for part in parts if part.startswith("group_size:")]
        codecs = [part for part in parts if part not in groups]
        return ",".join((groups or ["group_size:1"]) + (codecs or ["uncompressed"]))

    def variant(self, compression: str) -> ArrayRecord:
        """Returns the container with a compression, which its writer checks."""
        return ArrayRecord(compression)

    def check_writable(self) -> None:
        """Checks that the array_record package is installed."""
        if extras.missing("array_record"):
            raise UsageError(
                "--file_format array_record: array_record is not installed: "
                f"{extras.installation('array_record')} (for Linux, and for macOS on ARM)"
            )

    def writer(self, sink: Sink) -> RecordWriter:
        """Returns a writer that streams records to `sink`."""
        return _Writer(sink, self.options)

    def read(self, file: BinaryIO, *, check: bool = True) -> Iterator[StoredRecord]:
        """Yields every record; see `Container.read`."""
        held: list[tuple[riegeli.Chunk, memoryview]] = []
        records = 0
        chunks = riegeli.read_chunks(file)
        broken: CorruptRecord | None = None
        while True:
            try:
                chunk, stored = next(chunks)
            except StopIteration:
                break
            except CorruptRecord as error:
                broken = error
                break
            if chunk.kind == riegeli.PADDING:
                continue
            held.append((chunk, stored))
            if len(held) > 2:  # the last two are the footer and the postscript
                for record in _stored_records(*held.pop(0)):
                    records += 1
                    yield record
        if broken or len(held) < 2 or not _is_postscript(*held[1], held[0][0].begin):
            # A file that breaks off in its footer has all its records.
            for first, content in held:
                if _is_footer(first, content, records):
                    break
                for record in _stored_records(first, content):
                    records += 1
                    yield record
            raise broken or CorruptRecord("breaks off before its postscript")
        if _Footer.parse(*held[0]).records != records:
            raise CorruptRecord(f"{records:,} records, but its footer has another number")

    def data_of(self, stored: memoryview, offset: int, *, check: bool = True) -> bytes:
        """Returns the record of a chunk; its hash is not compared."""
        records = self.records_at(stored, offset, check=check)
        if len(records) != 1:
            raise CorruptRecord(f"{len(records):,} records in the chunk at byte {offset:,}")
        return records[0]

    def records_at(self, stored: memoryview, offset: int, *, check: bool = True) -> list[bytes]:
        """Returns the records of a chunk; its hash is not compared."""
        chunk = riegeli.parse(stored, offset)
        return riegeli.records_of(chunk, stored[: chunk.end - offset])

    def index_row(self, record: StoredRecord) -> tuple[int, ...]:
        """Returns offset, stored size, and the CRC32C of the data."""
        return record.offset, record.size, google_crc32c.value(record.data)

    def locate(self, file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
        """Yields (offset, stored size) of every record; reads only the file's footer."""
        begin = max(size - _POSTSCRIPT_BYTES, 0)
        file.seek(begin)
        tail = memoryview(file.read(size - begin))
        footer_offset = _footer_offset(riegeli.parse(tail, begin), tail)
        file.seek(footer_offset)
        content = memoryview(file.read(begin - footer_offset))
        footer = _Footer.parse(riegeli.parse(content, footer_offset), content)
        # A chunk of padding may follow one of records: its bytes count as stored, too.
        for (offset, records), (end, _) in pairwise([*footer.chunks, (footer_offset, 0)]):
            for _ in range(records):
                yield offset, end - offset


class _Writer:
    """Writes with the array_record package, and reads what it has written.

    The package writes to the sink's local file. Where there is none, it writes to a file in memory,
    which is emptied into the sink.
    """

    def __init__(self, sink: Sink, options: str) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self._sink = sink
        self._memory = _file_in_memory() if sink.file < 0 else None
        self._file = sink.file if self._memory is None else self._memory.fileno()
        with self._as_refusal():
            self._writer = ArrayRecordWriter(f"/dev/fd/{self._file}", options)
        self._read = 0
        self._finder = riegeli.ChunkFinder()
        self._chunks: list[riegeli.Chunk] = []
        self._crcs: list[int] = []

    def write(self, parts: Sequence[bytes]) -> None:
        data = b"".join(parts)
        self._crcs.append(google_crc32c.value(data))
        with self._as_refusal():
            self._writer.write(data)
        self._read_written()

    def copy(self, stored: bytes, sizes: Sequence[int]) -> None:
        raise NotImplementedError("block headers depend on the position in the file")

    def close(self) -> bytes:
        """Completes the file. Returns the content of the index file."""
        with self._as_refusal():
            self._writer.close()
        self._read_written()
        if self._memory is not None:
            self._memory.close()
        chunks, footer = self._chunks[:-2], self._chunks[-2:]
        places = [(c.begin, c.end - c.begin) for c in chunks for _ in range(c.records)]
        if len(footer) != 2 or len(places) != len(self._crcs):
            raise RuntimeError("the array_record package has not written all records")
        rows = zip(places, self._crcs, strict=True)
        return "".join(index_line(*place, crc) for place, crc in rows).encode()

    def _read_written(self) -> None:
        # The package writes 16 MiB at a time.
        if os.fstat(self._file).st_size <= self._read:
            return
        while data := os.pread(self._file, _PIECE_BYTES, self._read):
            self._read += len(data)
            found = self._finder.feed(data)
            self._chunks += (chunk for chunk in found if chunk.kind == riegeli.RECORDS)
            if self._memory is None:
                self._sink.appended(data)
            else:
                self._sink.write([data])
        if self._memory is not None:
            # The package goes on at its own position: the file then begins with a hole.
            os.ftruncate(self._file, 0)

    @contextmanager
    def _as_refusal(self) -> Iterator[None]:
        """Translates errors of the package, which are all of one type."""
        try:
            yield
        except RuntimeError as error:
            # "write() failed: No space left on device; writing /dev/fd/7; at byte 4096"
            reason = str(error).partition("() failed: ")[2].partition(";")[0]
            raise self._sink.refusal(reason or str(error)) from error


def _file_in_memory() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("imageshards"), "r+b", buffering=0)
    return cast(BinaryIO, tempfile.TemporaryFile(buffering=0))


class _Footer(NamedTuple):
    """The footer of a file.

    Attributes:
      records: number of records in the file.
      chunks: (offset, number of records) of every chunk.
    """

    records: int
    chunks: list[tuple[int, int]]

    @classmethod
    def parse(cls, chunk: riegeli.Chunk, stored: memoryview) -> _Footer:
        head, *rest = riegeli.records_of(chunk, stored[: chunk.end - chunk.begin]) or [b""]
        about = _fields(_fields(head).get(1, b""))
        rows = [_fields(row) for row in rest]
        return cls(about.get(3, 0), [(row.get(1, 0), row.get(3, 0)) for row in rows])


def _stored_records(chunk: riegeli.Chunk, stored: memoryview) -> Iterator[StoredRecord]:
    for data in riegeli.records_of(chunk, stored):
        yield StoredRecord(chunk.begin, chunk.end - chunk.begin, data)


def _is_postscript(chunk: riegeli.Chunk, stored: memoryview, footer_offset: int) -> bool:
    try:
        return _footer_offset(chunk, stored) == footer_offset
    except CorruptRecord:
        return False


def _is_footer(chunk: riegeli.Chunk, stored: memoryview, records: int) -> bool:
    """Returns whether a chunk is the footer of a file with a number of records."""
    try:
        footer = _Footer.parse(chunk, stored)
    except (CorruptRecord, AttributeError, TypeError):  # a record with other fields
        return False
    numbers = [number for _, number in footer.chunks]
    return bool(numbers) and footer.records == records == sum(numbers)


def _footer_offset(chunk: riegeli.Chunk, stored: memoryview) -> int:
    """Returns the offset that the postscript contains."""
    with suppress(CorruptRecord):
        for record in riegeli.records_of(chunk, stored[: chunk.end - chunk.begin]):
            fields = _fields(record)
            if fields.get(2) == _MAGIC:
                return int(fields.get(1, 0))
    raise CorruptRecord(
        "not an ArrayRecord file, or truncated in its footer: copy or write it again"
    )


def _fields(message: bytes) -> dict[int, Any]:
    """Returns number -> value of the fields of a protobuf message: numbers, texts and messages."""
    fields: dict[int, Any] = {}
    view, at = memoryview(message), 0
    try:
        while at < len(view):
            tag, at = riegeli.varint(view, at)
            value: Any
            value, at = riegeli.varint(view, at)
            if tag & 7 == 2:
                value, at = bytes(view[at : at + value]), at + value
            elif tag & 7:
                raise CorruptRecord("damaged footer")
            fields[tag >> 3] = value
    except IndexError as error:
        raise CorruptRecord("damaged footer") from error
    return fields
