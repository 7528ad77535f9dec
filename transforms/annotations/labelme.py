"""JSON files of labelme: https://github.com/wkentaro/labelme."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imageshards.transforms.annotations.files import (
    FileOfEach,
    Malformed,
    Objects,
    bounds,
    number,
    size_of,
)
from imageshards.transforms.annotations.source import Annotated
from imageshards.transforms.elements import quoted

_SHAPES = re.compile(rb'"shapes"')


class LabelMe(FileOfEach):
    """A folder of JSON files with shapes, one for each image."""

    name = "labelme"
    noun = "a folder of JSON files of labelme"
    suffix = ".json"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether one of the first JSON files has `shapes`."""
        return cls.some_file_has(uri, _SHAPES)

    def parse(self, below: str, data: bytes) -> Annotated:
        """Parses a file; boxes are around rectangles, polygons and circles.

        Shapes with the same label and `group_id` are one object, as labelme's converters have it.
        """
        try:
            root = json.loads(data)
            shapes = [dict(shape) for shape in root["shapes"]]
        except (ValueError, KeyError, TypeError) as error:
            raise Malformed("it has no JSON object with shapes") from error
        name = root.get("imagePath")
        image = self.beside(below, str(name)) if name else self.image_of(below)
        objects = Objects()
        with self.naming(image):
            for label, box in _boxes(shapes):
                objects.add(label, box)
            size = size_of(root.get("imageWidth"), root.get("imageHeight"))
        return objects.annotated(image, size)


def _boxes(shapes: Iterable[Mapping[str, Any]]) -> list[tuple[str, Sequence[float]]]:
    """Returns the class and the box of each object."""
    found: dict[tuple[str, object], list[Sequence[float]]] = {}
    for at, shape in enumerate(shapes):
        label, group = str(shape.get("label", "")), shape.get("group_id")
        key = (label, f"shape {at}" if group is None else group)
        found.setdefault(key, []).append(_box(shape))
    return [
        (label, bounds([corner for box in boxes for corner in (box[:2], box[2:])]))
        for (label, _), boxes in found.items()
    ]


def _box(shape: Mapping[str, Any]) -> Sequence[float]:
    kind = shape.get("shape_type") or "polygon"
    try:
        points = [(number(x, "point"), number(y, "point")) for x, y in shape["points"]]
        if kind == "circle":
            (x, y), edge = points
            radius = math.dist((x, y), edge)
            return x - radius, y - radius, x + radius, y + radius
        if kind in ("rectangle", "oriented_rectangle", "polygon", "mask") and len(points) > 1:
            return bounds(points)
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(f"a {kind} has the points {quoted(shape.get('points'))}") from error
    raise Malformed(f"a shape is a {kind}, around which there is no box")
