"""Writes fiftyone.tar.xz: in an environment with fiftyone, `python write_fiftyone.py`.

Its exporters get the samples one by one, because a data set of FiftyOne requires a MongoDB server.
Version 1.22.1 wrote the files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import fiftyone as fo
from fiftyone.utils.coco import COCODetectionDatasetExporter
from fiftyone.utils.cvat import CVATImageDatasetExporter
from fiftyone.utils.voc import VOCDetectionDatasetExporter
from fiftyone.utils.yolo import YOLOv5DatasetExporter
from scene import CLASSES, PICTURES, Picture, packed, write_images

EXPORTERS = {
    "yolo": (YOLOv5DatasetExporter, {"split": "val", "classes": list(CLASSES)}),
    "voc": (VOCDetectionDatasetExporter, {}),
    "cvat": (CVATImageDatasetExporter, {}),
    "coco": (COCODetectionDatasetExporter, {"classes": list(CLASSES)}),
}


def objects(picture: Picture) -> fo.Detections:
    """The objects of a picture; FiftyOne has them as fractions."""
    width, height = picture.size
    return fo.Detections(
        detections=[
            fo.Detection(
                label=label,
                bounding_box=[
                    left / width,
                    top / height,
                    (right - left) / width,
                    (bottom - top) / height,
                ],
            )
            for label, (left, top, right, bottom) in picture.things
        ]
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, packed("fiftyone") as target:
        images = write_images(Path(folder))
        for name, (kind, options) in EXPORTERS.items():
            with kind(export_dir=str(target / name), export_media=True, **options) as exporter:
                for picture in PICTURES:
                    path = str(images / picture.name)
                    metadata = fo.ImageMetadata.build_for(path)
                    exporter.export_sample(path, objects(picture), metadata=metadata)
