"""Masks of annotated objects, from the polygons and run lengths of COCO."""

from __future__ import annotations

import io
import json
from typing import Any

from PIL import Image

from imageshards.transforms.annotations.objects import AnnotationError
from imageshards.transforms.elements import quoted
from imageshards.transforms.images.convert import moved
from imageshards.transforms.images.geometry import Frame, Geometry
from imageshards.transforms.records.objects import FACTS, MASK
from imageshards.transforms.records.schemas import COLUMN, Value

_MASK = COLUMN + MASK
_LEAST_NUMBERS = 6
"""Of a polygon: pycocotools takes four numbers for a box."""


def write_masks(values: dict[str, Value], geometry: Geometry, frame: Frame) -> None:
    """Replaces the segmentations of the written objects with masks of the written image.

    Args:
      values: source of a feature -> value; changed in place.
      geometry: where the pixels of the file are in the written image.
      frame: the pixels that the annotations refer to.

    Raises:
      AnnotationError: a segmentation is malformed, or of another size than the image.
    """
    segmentations: Any = values.get(_MASK)
    if not segmentations:
        return
    facts: Any = values[FACTS]
    width, height = facts[1:] if all(facts[1:]) else geometry.size(frame)
    values[_MASK] = [_png(text, (width, height), geometry, frame) for text in segmentations]


def _png(text: bytes, size: tuple[int, int], geometry: Geometry, frame: Frame) -> bytes:
    mask = moved(_decoded(json.loads(text), size), geometry, frame, padding=0)
    out = io.BytesIO()
    mask.save(out, "PNG")
    return out.getvalue()


def _decoded(segmentation: Any, size: tuple[int, int]) -> Image.Image:
    """Returns a segmentation as an image of mode L with 1 in the object, of (width, height)."""
    from pycocotools import mask

    width, height = size
    try:
        if isinstance(segmentation, dict):
            if list(segmentation["size"]) != [height, width]:
                raise ValueError
            counts = segmentation["counts"]
            runs = (
                segmentation
                if isinstance(counts, str)
                else mask.frPyObjects(segmentation, height, width)
            )
        else:
            if not segmentation or min(map(len, segmentation)) < _LEAST_NUMBERS:
                raise ValueError
            runs = mask.merge(mask.frPyObjects(segmentation, height, width))
        return Image.fromarray(mask.decode(runs))
    except Exception as error:  # pycocotools raises whatever its parts raise
        raise AnnotationError(
            "BadAnnotation",
            f"a segmentation is not of an object in {width} x {height} pixels: "
            f"{quoted(segmentation)}",
        ) from error
