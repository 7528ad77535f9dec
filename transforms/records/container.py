"""The interface of a record container: a file format that stores a sequence of records.

To add a container, subclass `Container` and register it in `containers.CONTAINERS`. Everything that
reads or writes shards, and dataset_info.json, uses the registered containers.

The index file has the format of NVIDIA DALI's tfrecord2idx: one ASCII line "offset size" per
record, both in bytes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol

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
      compression: the value of `--compression`; empty if the records are not compressed.
      random_access: whether one record can be read without reading the file from its beginning.
      has_index: whether each shard gets an index file, which NVIDIA DALI reads too.
      beam_writer: whether `--writer=beam` can write it.
      tfds_format: the `fileFormat` in dataset_info.json.
      tfds_suffix: the text after `{FILEFORMAT}` in the file names that dataset_info.json declares.
    """

    name: str
    suffix: str
    compression: Literal["", "gzip"] = ""
    random_access: bool = True
    has_index: bool = True
    beam_writer: bool = False
    tfds_format: str
    tfds_suffix: str = ""

    @property
    def shard_like(self) -> str:
        """A regular expression for the suffixes of files that other readers take for shards.

        By default it matches the suffix, also if another dot and any text follow.
        """
        return re.escape(self.suffix) + r"(\..*)?"

    @property
    def variants(self) -> Sequence[Container]:
        """The container with each of its compressions, uncompressed first."""
        return [self]

    def recognizes(self, name: str) -> bool:
        """Returns whether the name of a file indicates this container."""
        return name.endswith(self.suffix)

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
    def data_of(self, stored: memoryview, *, check: bool = True) -> bytes:
        """Returns the data of one record, given the bytes that the file stores for it.

        Raises:
          CorruptRecord: the record is truncated or damaged.
        """

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


def index_line(offset: int, size: int) -> str:
    r"""Returns the line of a record in an index file.

    >>> index_line(0, 21)
    '0 21\n'
    """
    return f"{offset} {size}\n"


def parse_index(content: bytes) -> npt.NDArray[np.int64]:
    """Returns (offset, stored size) of every record of an index file: int64 [records, 2].

    Raises:
      ValueError: the content is not an index.
    """
    import numpy as np

    numbers: Any = content.split()
    return np.array(numbers, dtype=np.int64).reshape(-1, 2)
