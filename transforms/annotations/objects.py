"""Annotated objects of an image, before and after their boxes are mapped. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from imageshards.transforms.records.objects import FACTS, KEYPOINT_SIDES, TEXT
from imageshards.transforms.records.schemas import AREA, BOX_SIDES, COLUMN, Value

REJECTED = "rejected"
"""Counted: annotated objects of images that are rejected."""
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
    if FACTS not in values:
        return
    texts: Any = values[_TEXT]
    values["object_labels"] = [numbers[text] for text in texts]
    sides: list[Sequence[float]] = [values[key] for key in (_YMIN, _XMIN, _YMAX, _XMAX)]  # type: ignore[misc]
    values["object_boxes"] = list(chain.from_iterable(zip(*sides, strict=True)))
