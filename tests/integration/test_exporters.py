"""Builds from the annotations of other tools: what is drawn in the pixels is what the boxes say."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from conftest import Build
from exporters.scene import COLORS, PICTURES, unpack, write_images
from helpers import build_json, records, rejects
from PIL import Image

CASES = [
    ("datumaro", "voc_detection/Annotations"),
    ("datumaro", "cvat/train.xml"),
    ("datumaro", "open_images/annotations/train-annotations-bbox.csv"),
    ("fiftyone", "coco/labels.json"),
    ("hub", "sizes"),
    ("hub", "corners.parquet"),
    ("label_studio", "coco/result.json"),
    ("labelme", "."),
    ("ultralytics", "obb"),
    ("ultralytics", "pose"),
]
SIZE = 64


@pytest.mark.parametrize(("tool", "path"), CASES)
def test_boxes_are_where_the_colors_are(build: Build, tmp_path: Path, tool: str, path: str):
    place = unpack(tool, tmp_path / tool) / path
    if tool == "hub":
        images = place if place.suffix else f"{place}/*.parquet"
        form = "hub_xyxy" if place.suffix else "hub_xywh"
    else:
        images = write_images(tmp_path / "images", uploads=tool == "label_studio")
        form = "auto"
    build(
        images, annotations=(str(place),), annotation_format=form, resize=f"crop:{SIZE}x{SIZE}",
        splits="train=1",
    )  # fmt: skip
    out = tmp_path / "out"
    objects = sum(len(picture.things) for picture in PICTURES)
    counts = build_json(out)["annotations"]
    assert counts["boxes"] + counts.get("dropped", 0) == objects
    [file] = build_json(out)["annotation_files"].values()
    assert (file["objects"], file["unmatched_objects"]) == (objects, 0)
    found = records(out)
    assert len(found) + len(rejects(out)) == len(PICTURES)
    data = tfds.builder_from_directory(str(out))
    assert isinstance(data.info.features["image/object/bbox"].feature, tfds.features.BBoxFeature)
    label = data.info.features["image/object/class/label"].feature
    for row in tfds.as_numpy(data.as_dataset("train")):
        for number, box in zip(
            row["image/object/class/label"], row["image/object/bbox"], strict=True
        ):
            color = np.array(COLORS[label.int2str(number)])
            rows, columns = np.nonzero(np.abs(row["image/encoded"] - color).sum(axis=-1) < 200)
            top, left, bottom, right = box * SIZE
            assert (left, right) == pytest.approx((columns.min(), columns.max() + 1), abs=2)
            assert (top, bottom) == pytest.approx((rows.min(), rows.max() + 1), abs=2)
    assert Image.open(io.BytesIO(found[0].first("image/encoded"))).size == (SIZE, SIZE)


def test_two_files_that_name_an_image_are_a_reject(build: Build, tmp_path: Path):
    """A file that was copied, with the `filename` of the other one."""
    images = write_images(tmp_path / "images")
    voc = unpack("supervision", tmp_path / "voc") / "voc"
    (voc / "9.xml").write_text((voc / "8.xml").read_text())
    build(images, annotations=(str(voc),), max_reject_fraction=0.5)
    [line] = rejects(tmp_path / "out")
    assert (Path(line["name"]).name, line["error"]) == ("8.png", "BadAnnotation")
    assert line["reason"] == f"2 files of {voc} name this image: correct them"
    assert build_json(tmp_path / "out")["annotations"]["rejected"] == 2 * len(PICTURES[7].things)
