"""Labels that are numbers to predict: `--labels column:NAME:float`."""

import csv
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build
from helpers import build_json, image_bytes, records, rejects

from imageshards import reader
from imageshards.reader.verify import verify
from imageshards.transforms.elements import BuildError, UsageError

AGES = ["31.5", "0", "-2.25", "", "nan", "old", "inf", "1e39", "7"]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    rows = [("uri", "age")]
    for number, age in enumerate(AGES):
        (tmp_path / f"{number}.png").write_bytes(image_bytes(number, "PNG"))
        rows.append((f"{number}.png", age))
    path = tmp_path / "people.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_numbers_of_a_column_are_labels(build: Build, manifest: Path, tmp_path: Path):
    build(manifest, labels="column:age:float", max_reject_fraction=0.9, num_shards="1")
    out = tmp_path / "out"
    expected = {"0.png": 31.5, "1.png": 0.0, "2.png": -2.25, "8.png": 7.0}
    found = {
        record.first("image/filename").decode(): record.first("image/class/label")
        for record in records(out)
    }
    assert found == expected
    assert "image/class/text" not in records(out)[0].values
    assert {reject["name"]: reject["error"] for reject in rejects(out)} == {
        f"{number}.png": "NoFeature" for number in range(3, 8)
    }
    assert build_json(out)["classes"] == []
    assert not list(out.glob("*.labels.txt"))
    assert not verify(str(out)).problems

    pairs = list(tfds.builder_from_directory(str(out)).as_dataset("train", as_supervised=True))
    assert {label.dtype for _, label in pairs} == {tf.float32}
    assert sorted(label.numpy() for _, label in pairs) == sorted(expected.values())
    _, labels = next(iter(reader.load(str(out), "train", batch_size=4, image_size=8)))
    assert labels.dtype == tf.float32
    assert sorted(labels.numpy().tolist()) == sorted(expected.values())
    stored = reader.open(str(out), "train")
    assert sorted(stored[at][1] for at in range(4)) == sorted(expected.values())


def test_numbers_are_labels_of_decoded_pixels(build: Build, manifest: Path, tmp_path: Path):
    build(
        manifest, labels="column:age:float", max_reject_fraction=0.9, features="raw",
        resize="8x8",
    )  # fmt: skip
    image, label = reader.open(str(tmp_path / "out"), "train")[0]
    assert image.shape == (8, 8, 3)
    assert np.isfinite(label)


def test_what_it_cannot_be_combined_with(build: Build, manifest: Path):
    with pytest.raises(UsageError, match="cannot be combined with --labels column:age:float"):
        build(manifest, labels="column:age:float", label_offset=1)
    with pytest.raises(BuildError, match=r"no column 'height'.*its columns are: uri, age"):
        build(manifest, labels="column:height:float")
    with pytest.raises(UsageError, match="'image/class/label' exists already"):
        build(manifest, labels="column:age:float", features_from=("image/class/label=age:float",))
