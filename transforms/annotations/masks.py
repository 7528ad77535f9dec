"""Masks of annotated objects, from the polygons, run lengths and panoptic PNGs of COCO."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from imageshards.transforms import storage
from imageshards.transforms.annotations.objects import AnnotationError
from imageshards.transforms.elements import quoted
from imageshards.transforms.images import decode, validate
from imageshards.transforms.images.convert import moved
from imageshards.transforms.images.geometry import Frame, Geometry
from imageshards.transforms.records.objects import FACTS, MASK
from imageshards.transforms.records.schemas import COLUMN, Value

PNG, SEGMENT = "png", "segment"
"""Keys of a segmentation that is in a PNG: the URI of the file, and the id of the segment."""
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
    masks = _decoded_all(map(json.loads, segmentations), (width, height))
    values[_MASK] = [_png(moved(mask, geometry, frame, padding=0)) for mask in masks]


def _png(mask: Image.Image) -> bytes:
    out = io.BytesIO()
    mask.save(out, "PNG")
    return out.getvalue()


def _decoded_all(segmentations: Iterator[Any], size: tuple[int, int]) -> Iterator[Image.Image]:
    """Yields segmentations as images of mode L with 1 in the object; reads each PNG once."""
    for png, found in groupby(segmentations, _png_of):
        if png:
            yield from _segments(png, [segmentation[SEGMENT] for segmentation in found], size)
        else:
            yield from (_decoded(segmentation, size) for segmentation in found)


def _png_of(segmentation: Any) -> str:
    return str(segmentation.get(PNG, "")) if isinstance(segmentation, dict) else ""


def _segments(uri: str, segments: Sequence[int], size: tuple[int, int]) -> Iterator[Image.Image]:
    """Yields the pixels of the segments of a panoptic PNG."""
    try:
        data, _ = storage.read(uri)
        opened = decode.open_image(data, validate.MAX_PIXELS)
        if opened.format != "PNG" or opened.image.mode != "RGB":
            reason = f"it is a {opened.format} of the mode {opened.image.mode}: write a PNG in RGB"
            raise validate.ImageError("Colors", reason)
        if opened.image.size != size:
            shown = "{} x {} pixels, but its image has {} x {}".format(*opened.image.size, *size)
            raise validate.ImageError("MaskSize", shown)
        with validate.image_errors("PNG"):
            pixels = np.asarray(opened.image).astype(np.uint32)
    except (storage.ReadError, validate.ImageError) as error:
        raise AnnotationError("BadAnnotation", f"its panoptic PNG {uri}: {error}") from error
    ids: npt.NDArray[np.uint32] = pixels @ np.array([1, 1 << 8, 1 << 16], np.uint32)
    for segment in segments:
        mask = ids == segment
        if not mask.any():
            reason = f"its panoptic PNG {uri}: no pixel is of its segment {segment}"
            raise AnnotationError("BadAnnotation", reason)
        yield Image.fromarray(mask.astype(np.uint8))


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
