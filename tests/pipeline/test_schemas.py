"""Every schema: built, parsed back to its source, read by TensorFlow Datasets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build, Command
from PIL import Image
from schema_builds import (
    BOX,
    IMAGES,
    as_tensorflow_sees,
    options_of,
    raw_records,
    write_boxes,
    write_folder,
)

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.reader import parse
from imageshards.reader.verify import verify
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records.schemas import SCHEMAS, Feature, Schema


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "in")


def sources(folder: Path, channels: int = 3) -> dict[bytes, int]:
    """Pixels -> class of every image."""
    return {
        as_tensorflow_sees(path.read_bytes(), channels).tobytes(): int(path.parent.name[-2:])
        for path in folder.rglob("*.*")
    }


def side_files(folder: Path, side: Path, kind: str) -> dict[str, str]:
    """Writes a mask or a caption for each image; returns the options of a build with them."""
    suffix = {"mask": "png", "captions": "txt"}[kind]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        place = side / f"{path.name}.{suffix}"
        place.parent.mkdir(exist_ok=True)
        if kind == "mask":
            Image.new("L", Image.open(path).size, 3).save(place)
        else:
            place.write_text("a colour\n")
    return {"masks" if kind == "mask" else kind: f"{side}/{{name}}.{suffix}"}


@pytest.mark.parametrize("name", IMAGES)
def test_records_are_those_of_tensorflow_and_parse_back(
    build: Build, folder: Path, tmp_path: Path, name: str
):
    build(folder, **options_of(name))
    out = tmp_path / "out"
    schema = parse.schema_of(str(out))
    spec = parse.parse_spec(schema)
    expected = sources(folder)
    if name == "shape":
        grey = sources(folder, channels=0)
    found = []
    for data in raw_records(out):
        message = tf.train.Example.FromString(data)
        assert message.SerializeToString(deterministic=True) == data
        assert sorted(message.features.feature) == sorted(f.key for f in schema.features)
        values = parse.decode(tf.io.parse_single_example(data, spec), schema)
        assert schema.content
        assert schema.label_key
        pixels = values[schema.content.key].numpy()
        if name == "raw":
            assert pixels.dtype == np.float32
            pixels = pixels * np.float32(255)
            np.testing.assert_array_equal(pixels, pixels.round())
        label = int(values[schema.label_key]) - schema.label_offset
        if name == "imagenet" and pixels.tobytes() not in expected:
            continue  # the PNGs became JPEGs
        written = pixels.astype(np.uint8).tobytes()
        assert (grey if name == "shape" else expected)[written] == label
        found.append(written)
        without = parse.decode_numpy(data, schema)
        assert set(without) == set(values)
        for key, value in without.items():
            if schema.content.tfds == "Image" and key == schema.content.key:
                value = parse.decode_image(value)
            np.testing.assert_array_equal(value, values[key].numpy())
    assert len(set(found)) == (22 if name != "imagenet" else 19)
    assert not verify(str(out)).problems


@pytest.mark.parametrize("name", IMAGES)
def test_tensorflow_datasets_reads_it(build: Build, folder: Path, tmp_path: Path, name: str):
    build(folder, **options_of(name))
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    schema = parse.schema_of(str(tmp_path / "out"))
    spec = parse.parse_spec(schema)
    ours = [
        parse.decode(tf.io.parse_single_example(data, spec), schema)
        for data in raw_records(tmp_path / "out")
    ]
    theirs = builder.as_dataset(split="train", shuffle_files=False)
    count = 0
    for mine, other in zip(ours, theirs, strict=True):
        assert sorted(mine) == sorted(other)
        for key, value in mine.items():
            # It knows the pixels of images of any shape in a row.
            told = tf.reshape(value, [-1]) if (name, key) == ("shape", "image") else value
            np.testing.assert_array_equal(told.numpy(), other[key].numpy())
        count += 1
    assert count == 22
    names = builder.info.features[schema.label_key].names
    assert names == ["background"] * schema.label_offset + ["class00", "class01", "class02"]
    features = json.loads((tmp_path / "out/features.json").read_text())
    again = parse.schema_from_features(features)
    assert parse.parse_spec(again) == spec
    assert [f.array for f in again.features] == [
        f.array for f in sorted(schema.features, key=lambda f: f.key)
    ]
    if name != "shape":  # features.json does not tell which bytes are the image
        content = again.content
        assert content
        assert schema.content
        assert (content.key, again.label_key) == (schema.content.key, schema.label_key)


def test_features_json_is_what_tensorflow_datasets_would_write(
    build: Build, folder: Path, tmp_path: Path
):
    build(folder, **options_of("raw"), channels=1)
    build(folder, **options_of("shape"), output=tmp_path / "shape")
    raw = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Tensor(shape=(16, 24, 1), dtype=np.float32, encoding="bytes"),
            "label": tfds.features.ClassLabel(num_classes=3),
        }
    )
    shape = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Tensor(shape=(None,), dtype=np.uint8, encoding="bytes"),
            "label": tfds.features.ClassLabel(num_classes=3),
            "shape": tfds.features.Tensor(shape=(3,), dtype=np.int32, encoding="bytes"),
        }
    )
    for ours, theirs in (("out", raw), ("shape", shape)):
        features = tfds.builder_from_directory(str(tmp_path / ours)).info.features
        assert features.to_json() == theirs.to_json()


def test_columns_go_with_every_schema(build: Build, tmp_path: Path):
    manifest = write_boxes(tmp_path)
    for name in IMAGES:
        out = tmp_path / name
        build(manifest, **options_of(name), features_from=("x0:float_list",), output=out)
        found = [parse.decode_numpy(data, parse.schema_of(str(out))) for data in raw_records(out)]
        assert sorted(len(values["x0"]) for values in found) == [0, 1, 2]
        assert not verify(str(out)).problems


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "raw"}, "--features raw needs one size for all images: set --resize"),
        ({"features": "pixels", "resize": "short:32"}, "needs one size for all images"),
        ({"features": "raw", "resize": "8x8", "channels": 2}, "--channels 2: expected 0, 1 or 3"),
        ({"channels": 1}, "--channels requires a schema of decoded pixels"),
        (
            {"features": "shape", "pixel_range": "0..255"},
            "--pixel_range requires a schema of float pixels",
        ),
        ({"features": "raw", "resize": "8x8", "pixel_range": "1"}, "expected 0..1 or 0..255"),
        ({"features": "shape", "convert": "jpeg"}, "omit --convert and --quality"),
        ({"features": "shape", "exif": "keep"}, "without orientation"),
        ({"features": "shape", "multi_frame": "all"}, "or frames"),
        ({"features": "imagenet", "convert": "never"}, "has only JPEG images"),
        ({"compression": "gzip"}, "is for decoded pixels and texts"),
        ({"compression": "zip"}, "expected none, gzip, zstd, brotli or snappy"),
        ({"text_unit": "paragraph"}, "--text_unit requires --features text"),
        ({"features": "text", "resize": "8x8"}, "--resize is for images"),
        ({"features": "text", "dedupe": "pixels"}, "--dedupe is for images"),
        ({"features": "text", "features_from": ("a:int",)}, "--features_from is for images"),
        ({"features": "text", "labels": "column:a"}, "text files have no column 'a'"),
        ({"features": "tfslim"}, "expected slim, imagenet, segmentation"),
        (
            {"features": "imagenet", "features_from": (f"{BOX}/xmin=a:int_list",)},
            f"'{BOX}/xmin' is of type float_list: write {BOX}/xmin=a:float_list",
        ),
        (
            {"features": "imagenet", "features_from": ("image/channels=a:int",)},
            "feature 'image/channels' exists already",
        ),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(UsageError) as caught:
        BuildSpec(BuildOptions.of(input=("in",), output="out", **options))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_of_later_versions_leave_earlier_builds_alone():
    # Of the first build of format 3.
    assert (
        BuildOptions.of(input=("in",), output="out").settings == "ced1d02e3d50c5554a2cec158f3c75c8"
    )
    assert (
        BuildOptions.of(input=("in",), output="out", features="shape", channels=1).settings
        != BuildOptions.of(input=("in",), output="out", features="shape").settings
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_features_prints_parses(
    command: Command, build: Build, folder: Path, tmp_path: Path, name: str
):
    code, listed, _ = command("features")
    assert code == 0
    assert f"  {name} " in listed
    source = folder
    if name == "text":
        source = tmp_path / "a.txt"
        source.write_text("one\ntwo\n")
    options = {**options_of(name), "resize": "32x32"} if SCHEMAS[name].fixed else options_of(name)
    if SCHEMAS[name].side:
        options |= side_files(folder, tmp_path / "side", SCHEMAS[name].side)
    build(source, **options, enlarge=SCHEMAS[name].fixed)
    for place in (name, str(tmp_path / "out")):
        code, printed, _ = command("features", place)
        assert code == 0
        scope: dict[str, Any] = {}
        exec(printed, scope)
        schema = parse.schema_of(place if name != "text" else str(tmp_path / "out"))
        if schema.fixed and not schema.content.array.shape:  # type: ignore[union-attr]
            schema = schema.with_shape((32, 32, 3))
        for data in raw_records(tmp_path / "out"):
            values = scope["parse"](data)
            mine = parse.decode(tf.io.parse_single_example(data, parse.parse_spec(schema)), schema)
            assert sorted(values) == sorted(mine)
            for key, value in values.items():
                np.testing.assert_array_equal(value.numpy(), mine[key].numpy())


def test_an_unknown_schema_is_an_error(command: Command, tmp_path: Path):
    code, _, errors = command("features", tmp_path)
    assert code == 2
    assert "neither a data set nor a schema; there are slim, imagenet" in errors
    (tmp_path / "features.json").write_text('{"pythonClassName": "x.Video"}')
    with pytest.raises(BuildError, match=r"features.json is damaged: '' is a feature of the class"):
        parse.schema_of(str(tmp_path))


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_the_schema_of_the_page_on_adding_one_works(
    build: Build, command: Command, folder: Path, tmp_path: Path, writer: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    page = (Path(__file__).parents[2] / "transforms/records/SCHEMAS.md").read_text()
    scope: dict[str, Any] = {"Schema": Schema, "Feature": Feature}
    exec(page.split("```python")[1].split("```")[0], scope)
    monkeypatch.setitem(SCHEMAS, "web", scope["WEB"])
    build(folder, features="web", num_shards="2", writer=writer, base_uri=str(folder))
    out = tmp_path / "out"
    assert not verify(str(out)).problems
    builder = tfds.builder_from_directory(str(out))
    for row in tfds.as_numpy(builder.as_dataset(split="train")):
        data = (folder / row["__key__"].decode()).read_bytes()
        np.testing.assert_array_equal(row["jpg"], as_tensorflow_sees(data))
    assert "24 x 16" in (out / "metadata/report.html").read_text()
    code, printed, _ = command("features", "web")
    assert code == 0
    exec(printed, scope)
    for data in raw_records(out):
        values = parse.decode_numpy(data, "web")
        assert scope["parse"](data)["cls"].numpy() == values["cls"]
        assert values["jpg"] == (folder / values["__key__"].decode()).read_bytes()
