"""Files of annotations that the exporters of other tools wrote; see tests/exporters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from exporters.scene import CLASSES, PICTURES, Picture, unpack, upload_name

from imageshards.transforms.annotations.formats import identify
from imageshards.transforms.annotations.match import by_stem, match, normalized
from imageshards.transforms.annotations.source import Annotated, Category
from imageshards.transforms.annotations.voc import Voc
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records.objects import (
    KEYPOINT_NAMES,
    KEYPOINT_SIDES,
    TEXT,
    VISIBILITY,
)
from imageshards.transforms.records.schemas import BOX_SIDES

TOOLS = {
    "datumaro": {
        "yolo": "yolo",
        "voc_detection/Annotations": "voc",
        "cvat/train.xml": "cvat",
        "coco_instances/annotations/instances_train.json": "coco",
        "open_images/annotations/train-annotations-bbox.csv": "csv",
    },
    "fiftyone": {
        "yolo": "yolo", "voc": "voc", "cvat/labels.xml": "cvat", "coco/labels.json": "coco",
    },
    "hub": {"sizes": "hub_xywh", "corners.parquet": "hub_xyxy"},
    "label_studio": {"yolo": "yolo", "voc": "voc", "coco/result.json": "coco"},
    "labelme": {".": "labelme"},
    "ultralytics": {"coco": "yolo", "obb": "yolo", "segment": "yolo", "pose": "yolo_keypoints"},
    "supervision": {"yolo": "yolo", "voc": "voc", "coco.json": "coco"},
}  # fmt: skip
CASES = [(tool, path, name) for tool, paths in TOOLS.items() for path, name in paths.items()]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tool -> the folder with its files."""
    return {tool: unpack(tool, tmp_path_factory.mktemp(tool)) for tool in TOOLS}


def images_of(tool: str, folder: Path) -> Iterator[tuple[str, Picture]]:
    """Yields (URI, picture) of the images that a tool annotated."""
    for number, picture in enumerate(PICTURES):
        if tool == "hub" and folder.suffix:
            yield f"{folder}/{number}", picture
        elif tool == "hub":
            split, row = ("train", number) if number < 6 else ("test", number - 6)
            yield f"{folder}/{split}-00000-of-00001.parquet/{row}", picture
        else:
            name = upload_name(picture) if tool == "label_studio" else picture.name
            yield f"/photos/{name}", picture


@pytest.mark.parametrize(("tool", "path", "name"), CASES)
def test_every_object_is_found(folders: dict[str, Path], tool: str, path: str, name: str):
    place = folders[tool] / path
    # Parquet files of 17 objects do not tell what their boxes are.
    source = identify(str(place), name if tool == "hub" else "auto")
    assert source.name == name
    images = dict(images_of(tool, place))
    classes: dict[str, int] = {}
    rows: dict[str, Annotated] = {}
    for part in source.parts():
        for found in source.read(part):
            if isinstance(found, Category):
                classes[found.name] = found.order
                continue
            assert not found.problem
            assert normalized(found.name) not in rows
            rows[normalized(found.name)] = found
    assert set(classes) == set(CLASSES)

    written = {}
    uris = by_stem(images)
    for stem, names in by_stem(rows).items():
        written |= match(uris.get(stem, ()), names, source.folder, source.uri)
    assert len(written) == len(rows), "an annotated image is not found"
    with_objects = {uri for uri, picture in images.items() if picture.things}
    assert with_objects <= set(written.values())
    for key, uri in written.items():
        row, picture = rows[key], images[uri]
        assert row.size in (None, (0, 0), picture.size)
        assert row.objects == len(picture.things)
        if path == "pose":
            corners = [side for thing in picture.things for side in thing.box]
            for key, start, scale in zip(KEYPOINT_SIDES, (0, 1), picture.size, strict=True):
                found = [side * scale for side in row.values[key]]
                assert found == pytest.approx(corners[start::2], abs=0.01)
        width, height = picture.size if row.size is None else (1, 1)
        texts = [text.decode() for text in row.values.get(TEXT, ())]
        sides = zip(*(row.values.get(side, ()) for side in BOX_SIDES), strict=True)
        for text, box, thing in zip(texts, sides, picture.things, strict=True):
            assert text == thing.label
            pixels = [side * scale for side, scale in zip(box, (width, height) * 2, strict=True)]
            # Some exporters number pixels of Pascal VOC from 1, and round; contours are at centres.
            is_exact = name != "voc" and path != "segment"
            assert pixels == pytest.approx(thing.box, abs=0.01 if is_exact else 1.01)


def test_few_boxes_do_not_tell_their_kind(folders: dict[str, Path]):
    with pytest.raises(UsageError, match="write --annotation_format hub_xywh or hub_xyxy"):
        identify(str(folders["hub"] / "corners.parquet"), "auto")
    # An x of 40 and a width of 30 are no corners.
    assert identify(str(folders["hub"] / "sizes"), "auto").name == "hub_xywh"


def test_the_folder_of_an_export_names_its_file(folders: dict[str, Path]):
    folder = folders["fiftyone"]
    with pytest.raises(UsageError, match=r"coco is a folder: write --annotations .*/labels\.json"):
        identify(str(folder / "coco"), "auto")
    (folder / "export.zip").write_bytes(b"PK")
    with pytest.raises(UsageError, match=r"export\.zip is an archive: unpack it first"):
        identify(str(folder / "export.zip"), "auto")


def test_names_of_voc_with_folders_select_among_equal_base_names(tmp_path: Path):
    """Datumaro repeats the folders of the XML file in its `filename`; others write base names."""
    voc = Voc(str(tmp_path))
    for name in ("train/1.jpg", "1.jpg"):
        data = f"<annotation><filename>{name}</filename></annotation>".encode()
        found = voc.parse("train/1.xml", data)
        assert found
        assert found.name == "train/1.jpg"


def test_yolo_with_keypoints(tmp_path: Path):
    """As Ultralytics documents the format: visibility is optional, as are names."""
    (tmp_path / "labels").mkdir()
    line = "0 0.5 0.5 0.2 0.4 0.45 0.4 2 0 0 0"
    (tmp_path / "labels/1.txt").write_text(f"{line}\n")
    (tmp_path / "labels/2.txt").write_text("0 0.5 0.5 0.2 0.4\n")
    settings = "names: {0: person}\nkpt_shape: [2, 3]\n"
    (tmp_path / "data.yaml").write_text(settings)
    source = identify(str(tmp_path), "auto")
    assert source.name == "yolo_keypoints"
    _, good, bad = source.read(next(source.parts()))
    assert isinstance(good, Annotated)
    assert isinstance(bad, Annotated)
    assert good.values[KEYPOINT_SIDES[0]] == [0.45, 0]
    assert good.values[VISIBILITY] == [2, 0]
    assert good.values[KEYPOINT_NAMES] == [b"0", b"1"]
    assert "expected a class, a box, and 2 keypoints of 3 numbers" in bad.problem
    (tmp_path / "labels/2.txt").write_text(line.replace(" 2 ", " 0.9 "))
    _, _, bad = source.read(next(source.parts()))
    assert isinstance(bad, Annotated)
    assert "line 1 has a keypoint whose visibility is not 0, 1 or 2" in bad.problem
    boxes = identify(str(tmp_path), "yolo")
    _, *rows = boxes.read(next(boxes.parts()))
    assert [row.objects for row in rows if isinstance(row, Annotated)] == [1, 1]

    (tmp_path / "data.yaml").write_text(f"{settings}kpt_names: {{0: [nose, foot]}}\n")
    source = identify(str(tmp_path), "auto")
    _, good, _ = source.read(next(source.parts()))
    assert isinstance(good, Annotated)
    assert good.values[KEYPOINT_NAMES] == [b"nose", b"foot"]


def test_labels_are_below_the_path_of_data_yaml(tmp_path: Path):
    (tmp_path / "set/labels/val").mkdir(parents=True)
    (tmp_path / "set/labels/val/1.txt").write_text("0 0.5 0.5 0.2 0.4\n")
    (tmp_path / "set/labels/classes.txt").write_text("owl\n")
    (tmp_path / "configs").mkdir()
    file = tmp_path / "configs/data.yaml"
    for path in ("../set", tmp_path / "set"):
        file.write_text(f"path: {path}\nval: images/val\nnames: [owl]\n")
        source = identify(str(file), "auto")
        assert [*source.parts()] == [(str(tmp_path / "set/labels/val/1.txt"),)]
        _, found = source.read(next(source.parts()))
        assert isinstance(found, Annotated)
        assert source.folder + found.name == str(tmp_path / "set/images/val/1")


def test_cvat_for_video_is_refused(tmp_path: Path):
    file = tmp_path / "annotations.xml"
    file.write_text('<annotations><track id="0" label="owl"><box frame="0"/></track></annotations>')
    with pytest.raises(
        BuildError, match="is of CVAT for video: export the task as CVAT for images"
    ):
        [*identify(str(file), "auto").read((str(file),))]
