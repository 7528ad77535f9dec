"""Builds with boxes: from manifests and TFRecord files, with both writers, counted and verified."""

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import tensorflow as tf
from conftest import Build
from helpers import build_json, contents, image_bytes, records, rejects, shards
from PIL import Image

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.reader.verify import verify
from imageshards.transforms.elements import UsageError
from imageshards.transforms.images import headers
from imageshards.transforms.records.columns import columns_of
from imageshards.transforms.records.schemas import BOX_SIDES
from imageshards.transforms.shards.read_back import Record

LABEL = "image/object/class/label"
COLUMNS = (*(f"{key}:float_list" for key in BOX_SIDES), f"{LABEL}:int_list")
ROTATED = 6
COUNT = 8


def photo(number: int) -> bytes:
    """A file of 96 x 48 pixels, to be shown upright as 48 x 96, with a red rectangle."""
    pixels = np.full((48, 96, 3), (20, 60, 220), np.uint8)
    pixels[8:24, 40 + number : 60] = (240, 30, 20)
    out = io.BytesIO()
    exif = headers.exif_with_orientation(ROTATED)
    Image.fromarray(pixels).save(out, "JPEG", quality=95, subsampling=0, exif=exif)
    return out.getvalue()


def row(number: int) -> dict[str, Any]:
    """Boxes of the stored pixels: the rectangle, one that a central crop removes, one outside."""
    boxes = [((40 + number) / 96, 8 / 48, 60 / 96, 24 / 48), (0, 0, 0.1, 1), (1.25, 0, 1.5, 1)]
    sides = {key: [box[at] for box in boxes] for at, key in enumerate(BOX_SIDES)}
    return {"uri": f"{number}.jpg", "label": "a", **sides, LABEL: [7, 8, 9]}


def write_manifest(folder: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path = folder / "boxes.jsonl"
    path.write_text("".join(json.dumps(values) + "\n" for values in rows))
    return path


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"{number}.jpg").write_bytes(photo(number))
    return write_manifest(folder, map(row, range(COUNT)))


def write_tfrecord(path: Path) -> Path:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(COUNT):
            values = row(number)
            features = {
                key: tf.train.Feature(float_list=tf.train.FloatList(value=values[key]))
                for key in BOX_SIDES
            }
            features[LABEL] = tf.train.Feature(int64_list=tf.train.Int64List(value=values[LABEL]))
            for key, value in (
                ("image/encoded", photo(number)), ("image/class/text", b"a"),
                ("image/filename", f"{number}.jpg".encode()),
            ):  # fmt: skip
                features[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return path


def assert_boxes_fit(record: Record) -> None:
    """The only box is within a pixel of the red rectangle."""
    pixels = tf.io.decode_image(record.first("image/encoded")).numpy()
    red = (pixels[..., 0] > 128) & (pixels[..., 2] < 128)
    columns, rows = (np.flatnonzero(red.any(axis=axis)) for axis in (0, 1))
    place = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    (box,) = zip(*(record.values[key] for key in BOX_SIDES), strict=True)
    height, width = pixels.shape[:2]
    assert np.abs(np.array(box) * [width, height, width, height] - place).max() <= 1
    assert record.values[LABEL] == [7]


def test_boxes_of_rotated_and_cropped_images(build: Build, manifest: Path, tmp_path: Path):
    crop = {"resize": "crop:32x32", "num_shards": "2"}
    summary = build(manifest, features_from=COLUMNS, **crop)
    found = records(tmp_path / "out")
    for record in found:
        assert_boxes_fit(record)
    counts = {"boxes": COUNT, "dropped": 2 * COUNT}
    stored = build_json(tmp_path / "out")
    assert stored["annotations"] == stored["splits"]["train"]["annotations"] == counts
    text = f"{COUNT} boxes; {2 * COUNT} boxes dropped, of which too little is in the image"
    assert text in str(summary)
    assert text in (tmp_path / "out/metadata/report.html").read_text()
    assert not verify(str(tmp_path / "out")).problems

    # TFRecord files give the same boxes; their coordinates are rounded to float32 once more.
    source = write_tfrecord(tmp_path / "theirs.tfrecord")
    build(source, **crop, name_key="image/filename", output=tmp_path / "again")
    again = records(tmp_path / "again")
    assert len(again) == COUNT
    for one, other in zip(found, again, strict=True):
        assert one.first("image/filename") == other.first("image/filename")
        assert_boxes_fit(other)
        for key in BOX_SIDES:
            assert one.values[key] == pytest.approx(other.values[key], abs=1e-6)
    assert build_json(tmp_path / "again")["annotations"] == counts

    # A finished build is resumed with its counts.
    before = contents(tmp_path / "out")
    (tmp_path / "out/dataset_info.json").unlink()
    assert build(manifest, features_from=COLUMNS, **crop).resumed == 2
    assert contents(tmp_path / "out") == before


@pytest.mark.slow
def test_the_beam_writer_writes_and_counts_the_same_boxes(
    build: Build, manifest: Path, tmp_path: Path
):
    common = {"features_from": COLUMNS, "resize": "pad:40x40", "num_shards": "2"}
    build(manifest, **common)
    build(manifest, **common, writer="beam", output=tmp_path / "beam")
    one, other = (
        sorted(str(record.values) for record in records(tmp_path / name))
        for name in ("out", "beam")
    )
    assert one == other
    one, other = (build_json(tmp_path / name)["annotations"] for name in ("out", "beam"))
    assert one == other == {"boxes": 2 * COUNT, "dropped": COUNT}


@pytest.mark.parametrize(
    "options", [{"exif": "keep"}, {"exif": "keep", "resize": "long:48"}, {"convert": "never"}]
)
def test_boxes_of_pixels_that_stay_are_unchanged(
    build: Build, manifest: Path, tmp_path: Path, options: dict[str, str]
):
    rows = [row(number) for number in range(COUNT)]
    for values in rows:
        for key in (*BOX_SIDES, LABEL):
            values[key] = values[key][:2]
    write_manifest(manifest.parent, rows)
    build(manifest, features_from=COLUMNS, num_shards="1", **options)
    for record in records(tmp_path / "out"):
        values = rows[int(record.first("image/filename")[:1])]
        for key in BOX_SIDES:
            assert record.values[key] == np.float32(values[key]).tolist()
    assert build_json(tmp_path / "out")["annotations"] == {"boxes": 2 * COUNT}


def test_images_with_bad_annotations_are_rejects(build: Build, manifest: Path, tmp_path: Path):
    rows = [row(number) for number in range(COUNT)]
    rows[0][BOX_SIDES[2]] = [480.0, 96.0, 144.0]
    rows[1][BOX_SIDES[1]] = [0.9, 0, 0]
    rows[2][BOX_SIDES[0]] = [0.1]
    rows[3][LABEL] = [1, 2]
    for key in (*BOX_SIDES, LABEL):
        rows[4][key] = rows[4][key][1:]
    write_manifest(manifest.parent, rows)
    build(
        manifest, features_from=COLUMNS, resize="crop:32x32", num_shards="1",
        without_boxes="reject", max_reject_fraction=0.9,
    )  # fmt: skip
    found = {line["name"]: (line["error"], line["reason"]) for line in rejects(tmp_path / "out")}
    assert {name: error for name, (error, _) in found.items()} == {
        "0.jpg": "BadBox", "1.jpg": "BadBox", "2.jpg": "BadBox", "3.jpg": "Unmappable",
        "4.jpg": "NoBoxes",
    }  # fmt: skip
    assert "pixels divided by 96 x 48" in found["0.jpg"][1]
    assert all("\n" not in reason for _, reason in found.values())
    counts = build_json(tmp_path / "out")["counts"]
    assert (counts["records"], counts["rejects"]) == (3, 5)
    assert build_json(tmp_path / "out")["annotations"] == {"boxes": 3, "dropped": 6}


def test_the_image_that_dedupe_keeps_has_annotations_that_can_be_written(
    build: Build, manifest: Path, tmp_path: Path
):
    rows = [row(number) for number in range(COUNT)]
    for number in range(COUNT):  # four copies of two photos, of which one copy has good boxes
        rows[number] |= {key: value[1:] for key, value in row(number).items() if key in BOX_SIDES}
        (manifest.parent / f"{number}.jpg").write_bytes(photo(number % 2))
    rows[0][BOX_SIDES[0]] = [0.1]  # BadBox; the boxes of most others are cropped
    rows[2], rows[5] = row(2), row(5)
    write_manifest(manifest.parent, rows)
    build(
        manifest, features_from=COLUMNS[:4], resize="crop:32x32", num_shards="1",
        without_boxes="reject", dedupe="pixels", max_reject_fraction=0.9,
    )  # fmt: skip
    found = records(tmp_path / "out")
    assert {record.first("image/filename") for record in found} == {b"2.jpg", b"5.jpg"}
    errors = Counter(line["error"] for line in rejects(tmp_path / "out"))
    assert errors == {"NoBoxes": 5, "BadBox": 1}


@pytest.mark.parametrize(
    ("column", "right"),
    [
        (f"{BOX_SIDES[0]}=left:int_list", f"{BOX_SIDES[0]}=left:float_list"),
        ("image/object/area:int_list", "image/object/area=image/object/area:float_list"),
        ("image/object/keypoint/x=kx", "image/object/keypoint/x=kx:float_list"),
        ("image/object/keypoint/y=ky:float", "image/object/keypoint/y=ky:float_list"),
        ("image/object/keypoint/visibility=v", "image/object/keypoint/visibility=v:int_list"),
        ("image/object/keypoint/num=n:bytes_list", "image/object/keypoint/num=n:int_list"),
    ],
)
def test_annotations_that_are_mapped_are_lists_of_numbers(column: str, right: str):
    options = BuildOptions.of(input=("in",), output="out", features_from=(column,))
    with pytest.raises(UsageError, match="is a list of numbers") as caught:
        BuildSpec(options)
    assert str(caught.value).endswith(f": write {right}")
    BuildSpec(options.replace(features_from=(right,)))


def test_positions_and_areas_of_tfrecords_are_copied_as_floats():
    row = {f"image/object/{key}": [1] for key in ("bbox/xmin", "area", "keypoint/num")}
    assert columns_of([row]) == [
        "image/object/area:float_list", "image/object/bbox/xmin:float_list",
        "image/object/keypoint/num:int_list",
    ]  # fmt: skip


def test_records_that_all_have_one_box_give_lists(build: Build, tmp_path: Path):
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image_bytes(1)])),
        "image/class/text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a"])),
    } | {
        key: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        for key, value in zip(BOX_SIDES, (0.25, 0.25, 0.5, 0.5), strict=True)
    }
    with tf.io.TFRecordWriter(str(tmp_path / "one.tfrecord")) as writer:
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writer.write(example.SerializeToString())
    build(tmp_path / "one.tfrecord", num_shards="1")
    options = build_json(tmp_path / "out")["options"]["features_from"]
    assert sorted(options) == sorted(f"{key}:float_list" for key in BOX_SIDES)


def test_options_at_their_defaults_do_not_change_the_digest():
    plain = BuildOptions.of(input=("in",), output="out")
    for name in ("annotations_on", "min_box_visible", "without_boxes"):
        assert name not in plain.recorded
    others = ({"annotations_on": "upright"}, {"min_box_visible": 0.5}, {"without_boxes": "reject"})
    assert len({plain.settings, *(plain.replace(**other).settings for other in others)}) == 4


def test_verify_reports_boxes_outside_of_their_image(build: Build, manifest: Path, tmp_path: Path):
    """As a version wrote them that did not map boxes."""
    build(manifest, features_from=COLUMNS, num_shards="1")
    (path,) = shards(tmp_path / "out")
    data = [bytes(record) for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()]
    example = tf.train.Example.FromString(data[0])
    example.features.feature[BOX_SIDES[2]].float_list.value[0] = 1.5
    data[0] = example.SerializeToString(deterministic=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in data:
            writer.write(record)
    stored = build_json(tmp_path / "out")
    stored["shards"][0]["crc32c"] = f"{google_crc32c.value(path.read_bytes()):08x}"
    (tmp_path / "out/metadata/build.json").write_text(json.dumps(stored))
    verdict = verify(str(tmp_path / "out"))
    (problem,) = verdict.problems
    assert "record 0: its box 0 is not within the image" in problem
    assert (verdict.damaged, verdict.unsuitable, verdict.bad_boxes) == (0, 1, 1)
    assert "in a new folder, to clip or reject them" in str(verdict)
    assert "do not decode" not in str(verdict)
