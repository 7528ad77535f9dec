"""The interface of a record container: a file format that stores a sequence of records.

To add a container, subclass `Container` and register it in `containers.CONTAINERS`. Everything that
reads or writes shards, and dataset_info.json, uses the registered containers.

The index file has the format of NVIDIA DALI's tfrecord2idx: one ASCII line "offset size" per
record, both in bytes. Where the container's own checksums cannot be compared, a third number is the
CRC32C of the record.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

import google_crc32c

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from imageshards.transforms.storage import Sink


class CorruptRecord(Exception):
    """A truncated or damaged record file; the message says what is wrong and where."""


class StoredRecord(NamedTuple):
    """A record and its position in a file.

    Attributes:
      offset: the offset of its first stored byte in the file, before compression.
      size: the number of stored bytes, before compression.
      data: the record itself.
    """

    offset: int
    size: int
    data: bytes


class RecordWriter(Protocol):
    """Writes records to a sink."""

    def write(self, parts: Sequence[bytes]) -> None:
        """Appends a record, given as parts to concatenate; large parts are not copied."""

    def copy(self, stored: bytes, sizes: Sequence[int]) -> None:
        """Appends consecutive records of another file of this container, without decoding them.

        Args:
          stored: the records as that file stores them (uncompressed).
          sizes: the stored size of each record, in bytes.
        """

    def close(self) -> bytes | None:
        """Writes buffered data. Returns the content of the index file; None if there is none."""


class Container(ABC):
    """A file format of records.

    Attributes:
      name: the value of `--file_format`.
      suffix: the suffix of file names, such as `.tfrecord`.
      compression: how records are compressed and grouped: the value of `--compression`, and
        `group_size:N` if it is not 1; empty if they are neither.
      compressions: the values of `--compression` besides none.
      has_groups: whether several records can be stored together, for `--group_size`.
      random_access: whether one record can be read without reading the file from its beginning.
      has_index: whether each shard gets an index file, which NVIDIA DALI reads too.
      beam_writer: whether `--writer=beam` can write it.
      tfds_format: the `fileFormat` in dataset_info.json.
      tfds_suffix: the text after `{FILEFORMAT}` in the file names that dataset_info.json declares.
      media_type: the type of its files in croissant.json.
      has_footer: whether a file goes on after its last record.
      permuted: whether readers shuffle single records, instead of blocks of consecutive ones.
      can_copy: whether stored records can be appended to another file unchanged.
      note: what users of its files should know, for the report and build.json; may be empty.
      library: the name of what `versions` may contain; empty if it is always empty.
    """

    name: str
    suffix: str
    compression: str = ""
    compressions: Sequence[str] = ()
    has_groups: bool = False
    random_access: bool = True
    has_index: bool = True
    beam_writer: bool = False
    tfds_format: str
    tfds_suffix: str = ""
    media_type: str = "application/octet-stream"
    has_footer: bool = False
    permuted: bool = False
    can_copy: bool = True
    note: str = ""
    library: str = ""

    @property
    def shard_like(self) -> str:
        """A regular expression for the suffixes of files that other readers take for shards.

        By default it matches the suffix, also if another dot and any text follow.
        """
        return re.escape(self.suffix) + r"(\..*)?"

    @property
    def versions(self) -> dict[str, str]:
        """Versions of libraries that determine the bytes of files, for build.json and resuming."""
        return {}

    @property
    def variants(self) -> Sequence[Container]:
        """The containers that differ in their suffixes, uncompressed first."""
        return [self]

    def variant(self, compression: str) -> Container:
        """Returns the container with a compression.

        Raises:
          KeyError: there is no such container.
        """
        for container in self.variants:
            if container.compression == compression:
                return container
        raise KeyError(f"{self.name} with compression {compression!r}")

    def recognizes(self, name: str) -> bool:
        """Returns whether the name of a file indicates this container."""
        return name.endswith(self.suffix)

    def check_writable(self) -> None:
        """Checks that what writes files is installed.

        Raises:
          UsageError: a package is missing.
        """
        return

    @abstractmethod
    def writer(self, sink: Sink) -> RecordWriter:
        """Returns a writer that streams records to `sink`."""

    @abstractmethod
    def read(self, file: BinaryIO, *, check: bool = True) -> Iterator[StoredRecord]:
        """Yields every record of a file, in order.

        Args:
          file: opened for reading, at its beginning.
          check: whether to compare the checksums of the records' data.

        Raises:
          CorruptRecord: a record is truncated or damaged.
        """

    @abstractmethod
    def data_of(self, stored: memoryview, offset: int, *, check: bool = True) -> bytes:
        """Returns the data of one record.

        Args:
          stored: the bytes that the file stores for it.
          offset: the offset of the first of them in the file.
          check: whether to compare the checksums of the record's data.

        Raises:
          CorruptRecord: the record is truncated or damaged.
        """

    def records_at(self, stored: memoryview, offset: int, *, check: bool = True) -> Sequence[bytes]:
        """Returns the data of all records that are stored together; see `data_of`."""
        return [self.data_of(stored, offset, check=check)]

    def parts_of(self, size: int) -> Sequence[int]:
        """Returns the sizes of the parts of a stored record, which `data_of_parts` takes.

        With them, its data can be read without copying it. There are none if the data is not stored
        as it is.

        Args:
          size: the number of bytes that a file stores for the record.
        """
        return ()

    def data_of_parts(self, parts: Sequence[bytes], *, check: bool = True) -> bytes:
        """Returns the part that is the data of a record; see `parts_of` and `data_of`."""
        raise NotImplementedError

    def index_row(self, record: StoredRecord) -> tuple[int, ...]:
        """Returns the numbers in a record's line of the index file; equal offsets are one group."""
        return record.offset, record.size

    def locate(self, file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
        """Yields (offset, stored size) of every record of a file that has no index file.

        Args:
          file: opened for reading, at its beginning; seekable if `random_access`.
          size: the file's size, in bytes.

        Raises:
          CorruptRecord: the file is of another format, truncated or damaged.
        """
        for record in self.read(file, check=False):
            yield record.offset, record.size

    def uncompressed(self, file: BinaryIO) -> BinaryIO:
        """Returns a file that reads what `file` contains before compression."""
        return file


class IndexedWriter:
    """Writes records in sequence, and builds the index.

    Args:
      sink: the file to write to.
      stored_parts: a function from a record's parts to the parts that the file stores for it.
    """

    def __init__(
        self, sink: Sink, stored_parts: Callable[[Sequence[bytes]], Sequence[bytes]]
    ) -> None:
        self._sink = sink
        self._stored_parts = stored_parts
        self._index = bytearray()

    def write(self, parts: Sequence[bytes]) -> None:
        """Appends a record."""
        start = self._sink.size
        self._sink.write(self._stored_parts(parts))
        self._index += index_line(start, self._sink.size - start).encode()

    def copy(self, stored: bytes, sizes: Sequence[int]) -> None:
        """Appends stored records unchanged."""
        start = self._sink.size
        self._sink.write([stored])
        for size in sizes:
            self._index += index_line(start, size).encode()
            start += size

    def close(self) -> bytes:
        """Returns the content of the index file."""
        return bytes(self._index)


def index_line(*numbers: int) -> str:
    r"""Returns the line of a record in an index file: offset, stored size, and maybe its CRC32C.

    >>> index_line(0, 21)
    '0 21\n'
    """
    return " ".join(map(str, numbers)) + "\n"


def parse_index(content: bytes) -> npt.NDArray[np.int64]:
    """Returns offset, stored size, and maybe the CRC32C, of every record: int64 [records, 2 or 3].

    Raises:
      ValueError: the content is not an index.
    """
    import numpy as np

    columns = len(content.partition(b"\n")[0].split()) or 2
    if columns not in (2, 3):
        raise ValueError(f"{columns} numbers in a line")
    if content.translate(None, b"0123456789 \t\r\n"):
        raise ValueError("other characters than digits")
    if content.isspace() or not content:
        return np.zeros((0, columns), np.int64)
    # 11 ms for 100,000 records; splitting the text into objects takes 52 ms.
    return np.fromstring(content, np.int64, sep=" ").reshape(-1, columns)


def with_crc32c(records: Iterable[bytes], expected: int) -> bytes:
    """Returns the record that has the CRC32C in the index.

    Raises:
      CorruptRecord: none has it.
    """
    for data in records:
        if google_crc32c.value(data) == expected:
            return data
    raise CorruptRecord("its CRC32C is not the one in the index")
