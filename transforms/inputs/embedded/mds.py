"""MDS shards, as MosaicML streaming writes them: each image is a byte range of its shard.

Format (version 2): the number of samples, and the offsets of all samples and of the end, as uint32;
a JSON object with the names, encodings and sizes of the columns; the samples. A sample is the sizes
(uint32) of its columns of variable size, and then the values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, Problem, enumerated
from imageshards.transforms.inputs import ranges, unpack
from imageshards.transforms.inputs.archives.members import View, reads_at
from imageshards.transforms.inputs.columns import check_columns, texts_of, with_features
from imageshards.transforms.inputs.kind import FileKind, ListingOptions, register
from imageshards.transforms.inputs.listed import Listed, ListedRows
from imageshards.transforms.pairs.side_file import inside

_SUFFIX = ".mds"
_IMAGES = ("jpeg", "png", "jpeg_array", "jpegarray")
_WORD = 4
_LONGEST_HEADER = 1 << 28
_LONGEST_VALUE = 1 << 20
_NUMBERS = {
    "int": "<q", "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q",
    "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q",
    "float16": "<e", "float32": "<f", "float64": "<d",
}  # fmt: skip
_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "str": bytes.decode, "str_int": int, "str_float": float, "str_decimal": float,
    "json": json.loads, "bytes": bytes,
}  # fmt: skip


class _Malformed(ValueError):
    """A shard or a sample is not as the format requires; the message says why."""


@dataclass(frozen=True)
class _Layout:
    """The columns of a shard.

    Attributes:
      names: their names.
      encodings: how their values are encoded.
      sizes: bytes of each value, or None if they vary.
    """

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    @property
    def head(self) -> int:
        """Bytes of the sizes at the beginning of a sample."""
        return _WORD * self.sizes.count(None)

    def places(self, head: bytes, begin: int, end: int) -> dict[str, tuple[int, int]]:
        """Column -> offset and size of its value in the sample from `begin` to `end`."""
        varying = iter(np.frombuffer(head, "<u4").tolist())
        found, offset = {}, begin + self.head
        for name, size in zip(self.names, self.sizes, strict=True):
            length = next(varying) if size is None else size
            found[name] = (offset, length)
            offset += length
        if offset != end:
            raise _Malformed(f"its columns have {offset - begin:,} bytes, and it {end - begin:,}")
        return found

    def encoding(self, name: str) -> str:
        """How the values of a column are encoded."""
        return self.encodings[self.names.index(name)]

    def decode(self, name: str, data: bytes) -> Any:
        """The value of a column.

        Raises:
          _Malformed: it cannot be decoded.
        """
        encoding = self.encoding(name)
        try:
            if encoding in _NUMBERS:
                return struct.unpack(_NUMBERS[encoding], data)[0]
            return _DECODERS[encoding](data)
        except (ValueError, struct.error) as error:
            raise _Malformed(f"the column {name!r} is no {encoding}: {error}") from error


@register
class MdsShard(FileKind):
    """A shard of MosaicML streaming."""

    noun = "an MDS shard"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a URI has the suffix of a shard, or of a compressed one."""
        return f"{_SUFFIX}." in (uri.lower().rpartition("/")[2] + ".")

    def list_file(
        self, root_length: int, size: int, stamp: int, options: ListingOptions
    ) -> Iterator[Listed]:
        """Lists the samples."""
        self.check_regular()
        container, unpacked = self.uri, ""
        if unpack.is_packed(self.uri):
            container = unpacked = unpack.unpack(self.uri, size, stamp, options.scratch)
        elif not self.uri.lower().endswith(_SUFFIX):
            raise BuildError(
                f"{self.uri}: an MDS shard of this compression is not read (.gz, .bz2 and .zstd "
                "are): decompress it first"
            )
        try:
            with storage.open_read(container) as file:
                ranges.check_readable(container, stamp)
                file.seek(0, 2)
                view = View(reads_at(file, container), 0, file.tell())
                rows = ListedRows(container, unpacked=unpacked)
                yield from self._list(view, rows, root_length, stamp, options)
        except _Malformed as error:
            raise BuildError(f"{self.uri}: not an MDS shard: {error}") from error
        except OSError as error:
            raise self.unreadable(error) from error

    def _list(
        self,
        view: View,
        rows: ListedRows,
        root_length: int,
        stamp: int,
        options: ListingOptions,
    ) -> Iterator[Listed]:
        layout, offsets = _header(view)
        check_columns(self.uri, layout.names, options)
        columns, name_key = options.columns, options.record_keys.name
        masks = {feature.column for feature in columns.features if feature.role == "uri"}
        masks -= {name for name in masks if layout.encoding(name) == "str"}
        image = self._image(layout, options, masks)
        texts = [
            name
            for name in dict.fromkeys((*columns.required, *columns.optional))
            if name in layout.names
        ]
        wanted = dict.fromkeys((*texts, *columns.feature_names, *filter(None, [name_key])))
        self._check_encodings(layout, wanted.keys() - masks)
        values: dict[str, list[Any]] = {name: [] for name in wanted}

        def take() -> Listed:
            listed = rows.take()
            where = listed.refs.uris.__getitem__
            refs = listed.refs.with_texts(
                {name: texts_of(values[name], name, where) for name in texts}
            )
            refs = with_features(refs, values, columns.features)
            for column in values.values():
                column.clear()
            return replace(listed, refs=refs)

        for number, (begin, end) in enumerate(pairwise(offsets)):
            place, problem, found = (0, -1), None, dict[str, Any]()
            try:
                places = layout.places(view.read_at(layout.head, begin), begin, end)
                place = places[image]
                found = {
                    name: inside(
                        rows.container, *places[name], ranges.stamp_of(rows.container, stamp)
                    )
                    if name in masks
                    else self._value(view, layout, name, *places[name])
                    for name in wanted
                }
            except (_Malformed, ValueError, StopIteration) as error:
                problem = Problem("read", "Corrupt", f"sample {number}: {error}")
            for name, column in values.items():
                column.append(found.get(name))
            name = str(found.get(name_key) or "") if name_key else ""
            uri, root = (name, 0) if name else (f"{self.uri}/{number}", root_length)
            rows.add(uri, root, place[1], stamp, place[0], max(place[1], 0), problem)
            if rows.is_full:
                yield take()
        if rows:
            yield take()

    def _value(self, view: View, layout: _Layout, name: str, offset: int, size: int) -> Any:
        if size > _LONGEST_VALUE:
            raise _Malformed(
                f"the column {name!r} has {size:,} bytes, more than {_LONGEST_VALUE:,}"
            )
        return layout.decode(name, view.read_at(size, offset))

    def _image(self, layout: _Layout, options: ListingOptions, masks: Collection[str]) -> str:
        """The column of the images, which is not one of the masks."""
        named = options.uri_column
        kinds = dict(zip(layout.names, layout.encodings, strict=True))
        kinds = {name: kind for name, kind in kinds.items() if name not in masks}
        images = [name for name, kind in kinds.items() if kind in _IMAGES]
        images = images or [name for name, kind in kinds.items() if kind == "bytes"]
        if kinds.get(named) in (*_IMAGES, "bytes"):
            return named
        shown = enumerated(f"{name} ({kind})" for name, kind in kinds.items())
        if named not in ("uri", ""):
            raise BuildError(f"{self.uri}: no images in {named!r}; its columns are: {shown}")
        if len(images) != 1:
            raise BuildError(
                f"{self.uri}: {len(images) or 'no'} columns have images (encoded as jpeg, png or "
                f"bytes): --uri_column selects one; its columns are: {shown}"
            )
        return images[0]

    def _check_encodings(self, layout: _Layout, wanted: Collection[str]) -> None:
        for name, encoding in zip(layout.names, layout.encodings, strict=True):
            if name in wanted and encoding not in (*_NUMBERS, *_DECODERS):
                raise BuildError(
                    f"{self.uri}: the column {name!r} is encoded as {encoding!r}, which is not read"
                )


def _header(view: View) -> tuple[_Layout, list[int]]:
    """The columns, and the offsets of the samples and of the end.

    Raises:
      _Malformed: it is no header.
    """
    count = int.from_bytes(view.read_at(_WORD, 0), "little")
    table = _WORD * (count + 2)
    if not table <= min(view.size, _LONGEST_HEADER):
        raise _Malformed(f"{view.size:,} bytes are too few for {count:,} samples")
    offsets = np.frombuffer(view.read_at(table - _WORD, _WORD), "<u4").astype(np.int64)
    if (np.diff(offsets) < 0).any() or not table <= offsets[0] <= offsets[-1]:
        raise _Malformed("its offsets do not increase")
    if offsets[-1] > view.size:
        raise _Malformed(f"cut off: {view.size:,} of {offsets[-1]:,} bytes")
    try:
        config = json.loads(view.read_at(int(offsets[0]) - table, table))
        layout = _Layout(
            tuple(config["column_names"]),
            tuple(config["column_encodings"]),
            tuple(config["column_sizes"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _Malformed(f"its columns cannot be read: {error}") from error
    return layout, offsets.tolist()
