"""tensorflow_datasets and TensorFlow, as readers."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build
from helpers import image_bytes, shards, write_images


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    write_images(folder, 3, 10)
    for number, kind in enumerate(("PNG", "BMP", "JPEG")):
        (folder / "class01" / f"x{number}.png").write_bytes(image_bytes(number, kind, (31, 17)))
    return folder


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_tfds_reads_every_split_without_code(
    build: Build, mixed: Path, tmp_path: Path, writer: str
):
    summary = build(
        mixed, num_shards="2", splits="train=0.7,test=0.3", writer=writer, base_uri=str(mixed)
    )
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    label = builder.info.features["image/class/label"]
    assert label.names == ["class00", "class01", "class02"]
    names = set()
    for split, (count, _) in summary.splits.items():
        assert builder.info.splits[split].num_examples == count
        read = list(tfds.as_numpy(builder.as_dataset(split=split)))
        assert len(read) == count
        for example in read:
            name = example["image/filename"].decode()
            names.add(name)
            decoded = tf.io.decode_image((mixed / name).read_bytes(), channels=3)
            np.testing.assert_array_equal(example["image/encoded"], decoded)
            shape = (example["image/height"], example["image/width"], 3)
            assert example["image/encoded"].shape == shape
            assert label.int2str(example["image/class/label"]) == name.split("/")[0]
    assert len(names) == summary.records == 33


def test_our_features_are_those_tfds_would_write(build: Build, mixed: Path, tmp_path: Path):
    build(mixed, num_shards="1")
    features = tfds.builder_from_directory(str(tmp_path / "out")).info.features
    ours = tfds.features.FeaturesDict(
        {
            "image/class/label": tfds.features.ClassLabel(num_classes=3),
            "image/class/text": tfds.features.Text(),
            "image/encoded": tfds.features.Image(shape=(None, None, 3)),
            "image/filename": tfds.features.Text(),
            "image/format": tfds.features.Text(),
            "image/height": np.int64,
            "image/width": np.int64,
        }
    )
    assert features.to_json() == ours.to_json()


def test_sub_splits_and_a_background_class(build: Build, mixed: Path, tmp_path: Path):
    build(mixed, num_shards="3", label_offset=1)
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    assert builder.info.features["image/class/label"].names[0] == "background"
    assert len(list(builder.as_dataset(split="train[:50%]"))) in (16, 17)


def test_every_record_is_what_tensorflow_would_have_written(
    build: Build, mixed: Path, tmp_path: Path
):
    build(mixed, num_shards="2")
    count = 0
    for path in shards(tmp_path / "out"):
        for raw in tf.data.TFRecordDataset(str(path)):
            example = tf.train.Example.FromString(raw.numpy())
            assert example.SerializeToString(deterministic=True) == raw.numpy()
            count += 1
    assert count == 33


SUPERVISED = {
    "slim": {},
    "imagenet": {},
    "raw": {"resize": "16x16"},
    "pixels": {"resize": "16x16"},
    "shape": {},
    "text": {},
}


@pytest.mark.parametrize("schema", SUPERVISED)
def test_tfds_returns_the_content_and_the_label(
    build: Build, photos: Path, tmp_path: Path, schema: str
):
    source = photos
    if schema == "text":
        source = tmp_path / "texts"
        for name in ("poem", "prose"):
            (source / name).mkdir(parents=True)
            (source / name / "1.txt").write_text(f"{name} one\n{name} two\n")
    build(source, num_shards="2", features=schema, **SUPERVISED[schema])
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    content, label = builder.info.supervised_keys
    pairs = list(tfds.as_numpy(builder.as_dataset(split="train", as_supervised=True)))
    examples = list(tfds.as_numpy(builder.as_dataset(split="train")))
    assert len(pairs) == (4 if schema == "text" else 120)
    for (found, number), example in zip(pairs, examples, strict=True):
        np.testing.assert_array_equal(found, example[content])
        assert number == example[label]
    assert len({int(number) for _, number in pairs}) == (2 if schema == "text" else 6)


def test_a_data_set_without_labels_has_no_supervised_keys(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos, num_shards="2", labels="none")
    assert tfds.builder_from_directory(str(tmp_path / "out")).info.supervised_keys is None
