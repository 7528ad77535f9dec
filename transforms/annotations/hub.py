"""Objects in columns of Parquet files with images, as detection data sets of the Hub have them.

A column, usually named `objects`, has lists of boxes and of classes:
https://huggingface.co/docs/datasets/object_detection.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa

from imageshards.transforms import storage
from imageshards.transforms.annotations.files import Malformed, number, size_of
from imageshards.transforms.annotations.source import Annotated, AnnotationSource, Category
from imageshards.transforms.elements import BuildError, UsageError, quoted
from imageshards.transforms.records.objects import CROWD, TEXT
from imageshards.transforms.records.schemas import AREA, BOX_SIDES
from imageshards.transforms.storage.protocol import Match

_SUFFIX = ".parquet"
_BOXES = ("bbox", "bboxes", "boxes")
_CLASSES = ("category", "categories", "label", "labels", "class", "classes", "category_id")
_CROWD = ("is_crowd", "iscrowd")
_BATCH_ROWS = 1000
_SAMPLE = 2000
"""Boxes that are read to detect whether their last two numbers are a corner or a size."""
_ENOUGH = 20
"""Fewer boxes do not show that they are corners."""


@dataclass(frozen=True)
class HubSizes(AnnotationSource):
    """Parquet files with a column of objects, whose boxes are [x, y, width, height] in pixels."""

    name = "hub_xywh"
    noun = "a Parquet file with a column of objects"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether the first Parquet file has a column of objects."""
        files = _files(uri)
        return bool(files) and _Columns.of(files[0]) is not None

    @classmethod
    def is_meant(cls, uri: str) -> bool:
        """Returns whether the boxes are of this kind.

        Raises:
          UsageError: they may be of either kind.
        """
        source = HubSizes(uri)
        boxes = [*islice((box for file in source.files for box in source.boxes(file)), _SAMPLE)]
        inverted = sum(box[2] < box[0] or box[3] < box[1] for box in boxes)
        if not inverted and len(boxes) < _ENOUGH:
            raise UsageError(
                f"--annotations {uri}: its boxes may be [x, y, width, height] or corners: write "
                f"--annotation_format {HubSizes.name} or {HubCorners.name}"
            )
        return (cls is HubSizes) == bool(inverted)

    @cached_property
    def files(self) -> list[str]:
        """The URIs of the files."""
        return _files(self.uri)

    @property
    def folder(self) -> str:
        """The folder of the files, with a slash at its end."""
        return (self.uri if self.uri not in self.files else self.uri.rpartition("/")[0]) + "/"

    def num_bytes(self) -> int:
        """Returns 0: the files have the images, too."""
        return 0

    def parts(self) -> Iterator[tuple[str, ...]]:
        """Yields each file."""
        return ((file,) for file in self.files)

    def files_in(self) -> Iterator[Match]:
        """Yields the files."""
        for file in self.files:
            yield file, *storage.stat(file)

    def read(self, files: Sequence[str]) -> Iterator[Annotated | Category]:
        """Yields the objects of each row, and the classes."""
        for file in files:
            columns = _Columns.of(file)
            if columns is None:
                raise BuildError(f"--annotations {file}: no column of objects, as other files have")
            names = dict.fromkeys(columns.names)
            for row, values in enumerate(_rows(file, columns.needed(self.name_key))):
                found = self._annotated(file, row, values, columns)
                names |= dict.fromkeys(text.decode() for text in found.values.get(TEXT, ()))
                yield found
            orders = range(len(names)) if columns.names else [0] * len(names)
            yield from map(Category, orders, names)

    def boxes(self, file: str) -> Iterator[Sequence[float]]:
        """Yields the boxes of a file that are four numbers."""
        columns = _Columns.of(file)
        if columns is None:
            return
        for values in _rows(file, [columns.objects]):
            for item in columns.items(values):
                box = item.get(columns.boxes)
                if isinstance(box, list) and len(box) == 4 and None not in box:
                    yield box

    def _annotated(
        self, file: str, row: int, values: Mapping[str, Any], columns: _Columns
    ) -> Annotated:
        name = f"{file.removeprefix(self.folder)}/{row}"
        if self.name_key:
            column, _, inner = self.name_key.partition(".")
            value = values.get(column)
            value = value.get(inner) if inner and isinstance(value, dict) else value
            name = str(value) if value is not None else name
        items = columns.items(values)
        try:
            found = [self._object(item, columns) for item in items]
            size = size_of(values.get("width"), values.get("height"))
        except Malformed as error:
            return Annotated(name, row, len(items), {}, (0, 0), f"{file}: row {row + 1}: {error}")
        keys = (*BOX_SIDES, TEXT, CROWD, AREA)
        lists = zip(*found, strict=True) if found else ((),) * len(keys)
        return Annotated(
            name, row, len(items), dict(zip(keys, map(list, lists), strict=True)), size
        )

    def _object(self, item: Mapping[str, Any], columns: _Columns) -> tuple[Any, ...]:
        box = item.get(columns.boxes)
        if not isinstance(box, list) or len(box) != 4:
            raise Malformed(f"its {columns.boxes} is {quoted(box)}, not four numbers")
        sides = self._sides(*(number(side, columns.boxes) for side in box))
        area = item.get("area")
        if area is None:
            area = (sides[2] - sides[0]) * (sides[3] - sides[1])
        crowd = next((item[key] for key in _CROWD if item.get(key) is not None), 0)
        text = columns.class_of(item).encode()
        return (*sides, text, int(number(crowd, "is_crowd")), number(area, "area"))

    def _sides(self, x: float, y: float, c: float, d: float) -> tuple[float, float, float, float]:
        return x, y, x + c, y + d


@dataclass(frozen=True)
class HubCorners(HubSizes):
    """The same, whose boxes are [xmin, ymin, xmax, ymax] in pixels."""

    name = "hub_xyxy"
    noun = "a Parquet file with a column of objects that have corners"

    def _sides(self, x: float, y: float, c: float, d: float) -> tuple[float, float, float, float]:
        return x, y, c, d


@dataclass(frozen=True)
class _Columns:
    """Where the objects of a file are.

    Attributes:
      header: the columns of the file.
      objects: the column of the objects.
      boxes: the field of their boxes.
      classes: the field of their classes; empty: they have none.
      names: the names of the numbers of the classes; empty: the classes are texts.
    """

    header: tuple[str, ...]
    objects: str
    boxes: str
    classes: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, uri: str) -> _Columns | None:
        """Returns the columns of a file; None if it has no objects."""
        from pyarrow import parquet

        with _opened(uri) as file:
            schema = parquet.read_schema(file)
        for field in schema:
            fields = _fields(field.type)
            boxes = next((name for name in _BOXES if name in fields), "")
            if boxes:
                classes = next((name for name in _CLASSES if name in fields), "")
                names = _class_names(schema, field.name, classes)
                return cls(tuple(schema.names), field.name, boxes, classes, names)
        return None

    def needed(self, name_key: str) -> list[str]:
        """Returns the columns to read."""
        wanted = {self.objects, "width", "height", name_key, name_key.partition(".")[0]}
        if "." in name_key:  # `image.path`, without the bytes of the image
            wanted.remove(name_key.partition(".")[0])
        return [name for name in (*self.header, name_key) if name in wanted and name]

    def items(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns the objects of a row, which has a struct of lists or a list of structs."""
        found = values.get(self.objects) or []
        if isinstance(found, list):
            return [item or {} for item in found]
        lists = {name: value for name, value in found.items() if isinstance(value, list)}
        count = len(lists.get(self.boxes) or ())
        return [
            {name: value[at] for name, value in lists.items() if len(value) == count}
            for at in range(count)
        ]

    def class_of(self, item: Mapping[str, Any]) -> str:
        """Returns the class of an object.

        Raises:
          Malformed: it has none.
        """
        if not self.classes:
            return "object"
        value = item.get(self.classes)
        if isinstance(value, int) and self.names:
            if not 0 <= value < len(self.names):
                raise Malformed(f"its {self.classes} is {value}, which has no name")
            return self.names[value]
        if value is None or not str(value).strip():
            raise Malformed(f"a box has no {self.classes}")
        return str(value).strip()


def _fields(kind: pa.DataType) -> set[str]:
    """Returns the fields of a struct of lists or of a list of structs; else an empty set."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return (
        {kind.field(at).name for at in range(kind.num_fields)}
        if pa.types.is_struct(kind)
        else set()
    )


def _class_names(schema: pa.Schema, objects: str, classes: str) -> tuple[str, ...]:
    """Returns the names of the ClassLabel of the objects in the schema of `datasets`."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = features[objects]
        found = found.get("feature", found)[classes]
        return tuple(map(str, found.get("feature", found)["names"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def _rows(uri: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet

    with _opened(uri) as file:
        table = parquet.ParquetFile(file, pre_buffer=True)
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()


def _files(uri: str) -> list[str]:
    """Returns the Parquet files in a folder, or the one that a URI names."""
    if uri.lower().endswith(_SUFFIX):
        return [uri]
    found = storage.match(storage.join(glob.escape(uri.rstrip("/")), "**", f"*{_SUFFIX}"))
    return sorted(file for file, *_ in found)


@contextmanager
def _opened(uri: str) -> Iterator[Any]:
    try:
        with storage.open_read(uri) as file:
            yield file
    except pa.ArrowException as error:
        raise BuildError(f"--annotations {uri} is not a Parquet file: {error}") from error
