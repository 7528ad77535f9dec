"""Annotated objects of an image, before and after their boxes are mapped. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from imageshards.transforms.elements import BuildError, counted
from imageshards.transforms.records.objects import FACTS, KEYPOINT_SIDES, TEXT
from imageshards.transforms.records.schemas import AREA, BOX_SIDES, CAPTION_SOURCE, COLUMN, Value

REJECTED = "rejected"
"""Counted: annotated objects of images that are rejected."""
CAPTIONS = "captions"
"""Counted: captions of annotation files that are written."""
LEFT_OUT = "left_out"
"""Counted: annotated objects of images that options such as `--limit` leave out."""

_XMIN, _YMIN, _XMAX, _YMAX = (COLUMN + key for key in BOX_SIDES)
_ACROSS = (_XMIN, _XMAX, COLUMN + KEYPOINT_SIDES[0])
_DOWN = (_YMIN, _YMAX, COLUMN + KEYPOINT_SIDES[1])
_TEXT = COLUMN + TEXT


class AnnotationError(Exception):
    """An image is rejected for its annotations. The message is one line with the reason.

    Attributes:
      kind: the error type that rejects are counted by.
    """

    def __init__(
        self,
        kind: Literal["BadAnnotation", "BadBox", "NoBoxes", "OtherSize", "Unmappable"],
        reason: str,
    ) -> None:
        super().__init__(reason)
        self.kind = kind


_PIXEL = 1.0
_SHARE = 0.01
"""Differences that rounding explains: in pixels, and as a fraction of an area."""


class Corners:
    """Detects files whose boxes are [x1, y1, x2, y2] instead of [x, y, width, height].

    Read as the wrong kind, most boxes are still valid. But they exceed their images, or do not have
    the areas that the file has for them.

    >>> corners = Corners()
    >>> corners.add([30, 20, 70, 40], (80, 60))
    >>> corners.check("boxes.json")
    Traceback (most recent call last):
    imageshards.transforms.elements.BuildError: --annotations boxes.json: 1 of 1 box ...
    """

    def __init__(self) -> None:
        self._boxes = self._outside = self._areas = 0
        self._are_corners = True
        self._example: Sequence[float] = ()

    def add(
        self, box: Sequence[float], size: tuple[int, int] | None, area: float | None = None
    ) -> None:
        """Adds a box that is taken for [x, y, width, height].

        Args:
          box: its four numbers, in pixels.
          size: (width, height) of its image; None or (0, 0) if it is not known.
          area: the area of the object, if the file has it.
        """
        left, top, third, fourth = map(float, box)
        self._boxes += 1
        if third < left or fourth < top:
            self._are_corners = False
        if not self._are_corners:
            return
        width, height = size or (0, 0)
        is_outside = bool(width and height) and (
            left + third > width + _PIXEL or top + fourth > height + _PIXEL
        )
        if is_outside and (third > width + _PIXEL or fourth > height + _PIXEL):
            self._are_corners = False  # they would be outside, too
        between = (third - left) * (fourth - top)
        is_area = (
            area is not None
            and abs(area - between) <= _SHARE * between
            and abs(area - third * fourth) > _SHARE * third * fourth
        )
        self._outside += is_outside
        self._areas += is_area
        if (is_outside or is_area) and not self._example:
            self._example = box

    def check(self, uri: str) -> None:
        """Checks the boxes of a file, after the last one of them.

        Raises:
          BuildError: all of them may be corners, and most of them are no boxes with a width and a
            height.
        """
        outside = self._outside * 2 > self._boxes
        areas = self._areas * 2 > self._boxes
        if not self._are_corners or not (outside or areas):
            return
        number = self._outside if outside else self._areas
        why = "leave their images" if outside else "have areas of other boxes"
        example = ", ".join(f"{value:g}" for value in self._example)
        raise BuildError(
            f"--annotations {uri}: {number:,} of {counted(self._boxes, 'box')} {why} if they are "
            f"[x, y, width, height], and fit if they are [x1, y1, x2, y2], such as [{example}]: "
            "write x, y, x2 - x1, y2 - y1"
        )


def count_captions(values: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of captions of an image that are from annotation files."""
    captions = values.get(CAPTION_SOURCE) if FACTS in values else None
    return {CAPTIONS: len(captions)} if captions else {}


def has_objects(values: Mapping[str, Any]) -> bool:
    """Returns whether the annotations of an image are objects of an annotation file."""
    return FACTS in values and _TEXT in values


def count_objects(values: Mapping[str, Any]) -> int:
    """Returns the number of objects among the annotations of a reference."""
    facts = values.get(FACTS)
    return int(facts[0]) if facts else 0


def to_fractions(values: dict[str, Value], size: tuple[int, int]) -> None:
    """Makes fractions of boxes in pixels, and scales areas to the pixels of the file.

    Args:
      values: source of a feature -> value; changed in place.
      size: (width, height) of the pixels that annotations refer to.

    Raises:
      AnnotationError: the annotation file has another size for the image, of another shape; or
        its boxes are fractions already.
    """
    facts: Any = values.get(FACTS, ())
    if len(facts) < 3:
        return
    width, height = facts[1:] if all(facts[1:]) else size
    # An image that was scaled after it was annotated has sides that are rounded.
    if abs(width * size[1] - height * size[0]) > max(width, height, *size):
        remedy = "correct the file"
        if abs(width * size[0] - height * size[1]) <= max(width, height, *size):
            remedy = "set --annotations_on to the pixels that they were drawn on"
        raise AnnotationError(
            "OtherSize",
            f"the annotations are for an image of {width} x {height} pixels, but it has {size[0]} "
            f"x {size[1]}: {remedy}",
        )
    ends: list[float] = [*values.get(_XMAX, ()), *values.get(_YMAX, ())]  # type: ignore[misc]
    if min(size) > 1 and 0 < max(ends, default=0) <= 1:
        raise AnnotationError(
            "BadAnnotation",
            "all of its boxes are within the first pixel, so they are fractions of the image: "
            "this format has pixels",
        )
    for key, side in (
        *zip(_ACROSS, [width] * 3, strict=True),
        *zip(_DOWN, [height] * 3, strict=True),
    ):
        sides: Any = values.get(key)
        if sides:
            values[key] = (np.array(sides, np.float64) / side).tolist()
    areas: Any = values.get(COLUMN + AREA)
    if areas and (width, height) != size:
        scale = size[0] * size[1] / (width * height)
        values[COLUMN + AREA] = (np.array(areas, np.float64) * scale).tolist()


def add_computed(values: dict[str, Value], numbers: Mapping[bytes, int]) -> None:
    """Adds the features that are computed from those of the written objects.

    Args:
      values: source of a feature -> value; changed in place.
      numbers: name of a class of objects -> its number.
    """
    if not has_objects(values):
        return
    texts: Any = values[_TEXT]
    values["object_labels"] = [numbers[text] for text in texts]
    sides: list[Sequence[float]] = [values[key] for key in (_YMIN, _XMIN, _YMAX, _XMAX)]  # type: ignore[misc]
    values["object_boxes"] = list(chain.from_iterable(zip(*sides, strict=True)))
