"""Images inside Parquet files, as the Hugging Face Hub has them.

The bytes of a value are compressed and encoded with those of its neighbours, but images are read in
random order. So listing decodes the row groups once, from their beginning to their end, and the
images become byte ranges: of the Parquet file itself if it is local and has them as they are, as
`datasets` writes them; or else of a file below the output, which the end of the build deletes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, Problem, enumerated
from imageshards.transforms.inputs import unpack
from imageshards.transforms.inputs.archives.members import ReadAt, reads_at
from imageshards.transforms.inputs.columns import check_columns, texts_of, with_features
from imageshards.transforms.inputs.kind import ListingOptions
from imageshards.transforms.inputs.listed import CHUNK_ROWS, Listed
from imageshards.transforms.inputs.ranges import stamp_of
from imageshards.transforms.inputs.spans import Span
from imageshards.transforms.pairs.side_file import inside
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.rules import KNOWN_SPLITS
from imageshards.transforms.storage.protocol import Sink

_BUFFER_BYTES = 8 << 20
_LARGE_GROUP_BYTES = 256 << 20
"""A larger row group is not read at once."""
_CHUNK_BYTES = 32 << 20
_BYTES = "bytes"
_LENGTH_BYTES = 4
"""A value is stored behind its length."""
_HUB_NAME = re.compile(r"(\w+?)-\d{5}-of-\d{5}(-[0-9a-f]+)?\.parquet", re.IGNORECASE)
_LONGEST_PAGE_HEADER = 1 << 16


@dataclass(frozen=True)
class ImageTable:
    """A Parquet file with images, or some of its row groups.

    Attributes:
      span: the part.
      table: the file.
      column: the column of the images: binary, or a struct of `bytes` and `path`.
      options: how to list.
    """

    span: Span
    table: Any
    column: str
    options: ListingOptions

    @classmethod
    def of(cls, span: Span, options: ListingOptions) -> ImageTable | None:
        """Opens a Parquet file; None if it is a manifest, which has URIs.

        Raises:
          BuildError: it cannot be read, or several of its columns may be the images.
        """
        from pyarrow import parquet

        file = span.open_file()
        try:
            metadata = parquet.read_metadata(file)
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            largest = max((group.total_byte_size for group in groups), default=0)
            table = parquet.ParquetFile(
                file,
                metadata=metadata,
                buffer_size=_BUFFER_BYTES if largest > _LARGE_GROUP_BYTES else 0,
                pre_buffer=False,
            )
        except (pa.ArrowException, OSError) as error:
            raise span.unreadable(error, "not a Parquet file") from error
        column = _image_column(span.uri, table.schema_arrow, options)
        return cls(span, table, column, options) if column else None

    @cached_property
    def class_names(self) -> Mapping[str, tuple[str, ...]]:
        """Column -> names of its values, from the schema of Hugging Face `datasets`."""
        return {
            name: tuple(map(str, feature["names"]))
            for name, feature in _hub_features(self.table.schema_arrow).items()
            if feature.get("_type") == "ClassLabel"
        }

    @property
    def _hub_split(self) -> str:
        """The split in the name of a file of the Hub, or empty."""
        match = _HUB_NAME.fullmatch(self.span.uri.rpartition("/")[2])
        return match[1] if match and match[1] in KNOWN_SPLITS else ""

    def check(self) -> None:
        """Checks the columns.

        Raises:
          BuildError: a column is missing.
        """
        also = ("split",) if self._hub_split else ()
        check_columns(self.span.uri, (*self.table.schema_arrow.names, *also), self.options)

    def references(self, root_length: int) -> Iterator[Listed]:
        """Yields the references of all rows.

        Args:
          root_length: characters of the URIs before the names.

        Raises:
          BuildError: it cannot be read, or a column is missing.
        """
        self.check()
        wanted, header = self.options.columns, self.table.schema_arrow.names
        texts = dict.fromkeys((*wanted.required, *wanted.optional))
        name_column = self.options.record_keys.name.partition(".")[0]
        needed = {*texts, *wanted.feature_names, self.column, name_column}
        size, stamp = self.span.size, self.span.stamp
        if size < 0:
            size, stamp = storage.stat(self.span.uri)
        row = self.span.head
        with ExitStack() as files:
            images = _Images(self, self.column, size, stamp, files)
            masks = {
                name: _Images(self, name, size, stamp, files)
                for name in {feature.column for feature in wanted.features if feature.role == "uri"}
                if _holds_bytes(self.table.schema_arrow.field(name).type)
            }
            begin = (images, *masks.values())
            for batch in self._batches([name for name in header if name in needed], begin):
                refs = images.references(batch, *self._names(batch, row, root_length))
                values = {name: self._texts(batch, name) for name in texts}
                where = partial(self._where, row)
                refs = refs.with_texts(
                    {
                        name: texts_of(found, name, where)
                        for name, found in values.items()
                        if found is not None
                    }
                )
                features = {
                    name: masks[name].places(batch)
                    if name in masks
                    else batch.column(name).to_pylist()
                    for name in wanted.feature_names
                }
                refs = with_features(refs, features, wanted.features)
                yield Listed(refs, unpacked=images.unpacked, class_names=self.class_names)
                for mask in masks.values():
                    yield Listed(RefBatch.listed([], []), unpacked=mask.unpacked)
                row += batch.num_rows

    def _batches(self, columns: list[str], images: Iterable[_Images]) -> Iterator[pa.RecordBatch]:
        """Yields the rows, and prepares `images` for each row group."""
        metadata = self.table.metadata
        end = self.span.end or metadata.num_row_groups
        try:
            for group in range(self.span.begin, end):
                found = metadata.row_group(group)
                for column in images:
                    column.begin(found)
                size = max(1, found.total_byte_size // max(1, found.num_rows))
                yield from self.table.iter_batches(
                    batch_size=max(1, min(CHUNK_ROWS, _CHUNK_BYTES // size)),
                    row_groups=[group],
                    columns=columns,
                )
        except (pa.ArrowException, OSError) as error:
            raise self.span.unreadable(error) from error

    def _names(
        self, batch: pa.RecordBatch, before: int, root_length: int
    ) -> tuple[list[str], list[int]]:
        """The URIs of rows, and where their names begin."""
        key = self.options.record_keys.name
        names: Sequence[str | None] = [None] * len(batch)
        if key:
            column, _, field = key.partition(".")
            values = batch.column(column)
            values = pc.struct_field(values, field) if field else values
            names = texts_of(values.to_pylist(), key, partial(self._where, before))
        uris = [name or f"{self.span.uri}/{before + row}" for row, name in enumerate(names)]
        return uris, [0 if name else root_length for name in names]

    def _where(self, before: int, row: int) -> str:
        return f"{self.span.uri}: row {before + row + 1}"

    def _texts(self, batch: pa.RecordBatch, name: str) -> Sequence[Any] | None:
        """The values of a column that is a text or a number; None if there is no such column."""
        if name not in batch.schema.names:
            return [self._hub_split] * len(batch) if name == "split" and self._hub_split else None
        values: list[Any] = batch.column(name).to_pylist()
        if names := self.class_names.get(name):
            # A test set without labels has -1.
            known = dict(enumerate(names))
            return [known.get(value) for value in values]
        return values


class _Images:
    """The images of a column of a table, or their masks, as byte ranges.

    Attributes:
      unpacked: the file that was written with them; empty if none was.
    """

    def __init__(
        self, table: ImageTable, column: str, size: int, stamp: int, files: ExitStack
    ) -> None:
        """Creates an empty collection.

        Args:
          table: the table.
          column: the column.
          size: bytes of its file.
          stamp: stamp of its file, or 0.
          files: closes what is opened here.
        """
        span = table.span
        self._uri = span.uri
        self._column = column
        self._stamp = stamp
        self._files = files
        self._target = unpack.target_of(
            (span.uri, size, stamp, column, span.begin, span.end), table.options.scratch
        )
        self._scratch = table.options.scratch
        self._sink: Sink | None = None
        self._written = 0
        self._read_at: ReadAt | None = None
        if storage.is_local(span.uri):
            self._read_at = reads_at(files.enter_context(storage.open_read(span.uri)), span.uri)
        self._position = -1
        self.unpacked = ""

    def begin(self, group: Any) -> None:
        """Begins a row group."""
        self._position = -1
        chunks = (group.column(number) for number in range(group.num_columns))
        for chunk in chunks if self._read_at else ():
            is_plain = chunk.compression == "UNCOMPRESSED" and not chunk.has_dictionary_page
            if is_plain and chunk.path_in_schema in (self._column, f"{self._column}.{_BYTES}"):
                self._position = chunk.data_page_offset

    def references(self, batch: pa.RecordBatch, uris: list[str], roots: Sequence[int]) -> RefBatch:
        """The references of rows; see `RefBatch.listed` for the arguments."""
        container, offsets, lengths, missing = self._ranges(batch)
        refs = RefBatch.listed(uris, roots, lengths, np.full(len(lengths), self._stamp))
        refs = refs.with_ranges(container, "stored", offsets, lengths)
        if len(missing):
            problem = Problem("read", "Missing", f"no image in the column {self._column!r}")
            refs = refs.with_problems(dict.fromkeys(missing.tolist(), problem))
        return refs

    def places(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """The values of a column of side files; see `inside`. None: a row has no value."""
        container, offsets, lengths, missing = self._ranges(batch)
        stamp = stamp_of(container, self._stamp)
        places: list[bytes | None] = [
            inside(container, offset, length, stamp)
            for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True)
        ]
        for row in missing.tolist():
            places[row] = None
        return places

    def _ranges(self, batch: pa.RecordBatch) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
        """The file with the values, their offsets in it and lengths, and the rows without one."""
        values = batch.column(self._column)
        if pa.types.is_struct(values.type):
            values = pc.struct_field(values, _BYTES)
        values = values.cast(pa.large_binary())
        ends = np.frombuffer(values.buffers()[1], np.int64)
        ends = ends[values.offset : values.offset + len(values) + 1]
        container, offsets = self._uri, self._find(values)
        if offsets is None:
            container, offsets = self._write(values.buffers()[2], ends)
        missing = values.is_null().to_numpy(zero_copy_only=False)
        return container, offsets, np.diff(ends), np.flatnonzero(missing)

    def _find(self, values: pa.LargeBinaryArray) -> np.ndarray | None:
        """The offsets of values in the file, in order; None if it does not have them all."""
        if self._read_at is None or self._position < 0:
            return None
        offsets, position = [], self._position
        for scalar in values:
            value = scalar.as_py()
            if value is None:  # nothing is stored for it
                offsets.append(position)
                continue
            position = _find(self._read_at, value, position)
            if position < 0:
                break
            offsets.append(position)
            position += len(value)
        self._position = position
        return np.array(offsets, np.int64) if position >= 0 else None

    def _write(self, data: Any, ends: np.ndarray) -> tuple[str, np.ndarray]:
        """Appends values to the unpacked file; returns it and their offsets in it."""
        if not self.unpacked and not storage.exists(self._target):
            storage.make_folder(self._scratch)
            self._files.push(self._set_stamp)
            self._sink = self._files.enter_context(storage.open_sink(self._target, self._scratch))
        self.unpacked = self._target
        offsets = ends[:-1] - ends[0] + self._written
        size = int(ends[-1] - ends[0])
        if self._sink and size:
            self._sink.write([data.slice(int(ends[0]), size).to_pybytes()])
        self._written += size
        return self._target, offsets

    def _set_stamp(self, error: type[BaseException] | None, *_: object) -> None:
        # After an error, or if the listing ends early, the sink has removed the file.
        if error is None:
            unpack.set_stamp(self._target, self._stamp)


def _find(read_at: ReadAt, value: bytes, begin: int) -> int:
    """The first offset of a value at which it can be in a page, or -1.

    Args:
      read_at: reads the Parquet file.
      value: the value.
      begin: the end of the value before, or the beginning of the pages.
    """
    near = begin + _LENGTH_BYTES
    if read_at(len(value), near) == value:
        return near
    data = read_at(_LONGEST_PAGE_HEADER + len(value), begin)
    found = data.find(value)
    return begin + found if found >= 0 else -1


def _hub_features(schema: pa.Schema) -> Mapping[str, Mapping[str, Any]]:
    """Column -> its feature in the metadata of Hugging Face `datasets`; empty without metadata."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: value for name, value in found.items() if isinstance(value, dict)}
    except (KeyError, TypeError, ValueError):
        return {}


def _image_column(uri: str, schema: pa.Schema, options: ListingOptions) -> str:
    """The name of the column that has images; empty if the file is a manifest."""
    named = options.uri_column
    if options.uri_template:
        return ""
    if named in schema.names:
        return named if _holds_bytes(schema.field(named).type) else ""
    hub = _hub_features(schema)
    found = [name for name in schema.names if hub.get(name, {}).get("_type") == "Image"]
    found = found or [field.name for field in schema if _holds_bytes(field.type)]
    masks = {feature.column for feature in options.columns.features if feature.role == "uri"}
    found = [name for name in found if name not in masks]
    if named != "uri" or len(found) < 2:  # an error names the column of --uri_column
        return found[0] if found and named == "uri" else ""
    raise BuildError(
        f"{uri}: the columns {enumerated(found)} may be the images: select one by --uri_column"
    )


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind) and kind.get_field_index(_BYTES) >= 0:
        kind = kind.field(_BYTES).type
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
