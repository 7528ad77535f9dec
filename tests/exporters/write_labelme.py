"""Writes labelme.tar.xz: in an environment with labelme, `python write_labelme.py`.

Zebras are two polygons with one group_id, as an object that something covers is annotated. Traffic
lights are oriented rectangles. Version 6.3.1 wrote the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labelme import LabelFile
from scene import PICTURES, Thing, packed


def shapes(thing: Thing) -> Iterator[dict[str, Any]]:
    """The shapes of an object."""
    label, (left, top, right, bottom) = thing
    shape: dict[str, Any] = {
        "label": label,
        "group_id": None,
        "description": "",
        "flags": {},
        "mask": None,
    }
    corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
    if label == "owl":
        yield {**shape, "shape_type": "rectangle", "points": corners[::2]}
    elif label == "traffic light":
        yield {**shape, "shape_type": "oriented_rectangle", "points": corners}
    else:
        middle = (top + bottom) / 2
        for first, last in ((top, middle - 2), (middle + 2, bottom)):
            points = [[left, first], [right, first], [right, last], [left, last]]
            yield {**shape, "shape_type": "polygon", "group_id": 1, "points": points}


if __name__ == "__main__":
    with packed("labelme") as target:
        for picture in PICTURES:
            path = (target / picture.name).with_suffix(".json")
            path.parent.mkdir(parents=True, exist_ok=True)
            LabelFile().save(
                filename=str(path),
                shapes=[shape for thing in picture.things for shape in shapes(thing)],
                image_path=path.with_suffix(".png").name,
                image_height=picture.size[1],
                image_width=picture.size[0],
                image_data=None,
                other_data={},
                flags={},
            )
