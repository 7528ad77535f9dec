"""Builds with masks: from folders and manifests, counted, rejected, resumed, read and verified."""

import csv
import io
import json
from pathlib import Path

import gcs_server
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import build_json, contents, imageshards, records, rejects, shards
from PIL import Image

from imageshards import reader
from imageshards.reader import parse
from imageshards.reader.verify import verify
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records import example

ENCODED = "image/segmentation/class/encoded"
RED, BLUE = (255, 0, 0), (0, 0, 255)


def pair(number: int) -> tuple[Image.Image, Image.Image]:
    """A blue image with a red rectangle, and its mask with a palette, of class 1 to 5."""
    rng = np.random.default_rng(number)
    top, left = rng.integers(5, 30, 2)
    numbers = np.zeros((60, 90), np.uint8)
    numbers[top : top + 25, left : left + 40] = number % 5 + 1
    pixels = np.where(numbers[..., None] > 0, np.uint8(RED), np.uint8(BLUE))
    mask = Image.frombytes("P", (90, 60), numbers.tobytes())
    mask.putpalette(rng.integers(0, 255, 768, np.uint8).tobytes())
    return Image.fromarray(pixels), mask


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """data/street/NUMBER.jpg with an EXIF orientation, and data/masks/street/NUMBER.png."""
    data = tmp_path / "data"
    for folder in ("street", "masks/street"):
        (data / folder).mkdir(parents=True)
    for number in range(12):
        image, mask = pair(number)
        exif = Image.Exif()
        exif[0x112] = number % 8 + 1
        image.save(data / f"street/{number}.jpg", quality=95, exif=exif)
        mask.save(data / f"masks/street/{number}.png")
    return data


MASKS = "masks/{dir}/{stem}.png"


def check_pixels(image: np.ndarray, mask: np.ndarray, least: float = 0.95) -> None:
    """The mask has a class where the image is red, but for pixels at edges."""
    assert image.shape[:2] == mask.shape[:2]
    assert mask.shape[2:] == (1,)
    red = image[..., 0] > image[..., 2]
    padding = mask[..., 0] == 255
    assert ((mask[..., 0] > 0) == red)[~padding].mean() > least


def test_masks_of_a_folder(build: Build, images: Path, tmp_path: Path):
    summary = build(
        images, features="segmentation", masks=MASKS, resize="crop:40x40", num_shards="2"
    )
    out = tmp_path / "out"
    assert "12 masks, 12 of them converted" in str(summary)
    assert build_json(out)["annotations"] == {"masks": 12, "masks_converted": 12}
    assert build_json(out)["counts"]["passed_over"] == 12  # the masks, which are no images
    assert build_json(out)["classes"] == []
    found = records(out)
    assert len(found) == 12
    assert "image/class/label" not in found[0].values
    assert found[0].first("image/segmentation/class/format") == b"PNG"
    assert not verify(str(out)).problems

    theirs = tfds.builder_from_directory(str(out))
    assert theirs.info.features[ENCODED].shape == (None, None, 1)
    classes = set()
    for image, mask in theirs.as_dataset("train", as_supervised=True):
        check_pixels(image.numpy(), mask.numpy())
        classes |= set(np.unique(mask))
    assert classes == set(range(6))
    spec = parse.parse_spec(str(out))
    values = parse.decode(tf.io.parse_single_example(_bytes(out), spec), str(out))
    check_pixels(values["image/encoded"].numpy(), values[ENCODED].numpy())


@pytest.mark.slow
def test_masks_are_the_same_however_and_wherever_they_are_built(
    command: Command, images: Path, tmp_path: Path
):
    options = ["--features=segmentation", f"--masks={MASKS}", "--resize=crop:40x40", "--name=x",
               "--num_shards=2"]  # fmt: skip
    found = {}
    for name, more in (("one", "--workers=1"), ("two", "--workers=2"), ("beam", "--writer=beam")):
        arguments = [f"--input={images}", f"--output={tmp_path / name}", *options, more]
        code, _, error = command("build", *arguments)
        assert code == 0, error
    with gcs_server.running() as server:
        server.put_folder(images, "data")
        arguments = ["--input=gs://bucket/data", f"--output={tmp_path / 'remote'}", *options]
        done = imageshards("build", *arguments, "--workers=2", **server.environment)
    assert done.returncode == 0, done.stderr
    for name in ("one", "two", "remote", "beam"):
        found[name] = [path.read_bytes() for path in shards(tmp_path / name)]
        assert build_json(tmp_path / name)["annotations"] == {"masks": 12, "masks_converted": 12}
        assert not verify(str(tmp_path / name)).problems
    assert found["two"] == found["remote"] == found["one"]
    # Beam's writer has the records in another order.
    values = [
        sorted(repr(sorted(record.values.items())) for record in records(tmp_path / name))
        for name in ("one", "beam")
    ]
    assert values[0] == values[1]


def _bytes(out: Path) -> bytes:
    return next(iter(tf.data.TFRecordDataset([str(shards(out)[0])]))).numpy()


@pytest.mark.slow
def test_readers_return_pairs(build: Build, images: Path, tmp_path: Path):
    build(images, features="segmentation", masks=MASKS, num_shards="1")
    out = str(tmp_path / "out")
    stored = reader.open(out, "train")
    for number in range(12):
        check_pixels(*stored[number])
    data = reader.load(
        out, "train", batch_size=4, image_size=32, augment=True, dtype="uint8", repeat=False
    )
    for batch_images, batch_masks in data:
        assert batch_masks.dtype == tf.uint8
        for image, mask in zip(batch_images.numpy(), batch_masks.numpy(), strict=True):
            check_pixels(image, mask, least=0.9)
    arrays = reader.grain(
        out, "train", batch_size=4, image_size=32, augment=True, dtype="uint8", repeat=False
    )
    for batch_images, batch_masks in arrays:
        for image, mask in zip(batch_images, batch_masks, strict=True):
            check_pixels(image, mask, least=0.9)
    check_pixels(*reader.open(out, "train", image_size=32)[0], least=0.9)
    image, mask = next(iter(reader.load(out, "train")))
    check_pixels(image.numpy(), mask.numpy())


def test_masks_of_a_manifest_and_their_rejects(build: Build, images: Path, tmp_path: Path):
    Image.new("L", (9, 6)).save(images / "masks/street/1.png")
    (images / "masks/street/2.png").write_bytes(b"nothing")
    (images / "masks/street/3.png").unlink()
    path = images / "masks.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("uri", "segments", "split"))
        for number in range(12):
            mask = f"masks/street/{number}.png" if number != 4 else ""
            rows.writerow((f"street/{number}.jpg", mask, "train" if number % 2 else "test"))
    build(
        path, features="segmentation", masks="column:segments", max_reject_fraction=0.5,
        resize="pad:64x64",
    )  # fmt: skip
    out = tmp_path / "out"
    reasons = {
        Path(reject["name"]).stem: (reject["error"], reject["reason"]) for reject in rejects(out)
    }
    assert {name: error for name, (error, _) in reasons.items()} == {
        "1": "MaskSize", "2": "BadMask", "3": "MissingMask", "4": "MissingMask",
    }  # fmt: skip
    folder = images / "masks/street"
    assert reasons["1"][1] == f"its mask {folder}/1.png: 9 x 6 pixels, and its image 90 x 60"
    assert reasons["3"][1] == f"its mask {folder}/3.png: no such file"
    assert reasons["4"][1] == "no value in the column 'segments'"
    for split in ("train", "test"):
        for image, mask in tfds.builder_from_directory(str(out)).as_dataset(
            split, as_supervised=True
        ):
            check_pixels(image.numpy(), mask.numpy())
            assert 255 in mask.numpy()
    report = (out / "metadata/report.html").read_text()
    assert "8 masks" in report
    assert '"mask":' in report


def test_records_of_a_build_are_inputs_of_another(build: Build, images: Path, tmp_path: Path):
    build(images, features="segmentation", masks=MASKS, num_shards="1")
    build(
        *shards(tmp_path / "out"), output=tmp_path / "small", features="segmentation",
        masks=f"column:{ENCODED}", resize="crop:32x32", name_key="image/filename",
        num_shards="1",
    )  # fmt: skip
    assert len(records(tmp_path / "small")) == 12
    stored = reader.open(str(tmp_path / "small"), "train")
    for number in range(12):
        check_pixels(*stored[number])


@pytest.mark.slow
def test_a_changed_mask_rewrites_its_shard(build: Build, images: Path, tmp_path: Path):
    (images / "masks/street/7.png").unlink()
    options = {
        "features": "segmentation", "masks": MASKS, "num_shards": "3", "max_reject_fraction": 0.5,
    }  # fmt: skip
    build(images, **options)
    out = tmp_path / "out"
    before = contents(out)
    assert build(images, **options).resumed == 3
    assert contents(out) == before
    pair(99)[1].save(images / "masks/street/0.png")
    assert build(images, **options).resumed == 2
    pair(7)[1].save(images / "masks/street/7.png")
    build(images, **options)
    assert not rejects(out)


def test_verify_finds_a_mask_that_does_not_fit(build: Build, images: Path, tmp_path: Path):
    build(images, features="segmentation", masks=MASKS, num_shards="1", dedupe="pixels")
    out = tmp_path / "out"
    values = [record.values for record in records(out)]
    small = io.BytesIO()
    Image.new("L", (3, 2)).save(small, "PNG")
    values[0][ENCODED] = [small.getvalue()]
    values[1][ENCODED] = [b"\x89PNG nothing"]
    schema = parse.schema_of(str(out))
    with tf.io.TFRecordWriter(str(shards(out)[0])) as writer:
        for row in values:
            sources = {feature.source: row[feature.key] for feature in schema.features}
            writer.write(b"".join(example.encode(schema, sources)))
    text = "\n".join(verify(str(out)).problems)
    assert "its mask is 3 x 2 pixels, and its image 90 x 60" in text or "60 x 90" in text
    assert "its mask does not decode" in text


def test_croissant_and_inspect_know_masks(
    build: Build, images: Path, tmp_path: Path, command: Command
):
    build(images, features="segmentation", masks=MASKS, labels="dirname", num_shards="1")
    out = tmp_path / "out"
    fields = json.loads((out / "croissant.json").read_text())["recordSet"][-1]["field"]
    types = {field["name"]: field["dataType"] for field in fields}
    assert types[ENCODED] == "sc:ImageObject"
    assert build_json(out)["classes"] == ["street"]
    code, text, _ = command("inspect", out)
    assert code == 0
    assert f"{ENCODED} bytes   Mask" in text


def test_what_it_cannot_be_combined_with(build: Build, images: Path, command: Command):
    with pytest.raises(UsageError, match="--masks requires --features segmentation"):
        build(images, masks=MASKS)
    with pytest.raises(UsageError, match="--mask_padding requires a schema with masks"):
        build(images, mask_padding=0)
    with pytest.raises(UsageError, match=r"there is no {id}"):
        build(images, features="segmentation", masks="{id}.png")
    code, _, error = command("build", "--input", images, "--output", images.parent / "no",
                             "--features", "segmentation")  # fmt: skip
    assert code != 0
    assert "has no column 'mask'" in error
    assert "--masks sets another column, or a path such as 'masks/{stem}.png'" in error
