"""The record files of a split, and access to their records by number.

The index file that every build writes, or one that is next to the record file (`NAME.idx`,
`NAME.index`), has the offset of each record. Without one, the record file itself is scanned.
"""

from __future__ import annotations

import difflib
import glob
import io
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from threading import Lock, RLock
from typing import Any, BinaryIO, Generic, TypeVar, cast

import numpy as np

from imageshards.reader.dataset import Dataset, open_dataset
from imageshards.reader.splits import Span, spans_of
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ByteRange, UsageError, counted
from imageshards.transforms.inputs import ranges
from imageshards.transforms.records import example
from imageshards.transforms.records.container import (
    Container,
    CorruptRecord,
    parse_index,
    with_crc32c,
)
from imageshards.transforms.records.containers import container_of_file, is_record_file
from imageshards.transforms.records.index import Index, LazyIndex
from imageshards.transforms.records.schemas import COLUMN, SLIM, Feature, Kind, Schema

_REQUESTS = 16
_TAIL_BYTES = 8
_HEAD_BYTES = 64
_INDEX_SUFFIXES = (".idx", ".index")
_LARGE_INDEX = 1 << 17
"""Bytes. A smaller one is parsed in less than a millisecond."""
_LOCKS = [RLock() for _ in range(1024)]
"""Each is of few files: a lock of each file could not be pickled for other processes."""
_READING = Lock()

T = TypeVar("T")


class _read_once(Generic[T]):  # noqa: N801, as functools.cached_property
    """A `cached_property` of a `RecordFile`, with which threads read several files at a time.

    In Python 3.11, `functools.cached_property` has one lock for all objects.
    """

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, file: Any, _: type) -> T:
        values, name = vars(file), self._read.__name__
        with _LOCKS[hash(file.uri) % len(_LOCKS)]:
            if name not in values:
                values[name] = self._read(file)
        value: T = values[name]
        return value


@dataclass(frozen=True)
class RecordFile:
    """A record file.

    Attributes:
      uri: the file.
      index_uri: its index file; empty if there is none.
      known: number of its records according to its data set; -1 if unknown.
      crc32c: of the whole file according to its data set; -1 if unknown.
    """

    uri: str
    index_uri: str = ""
    known: int = -1
    crc32c: int = -1

    @cached_property
    def container(self) -> Container:
        """The record container, detected from the file's name."""
        return container_of_file(self.uri)

    @property
    def compression(self) -> str:
        """Its compression as TensorFlow names it: `GZIP`, or empty."""
        return self.container.compression.upper()

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine's filesystems."""
        return storage.is_local(self.uri)

    @_read_once
    def index(self) -> Index | LazyIndex:
        """Offset and stored size of every record, both after decompression.

        Of a large index file on this machine, single lines are parsed when they are needed.

        Raises:
          BuildError: the file is of another format or truncated, or its index is damaged.
        """
        if storage.is_local(self.uri) or not self.container.random_access:
            _ = self._stamp  # before the file is read, so that later changes are detected
        if not self.index_uri:
            return _locate(self.uri, self.container)
        try:
            stamp = storage.stat(self.index_uri)[1] if self.is_local else 0
            with storage.open_read(self.index_uri) as file:
                content = file.read()
            index: Index | LazyIndex
            # Of a remote file, each line would be another request. Files of others may have empty
            # lines, which are not counted.
            if self.is_local and self.known >= 0 and len(content) > _LARGE_INDEX:
                read = partial(_read_lines, self.index_uri, stamp)
                index = LazyIndex(self.index_uri, content, read)
            else:
                index = Index(parse_index(content))
        except (OSError, ValueError) as error:
            raise BuildError(f"{self.index_uri}: missing or damaged: {error}") from error
        if self.known not in (-1, len(index)):
            raise BuildError(
                f"{self.index_uri}: {counted(len(index), 'record')}, but {self.known:,} in "
                "build.json: build the data set again"
            )
        if storage.is_local(self.uri):  # for a remote file this would be a request
            size, expected = storage.size(self.uri), index.end(len(index) - 1) if len(index) else 0
            if size < expected or (size > expected and not self.container.has_footer):
                found = f"{size:,} bytes" if size >= 0 else "missing"
                raise BuildError(f"{self.uri}: {found}, but {expected:,} bytes in its index")
        return index

    @property
    def records(self) -> int:
        """Number of its records."""
        return self.known if self.known >= 0 else len(self.index)

    def stored(self, begin: int, end: int) -> bytes:
        """Returns records [begin, end) as the file stores them, after decompression.

        Raises:
          CorruptRecord: the file ends before them, does not exist, or has changed.
        """
        if begin == end:
            return b""
        first = self.index.offset(begin)
        size = self.index.end(end - 1) - first
        if not self.container.random_access:
            return _decompressed(self.uri, self._stamp)[first : first + size]
        position = ByteRange(self.uri, first, size, "stored")
        try:
            return ranges.read(position, self._local_stamp, limit=size)
        except storage.ReadError as error:
            raise CorruptRecord(f"{self.uri}: record at byte {first}: {error}") from error

    def data(self, begin: int, end: int, *, check: bool = True) -> Iterator[bytes]:
        """Yields the data of records [begin, end), which are read at once.

        Args:
          begin: number of the first record in the file.
          end: number of the record after the last.
          check: whether to compare the checksums of the data.

        Raises:
          CorruptRecord: a record is damaged, or the file has changed.
        """
        yield from self.records_in(self.stored(begin, end), begin, end, check=check)

    def record(self, row: int, *, check: bool = True) -> bytes:
        """Returns the data of one record; faster than `data`, because it is not copied.

        Raises:
          CorruptRecord: see `data`.
        """
        offset, size, *crc32c = self.index.row(row)
        sizes = () if crc32c else self.container.parts_of(size)
        if not sizes:
            return next(self.data(row, row + 1, check=check))
        try:
            parts = storage.read_parts(self.uri, offset, sizes, self._local_stamp)
            return self.container.data_of_parts(parts, check=check)
        except (storage.ReadError, CorruptRecord) as error:
            raise CorruptRecord(f"{self.uri}: record at byte {offset}: {error}") from error

    def records_in(
        self, stored: bytes, begin: int, end: int, *, check: bool = True
    ) -> Iterator[bytes]:
        """Yields the data of records [begin, end), given what the file stores for them."""
        view = memoryview(stored)
        rows = self.index.rows(begin, end)
        together: list[bytes] = []  # records that are stored together have one offset
        last, number = -1, 0
        for row, (offset, size, *crc32c) in enumerate(rows, begin):
            at = offset - rows[0][0]
            try:
                if offset != last:
                    together = [
                        *self.container.records_at(view[at : at + size], offset, check=check)
                    ]
                    last, number = offset, self._number_in_group(row) if row == begin else 0
                if number >= len(together):
                    raise CorruptRecord("not so many records are stored there")
                data = (
                    with_crc32c([together[number]], crc32c[0])
                    if check and crc32c
                    else together[number]
                )
            except CorruptRecord as error:
                raise CorruptRecord(f"{self.uri}: record at byte {offset}: {error}") from error
            number += 1
            yield data

    def _number_in_group(self, row: int) -> int:
        first, offset = row, self.index.offset(row)
        while first and self.index.offset(first - 1) == offset:
            first -= 1
        return row - first

    @_read_once
    def fingerprint(self) -> str:
        """Differs between files of the same name, and is equal for copies of a file.

        The fingerprint is the file's CRC32C, or the last 8 bytes if no data set declares the CRC.
        They contain the CRC of the last record, or of all data of a gzip file (RFC 1952, 2.3.1). Of
        a file with a footer it is the beginning of its last record, which has a checksum, too.

        Raises:
          BuildError: the file does not exist.
        """
        if self.crc32c >= 0:
            return f"{self.crc32c:08x}"
        if self.container.has_footer:
            last = len(self.index) - 1
            offset, size, *_ = self.index.row(last) if last >= 0 else (0, _TAIL_BYTES)
            tail = ByteRange(self.uri, offset, min(size, _HEAD_BYTES), "stored")
        else:
            size = storage.size(self.uri)
            tail = ByteRange(self.uri, max(size - _TAIL_BYTES, 0), min(size, _TAIL_BYTES), "stored")
        try:
            return ranges.read(tail, self._local_stamp).hex()
        except storage.ReadError as error:
            raise BuildError(f"{self.uri}: {error}") from error

    @_read_once
    def _local_stamp(self) -> int:
        # Local files stay open; the stamp shows whether another file has replaced the open one.
        return self._stamp[1] if storage.is_local(self.uri) else 0

    @_read_once
    def _stamp(self) -> tuple[int, int]:
        return storage.stat(self.uri)


@dataclass(frozen=True)
class Source:
    """Record files, their splits, and the schema of their records.

    Attributes:
      place: the folder or pattern that the caller named.
      files: all files.
      splits: name -> positions in `files`, in order.
      schema: of the records; for files that imageshards did not write, the features to read.
      classes: names in label order; empty if unknown.
      described: whether the schema comes from a data set's metadata.
      sizes: split -> (height, width) of its smallest and its largest image, if known.
    """

    place: str
    files: Sequence[RecordFile]
    splits: dict[str, list[int]]
    schema: Schema
    classes: Sequence[str] = ()
    described: bool = True
    sizes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def schema_with(self, image_key: str | None, label_key: str | None) -> Schema:
        """Returns the schema with other keys of the image and the label; None keeps its own.

        An empty `label_key` means that there is no label.
        """
        schema = self.schema
        if label_key is not None and label_key != schema.label_key:
            schema = replace(schema.without_labels(), value_key="")
            if label_key:
                schema = self._with_label(schema, label_key)
        if image_key is not None:
            labels = tuple(f for f in schema.features if f.key == schema.label_key)
            image = Feature(image_key, "bytes", "encoded", "Image")
            schema = replace(schema, features=(image, *labels), holds="encoded")
        return schema

    def _with_label(self, schema: Schema, key: str) -> Schema:
        """Returns the schema with a class or a value of any type as the label."""
        index = Feature(key, "int64", "label", "ClassLabel")
        if self.described:
            found = self.named(key, "label_key")
            if found.source == "label":
                return schema.with_features([found])
            return replace(schema.with_features([found]), value_key=key)
        feature = self.feature(key)
        if feature is None or feature.kind == "int64":  # None: not in the first record
            return schema.with_features([index])
        value = replace(feature, tfds="Text" if feature.kind == "bytes" else "Scalar")
        return replace(schema.with_features([value]), value_key=key)

    @cached_property
    def features(self) -> Sequence[Feature]:
        """The features of a record. Those of files without metadata are lists, found in a record.

        Raises:
          CorruptRecord: the first record is damaged or not a tf.train.Example.
        """
        if self.described:
            return self.schema.features
        file = next((file for file in self.files if file.records), None)
        if file is None:
            return ()
        try:
            values = example.decode(next(file.data(0, 1)))
        except example.CorruptExample as error:
            raise CorruptRecord(
                f"{file.uri}: record at byte {file.index.offset(0)}: {error}"
            ) from None
        kinds: dict[type, Kind] = {bytes: "bytes", int: "int64", float: "float"}
        return tuple(
            Feature(key, kinds[type(value[0])], COLUMN + key, "List", repeats=False)
            for key, value in sorted(values.items())
            if value
        )

    def feature(self, key: str) -> Feature | None:
        """Returns the feature of a record with a key, or None."""
        return next((feature for feature in self.features if feature.key == key), None)

    def named(self, key: str, option: str) -> Feature:
        """Returns the feature that an option names.

        Raises:
          UsageError: there is no such feature.
        """
        feature = self.feature(key)
        if feature is not None:
            return feature
        known = sorted(feature.key for feature in self.features)
        close = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
        raise UsageError(f"{option} {key!r}: {self.place} has no such feature: {hint}")

    def spans(self, split: str | None) -> list[Span]:
        """Returns the records of a split; of the only split if `split` is None.

        Raises:
          UsageError: there is no such split, there are several, or there are no records.
        """
        if split is None and len(self.splits) > 1:
            raise UsageError(f"{self.place}: which split? Name one of {', '.join(self.splits)}")
        lengths = {
            name: {position: self.files[position].records for position in positions}
            for name, positions in self.splits.items()
        }
        if not any(any(records.values()) for records in lengths.values()):
            raise UsageError(f"{self.place}: no records")
        return spans_of(next(iter(self.splits)) if split is None else split, lengths)


def read_indexes(files: Iterable[RecordFile]) -> None:
    """Reads the indexes of remote files in parallel, those that have not been read."""
    # Local indexes are read when they are used.
    unread = [file for file in files if "index" not in vars(file) and not file.is_local]
    if unread:
        with _READING, ThreadPoolExecutor(_REQUESTS) as executor:
            list(executor.map(lambda file: file.index, unread))


def fingerprints(files: Iterable[RecordFile]) -> list[str]:
    """Returns the fingerprints of files, in order; reads them in parallel."""
    with ThreadPoolExecutor(_REQUESTS) as executor:
        return list(executor.map(lambda file: file.fingerprint, files))


def find(place: str | os.PathLike[str]) -> Source:
    """Returns the record files of a data set, or those that match a pattern.

    Args:
      place: the folder of a data set that imageshards built, or a glob pattern of record files,
        such as `gs://bucket/old/train-*`. All files of a pattern form one split without a name.

    Raises:
      BuildError: there is no such data set, or no file matches.
      UsageError: `place` is neither a text nor a path.
    """
    if not isinstance(place, str | os.PathLike):
        raise UsageError(
            f"invalid data set {reprlib.repr(place)}: must be one folder or glob pattern; "
            'reader.load and reader.grain also mix several: {"a": 0.7, "b": 0.3}'
        )
    name = os.fspath(place)
    if is_pattern(name):
        return _of_pattern(storage.normalize(name))
    return _of_dataset(open_dataset(name))


def is_pattern(place: str) -> bool:
    """Returns whether a place is a record file or a glob pattern, and not the folder of a data set.

    >>> is_pattern("old/train-*"), is_pattern("old.tfrecord"), is_pattern("gs://bucket/dataset")
    (True, True, False)
    """
    uri = storage.normalize(place)
    is_file = is_record_file(place) or os.path.isfile(uri)
    # The name of a folder may contain *, ? or [.
    is_folder = storage.is_local(uri) and os.path.isdir(uri)
    return not is_folder and (is_file or any(letter in place for letter in "*?["))


def _of_dataset(dataset: Dataset) -> Source:
    splits: dict[str, list[int]] = {}
    files = []
    for position, shard in enumerate(dataset.shards):
        splits.setdefault(shard.id.split, []).append(position)
        index = dataset.layout.index(shard.id)
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
        raise BuildError(f"{uri}: no file matches; name a data set's folder or a glob pattern")
    one_split = {"": list(range(len(uris)))}
    folder = uris[0].rpartition("/")[0]
    # If the files are shards of a data set, its metadata describes them.
    with suppress(BuildError, storage.StoreError):
        source = _of_dataset(open_dataset(folder))
        known = {file.uri: file for file in source.files}
        if all(path in known for path in uris):
            return replace(
                source, place=uri, files=[known[path] for path in uris], splits=one_split
            )
    files = [RecordFile(path, _index_next_to(path)) for path in uris]
    return Source(uri, files, one_split, SLIM, described=False)


def _index_next_to(uri: str) -> str:
    container = container_of_file(uri)
    if not container.has_index:
        return ""
    stem = uri.removesuffix(container.suffix)
    candidates = [base + suffix for base in (stem, uri) for suffix in _INDEX_SUFFIXES]
    return next((candidate for candidate in candidates if storage.exists(candidate)), "")


def _read_lines(uri: str, stamp: int, begin: int, end: int) -> bytes:
    data = b""
    with suppress(storage.ReadError):
        data = storage.read_range(uri, begin, end - begin, stamp)
    if len(data) < end - begin:
        raise BuildError(f"{uri}: missing, or changed after it was opened: open the data set again")
    return data


def _locate(uri: str, container: Container) -> Index:
    """Returns the index of a record file that has no index file."""
    try:
        with _open_seekable(uri) as file:
            rows = list(container.locate(file, storage.size(uri)))
    except FileNotFoundError as error:
        raise BuildError(f"{uri}: no such file") from error
    except CorruptRecord as error:
        raise BuildError(f"{uri}: {error}") from error
    return Index(np.array(rows, dtype=np.int64).reshape(-1, 2))


@lru_cache(maxsize=2)
def _decompressed(uri: str, stamp: tuple[int, int]) -> bytes:
    """Returns the decompressed content of a file, if the file still has its stamp."""
    if storage.stat(uri) != stamp:
        raise CorruptRecord(f"{uri}: changed after it was opened: open the data set again")
    try:
        with storage.open_read(uri) as file:
            return container_of_file(uri).uncompressed(cast(BinaryIO, file)).read()
    except FileNotFoundError as error:
        raise CorruptRecord(f"{uri}: no such file") from error


def _open_seekable(uri: str) -> Any:
    if storage.is_local(uri):
        return open(uri, "rb", buffering=0)
    # Reading the data between the heads of records is faster than a request for each head.
    return io.BufferedReader(cast(Any, storage.open_read(uri)), 1 << 22)
