"""Builds with COCO's panoptic files: segments are objects, and their masks follow the pixels.

The files are those of https://cocodataset.org/#format-data; panopticapi is not on PyPI. pycocotools
computes boxes and areas.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from conftest import Build
from helpers import build_json, image_bytes, records, rejects
from PIL import Image
from pycocotools import mask

from imageshards.reader.verify import verify
from imageshards.transforms.elements import UsageError
from imageshards.transforms.images import headers

WIDTH, HEIGHT = 90, 60
CLASSES = {200: "sky", 17: "owl", 199: "wall"}
THINGS = {17}
LEVELS = {200: 40, 17: 120, 199: 220}
"""Class -> the gray level of its segment in the image."""


def ids_of(number: int) -> np.ndarray:
    """The segment of each pixel: ids above 65,535 use all channels of the PNG."""
    ids = np.full((HEIGHT, WIDTH), 70_000 + number, np.uint32)
    ids[30:, :] = 3
    ids[20:40, 35:65] = 500 + number
    return ids


def segments_of(ids: np.ndarray) -> list[dict[str, Any]]:
    found = []
    for number, category in zip(np.unique(ids).tolist(), (199, 17, 200), strict=True):
        runs = mask.encode(np.asfortranarray(ids == number, np.uint8))
        area, bbox = int(mask.area(runs)), mask.toBbox(runs).astype(int).tolist()
        found.append(
            {"id": number, "category_id": category, "area": area, "bbox": bbox, "iscrowd": 0}
        )
    return found


def write(folder: Path, count: int) -> Path:
    """Writes images that are rotated in their files, PNGs of segments, and the JSON file."""
    (folder / "in").mkdir()
    (folder / "panoptic_val").mkdir()
    images, annotations = [], []
    for number in range(count):
        ids = ids_of(number)
        levels = np.zeros((HEIGHT, WIDTH), np.uint8)
        for segment in segments_of(ids):
            levels[ids == segment["id"]] = LEVELS[segment["category_id"]]
        exif = headers.exif_with_orientation(6)
        Image.fromarray(levels).save(folder / f"in/{number}.png", exif=exif)
        color = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=-1).astype(np.uint8)
        Image.fromarray(color).save(folder / f"panoptic_val/p{number}.png")
        images.append(
            {"id": number, "file_name": f"{number}.png", "width": WIDTH, "height": HEIGHT}
        )
        annotations.append(
            {"image_id": number, "file_name": f"p{number}.png", "segments_info": segments_of(ids)}
        )
    categories = [
        {"id": key, "name": name, "isthing": int(key in THINGS)} for key, name in CLASSES.items()
    ]
    path = folder / "panoptic_val.json"
    content = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(content))
    return path


def test_masks_of_segments_are_those_of_the_written_pixels(tmp_path: Path, build: Build):
    file = write(tmp_path, 3)
    build(
        tmp_path / "in", annotations=(str(file),), object_masks=True, resize="crop:50x50",
        convert="png",
    )  # fmt: skip
    out = tmp_path / "out"
    assert build_json(out)["options"]["annotation_format"] == "coco_panoptic"
    assert build_json(out)["object_classes"] == ["background", "owl", "wall", "sky"]
    assert len(records(out)) == 3
    for record in records(out):
        image = np.asarray(Image.open(io.BytesIO(record.first("image/encoded"))).convert("L"))
        texts = record.values["image/object/class/text"]
        assert texts == [b"wall", b"owl", b"sky"]
        assert record.values["image/object/is_thing"] == [0, 1, 0]
        pngs = record.values["image/object/mask"]
        masks = np.stack([np.asarray(Image.open(io.BytesIO(png))) for png in pngs])
        assert (masks.sum(axis=0) == 1).all()  # each pixel is of one segment
        numbers = {name.encode(): key for key, name in CLASSES.items()}
        levels = np.array([LEVELS[numbers[text]] for text in texts])
        assert np.abs(levels[masks.argmax(axis=0)] - image.astype(int)).mean() < 6
        for at, pixels in enumerate(masks):
            rows, columns = np.nonzero(pixels)
            for axis, found in (("x", columns), ("y", rows)):
                low, high = (
                    record.values[f"image/object/bbox/{axis}{end}"][at] for end in ("min", "max")
                )
                assert (low * 50, high * 50) == pytest.approx((found.min(), found.max() + 1), abs=1)
    assert not verify(str(out)).problems
    row = next(iter(tfds.as_numpy(tfds.builder_from_directory(str(out)).as_dataset("train"))))
    assert row["image/object/class/label"].tolist() == [2, 1, 3]
    assert row["image/object/is_thing"].tolist() == [0, 1, 0]


def test_pngs_that_do_not_fit_are_rejects(tmp_path: Path, build: Build):
    file = write(tmp_path, 5)
    pngs = tmp_path / "panoptic_val"
    (pngs / "p0.png").unlink()
    Image.open(pngs / "p1.png").resize((45, 30)).save(pngs / "p1.png")
    Image.open(pngs / "p2.png").convert("L").save(pngs / "p2.png")
    (pngs / "p3.png").write_bytes((pngs / "p4.png").read_bytes())
    build(tmp_path / "in", annotations=(str(file),), object_masks=True, max_reject_fraction=0.9)
    out = tmp_path / "out"
    found = {line["name"]: line["reason"].replace(f"{pngs}/", "") for line in rejects(out)}
    assert found == {
        "0.png": "its panoptic PNG p0.png: no such file",
        "1.png": "its panoptic PNG p1.png: 45 x 30 pixels, but its image has 90 x 60",
        "2.png": "its panoptic PNG p2.png: it is a PNG of the mode L: write a PNG in RGB",
        "3.png": "its panoptic PNG p3.png: no pixel is of its segment 503",
    }
    assert {line["error"] for line in rejects(out)} == {"BadAnnotation"}
    assert build_json(out)["annotations"] == {"boxes": 3, "rejected": 12}


def test_segments_are_objects_without_the_pngs(tmp_path: Path, build: Build):
    file = write(tmp_path, 2)
    content = json.loads(file.read_text())
    content["annotations"][1]["segments_info"][0]["category_id"] = 5
    file.write_text(json.dumps(content))
    pngs = tmp_path / "panoptic_val"
    for path in pngs.iterdir():
        path.unlink()
    build(tmp_path / "in", annotations=(str(file),), max_reject_fraction=0.5)
    (record,) = records(tmp_path / "out")
    assert record.values["image/object/area"] == [2400, 600, 2400]
    (line,) = rejects(tmp_path / "out")
    assert line["reason"].endswith("annotation 3 has the category_id 5, which no category has")
    with pytest.raises(UsageError, match=r"panoptic_val has no PNG of .*: move the folder of the"):
        build(tmp_path / "in", annotations=(str(file),), object_masks=True)


def test_a_photograph_without_segments_has_no_objects(tmp_path: Path, build: Build):
    file = write(tmp_path, 1)
    (tmp_path / "in/other.jpg").write_bytes(image_bytes(1))
    build(tmp_path / "in", annotations=(str(file),), object_masks=True)
    counts = build_json(tmp_path / "out")["annotations"]
    assert counts == {"boxes": 3, "without_boxes": 1}
