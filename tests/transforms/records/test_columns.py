"""Manifest columns that become features."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import build_json, contents, image_bytes, records, rejects, shards, told
from pyarrow import parquet

from imageshards.reader.inspect import inspect
from imageshards.reader.verify import verify
from imageshards.transforms.records.columns import FeatureColumn

BOXES = "image/object/bbox/xmin"
COLUMNS = (
    f"{BOXES}:float_list",
    "image/object/bbox/label=boxes:int_list",
    "age:int",
    "score:float",
    "site",
)
COUNT = 12


def row(number: int) -> dict[str, Any]:
    boxes = number % 4
    return {
        "uri": f"{number}.jpg",
        "label": "ab"[number % 2],
        BOXES: [round(0.1 * n, 3) for n in range(boxes)],
        "boxes": list(range(boxes)),
        "age": 20 + number,
        "score": number / 7,
        "site": f"Zürich {number}",
    }


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for values in rows:
            as_text = {
                name: " ".join(map(str, value)) if isinstance(value, list) else value
                for name, value in values.items()
            }
            writer.writerow(as_text)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(values) + "\n" for values in rows))


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), path)


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "in"
    place.mkdir()
    for number in range(COUNT):
        (place / f"{number}.jpg").write_bytes(image_bytes(number))
    return place


def example_of(number: int, folder: Path) -> bytes:
    """The record as TensorFlow writes it."""
    values = row(number)

    def feature(value: Any) -> tf.train.Feature:
        items = value if isinstance(value, list) else [value]
        if items and isinstance(items[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=items))
        if items and isinstance(items[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=items))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=items))

    features = {
        "image/encoded": image_bytes(number), "image/format": b"JPEG", "image/height": 16,
        "image/width": 24, "image/filename": f"{number}.jpg".encode(),
        "image/class/label": number % 2, "image/class/text": values["label"].encode(),
        "age": values["age"], "score": float(values["score"]), "site": values["site"].encode(),
        "image/object/bbox/label": values["boxes"],
    }  # fmt: skip
    built = {key: feature(value) for key, value in features.items()}
    built[BOXES] = tf.train.Feature(float_list=tf.train.FloatList(value=values[BOXES]))
    example = tf.train.Example(features=tf.train.Features(feature=built))
    return bytes(example.SerializeToString(deterministic=True))


@pytest.mark.parametrize("kind", WRITERS)
def test_columns_become_features(build: Build, folder: Path, tmp_path: Path, kind: str):
    WRITERS[kind](folder / f"list.{kind}", [row(n) for n in range(COUNT)])
    build(
        folder / f"list.{kind}", features_from=COLUMNS, num_shards="2", base_uri=str(folder),
        splits="train=0.6,test=0.4",
    )  # fmt: skip
    data = tf.data.TFRecordDataset(list(map(str, shards(tmp_path / "out"))))
    assert {bytes(record) for record in data.as_numpy_iterator()} == {
        example_of(n, folder) for n in range(COUNT)
    }
    assert not verify(str(tmp_path / "out")).problems
    assert BOXES in inspect(str(tmp_path / "out"), 1).partition("record 0")[0]
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    seen = 0
    for split in ("train", "test"):
        for example in tfds.as_numpy(builder.as_dataset(split=split)):
            number = int(example["image/filename"].decode().removesuffix(".jpg"))
            want = row(number)
            assert example["age"] == want["age"]
            assert example["site"].decode() == want["site"]
            assert example["score"] == pytest.approx(want["score"])
            assert example[BOXES].tolist() == pytest.approx(want[BOXES])
            assert example["image/object/bbox/label"].tolist() == want["boxes"]
            seen += 1
    assert seen == COUNT


def test_any_manifest_gives_the_same_bytes(build: Build, folder: Path, tmp_path: Path):
    found = []
    for kind, write in WRITERS.items():
        write(folder / f"list.{kind}", [row(n) for n in range(COUNT)])
        out = tmp_path / kind
        build(folder / f"list.{kind}", features_from=COLUMNS, num_shards="2", name="x", output=out)
        found.append({k: v for k, v in contents(out).items() if k.endswith(".tfrecord")})
    assert found[0] == found[1] == found[2]


def test_the_beam_writer_writes_them_too(build: Build, folder: Path, tmp_path: Path):
    write_csv(folder / "list.csv", [row(n) for n in range(COUNT)])
    build(
        folder / "list.csv", features_from=COLUMNS, num_shards="2", writer="beam",
        base_uri=str(folder),
    )  # fmt: skip
    data = tf.data.TFRecordDataset(list(map(str, shards(tmp_path / "out"))))
    assert {bytes(record) for record in data.as_numpy_iterator()} == {
        example_of(n, folder) for n in range(COUNT)
    }


def test_a_value_that_cannot_be_converted_is_a_reject(build: Build, folder: Path, tmp_path: Path):
    rows = [row(n) for n in range(COUNT)]
    rows[3]["age"] = ""
    rows[5]["age"] = "many"
    rows[7][BOXES] = "0.5 wide"
    rows[8]["age"] = 2**63
    rows[9]["score"] = 1e300
    write_csv(folder / "list.csv", rows)
    summary = build(
        folder / "list.csv", features_from=COLUMNS, num_shards="1", max_reject_fraction=0.5
    )
    assert (summary.records, summary.rejects) == (7, 5)
    found = {line["uri"].rpartition("/")[2]: line for line in rejects(tmp_path / "out")}
    assert {line["error"] for line in found.values()} == {"NoFeature"}
    reasons = {name: line["reason"] for name, line in found.items()}
    assert reasons == {
        "3.jpg": "no value in the column 'age'",
        "5.jpg": "the column 'age' is 'many', which is no int",
        "7.jpg": f"the column {BOXES!r} is '0.5 wide', which is no float_list",
        "8.jpg": "the column 'age' is '9223372036854775808', which is no int",
        "9.jpg": "the column 'score' is '1e+300', which is no float",
    }


def test_an_image_with_two_different_values_is_rejected(build: Build, folder: Path, tmp_path: Path):
    write_csv(folder / "list.csv", [row(0), row(1), {**row(1), "age": 99}, row(0)])
    summary = build(
        folder / "list.csv", features_from=("age:int",), num_shards="1", max_reject_fraction=0.5
    )
    assert (summary.records, summary.duplicates, summary.rejects) == (2, 1, 1)
    assert rejects(tmp_path / "out")[0]["error"] == "ConflictingDuplicate"
    assert "features" in rejects(tmp_path / "out")[0]["reason"]
    ages = sorted(record.first("age") for record in records(tmp_path / "out"))
    assert ages == [20, 21]


@pytest.mark.parametrize(
    ("column", "raw", "values"),
    [
        ("x:int", ["7", 7, 7.0, "7.0", True, " 8 "], [7, 7, 7, 7, 1, 8]),
        ("x:float", ["0.5", 1, "1e3", "inf"], [0.5, 1.0, 1000.0, float("inf")]),
        ("x", ["a", 3, 0.5, b"\xff", None, ""], [b"a", b"3", b"0.5", b"\xff", b"", b""]),
        ("x:int_list", ["1 2", "1,2", "[1, 2]", [1, 2], "1; 2", 5, None, "", "[]"],
         [[1, 2]] * 5 + [[5], [], [], []]),
        ("x:float_list", ["0.5 1", [0.5, 1]], [[0.5, 1.0]] * 2),
    ],
)  # fmt: skip
def test_values_are_converted(column: str, raw: list[Any], values: list[Any]):
    assert FeatureColumn.parse(column).values(raw) == (values, {})


@pytest.mark.parametrize(
    ("column", "raw"),
    [("x:int", "1.5"), ("x:int", [1]), ("x:int", float("inf")), ("x:float", {}), ("x", []),
     ("x:int_list", "[1"), ("x:int_list", {"a": 1}), ("x:int_list", [None]),
     ("x:float_list", [[1]])],
)  # fmt: skip
def test_invalid_values_are_refused(column: str, raw: Any):
    values, wrong = FeatureColumn.parse(column).values([raw])
    assert values == [None]
    assert "which is no" in wrong[0]


@pytest.mark.parametrize(
    ("column", "message"),
    [("age:integer", "TYPE one of int, float"), ("=age:int", "write COLUMN:TYPE"),
     ("age=:int", "write COLUMN:TYPE"), ("my age:int", "'my age' is not a valid key"),
     ("image/height:int", "feature 'image/height' exists already"),
     ("a:int,a:float", "feature 'a' exists already")],
)  # fmt: skip
def test_invalid_columns_are_refused(command: Command, folder: Path, column: str, message: str):
    code, _, errors = command(
        "build", f"--input={folder}", "--output=x", f"--features_from={column}"
    )
    assert code == 2
    assert message in errors
    assert len(told(errors)) == 1


def test_missing_columns_are_refused(command: Command, folder: Path, tmp_path: Path):
    write_csv(folder / "list.csv", [row(0)])
    out = f"--output={tmp_path / 'out'}"
    code, _, errors = command("build", f"--input={folder}", out, "--features_from=age:int")
    assert code == 2
    assert "is not a manifest and has no column 'age'" in errors
    code, _, errors = command(
        "build", f"--input={folder / 'list.csv'}", out, "--features_from=weight:int"
    )
    assert code == 2
    assert "no column 'weight'; its columns are: uri, label," in errors


def test_other_features_of_tfrecords_are_carried_over(build: Build, folder: Path, tmp_path: Path):
    write_csv(folder / "list.csv", [row(n) for n in range(COUNT)])
    old = tmp_path / "old"
    build(folder / "list.csv", features_from=COLUMNS, num_shards="2", base_uri=str(folder),
          output=old)  # fmt: skip
    build(
        f"{old}/train-*", name_key="image/filename", num_shards="3", output=tmp_path / "new",
        base_uri="",
    )  # fmt: skip
    data = tf.data.TFRecordDataset(list(map(str, shards(tmp_path / "new"))))
    found = {bytes(record) for record in data.as_numpy_iterator()}
    assert found == {example_of(n, folder) for n in range(COUNT)}
    assert not verify(str(tmp_path / "new")).problems
    assert sorted(build_json(tmp_path / "new")["options"]["features_from"]) == sorted(
        ["age:int", f"{BOXES}:float_list", "image/object/bbox/label:int_list", "score:float",
         "site:bytes"]
    )  # fmt: skip
    build(f"{old}/train-*", features_from=(), num_shards="1", output=tmp_path / "bare")
    assert "age" not in records(tmp_path / "bare")[0].values


def test_features_of_tfrecords_are_checked_at_once(
    build: Build, folder: Path, tmp_path: Path, command: Command
):
    write_csv(folder / "list.csv", [row(n) for n in range(COUNT)])
    build(folder / "list.csv", features_from=COLUMNS, num_shards="2", output=tmp_path / "old")
    code, _, errors = command(
        "build", f"--input={tmp_path}/old/train-*", f"--output={tmp_path / 'out'}",
        "--features_from=agee:int",
    )  # fmt: skip
    assert code == 2
    assert "no feature 'agee' in" in errors
    code, _, errors = command(
        "build", f"--input={tmp_path}/old/train-*", f"--output={tmp_path / 'out'}",
        "--name_key=nothere",
    )  # fmt: skip
    assert code in (1, 2)
    assert "no feature 'nothere' for --name_key; its first record has age" in errors


def test_values_of_tfrecord_inputs_are_kept_unchanged(build: Build, tmp_path: Path):
    def example(number: int, **features: Any) -> bytes:
        values = {
            "image/encoded": tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[image_bytes(number)])
            ),
            "score": tf.train.Feature(
                float_list=tf.train.FloatList(value=[float("nan") if number else 0.5])
            ),
            **{
                key: tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
                for key, value in features.items()
            },
        }
        return bytes(
            tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()
        )

    # Written in an order that is not that of the names.
    for name, words in (("b", [b"x"]), ("a", [b"x", b"y"])):
        with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecord")) as writer:
            for number in range(3):
                writer.write(example(number, words=words))
    build(f"{tmp_path}/*.tfrecord", num_shards="1", labels="none")
    found = records(tmp_path / "out")
    assert len(found) == 6
    assert sorted(len(record.values["words"]) for record in found) == [1, 1, 1, 2, 2, 2]
    assert sum(record.first("score") != record.first("score") for record in found) == 4
    options = build_json(tmp_path / "out")["options"]["features_from"]
    assert options == ["score:float", "words:bytes_list"]
