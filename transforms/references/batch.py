"""A table of references: the elements of the graph, from listing to writing.

As a Beam element of its own, one reference costs the local runner about 12 us and 650 bytes at
each GroupByKey; as a row of an Arrow record batch it costs 0.4 us and about 20 bytes. A batch is
pickled as zstd-compressed columns: even in random order, URIs share most of their text.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from imageshards.transforms.elements import (
    LABEL_SEPARATOR,
    ByteRange,
    Codec,
    ImageRef,
    Problem,
    to_bytes,
    to_text,
)
from imageshards.transforms.records.columns import FeatureColumn, Type
from imageshards.transforms.records.schemas import COLUMN

# URIs and labels are bytes, because file names need not be UTF-8. Arrow's offsets have 64 bits,
# because one batch may hold all references of a data set.
_BYTES = pa.large_binary()
_PROBLEM = pa.struct([("stage", pa.string()), ("error", pa.string()), ("reason", pa.string())])
_CODECS: tuple[Codec, ...] = get_args(Codec)
_RANGE = pa.struct(
    [
        ("uri", _BYTES),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("codec", pa.uint8()),  # index in _CODECS
    ]
)
_FEATURE_TYPES: Mapping[Type, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float32(),
    "bytes": _BYTES,
    "int_list": pa.list_(pa.int64()),
    "float_list": pa.list_(pa.float32()),
    "bytes_list": pa.list_(_BYTES),
}
_TEXT = "text:"  # prefix of the columns that labels, splits and groups may come from
_PIXELS = "pixels"
_REFS_AT_A_TIME = 4096


def use_system_allocator() -> None:
    """Makes Arrow return freed memory to the system. For processes of a build, not for libraries.

    Arrow's own allocators keep freed memory: 40 MB more at 160,000 references.
    """
    pa.set_memory_pool(pa.system_memory_pool())


class _Codec(threading.local):
    """The zstd contexts of a thread. Creating a context takes longer than using it."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=1).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codec = _Codec()


class RefBatch:
    """References as columns of equal length.

    A batch that comes out of a pickle is unpacked when its rows are first read: a step or a runner
    that passes it on copies about 25 bytes a reference, and holds no more.

    Attributes:
      rows: the columns. Listing creates uri (bytes), root (uint32, see `listed`), size (int64,
        bytes or -1), stamp (int64, see `ImageRef.stamp`), problem (or null), range (or null; absent
        where all images are files), and one column for each text and feature. Annotating replaces
        the texts with key (uint64, the shuffle key), label (bytes or null) and split. Batches of
        one split (`by_split`) have neither key nor split.

    >>> refs = RefBatch.listed(["/photos/cat/1.jpg"], [8])
    >>> refs = refs.annotated(np.array([7], np.uint64), binary_column(["cat"]), pa.array(["train"]))
    >>> refs.labels, refs.splits
    (['cat'], ['train'])
    """

    __slots__ = ("_packed", "_rows")

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._packed: tuple[bytes, bytes] | None = None

    @property
    def rows(self) -> pa.RecordBatch:
        """The columns."""
        packed = self._packed  # another thread may unpack it at the same time
        if packed is not None:
            data = pa.py_buffer(_codec.decompress(packed[1]))
            self._rows = pa.ipc.read_record_batch(data, _schema(packed[0]))
            self._packed = None
        return self._rows

    @classmethod
    def listed(
        cls,
        uris: Sequence[str],
        roots: Sequence[int],
        sizes: Sequence[int] | np.ndarray | None = None,
        stamps: Sequence[int] | np.ndarray | None = None,
    ) -> RefBatch:
        """References that are not annotated yet.

        Args:
          uris: URIs.
          roots: characters of each URI before its name, whose first folder may be a split.
          sizes: bytes, or -1 if unknown; None: all are unknown.
          stamps: numbers that change with the content, or 0 if unknown; None: all are unknown.
        """
        count = len(uris)
        sizes = np.full(count, -1) if sizes is None else sizes
        stamps = np.zeros(count) if stamps is None else stamps
        columns = {
            "uri": binary_column(uris),
            "root": pa.array(np.asarray(roots, dtype=np.uint32)),
            "size": pa.array(np.asarray(sizes, dtype=np.int64)),
            "stamp": pa.array(np.asarray(stamps, dtype=np.int64)),
            "problem": _problem_column(count, {}),
        }
        return cls(pa.record_batch(columns))

    @property
    def are_records(self) -> bool:
        """Whether the references are TFRecords, whose features are read with their images."""
        if "range" not in self.rows.schema.names or not len(self):
            return False
        return bool(self.rows.column("range").field("codec")[0].as_py() == _CODECS.index("example"))

    def with_texts(self, texts: Mapping[str, Sequence[str | None]]) -> RefBatch:
        """The references with columns that labels, splits and groups may come from.

        Args:
          texts: name -> texts; None means no value.
        """
        rows = self.rows
        for name, values in texts.items():
            rows = rows.append_column(_TEXT + name, binary_column(values))
        return RefBatch(rows)

    def with_features(self, features: Mapping[FeatureColumn, Sequence[Any]]) -> RefBatch:
        """The references with values that become features of their records."""
        rows = self.rows
        for column, values in features.items():
            rows = rows.append_column(column.source, pa.array(values, _FEATURE_TYPES[column.type]))
        return RefBatch(rows)

    def with_ranges(
        self,
        uri: str,
        codec: Codec,
        offsets: Sequence[int] | np.ndarray,
        lengths: Sequence[int] | np.ndarray,
    ) -> RefBatch:
        """The references as byte ranges of one file.

        Args:
          uri: URI of the file.
          codec: how to read the ranges.
          offsets: offsets of their first bytes.
          lengths: lengths in bytes.
        """
        columns = [
            pa.repeat(pa.scalar(to_bytes(uri), _BYTES), len(self)),
            pa.array(np.asarray(offsets, dtype=np.int64)),
            pa.array(np.asarray(lengths, dtype=np.int64)),
            pa.repeat(pa.scalar(_CODECS.index(codec), pa.uint8()), len(self)),
        ]
        ranges = pa.StructArray.from_arrays(columns, fields=list(_RANGE))
        return RefBatch(self.rows.append_column("range", ranges))

    def annotated(self, keys: np.ndarray, labels: pa.Array, splits: pa.Array) -> RefBatch:
        """The references with shuffle keys (uint64), labels (bytes) and names of splits (texts)."""
        added = {"key": pa.array(keys), "label": labels, "split": splits}
        names = ["key", "uri", "root", "label", "split", "size", "stamp", "problem"]
        names += self.feature_columns
        if "range" in self.rows.schema.names:
            names.append("range")
        columns = [added[name] if name in added else self.rows.column(name) for name in names]
        return RefBatch(pa.record_batch(columns, names))

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self.packed()

    def packed(self) -> tuple[bytes, bytes]:
        """The schema, and the compressed columns; `RefBatch.unpack` returns the batch."""
        if self._packed is not None:
            return self._packed
        return _schema_bytes(self._rows.schema), _codec.compress(self._rows.serialize())

    @classmethod
    def unpack(cls, schema: bytes, packed: bytes) -> RefBatch:
        """The inverse of `packed`; takes no time before the rows are read."""
        batch = cls(None)
        batch._packed = schema, packed
        return batch

    @property
    def held_bytes(self) -> int:
        """The memory that the batch takes now, packed or not."""
        packed = self._packed
        return len(packed[1]) if packed is not None else int(self._rows.nbytes)

    @property
    def value_bytes(self) -> int:
        """The bytes of all values: the same however the references are divided into batches."""
        return sum(map(_value_bytes, self.rows.columns))

    @property
    def keys(self) -> np.ndarray:
        """Shuffle keys; uint64, not a copy."""
        return self.rows.column("key").to_numpy()  # type: ignore[no-any-return]

    @property
    def sizes(self) -> np.ndarray:
        """Sizes of the images in bytes, or -1; int64, not a copy."""
        return self.rows.column("size").to_numpy()  # type: ignore[no-any-return]

    @property
    def stamps(self) -> np.ndarray:
        """Numbers that change with the content, or 0; int64, not a copy."""
        return self.rows.column("stamp").to_numpy()  # type: ignore[no-any-return]

    def acceptable(self, max_bytes: int) -> np.ndarray:
        """Which references may become records: no problem, no more bytes than this; bool."""
        fits: np.ndarray = self.sizes <= max_bytes
        problems = self.rows.column("problem")
        if problems.null_count < len(self):
            fits = fits & problems.is_null().to_numpy(zero_copy_only=False)
        return fits

    @property
    def uris(self) -> list[str]:
        """The URIs."""
        return [to_text(uri) for uri in self.rows.column("uri").to_pylist()]

    @property
    def roots(self) -> np.ndarray:
        """Characters of each URI before its name; uint32, not a copy."""
        return self.rows.column("root").to_numpy()  # type: ignore[no-any-return]

    @property
    def names(self) -> list[str]:
        """The names: the URIs without their roots."""
        return list(map(to_text, self.encoded_names))

    @property
    def encoded_names(self) -> list[bytes]:
        """The names as bytes."""
        pairs = zip(self.rows.column("uri").to_pylist(), self.roots.tolist(), strict=True)
        return [
            uri[root:] if uri.isascii() else to_bytes(to_text(uri)[root:]) for uri, root in pairs
        ]

    def text_column(self, name: str | None) -> pa.Array | None:
        """A column of `with_texts`, as bytes or null; None if there is no such column."""
        names = self.rows.schema.names
        return self.rows.column(_TEXT + name) if name and _TEXT + name in names else None

    @property
    def labels(self) -> list[str | None]:
        """Texts of the classes, or None."""
        return texts_of(self.rows.column("label"))

    @property
    def splits(self) -> list[str]:
        """Names of the splits."""
        return self.rows.column("split").to_pylist()  # type: ignore[no-any-return]

    @property
    def problems(self) -> dict[int, Problem]:
        """Row -> its Problem, for the rows that have one."""
        column = self.rows.column("problem")
        if column.null_count == len(column):
            return {}
        return {row: Problem(**value) for row, value in enumerate(column.to_pylist()) if value}

    @property
    def feature_columns(self) -> list[str]:
        """Names of the columns that become features."""
        return [name for name in self.rows.schema.names if name.startswith(COLUMN)]

    @property
    def features(self) -> list[dict[str, Any] | None]:
        """For each row `FeatureColumn.source` -> value; None if no column becomes a feature."""
        names = self.feature_columns
        if not names:
            return [None] * len(self)
        columns = zip(*(self.rows.column(name).to_pylist() for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in columns]

    @property
    def ranges(self) -> list[ByteRange | None]:
        """For each row the byte range that holds the image; None if the image is a file."""
        if "range" not in self.rows.schema.names:
            return [None] * len(self)
        column = self.rows.column("range")
        files: dict[bytes, str] = {}
        ranges: list[ByteRange | None] = []
        columns = [column.field(name).to_pylist() for name in ("uri", "offset", "size", "codec")]
        for valid, uri, offset, size, codec in zip(
            column.is_valid().to_pylist(), *columns, strict=True
        ):
            if not valid:
                ranges.append(None)
                continue
            if uri not in files:
                files[uri] = to_text(uri)
            ranges.append(ByteRange(files[uri], offset, size, _CODECS[codec]))
        return ranges

    def files(self) -> Iterator[str]:
        """Yields the URIs of the files that hold the images; the URI of an archive once."""
        if "range" not in self.rows.schema.names:
            yield from self.uris
            return
        column = self.rows.column("range")
        for uri, valid in zip(self.uris, column.is_valid().to_pylist(), strict=True):
            if not valid:
                yield uri
        for uri in column.filter(column.is_valid()).field("uri").unique().to_pylist():
            yield to_text(uri)

    def with_roots(self, roots: np.ndarray) -> RefBatch:
        """The same references with other roots."""
        index = self.rows.schema.get_field_index("root")
        column = pa.array(roots.astype(np.uint32, copy=False))
        return RefBatch(self.rows.set_column(index, "root", column))

    def with_splits(self, splits: pa.Array) -> RefBatch:
        """The same references with other names of splits (texts)."""
        index = self.rows.schema.get_field_index("split")
        return RefBatch(self.rows.set_column(index, "split", splits))

    def with_problems(self, problems: Mapping[int, Problem]) -> RefBatch:
        """The same references, with their problems replaced by these: row -> Problem."""
        index = self.rows.schema.get_field_index("problem")
        column = _problem_column(len(self), problems)
        return RefBatch(self.rows.set_column(index, "problem", column))

    def with_pixels(self, digests: Sequence[bytes | None]) -> RefBatch:
        """The same references with the digests of their images' pixels."""
        return RefBatch(self.rows.append_column(_PIXELS, pa.array(digests, pa.binary())))

    def pop_pixels(self) -> tuple[RefBatch, list[bytes | None]]:
        """The references without the digests of `with_pixels`, and these digests."""
        digests = self.rows.column(_PIXELS).to_pylist()
        return RefBatch(self.rows.drop_columns([_PIXELS])), digests

    def labels_found(self) -> set[str]:
        """The distinct labels."""
        found = self.rows.column("label").unique().to_pylist()
        labels = (to_text(label).split(LABEL_SEPARATOR) for label in found if label)
        return set(itertools.chain.from_iterable(labels))

    def by_split(self, order: np.ndarray) -> dict[str, RefBatch]:
        """Split -> its rows, in the given order of all rows.

        Drops the keys and splits, which the order of rows and the keys of the dict replace; keys
        do not compress (8 of about 25 bytes per reference).
        """
        encoded = self.rows.column("split").dictionary_encode()
        names = encoded.dictionary.to_pylist()
        splits = encoded.indices.to_numpy()[order]
        rest = RefBatch(self.rows.drop_columns(["key", "split"]))
        return {
            name: rest.take(order[splits == index])
            for index, name in sorted(enumerate(names), key=lambda item: item[1])
        }

    def take(self, rows: np.ndarray | Sequence[int]) -> RefBatch:
        """The given rows, in the given order."""
        return RefBatch(self.rows.take(pa.array(rows, pa.int64())))

    def __getitem__(self, rows: slice) -> RefBatch:
        """A slice of consecutive rows, not a copy."""
        start, stop, _ = rows.indices(len(self))
        return RefBatch(self.rows.slice(start, max(stop - start, 0)))

    @staticmethod
    def concat(batches: Iterable[RefBatch]) -> RefBatch:
        """All rows of the batches, in order; null in a column that their batch does not have."""
        rows = [batch.rows for batch in batches]
        if len({part.schema for part in rows}) > 1:
            tables = [pa.Table.from_batches([part]) for part in rows]
            table = pa.concat_tables(tables, promote_options="default")
        else:
            table = pa.Table.from_batches(rows)
        columns = [column.combine_chunks() for column in table.columns]
        return RefBatch(pa.RecordBatch.from_arrays(columns, schema=table.schema))

    def refs(self) -> Iterator[ImageRef]:
        """Yields the rows one by one, as `ImageRef`."""
        for start in range(0, len(self), _REFS_AT_A_TIME):
            part = self[start : start + _REFS_AT_A_TIME]
            problems = part.problems
            columns = zip(
                part.uris, part.labels, part.sizes.tolist(), part.stamps.tolist(), part.ranges,
                part.features, part.roots.tolist(), strict=True,
            )  # fmt: skip
            for row, (uri, label, size, stamp, byte_range, features, root) in enumerate(columns):
                problem = problems.get(row)
                yield ImageRef(uri, label, size, stamp, problem, byte_range, features, root)


def binary_column(texts: Sequence[str | None]) -> pa.Array:
    """Texts as a column of bytes, null where they are None."""
    try:
        return pa.array(texts, _BYTES)
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return pa.array([text and to_bytes(text) for text in texts], _BYTES)


def texts_of(column: pa.Array) -> list[str | None]:
    """The texts of a column of bytes, None where they are null."""
    return [None if value is None else to_text(value) for value in column.to_pylist()]


def _value_bytes(column: pa.Array) -> int:
    if pa.types.is_struct(column.type):
        return sum(_value_bytes(column.field(at)) for at in range(column.type.num_fields))
    if pa.types.is_list(column.type):
        return _value_bytes(column.flatten())
    if pa.types.is_primitive(column.type):
        return len(column) * int(column.type.bit_width) // 8
    return pc.sum(pc.binary_length(column)).as_py() or 0


def _problem_column(count: int, problems: Mapping[int, Problem]) -> pa.Array:
    if not problems:
        return pa.nulls(count, _PROBLEM)
    values: list[dict[str, str] | None] = [None] * count
    for row, problem in problems.items():
        values[row] = asdict(problem)
    return pa.array(values, _PROBLEM)


@cache
def _schema_bytes(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize())


@cache
def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _unpack(schema: bytes, packed: bytes) -> RefBatch:
    return RefBatch.unpack(schema, packed)


class Held:
    """Batches that are collected, to process many small ones as a large one.

    >>> held = Held(most_bytes=1 << 20)
    >>> held.add(RefBatch.listed(["/photos/1.jpg"], [8]))
    False
    >>> len(held.take()), held.take()
    (1, None)
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._batches: list[RefBatch] = []
        self._bytes = 0

    def add(self, batch: RefBatch) -> bool:
        """Adds a batch; returns whether the batches have at least `most_bytes` now."""
        self._batches.append(batch)
        self._bytes += batch.held_bytes
        return self._bytes >= self._most_bytes

    def take(self) -> RefBatch | None:
        """Returns all batches as one, and forgets them; None if there is no batch."""
        batches, self._batches, self._bytes = self._batches, [], 0
        return RefBatch.concat(batches) if batches else None
