"""Writes datumaro.tar.xz: in an environment with datumaro, `python write_datumaro.py`.

CVAT exports with this library. Version 1.13.12 wrote the files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from datumaro.components.annotation import Bbox
from datumaro.components.dataset import Dataset
from datumaro.components.dataset_base import DatasetItem
from datumaro.components.media import Image
from scene import CLASSES, PICTURES, packed, write_images

FORMATS = ("yolo", "voc_detection", "cvat", "coco_instances", "open_images")

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, packed("datumaro") as target:
        images = write_images(Path(folder))
        items = [
            DatasetItem(
                id=picture.name.rpartition(".")[0],
                subset="train",
                media=Image.from_file(path=str(images / picture.name), size=picture.size[::-1]),
                annotations=[
                    Bbox(x, y, right - x, bottom - y, label=CLASSES.index(label), id=at, group=at)
                    for at, (label, (x, y, right, bottom)) in enumerate(picture.things, 1)
                ],
            )
            for picture in PICTURES
        ]
        dataset = Dataset.from_iterable(items, categories=list(CLASSES))
        for name in FORMATS:
            dataset.export(str(target / name), name, save_media=False)
