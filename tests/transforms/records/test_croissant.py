"""croissant.json and the data card describe the files of a data set."""

import hashlib
import json
import re
from pathlib import Path

from conftest import Build

from imageshards.pipeline.operations.reshard import reshard
from imageshards.reader.verify import verify

ABOUT = {
    "description": "Small pictures.", "license": "CC-BY-4.0", "creator": "A. Nonymous",
    "citation": "@misc{pictures}", "homepage": "https://example.org/pictures",
    "date_published": "2026-11-22",
}  # fmt: skip


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
    split = json.loads((tmp_path / "new/croissant.json").read_text())["recordSet"][-1]["field"][0]
    pattern = split["source"]["transform"]["regex"]
    for name in ("train-00000-of-00001.tfrecord", "train-100000-of-1234567.tfrecord"):
        assert re.findall(pattern, name) == ["train"]
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
