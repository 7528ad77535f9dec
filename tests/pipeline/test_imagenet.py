"""The schema of ImageNet: boxes, synsets, a background class."""

from pathlib import Path

import pytest
from conftest import Build
from helpers import build_json
from schema_builds import BOX, raw_records, write_boxes, write_folder

from imageshards.pipeline.job.failures import JobError
from imageshards.reader import parse
from imageshards.reader.verify import verify
from imageshards.transforms.records import example


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "in")


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
