"""croissant.json is valid for the library of the format, and says what the files are."""

import hashlib
import json
from pathlib import Path

import pytest
from conftest import Build
from helpers import image_bytes

from imageshards.pipeline.operations.reshard import reshard
from imageshards.reader.verify import verify

ABOUT = {
    "description": "Small pictures.", "license": "CC-BY-4.0", "creator": "A. Nonymous",
    "citation": "@misc{pictures}", "homepage": "https://example.org/pictures",
    "date_published": "2026-11-22",
}  # fmt: skip


def test_it_is_valid_and_describes_every_file(build: Build, photos: Path, tmp_path: Path):
    mlc = pytest.importorskip("mlcroissant")
    build(photos, splits="train=0.7,test=0.3", num_shards="2", **ABOUT)
    file = tmp_path / "out/croissant.json"
    dataset = mlc.Dataset(file)
    issues = dataset.metadata.ctx.issues
    assert not issues.errors
    assert not issues.warnings
    found = dataset.metadata.to_json()
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    assert found["license"] == "https://spdx.org/licenses/CC-BY-4.0.html"
    assert (found["url"], found["citeAs"]) == (ABOUT["homepage"], ABOUT["citation"])
    assert found["description"] == ABOUT["description"]
    rows = [row["splits/name"] for row in dataset.records("splits")]
    assert rows == ["train", "test"]
    classes = [(row["classes/label"], row["classes/name"]) for row in dataset.records("classes")]
    assert classes[:2] == [(0, b"class00"), (1, b"class01")]
    listed = {item["contentUrl"]: item["sha256"] for item in found["distribution"]
              if "contentUrl" in item}  # fmt: skip
    shards = {path.name for path in (tmp_path / "out").glob("*.tfrecord")}
    assert {*listed} == {*shards, "image.class.label.labels.txt"}
    for name, digest in listed.items():
        content = (tmp_path / "out" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest


@pytest.mark.parametrize("features", ["slim", "shape", "raw", "imagenet", "text"])
def test_it_is_valid_for_every_schema(features: str, build: Build, tmp_path: Path):
    mlc = pytest.importorskip("mlcroissant")
    options: dict[str, str] = {"resize": "8x8", "enlarge": True} if features == "raw" else {}  # type: ignore[dict-item]
    folder = tmp_path / "in/n01440764"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(image_bytes(number))
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    inputs = tmp_path / ("lines.txt" if features == "text" else "in")
    build(inputs, features=features, num_shards="1", **options)
    assert not mlc.Dataset(tmp_path / "out/croissant.json").metadata.ctx.issues.errors


def test_checksums_follow_the_choice_and_a_reshard(build: Build, photos: Path, tmp_path: Path):
    def listed(folder: str) -> list[str]:
        found = json.loads((tmp_path / folder / "croissant.json").read_text())
        return [item["name"] for item in found["distribution"] if item["@type"] == "cr:FileObject"]

    build(photos, num_shards="2", check="header", output=tmp_path / "header")
    assert listed("header") == ["image.class.label.labels.txt"]
    # A resumed build computes what is missing.
    build(photos, num_shards="2", check="header", output=tmp_path / "header", sha256="yes")
    assert len(listed("header")) == 3
    reshard(str(tmp_path / "header"), str(tmp_path / "new"), "1")
    found = json.loads((tmp_path / "new/croissant.json").read_text())["distribution"]
    content = (tmp_path / "new/train-00000-of-00001.tfrecord").read_bytes()
    assert found[1]["sha256"] == hashlib.sha256(content).hexdigest()
    build(photos, num_shards="2", output=tmp_path / "no", sha256="no")
    assert len(listed("no")) == 1
    for folder in ("header", "new", "no"):
        assert verify(str(tmp_path / folder)).problems == ()


def test_the_data_card_says_what_people_need(build: Build, photos: Path, tmp_path: Path):
    build(photos, splits="train=0.7,test=0.3", **ABOUT)
    card = (tmp_path / "out/DATASET_CARD.md").read_text()
    for part in ("Small pictures.", "[CC-BY-4.0](https://spdx.org/licenses/CC-BY-4.0.html)",
                 "A. Nonymous", "@misc{pictures}", "| train |", "`image/encoded`", "0. class00",
                 "120 images of 120 inputs"):  # fmt: skip
        assert part in card
    assert "1 images" not in card
