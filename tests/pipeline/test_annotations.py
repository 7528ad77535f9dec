"""Builds with --annotations: files of real writers, each object written, dropped or listed."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import globox
import numpy as np
import pytest
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import build_json, image_bytes, records, rejects
from PIL import Image
from pycocotools import mask
from pycocotools.coco import COCO

from imageshards.pipeline.job.failures import JobError
from imageshards.reader.verify import verify
from imageshards.transforms import join_annotations
from imageshards.transforms.annotations.formats import identify
from imageshards.transforms.annotations.source import Annotated
from imageshards.transforms.elements import UsageError
from imageshards.transforms.images import headers
from imageshards.transforms.records.schemas import BOX_SIDES

WIDTH, HEIGHT = 120, 80
COUNT = 24
NAMES = ("zebra", "owl", "cat")
LABEL, TEXT = "image/object/class/label", "image/object/class/text"


def boxes_of(number: int) -> list[tuple[str, tuple[float, float, float, float]]]:
    """The objects of an image: (class, (xmin, ymin, xmax, ymax) in pixels)."""
    rng = np.random.default_rng(number)
    found = []
    for _ in range(number % 4):
        x, y = float(rng.integers(0, 60)), float(rng.integers(0, 40))
        width, height = float(rng.integers(4, 56)) + 0.5, float(rng.integers(4, 36))
        found.append((NAMES[rng.integers(3)], (x, y, x + width, y + height)))
    return found


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of COUNT images in two folders."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(COUNT):
        path = folder / ("train" if number % 3 else "val") / f"{number:04d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(image_bytes(number, size=(WIDTH, HEIGHT)))
    return folder


def annotation_set(more: int = 0) -> globox.AnnotationSet:
    """The annotations of all images, and of some that are not there."""
    return globox.AnnotationSet(
        globox.Annotation(
            f"{number:04d}.jpg",
            (WIDTH, HEIGHT),
            [
                globox.BoundingBox(label=label, xmin=box[0], ymin=box[1], xmax=box[2], ymax=box[3])
                for label, box in boxes_of(number)
            ],
        )
        for number in range(COUNT + more)
    )


def written(folder: Path) -> dict[int, list[tuple[str, tuple[float, ...]]]]:
    """Number of an image -> its objects, in pixels of an image of WIDTH x HEIGHT."""
    found = {}
    for record in records(folder):
        texts = [text.decode() for text in record.values[TEXT]]
        sides = np.array([record.values[key] for key in BOX_SIDES]).reshape(4, -1)
        pixels = (sides.T * [WIDTH, HEIGHT, WIDTH, HEIGHT]).tolist()
        number = int(Path(record.first("image/filename").decode()).stem)
        found[number] = list(zip(texts, map(tuple, pixels), strict=True))
    return found


def assert_written(folder: Path) -> None:
    """Checks that every image has its objects, in the pixels of its file."""
    found = written(folder)
    assert set(found) == set(range(COUNT))
    for number, objects in found.items():
        expected = boxes_of(number)
        assert [text for text, _ in objects] == [text for text, _ in expected]
        for (_, box), (_, pixels) in zip(objects, expected, strict=True):
            assert box == pytest.approx(pixels, abs=0.5)


def objects_in(numbers: range) -> int:
    return sum(len(boxes_of(number)) for number in numbers)


COUNTED = {"boxes": objects_in(range(COUNT)), "without_boxes": COUNT // 4}


def test_objects_of_coco_are_written(images: Path, tmp_path: Path, build: Build):
    file = tmp_path / "instances.json"
    annotation_set(more=8).save_coco(file, auto_ids=True)
    summary = build(images, annotations=(str(file),), resize="60x40", num_shards="2")
    out = tmp_path / "out"
    assert_written(out)

    # Counts reconcile.
    others = objects_in(range(COUNT, COUNT + 8))
    assert build_json(out)["annotation_files"] == {
        str(file): {
            "images": COUNT,
            "other_folders": 0,
            "objects": objects_in(range(COUNT)),
            "unmatched_images": 8,
            "unmatched_objects": others,
        }
    }
    assert build_json(out)["annotations"] == COUNTED
    lines = (out / "metadata/unmatched_annotations.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == [
        f"{number:04d}.jpg" for number in range(COUNT, COUNT + 8)
    ]
    assert f"8 annotated images not among the inputs, with {others} objects" in str(summary)
    assert not verify(str(out)).problems

    # The classes are in the order of their numbers in the file.
    coco = COCO(str(file))
    names = [coco.cats[key]["name"] for key in sorted(coco.cats)]
    assert build_json(out)["object_classes"] == ["background", *names]
    assert (out / "label_map.pbtxt").read_text().count("item {") == 3

    # TensorFlow Datasets has typed boxes and labels.
    data = tfds.builder_from_directory(str(out))
    objects = data.info.features[LABEL].feature
    assert objects.names == ["background", *names]
    assert isinstance(data.info.features["image/object/bbox"].feature, tfds.features.BBoxFeature)
    for row in tfds.as_numpy(data.as_dataset("train")):
        boxes = row["image/object/bbox"]
        assert [objects.int2str(label).encode() for label in row[LABEL]] == row[TEXT].tolist()
        sides = np.stack([row[BOX_SIDES[at]] for at in (1, 0, 3, 2)], axis=-1)
        np.testing.assert_array_equal(boxes, sides.reshape(-1, 4))
        # The area of a segmentation is scaled like the image; here it is that of the box.
        height, width = (boxes[:, 2:] - boxes[:, :2]).T
        np.testing.assert_allclose(
            row["image/object/area"], width * height * 60 * 40, rtol=1e-3, atol=1e-2
        )


def write_voc(folder: Path) -> Path:
    annotation_set().save_pascal_voc(folder / "Annotations")
    return folder / "Annotations"


def write_yolo(folder: Path) -> Path:
    """The text files are of globox; data.yaml is what Ultralytics documents."""
    numbers = {name: number for number, name in enumerate(NAMES)}
    annotation_set().save_yolo_v5(folder / "labels", label_to_id=numbers)
    (folder / "data.yaml").write_text(f"train: images\nnc: 3\nnames: [{', '.join(NAMES)}]\n")
    return folder


def write_openimages(folder: Path) -> Path:
    annotation_set().save_openimage(folder / "boxes.csv")
    return folder / "boxes.csv"


def write_kaggle(folder: Path) -> Path:
    """As of the competition Global Wheat Detection, with classes; no writer is installed."""
    rows = [
        f'{number:04d},{WIDTH},{HEIGHT},"[{x}, {y}, {right - x}, {bottom - y}]",{label}'
        for number in range(COUNT)
        for label, (x, y, right, bottom) in boxes_of(number)
    ]
    path = folder / "train.csv"
    path.write_text("\n".join(["image_id,width,height,bbox,class", *rows]) + "\n")
    return path


def write_labelme(folder: Path) -> Path:
    annotation_set().save_labelme(folder)
    return folder


def write_cvat(folder: Path) -> Path:
    annotation_set().save_cvat(folder / "annotations.xml")
    return folder / "annotations.xml"


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("voc", write_voc),
        ("yolo", write_yolo),
        pytest.param("csv", write_openimages, marks=pytest.mark.slow),
        pytest.param("csv", write_kaggle, marks=pytest.mark.slow),
        pytest.param("labelme", write_labelme, marks=pytest.mark.slow),
        pytest.param("cvat", write_cvat, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_objects_of_every_format_are_written(
    images: Path, tmp_path: Path, build: Build, name: str, write: Callable[[Path], Path]
):
    folder = tmp_path / "annotations"
    folder.mkdir()
    place = write(folder)
    build(images, annotations=(str(place),))
    out = tmp_path / "out"
    assert_written(out)
    assert build_json(out)["options"]["annotation_format"] == name
    classes = NAMES if name == "yolo" else sorted(NAMES)
    assert build_json(out)["object_classes"] == ["background", *classes]
    assert build_json(out)["annotations"] == COUNTED


def test_objects_of_images_that_are_left_out_are_counted(
    images: Path, tmp_path: Path, build: Build
):
    file = tmp_path / "instances.json"
    annotation_set().save_coco(file, auto_ids=True)
    summary = build(images, annotations=(str(file),), limit=10)
    counts = build_json(tmp_path / "out")["annotations"]
    assert counts["left_out"] > 0
    assert counts["boxes"] + counts["left_out"] == objects_in(range(COUNT))
    assert f"; {counts['left_out']} in images that are left out" in str(summary)


def test_annotations_fit_the_images_that_remain_of_all(images: Path, tmp_path: Path, build: Build):
    file = tmp_path / "instances.json"
    annotation_set().save_coco(file, auto_ids=True)
    lines = [f"{path},{path.parent.name}\n" for path in sorted(images.rglob("*.jpg"))]
    (tmp_path / "list.csv").write_text("uri,part\n" + "".join(lines + lines[:3]))
    summary = build(
        tmp_path / "list.csv", annotations=(str(file),), where="part == 'train'",
        base_uri=str(images),
    )  # fmt: skip
    remaining = len(list(images.glob("train/*")))
    assert summary.records == remaining
    assert sum(summary.left_out.values()) + summary.duplicates == len(lines) + 3 - remaining


def test_objects_that_a_crop_cuts_off_have_the_rest_of_their_area(
    images: Path, tmp_path: Path, build: Build
):
    file = tmp_path / "instances.json"
    annotation_set().save_coco(file, auto_ids=True)
    build(images, annotations=(str(file),), resize="crop:40x40", without_boxes="keep")
    out = tmp_path / "out"
    counts = build_json(out)["annotations"]
    assert counts["clipped"] > 0
    assert counts["dropped"] > 0
    assert counts["boxes"] + counts["dropped"] == objects_in(range(COUNT))
    assert counts["without_boxes"] == sum(not r.values[BOX_SIDES[0]] for r in records(out))
    for record in records(out):
        sides = np.array([record.values[key] for key in BOX_SIDES]).reshape(4, -1)
        areas = (sides[2] - sides[0]) * (sides[3] - sides[1]) * 1600
        assert record.values["image/object/area"] == pytest.approx(areas, rel=1e-3, abs=0.01)


def coco(images: list[dict[str, Any]], objects: list[dict[str, Any]]) -> str:
    categories = [{"id": 7, "name": "owl"}]
    return json.dumps({"images": images, "annotations": objects, "categories": categories})


def boxes_in(file: Path) -> dict[str, list[tuple[str, list[float]]]]:
    """Base name of an image -> its objects, as pycocotools reads them: (class, bbox)."""
    found = COCO(str(file))
    return {
        Path(image["file_name"]).name: [
            (found.cats[item["category_id"]]["name"], item["bbox"])
            for item in found.imgToAnns[image["id"]]
        ]
        for image in found.imgs.values()
    }


def test_a_round_trip_through_coco_moves_nothing(
    images: Path, tmp_path: Path, build: Build, command: Command
):
    file, back = tmp_path / "instances.json", tmp_path / "back.json"
    annotation_set().save_coco(file, auto_ids=True)
    build(images, annotations=(str(file),))
    code, said, _ = command("inspect", tmp_path / "out", "--coco", back)
    assert (code, said) == (0, f"{back}: {objects_in(range(COUNT))} objects of {COUNT} images\n")
    before, after = boxes_in(file), boxes_in(back)
    assert before.keys() == after.keys()
    for name, objects in before.items():
        assert [text for text, _ in objects] == [text for text, _ in after[name]]
        for (_, box), (_, other) in zip(objects, after[name], strict=True):
            assert other == pytest.approx(box, abs=0.01)
    build(images, annotations=(str(back),), output=tmp_path / "again")
    assert written(tmp_path / "again") == {
        number: [(text, pytest.approx(box, abs=0.01)) for text, box in objects]
        for number, objects in written(tmp_path / "out").items()
    }
    assert command("inspect", tmp_path / "out", "--coco", tmp_path / "none" / "x.json")[0] == 2


def test_annotations_that_are_wrong_are_rejects_of_their_images(
    images: Path, tmp_path: Path, build: Build
):
    good = {"category_id": 7, "bbox": [0, 0, 5, 5]}
    entries = [
        {"id": 0, "file_name": "0000.jpg", "width": WIDTH, "height": HEIGHT},
        {"id": 1, "file_name": "0001.jpg", "width": HEIGHT, "height": WIDTH},
        {"id": 2, "file_name": "0002.jpg"},
        {"id": 3, "file_name": "0003.jpg", "width": 2 * WIDTH, "height": 2 * HEIGHT},
    ]
    objects = [
        {"id": 10, "image_id": 0, **good, "category_id": 8},
        {"id": 11, "image_id": 1, **good},
        {"id": 12, "image_id": 2, **good},
        {"id": 13, "image_id": 2, **good, "bbox": None},
        {"id": 14, "image_id": 3, **good, "area": 20},
        {"id": 15, "image_id": 4, **good},
    ]
    file = tmp_path / "instances.json"
    file.write_text(coco(entries, objects))
    build(images, annotations=(str(file),), max_reject_fraction=0.5)
    out = tmp_path / "out"
    found = {Path(line["name"]).stem: (line["error"], line["reason"]) for line in rejects(out)}
    assert found == {
        "0000": ("BadAnnotation",
                 f"{file}: annotation 10 has the category_id 8, which no category has"),
        "0001": ("OtherSize",
                 "the annotations are for an image of 80 x 120 pixels, but it has 120 x 80: set "
                 "--annotations_on to the pixels that they were drawn on"),
        "0002": ("BadAnnotation",
                 f"{file}: annotation 13 has the bbox None and the area None: expected [x, y, "
                 "width, height] and a number"),
    }  # fmt: skip
    # The image 3 was scaled after it was annotated.
    assert written(out)[3] == [("owl", pytest.approx((0, 0, 2.5, 2.5)))]
    areas = [record.values["image/object/area"] for record in records(out)]
    assert list(filter(None, areas)) == [[5.0]]
    counts = build_json(out)["annotation_files"][str(file)]
    found = {name: count for name, count in counts.items() if count}
    assert found == {"images": 4, "objects": 5, "unmatched_images": 1, "unmatched_objects": 1}
    note = (
        f"{COUNT - 4} of {COUNT} images have no annotations, because no annotation file names them"
    )
    assert note in build_json(out)["notes"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", ": not annotations of coco, .* or yolo; an --annotation_format shows what is"),
        ('{"images": [{"id": 1', "is not JSON"),
    ],
)
def test_a_file_that_is_not_coco_is_one_line(
    images: Path, tmp_path: Path, build: Build, content: str, message: str
):
    file = tmp_path / "instances.json"
    file.write_text(content)
    with pytest.raises(Exception, match=message) as raised:
        build(images, annotations=(str(file),))
    assert "\n" not in str(raised.value)


def test_images_that_are_found_by_their_base_names_are_counted(
    images: Path, tmp_path: Path, build: Build
):
    file = tmp_path / "instances.json"
    good = {"image_id": 1, "category_id": 7, "bbox": [0, 0, 5, 5]}

    def entries(*names: str) -> list[dict[str, Any]]:
        return [{"id": at, "file_name": name} for at, name in enumerate(names)]

    file.write_text(coco(entries("old/0000.jpg", "elsewhere/0001.jpg", "0002.jpg"), [good]))
    build(images, annotations=(str(file),))
    notes = [note for note in build_json(tmp_path / "out")["notes"] if "base name" in note]
    assert notes == [
        f"{file} has 2 of its 3 images in other folders than the inputs: they were found by their "
        "base names"
    ]
    # The folders of the file are those of the inputs, so that another folder is another image.
    file.write_text(coco(entries("val/0000.jpg", "val/0001.jpg", "0002.jpg"), [good]))
    message = r"1 image of the inputs is in the folder that it names, but others .*: val/0001.jpg"
    with pytest.raises(JobError, match=message) as raised:
        build(images, annotations=(str(file),), output=tmp_path / "other")
    assert "\n" not in str(raised.value)


def test_files_that_annotate_no_image_are_errors(
    images: Path, tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
):
    file, empty = tmp_path / "instances.json", tmp_path / "empty.json"
    entries = [{"id": f"{number:04d}", "file_name": f"{number:04d}.jpg"} for number in range(3)]
    objects = [{"image_id": 1, "category_id": 7, "bbox": [0, 0, 5, 5]}]
    empty.write_text(coco(entries, []))
    with pytest.raises(JobError, match="there are no annotations, only names of images: use"):
        build(images, annotations=(str(empty),))
    file.write_text(coco(entries, objects))
    message = "none of its 1 annotation is of one of the 3 images .*, such as 'image_id 1': correct"
    with pytest.raises(JobError, match=message):
        build(images, annotations=(str(file),))
    file.write_text(coco(entries, [{**objects[0], "image_id": "0001"}]))
    with monkeypatch.context() as patched:
        patched.setattr(join_annotations, "_MOST_IMAGES", 0)
        with pytest.raises(JobError, match="--annotations: more than 0 images have the same base"):
            build(images, annotations=(str(empty), str(file)))
    build(images, annotations=(str(empty), str(file)))
    assert (
        f"{empty} has no annotations, but names 3 images" in build_json(tmp_path / "out")["notes"]
    )


def test_what_may_be_wrong_with_boxes_is_counted(tmp_path: Path, build: Build):
    """Fractions of rotated photographs, and boxes that exceed their images."""
    (tmp_path / "in").mkdir()
    (tmp_path / "labels").mkdir()
    for number, orientation in enumerate((1, 6, 3, 8)):
        image = Image.open(io.BytesIO(image_bytes(number, size=(WIDTH, HEIGHT))))
        exif = headers.exif_with_orientation(orientation)
        image.save(tmp_path / f"in/{number}.jpg", exif=exif)
        line = "0 0.9 0.5 0.4 0.4\n" if number else "0 0.5 0.5 0.4 0.4\n"
        (tmp_path / f"labels/{number}.txt").write_text(line)
    (tmp_path / "labels/3.txt").write_text("")
    (tmp_path / "labels/classes.txt").write_text("owl\n")
    summary = build(tmp_path / "in", annotations=(str(tmp_path / "labels"),))
    counts = build_json(tmp_path / "out")["annotations"]
    assert counts == {"boxes": 3, "clipped": 2, "outside": 2, "oriented": 2, "without_boxes": 1}
    assert "; 2 images with an EXIF orientation, whose boxes refer to the pixels of" in str(summary)
    assert summary.warnings == [
        "BEYOND THE EDGES: 2 of 3 annotated boxes exceed their images: check the order and the "
        "unit of the sides in the files"
    ]


def test_options_that_do_not_fit_are_errors(images: Path, tmp_path: Path, build: Build):
    with pytest.raises(UsageError, match=r"--annotations .*: no such file or folder"):
        build(images, annotations=(str(tmp_path / "none.json"),))
    with pytest.raises(UsageError, match="--annotation_format coco requires --annotations"):
        build(images, annotation_format="coco")
    file = tmp_path / "instances.json"
    file.write_text(coco([{"id": 0, "file_name": "other.jpg"}], []))
    with pytest.raises(JobError, match="none of its 1 image is among the inputs, such as 'oth"):
        build(images, annotations=(str(file),))
    with pytest.raises(UsageError, match=r"instances\.json is set twice: omit one of them"):
        build(images, annotations=(str(file), f"{tmp_path}/./instances.json"))


def test_masks_are_those_of_the_written_pixels(tmp_path: Path, build: Build):
    """Polygons and run lengths, compressed by pycocotools and not, of a bright rectangle."""
    (tmp_path / "in").mkdir()
    pixels = np.zeros((60, 90), np.uint8)
    pixels[20:40, 30:70] = 1
    compressed = mask.encode(np.asfortranarray(pixels))
    compressed["counts"] = compressed["counts"].decode()
    runs = np.flatnonzero(np.diff(pixels.flatten(order="F"), prepend=0, append=0))
    counts = np.diff([0, *runs.tolist(), pixels.size]).tolist()
    segmentations = [
        [[30, 20, 70, 20, 70, 40, 30, 40]],
        compressed,
        {"size": [60, 90], "counts": counts},
        [[1, 2, 3, 4]],
    ]
    entries, objects = [], []
    for number, segmentation in enumerate(segmentations):
        name = f"{number}.png"
        exif = headers.exif_with_orientation(6)
        Image.fromarray(pixels * 255).save(tmp_path / "in" / name, exif=exif)
        entries.append({"id": number, "file_name": name, "width": 90, "height": 60})
        objects += [
            {"image_id": number, "category_id": 7, "bbox": [30, 20, 40, 20],
             "segmentation": segmentation},
            {"image_id": number, "category_id": 7, "bbox": [0, 0, 2, 60],
             "segmentation": [[0, 0, 2, 0, 2, 60, 0, 60]]},
        ]  # fmt: skip
    file = tmp_path / "instances.json"
    file.write_text(coco(entries, objects))
    build(
        tmp_path / "in", annotations=(str(file),), object_masks=True, resize="crop:40x40",
        convert="png", max_reject_fraction=0.5,
    )  # fmt: skip
    out = tmp_path / "out"
    (line,) = rejects(out)
    assert line["error"] == "BadAnnotation"
    assert "a segmentation is not of an object in 90 x 60 pixels: [[1, 2" in line["reason"]
    assert len(records(out)) == 3
    for record in records(out):
        (png,) = record.values["image/object/mask"]  # the crop removes the other object
        found = np.asarray(Image.open(io.BytesIO(png)))
        image = np.asarray(Image.open(io.BytesIO(record.first("image/encoded"))).convert("L"))
        assert found.max() == 1
        assert np.abs(found.astype(int) - (image > 127)).mean() < 0.05
    assert not verify(str(out)).problems
    with pytest.raises(UsageError, match="which has no masks"):
        build(tmp_path / "in", annotations=(str(write_cvat(tmp_path)),), object_masks=True)


def test_keypoints_follow_the_pixels(tmp_path: Path, build: Build):
    (tmp_path / "in").mkdir()
    pixels = np.zeros((60, 90), np.uint8)
    pixels[10:14, 30:34] = 255
    exif = headers.exif_with_orientation(6)
    Image.fromarray(pixels).save(tmp_path / "in/1.png", exif=exif)
    image = {"id": 1, "file_name": "1.png", "width": 90, "height": 60}
    person = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [20, 5, 60, 40]}
    category = {"id": 1, "name": "person", "keypoints": ["nose", "foot", "hand"]}
    objects = [{**person, "keypoints": [32, 12, 2, 88, 50, 1, 0, 0, 0], "num_keypoints": 2}]
    file = tmp_path / "keypoints.json"
    content = {"images": [image], "annotations": objects, "categories": [category]}
    file.write_text(json.dumps(content))
    out = tmp_path / "out"
    build(
        tmp_path / "in", annotations=(str(file),), annotation_format="coco_keypoints",
        resize="crop:60x60", convert="png",
    )  # fmt: skip
    (record,) = records(out)
    found = np.asarray(Image.open(io.BytesIO(record.first("image/encoded"))).convert("L"))
    rows, columns = np.nonzero(found > 127)
    key = "image/object/keypoint/"
    x, y = (record.values[f"{key}{axis}"] for axis in "xy")
    centre = (columns.mean() + 0.5, rows.mean() + 0.5)
    assert (x[0] * 60, y[0] * 60) == pytest.approx(centre, abs=1)
    assert record.values[f"{key}visibility"] == [2, 0, 0]  # the crop removes the foot
    assert record.values[f"{key}num"] == [1]
    assert record.values[f"{key}text"] == [b"nose", b"foot", b"hand"]
    assert not verify(str(out)).problems
    objects[0]["keypoints"] = [1, 2]
    file.write_text(json.dumps(content))
    (bad,) = (item for item in identify(str(file), "coco_keypoints").read(())
              if isinstance(item, Annotated))  # fmt: skip
    assert bad.problem.endswith("has 2 numbers of keypoints, but its category has 3 keypoints")
    category["keypoints"] = []
    file.write_text(json.dumps(content))
    (bad,) = (item for item in identify(str(file), "coco_keypoints").read(())
              if isinstance(item, Annotated))  # fmt: skip
    assert bad.problem.endswith("has the category person, which has no keypoints")
