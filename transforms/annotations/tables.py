"""CSV files with a row for each box, as Open Images and Kaggle have them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import IO, Any

from imageshards.transforms.annotations.files import Malformed, Objects, number, size_of
from imageshards.transforms.annotations.objects import Corners
from imageshards.transforms.annotations.source import (
    Annotated,
    AnnotationSource,
    Category,
    has_suffix,
    opened,
)
from imageshards.transforms.elements import BuildError, UsageError, check_unique, quoted
from imageshards.transforms.records.objects import DEPICTION, GROUP, OCCLUDED, TEXT, TRUNCATED

_IMAGES = (
    "imageid", "image_id", "filename", "file_name", "image", "image_name", "image_path", "path",
    "file", "img", "uri", "name",
)  # fmt: skip
_LABELS = ("labelname", "label_name", "label", "class", "class_name", "category", "category_name")
_CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"),
    ("x1", "y1", "x2", "y2"), ("left", "top", "right", "bottom"),
)  # fmt: skip
_CORNER_AND_SIZE = (
    ("x", "y", "w", "h"), ("left", "top", "width", "height"), ("x", "y", "width", "height"),
    ("bbox_x", "bbox_y", "bbox_width", "bbox_height"),
)  # fmt: skip
_FLAGS = {
    "isoccluded": OCCLUDED, "istruncated": TRUNCATED, "isgroupof": GROUP, "isdepiction": DEPICTION,
}  # fmt: skip
_MORE = "\0"
"""The key of the values of a row that are more than the header has."""
_TABS = ".tsv"
_NO_CLASS = "object"
_SAMPLE = 1000
_LARGEST_FRACTION = 1.5
_THOUSAND = 1000
"""Pixels of a side that fractions are taken for, to compare them with the image."""


class BoxTable(AnnotationSource):
    """A CSV or TSV file with columns of an image, a class, and the sides of a box.

    The names of the columns say what they are: see `_IMAGES` and those below it. If none of the
    first thousand rows has a side that is larger than 1.5, sides are fractions, else pixels.
    """

    name = "csv"
    noun = "a CSV file with a row for each box"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether it is a CSV or TSV file.

        Raises:
          UsageError: it has no columns of images and of boxes.
        """
        if not has_suffix(uri, ".csv", _TABS):
            return False
        with _opened(uri) as file:
            header = next(csv.reader(file, delimiter=_delimiter(uri)), [])
        if (columns := _Columns.of(header)) is None:
            if "annotation_id" in header and "label" in header:
                raise UsageError(
                    f"--annotations {uri} is a CSV file of Label Studio, with boxes in JSON: "
                    "export its project as COCO, YOLO or Pascal VOC"
                )
            raise UsageError(
                f"--annotations {uri}: no columns of an image and of a box, such as image_id, "
                f"xmin, ymin, xmax and ymax, in its header {quoted(','.join(header))}"
            )
        try:
            check_unique(f"--annotations {uri}", header, columns.names)
        except BuildError as error:
            raise UsageError(str(error)) from error
        return True

    def read(self, files: Sequence[str]) -> Iterator[Annotated | Category]:
        """Yields the boxes of consecutive rows of an image, and the classes that they use."""
        with _opened(self.uri) as file:
            rows = csv.DictReader(file, restkey=_MORE, delimiter=_delimiter(self.uri))
            columns = _Columns.of(rows.fieldnames or ())
            if columns is None:
                raise BuildError(f"--annotations {self.uri}: no columns of an image and of a box")
            sample = list(islice(rows, _SAMPLE))
            fractions = all(map(columns.may_be_fractions, sample))
            names: dict[bytes, None] = {}
            held: list[Mapping[str, str]] = []
            corners = Corners()
            line = 1
            for line, row in enumerate(chain(sample, rows), 2):
                if held and row[columns.image] != held[0][columns.image]:
                    found = self._annotated(held, line, columns, fractions, corners)
                    names |= dict.fromkeys(found.values.get(TEXT, ()))
                    yield found
                    held = []
                held.append(row)
            if held:
                found = self._annotated(held, line + 1, columns, fractions, corners)
                names |= dict.fromkeys(found.values.get(TEXT, ()))
                yield found
            corners.check(self.uri)
            yield from (Category(0, name.decode()) for name in names)

    def _annotated(
        self,
        rows: Sequence[Mapping[str, str]],
        end: int,
        columns: _Columns,
        fractions: bool,
        corners: Corners,
    ) -> Annotated:
        """Returns the boxes of an image, in rows of which the last one is before the line `end`."""
        name, place = rows[0][columns.image] or "", end - len(rows)
        objects = Objects(*columns.flags.values())
        size: tuple[int, int] | None = None
        try:
            if not fractions:
                size = size_of(*(rows[0][key] for key in columns.size)) if columns.size else (0, 0)
            for row in rows:
                if any(row.get(_MORE, ())) or None in row.values():
                    raise Malformed("it has not as many values as the header")
                box = columns.box(row)
                if box is None:  # Kaggle's rows of images without objects
                    continue
                text = columns.text(row)
                if not text:
                    raise Malformed("a box has no class")
                objects.add(text, box, *map(_flag, (row[key] for key in columns.flags)))
                if not columns.are_corners:
                    _add(corners, box, size)
        except Malformed as error:
            reason = f"{self.uri}: a row from line {place}: {error}"
            return Annotated(name, place, len(rows), {}, None, reason)
        return objects.annotated(name, size, place)


class _Columns:
    """The names of the columns that are used."""

    def __init__(self, image: str, label: str, sides: Sequence[str], header: Mapping[str, str]):
        self.image = image
        self._label = label
        self._sides = sides
        self.are_corners = tuple(side.lower() for side in sides) in _CORNERS
        self.size = (
            (header["width"], header["height"])
            if header.keys() >= {"width", "height"} and header["width"] not in sides
            else ()
        )
        self.flags = {header[name]: key for name, key in _FLAGS.items() if name in header}
        self.names = (image, *filter(None, [label]), *sides, *self.size, *self.flags)

    @classmethod
    def of(cls, names: Sequence[str]) -> _Columns | None:
        """Returns the columns of a header; None if it has no image or no box."""
        header = {name.strip().lower(): name for name in names}
        image = next((header[name] for name in _IMAGES if name in header), None)
        label = next((header[name] for name in _LABELS if name in header), "")
        sides = next(
            (
                [header[side] for side in found]
                for found in (*_CORNERS, *_CORNER_AND_SIZE, ("bbox",))
                if header.keys() >= set(found)
            ),
            None,
        )
        return cls(image, label, sides, header) if image and sides else None

    def text(self, row: Mapping[str, str]) -> str:
        """Returns the class of a row."""
        return (row[self._label] or "").strip() if self._label else _NO_CLASS

    def box(self, row: Mapping[str, str]) -> Sequence[float] | None:
        """Returns xmin, ymin, xmax and ymax; None if the row has no values."""
        values: Sequence[Any] = [row[side] for side in self._sides]
        if not any(values):
            return None
        if len(values) == 1:  # Kaggle's "[x, y, width, height]"
            try:
                values = json.loads(values[0])
            except ValueError:
                values = ()
            if not isinstance(values, list) or len(values) != 4:
                raise Malformed(f"its {self._sides[0]} is not [x, y, width, height]")
        a, b, c, d = (number(value, "box") for value in values)
        return (a, b, c, d) if self.are_corners else (a, b, a + c, b + d)

    def may_be_fractions(self, row: Mapping[str, str]) -> bool:
        """Whether no side of a row is larger than fractions are."""
        try:
            return max(self.box(row) or (0,)) <= _LARGEST_FRACTION
        except Malformed:
            return True


def _delimiter(uri: str) -> str:
    return "\t" if has_suffix(uri, _TABS) else ","


@contextmanager
def _opened(uri: str) -> Iterator[IO[str]]:
    try:
        with opened(uri) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            yield text
    except (csv.Error, UnicodeDecodeError) as error:
        raise BuildError(f"--annotations {uri} is not a CSV file in UTF-8: {error}") from error


def _add(corners: Corners, box: Sequence[float], size: tuple[int, int] | None) -> None:
    """Adds a box that has been computed from a width and a height."""
    left, top, right, bottom = box if size else (_THOUSAND * side for side in box)
    corners.add([left, top, right - left, bottom - top], size or (_THOUSAND, _THOUSAND))


def _flag(value: str) -> int:
    """Returns a flag of Open Images: 0, 1, or -1 for unknown."""
    return int(number(value or -1, "flag"))
