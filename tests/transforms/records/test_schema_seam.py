"""A schema is one declaration: this module adds one, and everything works with it."""

import json
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import records

from imageshards import reader
from imageshards.reader.verify import verify
from imageshards.transforms.records.schemas import SCHEMAS, Feature, Schema

DUMMY = Schema(
    "dummy",
    (
        Feature("key", "bytes", "filename", "Text", repeats=False),
        Feature("png", "bytes", "encoded", "Image", repeats=False),
        Feature("target", "int64", "label", "ClassLabel"),
        Feature("width", "int64", "width", "Scalar"),
    ),
    use="a test",
)


@pytest.fixture(autouse=True)
def dummy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMAS, "dummy", DUMMY)


def test_a_new_schema_is_built_verified_and_read(
    build: Build, command: Command, photos: Path, tmp_path: Path
):
    build(photos, num_shards="2", features="dummy", convert="png", base_uri=str(photos))
    out = tmp_path / "out"
    record = records(out)[0]
    assert sorted(record.values) == ["key", "png", "target", "width"]
    assert record.first("png").startswith(b"\x89PNG")
    assert record.first("width") == 24
    assert verify(str(out)).problems == ()
    opened = reader.open(out)
    assert len(opened) == 120
    assert opened[5][0].shape == (16, 24, 3)
    classes = (out / "target.labels.txt").read_text().split()
    assert classes[opened[5][1]] == opened.features(5)["key"].decode().split("/")[0]
    assert tfds.builder_from_directory(out).info.features["target"].num_classes == 6
    code, printed, _ = command("features", "dummy")
    assert code == 0
    assert "png" in printed


def test_overwrite_deletes_its_file_of_class_names(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="2", features="dummy")
    build(photos, num_shards="2", overwrite=True)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.labels.txt"))
    assert names == ["image.class.label.labels.txt"]
    features = json.loads((tmp_path / "out/features.json").read_text())["featuresDict"]
    assert "target" not in features["features"]
