"""References in batches of columns: what travels through the shuffle.

A URI that is a Beam element of its own costs the local runner about 12 us and 650 bytes at each
GroupByKey; as a row of an Arrow record batch it is 0.4 us and some 20 bytes. Rows are sorted, cut
and joined in C++, and a batch is pickled as zstd-compressed columns: URIs in random order still
share most of their text.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import zstandard

from imageshards.transforms.elements import (
    ByteRange,
    Codec,
    ImageRef,
    Problem,
    to_bytes,
    to_text,
)
from imageshards.transforms.inputs.listing import Listing
from imageshards.transforms.records.columns import FeatureColumn, Type
from imageshards.transforms.records.schemas import COLUMN

# URIs and labels are bytes: the names of files need not be UTF-8. Their offsets are 64 bits wide,
# since a single shard may hold all of a data set.
_PROBLEM = pa.struct([("stage", pa.string()), ("error", pa.string()), ("reason", pa.string())])
_SCHEMA = pa.schema(
    [
        ("key", pa.uint64()),
        ("uri", pa.large_binary()),
        ("label", pa.large_binary()),
        ("split", pa.string()),
        ("size", pa.int64()),
        ("stamp", pa.int64()),
        ("problem", _PROBLEM),
    ]
)
# A column that only batches with images in archives have: files of their own pay nothing for it.
_CODECS: tuple[Codec, ...] = get_args(Codec)
_RANGE = pa.struct(
    [
        ("uri", pa.large_binary()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("codec", pa.uint8()),  # its place in _CODECS
    ]
)
_FEATURE_TYPES: Mapping[Type, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float32(),
    "bytes": pa.large_binary(),
    "int_list": pa.list_(pa.int64()),
    "float_list": pa.list_(pa.float32()),
    "bytes_list": pa.list_(pa.large_binary()),
}
_PIXELS = "pixels"
_REFS_AT_A_TIME = 4096


def use_system_allocator() -> None:
    """Makes Arrow return freed memory to the system, in a process that only builds.

    Arrow's own allocators keep freed memory: 40 MB more at 160,000 references.
    """
    pa.set_memory_pool(pa.system_memory_pool())


class _Codec(threading.local):
    """zstd contexts, which take longer to make than to use, and belong to one thread."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=1).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codec = _Codec()


@dataclass(frozen=True)
class RefBatch:
    """References as columns.

    Attributes:
      rows: key (uint64, the shuffle key), uri (bytes), label (bytes or null), split, size (int64
        bytes or -1), stamp (int64, changes with the content, or 0), problem (or null), a column for
        every feature that comes with a reference, and where images are byte ranges of other files,
        range (or null). Once sorted and told apart by split, without key and split.
    """

    rows: pa.RecordBatch

    @classmethod
    def of(
        cls,
        keys: np.ndarray,
        uris: Sequence[bytes],
        labels: Sequence[str | None],
        splits: Sequence[str],
        sizes: Sequence[int],
        stamps: Sequence[int],
        problems: Mapping[int, Problem],
        ranges: pa.Array | None = None,
        features: Mapping[FeatureColumn, Sequence[Any]] | None = None,
    ) -> RefBatch:
        """A batch of columns of equal length.

        Args:
          keys: uint64.
          uris: as bytes.
          labels: class texts.
          splits: names.
          sizes: bytes or -1.
          stamps: numbers that change with the content, or 0.
          problems: row -> Problem, for those that have one.
          features: columns of values that become features.
          ranges: from `range_column`, or None.
        """
        values = [
            keys,
            uris,
            _label_column(labels),
            splits,
            np.asarray(sizes, dtype=np.int64),
            np.asarray(stamps, dtype=np.int64),
        ]
        arrays = [
            pa.array(value, type_) for value, type_ in zip(values, _SCHEMA.types, strict=False)
        ]
        arrays.append(_problem_column(len(uris), problems))
        schema = _SCHEMA
        for column, column_values in (features or {}).items():
            arrays.append(pa.array(column_values, _FEATURE_TYPES[column.type]))
            schema = schema.append(pa.field(column.source, arrays[-1].type))
        rows = pa.record_batch(arrays, schema=schema)
        return cls(rows if ranges is None else rows.append_column("range", ranges))

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __reduce__(self) -> tuple[Any, ...]:
        packed = _codec.compress(self.rows.serialize())
        return _unpack, (_schema_bytes(self.rows.schema), packed)

    @property
    def keys(self) -> np.ndarray:
        """Shuffle keys, uint64, uncopied."""
        return self.rows.column("key").to_numpy()  # type: ignore[no-any-return]

    @property
    def sizes(self) -> np.ndarray:
        """Bytes or -1, int64, uncopied."""
        return self.rows.column("size").to_numpy()  # type: ignore[no-any-return]

    @property
    def stamps(self) -> np.ndarray:
        """Numbers that change with the content, or 0, int64, uncopied."""
        return self.rows.column("stamp").to_numpy()  # type: ignore[no-any-return]

    @property
    def uris(self) -> list[str]:
        """URIs."""
        return [to_text(uri) for uri in self.rows.column("uri").to_pylist()]

    @property
    def labels(self) -> list[str | None]:
        """Class texts."""
        return [
            None if label is None else to_text(label)
            for label in self.rows.column("label").to_pylist()
        ]

    @property
    def splits(self) -> list[str]:
        """Names of splits."""
        return self.rows.column("split").to_pylist()  # type: ignore[no-any-return]

    @property
    def problems(self) -> dict[int, Problem]:
        """Row -> Problem, for those that have one."""
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
        """Of every row, `FeatureColumn.source` -> value, or None where there are no features."""
        names = self.feature_columns
        if not names:
            return [None] * len(self)
        columns = zip(*(self.rows.column(name).to_pylist() for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in columns]

    @property
    def ranges(self) -> list[ByteRange | None]:
        """Byte ranges of the images that are no files of their own."""
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
        """The URIs of the files that hold the images; an archive comes once."""
        if "range" not in self.rows.schema.names:
            yield from self.uris
            return
        column = self.rows.column("range")
        for uri, valid in zip(self.uris, column.is_valid().to_pylist(), strict=True):
            if not valid:
                yield uri
        for uri in column.filter(column.is_valid()).field("uri").unique().to_pylist():
            yield to_text(uri)

    def with_problems(self, problems: Mapping[int, Problem]) -> RefBatch:
        """The same references, of which those have problems."""
        place = self.rows.schema.get_field_index("problem")
        column = _problem_column(len(self), problems)
        return RefBatch(self.rows.set_column(place, "problem", column))

    def with_pixels(self, digests: Sequence[bytes | None]) -> RefBatch:
        """The same references with digests of their images' pixels."""
        return RefBatch(self.rows.append_column(_PIXELS, pa.array(digests, pa.binary())))

    def pop_pixels(self) -> tuple[RefBatch, list[bytes | None]]:
        """The references as they were, and the digests of their images' pixels."""
        digests = self.rows.column(_PIXELS).to_pylist()
        return RefBatch(self.rows.drop_columns([_PIXELS])), digests

    def labels_found(self) -> set[str]:
        """The labels that occur."""
        found = self.rows.column("label").unique().to_pylist()
        return {to_text(label) for label in found if label}

    def by_split(self, order: np.ndarray) -> dict[str, RefBatch]:
        """Split -> its rows, in the given order of all rows.

        Without their keys and splits, which their place says from here on: keys are what does not
        compress, 8 of some 25 bytes.
        """
        encoded = self.rows.column("split").dictionary_encode()
        names = encoded.dictionary.to_pylist()
        places = encoded.indices.to_numpy()[order]
        placed = RefBatch(self.rows.drop_columns(["key", "split"]))
        return {
            name: placed.take(order[places == place])
            for name, place in sorted(zip(names, range(len(names)), strict=True))
        }

    def take(self, rows: np.ndarray | Sequence[int]) -> RefBatch:
        """The given rows, in the given order."""
        return RefBatch(self.rows.take(pa.array(rows, pa.int64())))

    def __getitem__(self, rows: slice) -> RefBatch:
        """A contiguous run of rows, uncopied."""
        start, stop, _ = rows.indices(len(self))
        return RefBatch(self.rows.slice(start, max(stop - start, 0)))

    @staticmethod
    def concat(batches: Iterable[RefBatch]) -> RefBatch:
        """All rows of the batches, in their order; a column that one has not is null there."""
        rows = [batch.rows for batch in batches]
        if len({part.schema for part in rows}) > 1:
            table = pa.concat_tables(map(_as_table, rows), promote_options="default")
            return RefBatch(table.combine_chunks().to_batches()[0])
        return RefBatch(pa.concat_batches(rows))

    def refs(self) -> Iterator[ImageRef]:
        """The rows, one by one."""
        for start in range(0, len(self), _REFS_AT_A_TIME):
            part = self[start : start + _REFS_AT_A_TIME]
            problems = part.problems
            columns = zip(
                part.uris, part.labels, part.sizes.tolist(), part.stamps.tolist(), part.ranges,
                part.features, strict=True,
            )  # fmt: skip
            for row, (uri, label, size, stamp, place, features) in enumerate(columns):
                yield ImageRef(uri, label, size, stamp, problems.get(row), place, features)


def _as_table(rows: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([rows])


def range_column(listing: Listing) -> pa.Array | None:
    """The byte ranges of a listing's images; None where they are files of their own."""
    if not listing.container:
        return None
    count = len(listing.uris)
    columns = [
        pa.repeat(pa.scalar(to_bytes(listing.container), pa.large_binary()), count),
        pa.array(np.asarray(listing.offsets, dtype=np.int64)),
        pa.array(np.asarray(listing.lengths, dtype=np.int64)),
        pa.repeat(pa.scalar(_CODECS.index(listing.codec), pa.uint8()), count),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_RANGE))


def _label_column(labels: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(labels, pa.large_binary())
    except UnicodeEncodeError:
        return pa.array([label and to_bytes(label) for label in labels], pa.large_binary())


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
    data = pa.py_buffer(_codec.decompress(packed))
    return RefBatch(pa.ipc.read_record_batch(data, _schema(schema)))
