"""Every schema: built, parsed back to its source, read by TensorFlow Datasets."""

import io
import json
import re
import struct
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import build_json, contents, image_bytes, rejects, write_images
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.job.failures import JobError
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.reader import parse
from imageshards.reader.verify import verify
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import SCHEMAS, SHAPE, Feature, Schema
from imageshards.transforms.references import plan

SIZE = (24, 16)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of one size: JPEGs and PNGs, colour and grey."""
    place = tmp_path / "in"
    write_images(place, 3, 6)
    for number, kind in enumerate(("PNG", "BMP")):
        (place / f"class01/x{number}.png").write_bytes(image_bytes(90 + number, kind, SIZE))
    grey = Image.open(io.BytesIO(image_bytes(95, size=SIZE))).convert("L")
    (place / "class02/grey.png").write_bytes(saved(grey))
    (place / "class02/grey.jpg").write_bytes(saved(grey, "JPEG"))
    return place


def raw_records(out: Path) -> list[bytes]:
    paths = sorted(str(path) for path in out.glob("*-of-*"))
    compressed = any(path.endswith(".gz") for path in paths)
    data = tf.data.TFRecordDataset(paths, compression_type="GZIP" if compressed else "")
    return list(data.as_numpy_iterator())


def as_tensorflow_sees(data: bytes, channels: int = 3) -> Any:
    return tf.io.decode_image(data, channels=channels, expand_animations=False).numpy()


def sources(folder: Path, channels: int = 3) -> dict[bytes, int]:
    """Pixels -> class of every image."""
    return {
        as_tensorflow_sees(path.read_bytes(), channels).tobytes(): int(path.parent.name[-2:])
        for path in folder.rglob("*.*")
    }


def options_of(name: str) -> dict[str, Any]:
    resize = {"resize": f"{SIZE[0]}x{SIZE[1]}"} if SCHEMAS[name].fixed else {}
    return {"features": name, "num_shards": "2", **resize}


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


IMAGES = [name for name, schema in SCHEMAS.items() if schema.holds != "text" and not schema.side]


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


def test_batches_of_one_shape_are_decoded_at_once(build: Build, folder: Path, tmp_path: Path):
    build(folder, **options_of("pixels"))
    schema = parse.schema_of(str(tmp_path / "out"))
    spec = parse.parse_spec(schema)
    data = raw_records(tmp_path / "out")
    batches = (
        tf.data.Dataset.from_tensor_slices(data)
        .batch(4, drop_remainder=True)
        .map(lambda batch: parse.decode(tf.io.parse_example(batch, spec), schema))
    )
    assert batches.element_spec["image"].shape == (4, 16, 24, 3)
    read = np.concatenate([batch["image"].numpy() for batch in batches])
    one_by_one = [parse.decode_numpy(record, schema)["image"] for record in data[:20]]
    np.testing.assert_array_equal(read, one_by_one)
    for name in ("slim", "shape"):
        parsed = {feature.key: tf.constant([b""]) for feature in SCHEMAS[name].features}
        with pytest.raises(ValueError, match="decode before batching"):
            parse.decode(parsed, name)


def test_pixels_have_the_range_and_channels_of_the_options(
    build: Build, folder: Path, tmp_path: Path
):
    build(folder, **options_of("raw"), pixel_range="0..255", channels=1, output=tmp_path / "a")
    build(folder, **options_of("pixels"), channels=1, output=tmp_path / "b")
    build(folder, **options_of("shape"), channels=3, output=tmp_path / "c")
    values = {
        name: [parse.decode_numpy(r, parse.schema_of(str(tmp_path / name))) for r in records]
        for name in "abc"
        for records in [raw_records(tmp_path / name)]
    }
    for a, b, c in zip(values["a"], values["b"], values["c"], strict=True):
        assert a["image"].dtype == np.float32
        assert b["image"].shape == (16, 24, 1)
        np.testing.assert_array_equal(a["image"], b["image"])
        assert c["shape"].tolist() == [16, 24, 3] == list(c["image"].shape)
        grey = np.asarray(Image.fromarray(c["image"]).convert("L"))
        np.testing.assert_array_equal(b["image"][..., 0], grey)


def hard_images(place: Path) -> dict[str, Any]:
    """Writes images of every awkward kind; name -> their pixels as grey or RGB of 8 bits."""
    place.mkdir(parents=True)
    rng = np.random.default_rng(1)
    rgb = rng.integers(0, 256, (16, 24, 3), dtype=np.uint8)
    alpha = rng.integers(0, 256, (16, 24), dtype=np.uint8)
    deep = rng.integers(0, 65536, (16, 24), dtype=np.uint16)
    rgba = Image.fromarray(np.dstack([rgb, alpha]))
    paper = Image.new("RGB", SIZE, "white")
    paper.paste(rgba, mask=rgba.getchannel("A"))
    exif = Image.Exif()
    exif[0x0112] = 3
    files = {
        "16-bit.png": (saved(Image.fromarray(deep)), (deep >> 8).astype(np.uint8)[..., None]),
        "alpha.png": (saved(rgba), np.asarray(paper)),
        "turned.png": (saved(Image.fromarray(rgb), exif=exif), rgb[::-1, ::-1]),
        "cmyk.tif": (
            saved(Image.fromarray(rgb).convert("CMYK"), "TIFF"),
            np.asarray(Image.fromarray(rgb).convert("CMYK").convert("RGB")),
        ),
        "lossless.webp": (saved(Image.fromarray(rgb), "WEBP", lossless=True), rgb),
    }
    for name, (data, _) in files.items():
        (place / name).write_bytes(data)
    return {name: pixels for name, (_, pixels) in files.items()}


@pytest.mark.parametrize("name", ["raw", "pixels", "shape"])
def test_awkward_images_become_8_bit_colours(build: Build, tmp_path: Path, name: str):
    expected = hard_images(tmp_path / "in/a")
    (tmp_path / "in/a/broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    build(tmp_path / "in", **{**options_of(name), "num_shards": "1"}, max_reject_fraction=0.5)
    schema = parse.schema_of(str(tmp_path / "out"))
    found = []
    for data in raw_records(tmp_path / "out"):
        pixels = parse.decode_numpy(data, schema)["image"]
        found.append((pixels * 255 if name == "raw" else pixels).astype(np.uint8))
    wanted = [
        pixels if name == "shape" or pixels.shape[2] == 3 else np.repeat(pixels, 3, axis=2)
        for pixels in expected.values()
    ]
    assert sorted(map(np.ndarray.tobytes, found)) == sorted(p.tobytes() for p in wanted)
    (reject,) = rejects(tmp_path / "out")
    assert (Path(reject["uri"]).name, reject["stage"]) == ("broken.jpg", "check")


def png(colour: int, bits: int, transparent: bool = False) -> bytes:
    """A PNG of 7 x 5 random pixels, of a colour type and depth of the format's table 11.1."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))

    rng = np.random.default_rng(10 * colour + bits)
    row = -(-7 * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] * bits // 8)
    rows = b"".join(b"\0" + rng.bytes(row) for _ in range(5))
    palette = chunk(b"PLTE", rng.bytes(3 << bits)) if colour == 3 else b""
    alpha = {0: b"\0\1", 2: b"\0\1\0\2\0\3", 3: rng.bytes(1 << bits) if colour == 3 else b""}
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 7, 5, bits, colour, 0, 0, 0)) + palette
    if transparent:
        head += chunk(b"tRNS", alpha[colour])
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("colour", "depths", "transparent"),
    [
        (0, (1, 2, 4, 8, 16), False),
        (0, (1, 2, 4, 8, 16), True),
        (2, (8, 16), False),
        (2, (8, 16), True),
        (3, (1, 2, 4, 8), False),
        (3, (1, 2, 4, 8), True),
        (4, (8, 16), False),
        (6, (8, 16), False),
    ],
)
def test_every_kind_of_png_is_decoded_as_tensorflow_does(
    colour: int, depths: tuple[int, ...], transparent: bool
):
    for bits in depths:
        data = png(colour, bits, transparent)
        colours, grey = parse.decode_image(data), parse.decode_image(data, channels=1)
        np.testing.assert_array_equal(colours, as_tensorflow_sees(data))
        expected = as_tensorflow_sees(data, channels=1)
        assert grey.shape == expected.shape
        if colour in (0, 4):
            np.testing.assert_array_equal(grey, expected)
        else:
            np.testing.assert_allclose(grey, expected.astype(int), atol=1)
        as_it_is = parse.decode_image(data, channels=0)
        np.testing.assert_array_equal(as_it_is, grey if colour == 0 else colours)


def test_pixels_are_those_that_png_would_hold(tmp_path: Path):
    data = image_bytes(3, size=(200, 120))
    for resize in (Resize.parse("32x32"), Resize.parse("pad:64x64")):
        png = convert(data, ImagePolicy(convert="png", resize=resize)).data
        raw = convert(data, ImagePolicy(convert="pixels", resize=resize))
        assert raw.data == as_tensorflow_sees(png).tobytes()
        assert (raw.info.format, raw.channels) == ("uint8", 3)
    assert convert(data, ImagePolicy(convert="pixels")).data == as_tensorflow_sees(data).tobytes()


@pytest.mark.parametrize("resize", ["24x16", "crop:24x16"])
def test_images_that_do_not_reach_the_size_are_rejected(build: Build, tmp_path: Path, resize: str):
    write_images(tmp_path / "in", 1, 3)
    (tmp_path / "in/class00/small.png").write_bytes(image_bytes(7, "PNG", (12, 8)))
    with pytest.raises(JobError, match=r"1 WrongSize, such as .*small.png \(12 x 8 .*--enlarge"):
        build(tmp_path / "in", features="pixels", resize=resize, num_shards="1")
    summary = build(
        tmp_path / "in", features="pixels", resize=resize, enlarge=True, num_shards="1",
        overwrite=True,
    )  # fmt: skip
    assert summary.records == 4


def write_boxes(place: Path) -> Path:
    rows = [
        {"uri": f"{n}.jpg", "label": "ab"[n % 2], "x0": [0.25] * n, "x1": [0.5] * n}
        for n in range(3)
    ]
    for number in range(3):
        (place / f"{number}.jpg").write_bytes(image_bytes(number))
    path = place / "boxes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


BOX = "image/object/bbox"


def test_imagenet_has_boxes_and_a_background(build: Build, tmp_path: Path):
    manifest = write_boxes(tmp_path)
    columns = (f"{BOX}/xmin=x0:float_list", f"{BOX}/xmax=x1:float_list", "x0:bytes_list")
    build(manifest, features="imagenet", features_from=columns[:2], num_shards="1")
    assert build_json(tmp_path / "out")["classes"] == ["background", "a", "b"]
    seen = set()
    for data in raw_records(tmp_path / "out"):
        found = example.decode(data)
        boxes = len(found[f"{BOX}/xmin"])
        seen.add(boxes)
        assert found[f"{BOX}/xmin"] == [0.25] * boxes
        assert found[f"{BOX}/xmax"] == [0.5] * boxes
        assert found[f"{BOX}/ymin"] == []
        (label,) = found["image/class/label"]
        assert found[f"{BOX}/label"] == [label] * boxes
        assert found["image/class/synset"] == [b" ab"[label : label + 1]]
        assert (found["image/channels"], found["image/colorspace"]) == ([3], [b"RGB"])
    assert seen == {0, 1, 2}
    # Read again as an input, it keeps its boxes.
    shards = str(tmp_path / "out/train-*")
    build(
        shards, features="imagenet", name_key="image/filename", label_key="image/class/text",
        num_shards="1", output=tmp_path / "again",
    )  # fmt: skip
    assert raw_records(tmp_path / "again") == raw_records(tmp_path / "out")


def test_imagenet_has_texts_of_its_synsets(build: Build, tmp_path: Path):
    manifest = write_boxes(tmp_path)
    names = tmp_path / "names.txt"
    names.write_text("b\tbee, Apis\na\nc\tnone\n")
    same = {"features": "imagenet", "class_names": str(names), "num_shards": "1"}
    build(manifest, **same)
    found = {
        (values["image/class/label"], values["image/class/synset"], values["image/class/text"])
        for data in raw_records(tmp_path / "out")
        for values in [parse.decode_numpy(data, "imagenet")]
    }
    assert found == {(1, b"b", b"bee, Apis"), (2, b"a", b"a")}
    assert not verify(str(tmp_path / "out")).problems
    names.write_text("b\tBombus\na\nc\tnone\n")
    with pytest.raises(JobError, match="holds a build with other inputs"):
        build(manifest, **same)


def test_imagenet_holds_jpegs_alone(build: Build, folder: Path, tmp_path: Path):
    build(folder, features="imagenet", num_shards="1")
    formats = build_json(tmp_path / "out")["splits"]["train"]["formats"]
    assert formats == {"JPEG": 22}


def test_records_become_pixels_without_the_features_of_their_images(
    build: Build, folder: Path, tmp_path: Path
):
    build(folder, num_shards="1", output=tmp_path / "slim")
    build(f"{tmp_path}/slim/train-*", **options_of("pixels"))
    (record, *_) = raw_records(tmp_path / "out")
    assert sorted(example.decode(record)) == ["image", "label"]


def test_columns_go_with_every_schema(build: Build, tmp_path: Path):
    manifest = write_boxes(tmp_path)
    for name in IMAGES:
        out = tmp_path / name
        build(manifest, **options_of(name), features_from=("x0:float_list",), output=out)
        found = [parse.decode_numpy(data, parse.schema_of(str(out))) for data in raw_records(out)]
        assert sorted(len(values["x0"]) for values in found) == [0, 1, 2]
        assert not verify(str(out)).problems


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_compressed_shards_are_read_by_tensorflow(
    build: Build, folder: Path, tmp_path: Path, writer: str
):
    same = {
        **options_of("pixels"), "writer": writer, "splits": "train=0.6,test=0.4",
        "base_uri": str(folder),
    }  # fmt: skip
    for path in (folder / "class01").glob("*.jpg"):
        (folder / f"class00/twin{path.name}").write_bytes(path.read_bytes())
    plain = build(folder, **same, output=tmp_path / "plain")
    summary = build(folder, **same, compression="gzip")
    out = tmp_path / "out"
    assert sorted(path.name for path in out.glob("*-of-*")) == [
        f"{split}-0000{n}-of-00002.tfrecord.gz" for split in ("test", "train") for n in (0, 1)
    ]
    assert sorted(raw_records(out)) == sorted(raw_records(tmp_path / "plain"))
    assert summary.bytes < plain.bytes
    assert summary.leaks == plain.leaks > 0
    leak = json.loads((out / "metadata/leaks.jsonl").read_text().splitlines()[0])
    for image in leak["images"]:
        assert re.fullmatch(rf"record \d+ of {image['split']}-\d+-of-00002.tfrecord.gz",
                            image["filename"])  # fmt: skip
    assert any("compression_type=" in note for note in summary.notes)
    assert not list(out.glob("metadata/index/*"))
    assert not verify(str(out)).problems
    builder = tfds.builder_from_directory(str(out))
    with pytest.raises(tf.errors.DataLossError):
        list(builder.as_dataset(split="train"))
    shard = out / "train-00000-of-00002.tfrecord.gz"
    assert shard.read_bytes()[4:8] == bytes(4), "no time in the header"
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    shard.write_bytes(damaged)
    assert "train-00000-of-00002" in verify(str(out)).problems[0]
    shard.write_bytes(bytes(damaged[:50]))
    assert "gzip: " in verify(str(out)).problems[0]


@pytest.mark.slow
def test_compressed_shards_are_reproducible_and_resumed(build: Build, folder: Path, tmp_path: Path):
    same = {**options_of("raw"), "compression": "gzip", "name": "x", "base_uri": str(folder)}
    build(folder, **same)
    build(folder, **same, output=tmp_path / "b", beam=["--runner=FnApiRunner",
          "--direct_running_mode=multi_processing", "--direct_num_workers=2"])  # fmt: skip
    before = contents(tmp_path / "out")
    assert contents(tmp_path / "b") == before
    (tmp_path / "out/train-00001-of-00002.tfrecord.gz").unlink()
    assert build(folder, **same).resumed == 1
    assert contents(tmp_path / "out") == before
    build(folder, **{**same, "compression": "none"}, overwrite=True)
    assert not list((tmp_path / "out").glob("*.gz"))


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
        ({"compression": "zip"}, "expected none or gzip"),
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


def test_the_automatic_number_of_shards_follows_from_the_pixels(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_images(tmp_path / "in", 1, 10)
    monkeypatch.setattr(plan, "TARGET_SHARD_BYTES", 200_000)
    summary = build(tmp_path / "in", features="raw", resize="24x16", num_shards="auto")
    assert summary.shards == 1
    again = build(
        tmp_path / "in", features="raw", resize="96x64", enlarge=True, output=tmp_path / "b"
    )
    assert again.shards == round(10 * 96 * 64 * 3 * 4 / 200_000) == 4


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


PIXEL_VALUES = st.tuples(
    st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 3]), st.integers(0, 2**32 - 1)
)


@given(PIXEL_VALUES, st.sampled_from(["float32", "uint8", "shape"]), st.integers(0, 1000))
def test_any_pixels_are_read_back(drawn: tuple[int, int, int, int], kind: str, label: int):
    *size, seed = drawn
    dtype = "uint8" if kind == "shape" else kind
    pixels = np.random.default_rng(seed).integers(0, 256, size).astype(dtype)
    schema: Schema = SHAPE
    if kind != "shape":
        name = "raw" if kind == "float32" else "pixels"
        schema = SCHEMAS[name].with_shape((size[0], size[1], size[2]))
    values = {"pixels": pixels.tobytes(), "label": label, "shape": np.array(size, "<i4").tobytes()}
    data = b"".join(example.encode(schema, values))
    found = parse.decode_numpy(data, schema)
    np.testing.assert_array_equal(found["image"], pixels)
    assert (found["image"].dtype, found["label"]) == (pixels.dtype, label)
    values["pixels"] = pixels.tobytes()[:-1]
    with pytest.raises(example.CorruptExample, match="bytes"):
        parse.decode_numpy(b"".join(example.encode(schema, values)), schema)
