"""Images with any number of classes: from lists and from columns of 0 and 1."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from conftest import Build
from helpers import build_json, image_bytes, records, rejects

from imageshards import reader
from imageshards.pipeline.job.failures import JobError
from imageshards.reader.verify import verify
from imageshards.transforms.elements import UsageError

KEY = "image/class/label"
TAGS = ["wet|cold", "cold; ice, thin", "[]", "", '["cold", "a|b"]', "wet|wet"]
LISTS = [["wet", "cold"], ["cold", "ice, thin"], [], None, ["cold", "a|b"], ["wet"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(image_bytes(number, "PNG"))
    return tmp_path


def table(folder: Path, header: list[str], rows: list[list[str]]) -> Path:
    path = folder / "list.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [["uri", *header], *([f"{n}.png", *row] for n, row in enumerate(rows))]
        )
    return path


def found(out: Path) -> dict[str, list[str]]:
    """Number of the image -> its classes, by number and by name."""
    classes = build_json(out)["classes"]
    result = {}
    for record in records(out):
        names = [classes[label] for label in record.values[KEY]]
        assert names == [text.decode() for text in record.values["image/class/text"]]
        result[record.first("image/filename").decode()[0]] = names
    return result


def test_lists_of_a_manifest(build: Build, folder: Path):
    path = folder / "list.jsonl"
    path.write_text(
        "\n".join(json.dumps({"uri": f"{n}.png", "tags": tags}) for n, tags in enumerate(LISTS))
    )
    build(path, labels="list:tags", max_reject_fraction=0.5, num_shards="1")
    out = folder / "out"
    assert build_json(out)["classes"] == ["a|b", "cold", "ice, thin", "wet"]
    assert found(out) == {str(n): sorted(tags) for n, tags in enumerate(LISTS) if tags is not None}
    assert [(reject["name"], reject["error"]) for reject in rejects(out)] == [("3.png", "NoLabel")]
    assert build_json(out)["splits"]["train"]["labels"] == {"0": 1, "1": 3, "2": 1, "3": 2}
    assert not verify(str(out)).problems

    theirs = tfds.builder_from_directory(str(out))
    assert theirs.info.features[KEY].feature.num_classes == 4
    ids = [row[KEY].tolist() for row in theirs.as_dataset("train").as_numpy_iterator()]
    stored = reader.open(str(out), "train")
    assert [stored[at][1] for at in range(5)] == ids
    expected = np.stack([np.isin(range(4), labels) for labels in ids]).astype(np.float32)
    _, batch = next(iter(reader.load(str(out), "train", batch_size=5, image_size=8, shuffle=False)))
    assert batch.shape == (5, 4)
    np.testing.assert_array_equal(batch, expected)
    with pytest.raises(UsageError, match=r"balance requires one class for each record: .* several"):
        reader.load(str(out), "train", balance="class")


def test_texts_with_separators(build: Build, folder: Path):
    path = table(folder, ["tags"], [[tags] for tags in TAGS])
    build(path, labels="list:tags", max_reject_fraction=0.5)
    assert found(folder / "out") == {
        "0": ["cold", "wet"], "1": ["cold", "ice", "thin"], "2": [], "4": ["a|b", "cold"],
        "5": ["wet"],
    }  # fmt: skip


def test_columns_of_0_and_1(build: Build, folder: Path):
    rows = [["1", "0"], ["True", "1.0"], ["0", "false"], ["1", ""], ["2", "1"], ["0", "1"]]
    path = table(folder, ["wet", "cold"], rows)
    build(path, labels="columns:wet,cold", max_reject_fraction=0.5)
    out = folder / "out"
    assert build_json(out)["classes"] == ["wet", "cold"]
    assert found(out) == {"0": ["wet"], "1": ["wet", "cold"], "2": [], "5": ["cold"]}
    assert {reject["name"]: reject["reason"] for reject in rejects(out)} == {
        "3.png": "the column 'cold' is empty",
        "4.png": "the column 'wet' is '2', which is neither 0 nor 1",
    }


def test_what_is_refused(build: Build, folder: Path):
    path = folder / "list.jsonl"
    path.write_text(json.dumps({"uri": "0.png", "label": ["a", "b"]}))
    with pytest.raises(JobError, match="are lists: write --labels list:label"):
        build(path)
    for labels in ("list:label", "columns:label"):
        with pytest.raises(UsageError, match=f"one class for each image, not --labels {labels}"):
            build(path, labels=labels, stratify=True, splits="train=0.5,test=0.5")
        with pytest.raises(UsageError, match="--per_class requires one class for each image"):
            build(path, labels=labels, per_class=1)
    with pytest.raises(UsageError, match="write each column once"):
        build(path, labels="columns:a,a")
