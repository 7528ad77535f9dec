"""Writes hub.tar.xz: in an environment with datasets and pillow, `python write_hub.py`.

Two forms of the Hub: lists of boxes with sizes in a struct of columns, and a list of objects with
corners, whose classes are texts. Version 5.2.0 wrote the files.
"""

from __future__ import annotations

import io
from typing import Any

from datasets import ClassLabel, Dataset, Features, Image, List, Value
from scene import CLASSES, PICTURES, Picture, draw, packed

SIZES = Features(
    {
        "image_id": Value("int64"),
        "image": Image(),
        "width": Value("int32"),
        "height": Value("int32"),
        "objects": {
            "id": List(Value("int64")),
            "area": List(Value("int64")),
            "bbox": List(List(Value("float32"), length=4)),
            "category": List(ClassLabel(names=list(CLASSES))),
        },
    }
)
CORNERS = Features(
    {
        "image": Image(),
        "objects": List({"bbox": List(Value("float32")), "label": Value("string")}),
    }
)


def image(picture: Picture) -> dict[str, Any]:
    """The file of a picture."""
    out = io.BytesIO()
    draw(picture).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": picture.name}


def with_sizes(number: int, picture: Picture) -> dict[str, Any]:
    """A row with boxes as cppe-5 has them."""
    boxes = [[x, y, right - x, bottom - y] for _, (x, y, right, bottom) in picture.things]
    return {
        "image_id": number,
        "image": image(picture),
        "width": picture.size[0],
        "height": picture.size[1],
        "objects": {
            "id": list(range(len(boxes))),
            "area": [width * height for *_, width, height in boxes],
            "bbox": boxes,
            "category": [CLASSES.index(label) for label, _ in picture.things],
        },
    }


def with_corners(picture: Picture) -> dict[str, Any]:
    """A row with boxes as fashionpedia has them."""
    objects = [{"bbox": list(box), "label": label} for label, box in picture.things]
    return {"image": image(picture), "objects": objects}


if __name__ == "__main__":
    with packed("hub") as target:
        rows = [with_sizes(number, picture) for number, picture in enumerate(PICTURES)]
        for split, some in {"train": rows[:6], "test": rows[6:]}.items():
            data = Dataset.from_list(some, features=SIZES)
            data.to_parquet(target / f"sizes/{split}-00000-of-00001.parquet")
        data = Dataset.from_list([with_corners(picture) for picture in PICTURES], features=CORNERS)
        data.to_parquet(target / "corners.parquet")
