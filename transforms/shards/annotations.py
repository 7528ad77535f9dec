"""Keeps boxes and other annotations of an image true to the pixels that are written. Pure.

The keys are those of the TF Object Detection API. Boxes (`image/object/bbox/{xmin,ymin,xmax,ymax}`)
and keypoints (`image/object/keypoint/{x,y}`) are fractions of the image's width and height; they
are mapped. Other lists below `image/object/` with one value per box, such as
`image/object/class/label`, lose the values of the boxes that are dropped. An image with annotations
that cannot be mapped, such as masks, is rejected if its pixels move.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from imageshards.transforms.annotations.objects import AnnotationError, has_objects
from imageshards.transforms.elements import counted
from imageshards.transforms.images.geometry import Frame, Geometry
from imageshards.transforms.images.headers import UPRIGHT
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.records.objects import FACTS, SEGMENTATION
from imageshards.transforms.records.schemas import (
    AREA,
    BOX_SIDES,
    COLUMN,
    KEYPOINT,
    OBJECT,
    Value,
)

BOXES, CLIPPED, DROPPED, KEYPOINTS_DROPPED = "boxes", "clipped", "dropped", "keypoints_dropped"
"""What is counted: boxes written; those of them that an edge of the image cuts off; boxes that are
not written because too little of them is in the image; keypoints that are outside of it."""
WITHOUT_BOXES = "without_boxes"
"""Counted with annotation files: images that are written without a box."""
OUTSIDE = "outside"
"""Counted with annotation files: boxes that exceed their image by more than a pixel."""
ORIENTED = "oriented"
"""Counted with annotation files: images with an EXIF orientation whose size in the file, if it has
one, does not show whether boxes refer to the stored or to the upright pixels."""

_X, _Y, _VISIBILITY, _NUM = (KEYPOINT + name for name in ("x", "y", "visibility", "num"))
_MAPPED = frozenset({*BOX_SIDES, AREA, _X, _Y})
_SHAPES = frozenset((
    "bbox", "bboxes", "bndbox", "boxes", "contour", "contours", "densepose", "depth", "keypoint",
    "keypoints", "labelmap", "landmarks", "mask", "masks", "matte", "parsing", "polygon",
    "polygons", "rle", "segmentation", "segmentations", "segments", "trimap",
))  # fmt: skip
_WORD_END = re.compile(r"[/_.\-]")
_OTHER_SIDES = re.compile(r"c?[xywh]|center.*|width|height")
_POSITION = re.compile(
    r"(?:.*[/_.\-])?c?(?P<axis>[xy])_?(?P<end>min|max|[0-3]?)"
    r"|(?:.*/)?(?P<side>left|top|right|bottom)"
)
"""Keys of positions, in lower case. "left" is part of other names, so it must be a whole one."""
_SIDES = {"left": "xmin", "top": "ymin", "right": "xmax", "bottom": "ymax"}

_FARTHEST = 1.0
"""A box that exceeds the image by more than the image's size is not given in fractions."""
_ROUNDING = 1e-6
"""A box of which a smaller fraction is cut off is not counted as clipped."""

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Annotations:
    """How the annotations of a build are mapped.

    Attributes:
      columns: the features that come from columns or TFRecord inputs.
      frame: the pixels that the annotations refer to.
      min_visible: a box is dropped if a smaller fraction of its area is in the written image.
      without_boxes: whether an image is kept or rejected if all its boxes are dropped.
      estimates_areas: whether an object that an edge cuts off gets the same fraction of its area as
        of its box. Otherwise its image is rejected.
    """

    columns: tuple[FeatureColumn, ...]
    frame: Frame = "stored"
    min_visible: float = 0.1
    without_boxes: Literal["keep", "reject"] = "keep"
    estimates_areas: bool = False

    @property
    def are_needed(self) -> bool:
        """Whether any column is an annotation, so that `follow` has to be called."""
        return bool(self._keys & _MAPPED or self._shapes)

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(column.key for column in self.columns)

    @cached_property
    def _has_boxes(self) -> bool:
        return self._keys >= set(BOX_SIDES)

    @cached_property
    def _has_keypoints(self) -> bool:
        return self._keys >= {_X, _Y, _VISIBILITY}

    @cached_property
    def _shapes(self) -> dict[str, str]:
        """Keys that are true only while every pixel stays where it is, and how to map them."""
        areas = set() if self._has_boxes else {AREA}
        shapes = (c for c in self.columns if c.key in areas or is_shape(c))
        return {column.key: _advice(column) for column in sorted(shapes, key=lambda c: c.key)}

    @cached_property
    def _incomplete(self) -> dict[str, str]:
        """Keys of fractions that cannot be mapped, and how to map them."""
        return {
            key: f"add {missing[0]}"
            for keys in (BOX_SIDES, (_X, _Y, _VISIBILITY))
            if (missing := [key for key in keys if key not in self._keys])
            for key in keys
            if key in self._keys & _MAPPED
        }

    @cached_property
    def _of_boxes(self) -> tuple[FeatureColumn, ...]:
        """The features with values for each box, except for its sides."""
        return tuple(
            column
            for column in self.columns
            if column.key.startswith(OBJECT) and column.key not in BOX_SIDES
        )

    def follow(self, values: dict[str, Value], geometry: Geometry) -> dict[str, int]:
        """Replaces annotations of the file's pixels with those of the written pixels.

        Args:
          values: source of a feature -> value; changed in place. A list is replaced, not changed.
          geometry: where the pixels of the file are in the written image.

        Returns:
          Kind -> count, without zeros; see `BOXES`.

        Raises:
          AnnotationError: the boxes are invalid, or an annotation cannot be mapped.
        """
        row = _Row(values, geometry, self.frame)
        if self._shapes and not geometry.keeps_pixels(self.frame):
            for key, advice in self._shapes.items():
                if row.list_of(key):
                    raise row.unmappable(key, advice)
        if self._incomplete and not geometry.keeps_fractions(self.frame):
            for key, advice in self._incomplete.items():
                if row.list_of(key):
                    raise row.unmappable(key, advice)
        counts = self._follow_boxes(row) if self._has_boxes else {}
        if self._has_keypoints:
            counts[KEYPOINTS_DROPPED] = row.map_keypoints()
        if has_objects(values) and not counts.get(BOXES):
            counts[WITHOUT_BOXES] = 1
        if has_objects(values) and counts.get(BOXES) and _may_be_of_other_pixels(values, geometry):
            counts[ORIENTED] = 1
        return {kind: count for kind, count in counts.items() if count}

    def _follow_boxes(self, row: _Row) -> dict[str, int]:
        sides = row.sides()
        number = len(sides[0])
        if not number or (row.geometry.keeps_fractions(self.frame) and _are_fractions(*sides)):
            row.map_areas(number)
            return {BOXES: number}
        boxes = np.array(sides, np.float64)
        _check(boxes, row.geometry.size(self.frame), has_objects(row.values))
        outside = _exceed(boxes, row.geometry.size(self.frame)) if has_objects(row.values) else 0
        inside = boxes.clip(0, 1)
        mapped = row.geometry.boxes(inside, self.frame)
        placed = mapped.clip(0, 1)
        visible = _share(boxes, inside) * _share(mapped, placed)
        kept = (visible > 0) & (visible >= self.min_visible - _ROUNDING)
        clipped = visible[kept] < 1 - _ROUNDING
        if number and not kept.any() and self.without_boxes == "reject":
            raise AnnotationError(
                "NoBoxes",
                f"none of its {counted(number, 'box')} has {self.min_visible:g} of its area in the "
                "written image: set --without_boxes keep to write the image without boxes",
            )
        if not kept.all():
            self._drop(row, kept)
        for key, side in zip(BOX_SIDES, placed[:, kept], strict=True):
            row.set(key, side)
        if self.estimates_areas:
            row.scale_areas(visible[kept])
        else:
            row.map_areas(len(clipped), bool(clipped.any()))
        return {
            BOXES: len(clipped),
            CLIPPED: int(clipped.sum()),
            DROPPED: number - len(clipped),
            OUTSIDE: outside,
        }

    def _drop(self, row: _Row, kept: npt.NDArray[np.bool_]) -> None:
        """Removes the values of dropped boxes: one for each box, or one for each keypoint of it."""
        keypoints = len(row.list_of(_X))
        for column in self._of_boxes:
            values = row.list_of(column.key)
            if not values:
                continue
            is_keypoint = column.key.startswith(KEYPOINT) and len(values) == keypoints
            per_box = keypoints // len(kept) if is_keypoint else 1
            if not column.is_list or len(values) != per_box * len(kept):
                raise AnnotationError(
                    "Unmappable",
                    f"{column.key} has {counted(len(values), 'value')} for "
                    f"{counted(len(kept), 'box')}, of which {len(kept) - int(kept.sum()):,} cannot "
                    "be written: give each box one value, or omit it from --features_from",
                )
            chosen = kept.repeat(per_box).tolist()
            row.values[COLUMN + column.key] = list(compress(values, chosen))


def is_shape(column: FeatureColumn) -> bool:
    """Returns whether the key of a column names a shape in the image that is not mapped."""
    key = column.key
    if key in _MAPPED or column.column == SEGMENTATION:
        return False
    if not key.startswith(KEYPOINT) and _POSITION.fullmatch(key.lower()):
        return True
    if not (column.is_list or column.type == "bytes"):
        return False  # a single number is no shape
    rest = key.removeprefix(f"{OBJECT}bbox/")
    if rest != key:
        return _OTHER_SIDES.fullmatch(rest) is not None
    if key.startswith(KEYPOINT):
        return False
    words = _WORD_END.split(key.lower())
    if "landmark" in words and column.kind != "bytes":
        return True  # a text is a landmark's name, such as a building's
    return not _SHAPES.isdisjoint(words) or ("label", "map") in pairwise(words)


def _advice(column: FeatureColumn) -> str:
    """Returns how to have a position mapped that has another key; empty for other shapes."""
    found = _POSITION.fullmatch(column.key.lower())
    if not found or column.key.startswith(OBJECT):
        return ""
    axis, end, side = found.groups()
    if not end and not side:
        return f"write {KEYPOINT}{axis}={column.column}:float_list"
    if side or end in ("min", "max"):
        return f"write {OBJECT}bbox/{_SIDES.get(side) or axis + end}={column.column}:float_list"
    return f"give it the key of a side, as in {OBJECT}bbox/{axis}min={column.column}:float_list"


@dataclass(frozen=True)
class _Row:
    """The values of one record, and where its pixels are."""

    values: dict[str, Value]
    geometry: Geometry
    frame: Frame

    def list_of(self, key: str) -> Sequence[Any]:
        """Returns the values of a feature: one for a single value, none if that is missing."""
        value = self.values.get(COLUMN + key, b"")
        if isinstance(value, (list, tuple)):
            return value
        return () if value == b"" else (value,)

    def set(self, key: str, values: npt.NDArray[Any]) -> None:
        """Replaces the values of a feature."""
        self.values[COLUMN + key] = values.tolist()

    def sides(self) -> list[Sequence[float]]:
        """Returns xmin, ymin, xmax and ymax of all boxes."""
        sides = [self.list_of(key) for key in BOX_SIDES]
        for key, side in zip(BOX_SIDES, sides, strict=True):
            if len(side) != len(sides[0]):
                raise AnnotationError(
                    "BadBox",
                    f"{counted(len(sides[0]), 'value')} of {BOX_SIDES[0]}, but {len(side):,} of "
                    f"{key}: give each box one value of each side",
                )
        return sides

    def unmappable(self, key: str, mapped: str = "") -> AnnotationError:
        """Returns the error of a feature that cannot follow the pixels.

        Args:
          key: of the feature.
          mapped: what to do to have it mapped; empty if it cannot be.
        """
        causes, remedies = [], []
        if self.geometry.turn(self.frame) != UPRIGHT:
            causes.append("rotated")
            remedies.append(f"set --exif {'keep' if self.frame == 'stored' else 'bake'}")
        if self.geometry.scaled != self.geometry.final:
            causes.append("cropped or padded")
        elif self.geometry.area_scale != 1:
            causes.append("scaled")
        if causes[-1:] != ["rotated"]:
            remedies.append("omit --resize")
        advice = ["omit it from --features_from", " and ".join(remedies)]
        if mapped:
            advice.insert(0, mapped)
        return AnnotationError(
            "Unmappable",
            f"{key} cannot be mapped to the written image, which is {' and '.join(causes)}: "
            f"{', or '.join(advice)}",
        )

    def map_areas(self, boxes: int, clipped: bool = False) -> None:
        """Maps the areas of objects, in pixels of the image.

        Args:
          boxes: the number of boxes that are written.
          clipped: whether some of them are cut off by an edge of the image. The part of an object's
            area within such a box is unknown.
        """
        areas = self.list_of(AREA)
        if not areas:
            return
        cut = clipped and not self.geometry.keeps_pixels(self.frame)
        if self.geometry.area_scale == 1 and not cut:
            return
        if cut or len(areas) != boxes:
            raise self.unmappable(AREA)
        self.set(AREA, np.array(areas) * self.geometry.area_scale)

    def scale_areas(self, visible: _Floats) -> None:
        """Maps the areas of objects, of whose boxes these fractions are in the written image."""
        if areas := self.list_of(AREA):
            self.set(AREA, np.array(areas) * visible * self.geometry.area_scale)

    def map_keypoints(self) -> int:
        """Maps the keypoints of the written boxes.

        Returns:
          The number of visible keypoints that are outside of the written image. Like others that
          are not visible, they get x, y and visibility 0.
        """
        if self.geometry.keeps_fractions(self.frame):
            return 0
        lists = [self.list_of(key) for key in (_X, _Y, _VISIBILITY)]
        if len(set(map(len, lists))) > 1:
            numbers = ", ".join(f"{len(values):,}" for values in lists)
            raise AnnotationError(
                "BadBox",
                f"{numbers} values of {_X}, y and visibility: give each keypoint one value of each",
            )
        x, y, visibility = map(np.array, lists)
        seen = visibility > 0
        if (wrong := seen & (_no_fractions(x) | _no_fractions(y))).any():
            number = int(wrong.argmax())
            width, height = self.geometry.size(self.frame)
            raise AnnotationError(
                "BadBox",
                f"keypoint {number} is at {x[number]:g}, {y[number]:g}: write fractions of the "
                f"image from 0 to 1, that is, pixels divided by {width} x {height}",
            )
        moved = np.stack(self.geometry.points(x, y, self.frame))
        inside_x, inside_y = (moved >= -_ROUNDING) & (moved <= 1 + _ROUNDING)
        inside = inside_x & inside_y
        for key, fractions in zip((_X, _Y), moved.clip(0, 1), strict=True):
            self.set(key, np.where(seen & inside, fractions, 0))
        lost = seen & ~inside
        if lost.any():
            self.set(_VISIBILITY, np.where(lost, 0, visibility))
            self._count_keypoints(seen, inside)
        return int(lost.sum())

    def _count_keypoints(self, seen: npt.NDArray[np.bool_], inside: npt.NDArray[np.bool_]) -> None:
        """Updates the number of visible keypoints of each box, if the record has it."""
        numbers = self.list_of(_NUM)
        if not numbers or len(seen) % len(numbers):
            return
        rows = (len(numbers), -1)
        if list(numbers) == seen.reshape(rows).sum(axis=1).tolist():
            self.set(_NUM, (seen & inside).reshape(rows).sum(axis=1))


def _are_fractions(
    xmin: Sequence[float], ymin: Sequence[float], xmax: Sequence[float], ymax: Sequence[float]
) -> bool:
    """Whether all boxes are in the image, with sides in the right order; NaN is not."""
    # For a few boxes, this is many times faster than an array.
    return all(0 <= low <= high <= 1 for low, high in zip(xmin, xmax, strict=True)) and all(
        0 <= low <= high <= 1 for low, high in zip(ymin, ymax, strict=True)
    )


def _may_be_of_other_pixels(values: Mapping[str, Value], geometry: Geometry) -> bool:
    """Whether annotations may refer to pixels of another EXIF orientation than was assumed."""
    if geometry.turn("stored") == geometry.turn("upright"):
        return False
    facts: Any = values[FACTS]
    is_known = len(facts) == 3 and all(facts[1:])
    return not is_known or geometry.size("stored") == geometry.size("upright")


def _exceed(boxes: _Floats, size: tuple[int, int]) -> int:
    """Returns the number of boxes that exceed their image by more than a pixel."""
    pixel = np.array([*size, *size])[:, None] ** -1.0
    return int(((boxes < -pixel) | (boxes > 1 + pixel)).any(axis=0).sum())


def _check(boxes: _Floats, size: tuple[int, int], are_of_file: bool) -> None:
    """Raises an AnnotationError for boxes that no image can have.

    Args:
      boxes: of the shape (4, number of boxes).
      size: (width, height) of the image that they refer to.
      are_of_file: whether they are from an annotation file, not from columns.
    """
    if (wrong := _no_fractions(boxes)).any():
        side, box = _first(wrong)
        value = boxes[side, box]
        if are_of_file:
            length = f"{'height' if side % 2 else 'width'} of {size[side % 2]} pixels"
            raise AnnotationError(
                "BadBox",
                f"box {box} of its annotations is far outside of the image, {_name(side)} is "
                f"{value:.4g} times the {length}: check the unit and the order of the sides",
            )
        advice = (
            f"write fractions of the image from 0 to 1, that is, pixels divided by {size[0]} x "
            f"{size[1]}"
            if np.isfinite(value)
            else "write a number"
        )
        raise AnnotationError("BadBox", f"{BOX_SIDES[side]} of box {box} is {value:g}: {advice}")
    if (swapped := boxes[:2] > boxes[2:]).any():
        side, box = _first(swapped)
        remedy = "correct the annotation file" if are_of_file else ""
        raise AnnotationError(
            "BadBox",
            f"box {box} has {_name(side)} {boxes[side, box]:g}, which is more than its "
            f"{_name(side + 2)} {boxes[side + 2, box]:g}: "
            f"{remedy or 'check which columns --features_from names'}",
        )


def _name(side: int) -> str:
    return BOX_SIDES[side].rpartition("/")[2]


def _no_fractions(values: _Floats) -> npt.NDArray[np.bool_]:
    """Returns which values cannot be fractions of an image, even if annotations exceed it."""
    return ~np.isfinite(values) | (values < -_FARTHEST) | (values > 1 + _FARTHEST)


def _first(wrong: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Returns (side, number) of the first box with a wrong side."""
    box, side = np.argwhere(wrong.T)[0].tolist()
    return side, box


def _share(before: _Floats, after: _Floats) -> _Floats:
    """Returns the fraction of each box's area that remains; a line or point remains or not."""
    length = before[2:] - before[:2]
    remains = after[2:] - after[:2]
    is_line = length <= 0
    share: _Floats = np.where(
        is_line, before[:2] == after[:2], remains / np.where(is_line, 1, length)
    ).prod(axis=0)
    return share


def box_problem(values: Mapping[str, Sequence[Any]]) -> str:
    """Returns what is wrong with the boxes of a record; empty if they are valid.

    Args:
      values: key -> values of a record that has all of `BOX_SIDES`.

    >>> box_problem({key: [0.5, value] for key, value in zip(BOX_SIDES, (0.1, 0.2, 1.5, 0.4))})
    'its box 1 is not within the image: 0.1 0.2 1.5 0.4'
    """
    sides = [values[key] for key in BOX_SIDES]
    if len(set(map(len, sides))) > 1:
        return "its boxes have different numbers of sides"
    for number, (xmin, ymin, xmax, ymax) in enumerate(zip(*sides, strict=True)):
        if not (0 <= xmin <= xmax <= 1 and 0 <= ymin <= ymax <= 1):
            return f"its box {number} is not within the image: {xmin:g} {ymin:g} {xmax:g} {ymax:g}"
    return ""
