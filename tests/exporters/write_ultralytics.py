"""Writes ultralytics.tar.xz: in an environment with ultralytics, `python write_ultralytics.py`.

`coco` is what its converter makes of a JSON file of COCO. The others are results as models give
them, which `save_txt` wrote: `obb` oriented boxes with confidences, `segment` polygons, and `pose`
keypoints at two corners. The data.yaml are of this script. Version 8.4.190 wrote the files.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from scene import CLASSES, PICTURES, Picture, packed
from ultralytics.data.converter import convert_coco
from ultralytics.engine.results import Results

NAMES = "".join(f"  {number}: {name}\n" for number, name in enumerate(CLASSES))


def coco() -> str:
    """The objects in the format of COCO."""
    images, objects = [], []
    for number, picture in enumerate(PICTURES):
        width, height = picture.size
        images.append({"id": number, "file_name": picture.name, "width": width, "height": height})
        for label, (left, top, right, bottom) in picture.things:
            size = right - left, bottom - top
            category = CLASSES.index(label) + 1
            objects.append(
                {
                    "id": len(objects), "image_id": number, "category_id": category, "iscrowd": 0,
                    "bbox": [left, top, *size], "area": size[0] * size[1], "segmentation": [],
                }
            )  # fmt: skip
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    return json.dumps({"images": images, "annotations": objects, "categories": categories})


def results(kind: str, picture: Picture) -> Results:
    """The objects as the output of a model."""
    width, height = picture.size
    rows = [(*box, 0.9, CLASSES.index(label)) for label, box in picture.things]
    boxes = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    values = {"boxes": boxes}
    if kind == "obb":
        x, y, right, bottom, confidence, label = boxes.T
        turned = (
            (x + right) / 2,
            (y + bottom) / 2,
            right - x,
            bottom - y,
            0 * x,
            confidence,
            label,
        )
        values = {"obb": torch.stack(turned, 1)}
    elif kind == "segment":
        masks = torch.zeros((len(rows), height, width))
        for mask, (_, (left, top, right, bottom)) in zip(masks, picture.things, strict=True):
            mask[top:bottom, left:right] = 1
        values["masks"] = masks
    elif kind == "pose":
        points = [
            [(left, top, 1), (right, bottom, 1)] for _, (left, top, right, bottom) in picture.things
        ]
        values["keypoints"] = torch.tensor(points, dtype=torch.float32).reshape(-1, 2, 3)
    names = dict(enumerate(CLASSES))
    return Results(np.zeros((height, width, 3), np.uint8), picture.name, names, **values)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, packed("ultralytics") as target:
        Path(folder, "val.json").write_text(coco())
        convert_coco(folder, str(target / "coco"), cls91to80=False)
        (target / "coco/data.yaml").write_text(f"path: .\nval: images/val\nnames:\n{NAMES}")
        for kind in ("obb", "segment", "pose"):
            for picture in PICTURES:
                path = (target / kind / "labels" / picture.name).with_suffix(".txt")
                path.parent.mkdir(parents=True, exist_ok=True)
                if picture.things:
                    results(kind, picture).save_txt(str(path), save_conf=kind == "obb")
            shape = "kpt_shape: [2, 3]\n" if kind == "pose" else ""
            (target / kind / "data.yaml").write_text(
                f"path: .\nval: images\n{shape}names:\n{NAMES}"
            )
