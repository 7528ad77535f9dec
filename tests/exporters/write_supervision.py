"""Writes supervision.tar.xz: in an environment with supervision, `python write_supervision.py`.

Version 0.31.2 wrote the files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import supervision
from scene import CLASSES, PICTURES, packed, write_images

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, packed("supervision") as target:
        images = write_images(Path(folder))
        found = {}
        for picture in PICTURES:
            boxes = np.array([box for _, box in picture.things], np.float32).reshape(-1, 4)
            numbers = np.array([CLASSES.index(label) for label, _ in picture.things], int)
            found[str(images / picture.name)] = supervision.Detections(boxes, class_id=numbers)
        dataset = supervision.DetectionDataset(list(CLASSES), list(found), found)
        dataset.as_yolo(None, str(target / "yolo/labels"), str(target / "yolo/data.yaml"))
        dataset.as_pascal_voc(None, str(target / "voc"))
        dataset.as_coco(None, str(target / "coco.json"))
