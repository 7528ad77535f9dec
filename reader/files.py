"""The TFRecord files of a split, and where their records are.

Where a record is says the index file that every build writes, or a file of the same format that
lies beside the TFRecord file (`NAME.idx`, `NAME.index`); else the file is walked, head by head.
"""

from __future__ import annotations

import glob
import io
import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from imageshards.reader.dataset import Dataset, open_dataset
from imageshards.reader.splits import Span, spans_of
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ByteRange, UsageError
from imageshards.transforms.inputs import ranges
from imageshards.transforms.records.schemas import SLIM, Schema
from imageshards.transforms.records.tfrecord import (
    FRAME_BYTES,
    GZIP_SUFFIX,
    SUFFIX,
    CorruptRecord,
    masked_crc32c,
    read_records,
    scan_records,
)
from imageshards.transforms.shards.read_back import uncompressed

_REQUESTS = 16
_TAIL_BYTES = 8
_INDEX_SUFFIXES = (".idx", ".index")
_HEAD = struct.Struct("<QI")
_GZIP_MAGIC = b"\x1f\x8b"
Index = npt.NDArray[np.int64]
"""[records, 2]: offset and framed size of every record, in bytes."""


@dataclass(frozen=True)
class RecordFile:
    """A TFRecord file.

    Attributes:
      uri: where it is.
      index_uri: its index file, or empty if there is none.
      known: how many records its data set says it has, or -1.
      crc32c: of the whole file, as its data set says, or -1.
    """

    uri: str
    index_uri: str = ""
    known: int = -1
    crc32c: int = -1

    @property
    def compression(self) -> str:
        """As TensorFlow names it: `GZIP`, or empty."""
        return "GZIP" if self.uri.endswith(GZIP_SUFFIX) else ""

    @cached_property
    def index(self) -> Index:
        """Where its records are; of a compressed file, where they are when it is unpacked.

        Raises:
          BuildError: it is no TFRecord file, breaks off, or its index is damaged.
        """
        if self.compression or storage.is_local(self.uri):
            _ = self._stamp  # before it is read: what is written meanwhile is told
        if self.compression:
            return _unpack(self.uri)
        if not self.index_uri:
            return _walk(self.uri)
        try:
            with storage.open_read(self.index_uri) as file:
                index = np.array(file.read().split(), dtype=np.int64).reshape(-1, 2)
        except (OSError, ValueError) as error:
            raise BuildError(f"{self.index_uri}: missing or damaged: {error}") from error
        if self.known not in (-1, len(index)):
            raise BuildError(
                f"{self.index_uri}: {len(index):,} records, and not the {self.known:,} of its "
                "data set"
            )
        if storage.is_local(self.uri):  # elsewhere it takes a request for each file
            size, expected = storage.size(self.uri), int(index[-1].sum()) if len(index) else 0
            if size != expected:
                what = f"{size:,} bytes" if size >= 0 else "missing"
                raise BuildError(f"{self.uri}: {what}, and not the {expected:,} bytes of its index")
        return index

    @property
    def records(self) -> int:
        """How many it has."""
        return self.known if self.known >= 0 else len(self.index)

    def framed(self, begin: int, end: int) -> bytes:
        """Records [begin, end) with their frames, as they stand in the file.

        Raises:
          CorruptRecord: the file ends before them, or is not there.
        """
        if begin == end:
            return b""
        first = int(self.index[begin, 0])
        size = int(self.index[end - 1].sum()) - first
        if self.compression:
            return _unpacked(self.uri, self._stamp)[first : first + size]
        place = ByteRange(self.uri, first, size, "stored")
        try:
            return ranges.read(place, self._local_stamp, limit=size)
        except storage.ReadError as error:
            raise CorruptRecord(f"{self.uri}: record at byte {first}: {error}") from error

    @cached_property
    def fingerprint(self) -> str:
        """By which it is known from others of its name and size; copies have the same.

        It is the file's CRC32C, or without a data set that says it, the last 8 bytes: they have
        the CRC of the last record, or of all that is in a compressed file (RFC 1952, 2.3.1).

        Raises:
          BuildError: the file is not there.
        """
        if self.crc32c >= 0:
            return f"{self.crc32c:08x}"
        size = storage.size(self.uri)
        tail = ByteRange(self.uri, max(size - _TAIL_BYTES, 0), min(size, _TAIL_BYTES), "stored")
        try:
            return ranges.read(tail, self._local_stamp).hex()
        except storage.ReadError as error:
            raise BuildError(f"{self.uri}: {error}") from error

    @property
    def _local_stamp(self) -> int:
        # Local files stay open: by the stamp, what was there before is not what is read.
        return self._stamp[1] if storage.is_local(self.uri) else 0

    @cached_property
    def _stamp(self) -> tuple[int, int]:
        return storage.stat(self.uri)

    def problem(self, record: int) -> str:
        """What is wrong with a record, or nothing."""
        try:
            return next(scan_records(io.BytesIO(self.framed(record, record + 1)))).problem
        except CorruptRecord as error:
            return str(error)


@dataclass(frozen=True)
class Source:
    """Files, their splits, and what their records are.

    Attributes:
      place: what its user called it.
      files: all of them.
      splits: name -> places in `files`, in order.
      schema: of the records; of the files of others, what is asked of them.
      classes: names in label order, where they are known.
      described: whether the schema is that of a data set's metadata.
      sizes: split -> (height, width) of its smallest and largest image, where they are known.
    """

    place: str
    files: Sequence[RecordFile]
    splits: dict[str, list[int]]
    schema: Schema
    classes: Sequence[str] = field(default=())
    described: bool = True
    sizes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def spans(self, split: str | None) -> list[Span]:
        """The records of a split; None: of the only one.

        Raises:
          UsageError: there is no such split, or there are several.
        """
        if split is None and len(self.splits) > 1:
            raise UsageError(f"{self.place}: which split? There are {', '.join(self.splits)}")
        lengths = {
            name: {place: self.files[place].records for place in places}
            for name, places in self.splits.items()
        }
        if not any(any(records.values()) for records in lengths.values()):
            raise UsageError(f"{self.place}: there is no record in it")
        return spans_of(next(iter(self.splits)) if split is None else split, lengths)


def read_indexes(files: Iterable[RecordFile]) -> None:
    """Reads the indexes of some files, which are then at hand."""
    files = list(files)
    if all(storage.is_local(file.uri) for file in files):
        return  # they are read as they are used
    with ThreadPoolExecutor(_REQUESTS) as executor:  # a request each
        list(executor.map(lambda file: file.index, files))


def fingerprints(files: Iterable[RecordFile]) -> list[str]:
    """Those of some files, in order."""
    with ThreadPoolExecutor(_REQUESTS) as executor:  # a request each
        return list(executor.map(lambda file: file.fingerprint, files))


def find(place: str | os.PathLike[str]) -> Source:
    """The files of a data set, or those that match a pattern.

    Args:
      place: the folder of a data set that imageshards built, or a pattern of TFRecord files, such
        as `gs://bucket/old/train-*`. All files of a pattern are one split, whose name is empty.

    Raises:
      BuildError: there is none.
    """
    name = os.fspath(place)
    uri = storage.normalize(name)
    if storage.is_local(uri) and os.path.isdir(uri):
        return _of_dataset(open_dataset(name))  # whatever letters its name has
    is_file = name.endswith((SUFFIX, GZIP_SUFFIX)) or os.path.isfile(uri)
    if is_file or any(letter in name for letter in "*?["):
        return _of_pattern(uri)
    return _of_dataset(open_dataset(name))


def _of_dataset(dataset: Dataset) -> Source:
    splits: dict[str, list[int]] = {}
    files = []
    for place, shard in enumerate(dataset.shards):
        splits.setdefault(shard.id.split, []).append(place)
        index = "" if shard.id.compression else dataset.layout.index(shard.id)
        files.append(RecordFile(shard.uri, index, shard.records, shard.crc32c))
    sizes = {
        name: [tuple(split["smallest"]), tuple(split["largest"])]
        for name, split in dataset.build["splits"].items()
    }
    return Source(dataset.layout.root, files, splits, dataset.schema, dataset.classes, sizes=sizes)


def _of_pattern(uri: str) -> Source:
    if storage.is_local(uri):
        found = [uri] if os.path.isfile(uri) else glob.glob(uri, recursive=True)
        uris = [path for path in found if os.path.isfile(path)]
    else:
        uris = [found for found, _, _ in storage.match(uri)]
    uris = sorted(path for path in uris if not path.endswith(_INDEX_SUFFIXES))
    if not uris:
        raise BuildError(f"{uri}: no file matches")
    one_split = {"": list(range(len(uris)))}
    folder = uris[0].rpartition("/")[0]
    with suppress(BuildError, storage.StoreError):  # others may have files of these names
        source = _of_dataset(open_dataset(folder))
        known = {file.uri: file for file in source.files}
        if all(path in known for path in uris):
            return replace(
                source, place=uri, files=[known[path] for path in uris], splits=one_split
            )
    files = [RecordFile(path, _index_beside(path)) for path in uris]
    return Source(uri, files, one_split, SLIM, described=False)


def _index_beside(uri: str) -> str:
    stem = uri.removesuffix(SUFFIX)
    candidates = [base + suffix for base in (stem, uri) for suffix in _INDEX_SUFFIXES]
    return next((candidate for candidate in candidates if storage.exists(candidate)), "")


def _walk(uri: str) -> Index:
    """The index of a TFRecord file that has none, from the heads of its records alone."""
    rows: list[tuple[int, int]] = []
    offset = 0
    size = storage.size(uri)
    try:
        with cast(IO[bytes], _open_seekable(uri)) as file:
            while offset < size:
                file.seek(offset)
                head = file.read(_HEAD.size)
                length, crc = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, -1)
                framed = length + FRAME_BYTES
                if masked_crc32c(head[:8]) != crc or offset + framed > size:
                    packed = not offset and head.startswith(_GZIP_MAGIC)
                    hint = f": it is gzip, so its name must end in {GZIP_SUFFIX}" if packed else ""
                    raise BuildError(
                        f"{uri}: no TFRecord, or a damaged one, at byte {offset:,}{hint}"
                    )
                rows.append((offset, framed))
                offset += framed
    except FileNotFoundError as error:
        raise BuildError(f"{uri}: there is no such file") from error
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _unpack(uri: str) -> Index:
    """The index of what a compressed file holds, which is read for it."""
    rows = []
    try:
        with storage.open_read(uri) as file:
            for offset, data in read_records(uncompressed(file, uri), check=False):
                rows.append((offset, len(data) + FRAME_BYTES))
    except FileNotFoundError as error:
        raise BuildError(f"{uri}: there is no such file") from error
    except CorruptRecord as error:
        raise BuildError(f"{uri}: {error}") from error
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


@lru_cache(maxsize=2)
def _unpacked(uri: str, stamp: tuple[int, int]) -> bytes:
    """What a compressed file holds. The stamp tells it from a file that was there before."""
    if storage.stat(uri) != stamp:
        raise CorruptRecord(f"{uri}: changed after it was opened: open the data set again")
    try:
        with storage.open_read(uri) as file:
            return uncompressed(file, uri).read()
    except FileNotFoundError as error:
        raise CorruptRecord(f"{uri}: there is no such file") from error


def _open_seekable(uri: str) -> Any:
    if storage.is_local(uri):
        return open(uri, "rb", buffering=0)
    # What lies between heads is read too: a request for each head would take longer.
    return io.BufferedReader(cast(Any, storage.open_read(uri)), 1 << 22)
