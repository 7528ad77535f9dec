"""reshard of record files that imageshards did not write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from conftest import Command
from helpers import every_file

from imageshards import reader
from imageshards.pipeline.operations.operation import Operation, run_here
from imageshards.pipeline.operations.reshard import reshard

BEAM = ["--runner=FnApiRunner"]
INDEX = "metadata/index/train-00000-of-00001.idx"
RECORDS = [b"record %d " % number * (number % 7) for number in range(50)]


def write(path: Path, records: list[bytes], compression: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)


def read(pattern: Path) -> list[bytes]:
    found = reader.open(pattern)
    return [found.serialized(number) for number in range(len(found))]


@pytest.mark.parametrize("source", ["tfrecord", "gzip", "array_record"])
def test_files_of_every_format_are_copied_to_every_format(
    tmp_path: Path, command: Command, source: str
):
    old = tmp_path / "old" / {"gzip": "a.tfrecord.gz"}.get(source, f"a.{source}")
    if source == "array_record":
        old.parent.mkdir()
        writer = ArrayRecordWriter(str(old), "group_size:4,zstd")
        for record in RECORDS:
            writer.write(record)
        writer.close()
    else:
        write(old, RECORDS, "GZIP" if source == "gzip" else "")
    for number, options in enumerate(
        (
            ["--file_format=tfrecord"],
            ["--file_format=tfrecord", "--compression=gzip"],
            ["--file_format=array_record"],
            ["--file_format=array_record", "--compression=zstd", "--group_size=8"],
        )
    ):
        new = tmp_path / str(number)
        code, _, err = command("reshard", f"{old.parent}/*", new, *options)
        assert (code, err) == (0, "")
        (shard,) = new.glob("train-*")
        assert read(shard) == RECORDS
        if number < 2:
            found = tf.data.TFRecordDataset(str(shard), ["", "GZIP"][number])
            assert list(found.as_numpy_iterator()) == RECORDS
    offsets = [line.split()[0] for line in (new / INDEX).read_text().splitlines()]
    assert len(set(offsets)) == 7  # of 8 records each


@pytest.mark.parametrize("beam", [[], BEAM])
def test_a_corrected_command_follows_one_that_failed(
    tmp_path: Path, command: Command, beam: list[str]
):
    old, new = tmp_path / "old", tmp_path / "new"
    for number in range(3):
        write(old / f"train-{number:05d}-of-00003", RECORDS)
    (old / "zz_readme.json").write_text("{}")  # the pattern matches it, too
    code, _, err = command("reshard", old / "*", new, "--file_format=array_record", *beam)
    assert code == 1
    assert f"{old / 'zz_readme.json'}: record at byte 0" in err
    assert err.count("\n") == 1
    arguments = ["reshard", old / "train-*", new, "--file_format=tfrecord"]
    assert command(*arguments, *beam)[0] == 0
    assert read(new / "train-*") == 3 * RECORDS
    names = {path.name for path in new.rglob("*") if path.is_file()}
    assert not any(name.endswith("array_record") or "00004" in name for name in names)
    # A command that succeeded is not replaced.
    before = every_file(new)
    code, _, err = command("reshard", old / "train-00000*", new, "--file_format=tfrecord", *beam)
    assert code == 2
    assert "holds another data set" in err
    assert every_file(new) == before


def killed(operation: Operation[Any, Any]) -> dict[str, Any]:
    """Runs the first part of an operation."""
    operation.process(next(operation.parts()))
    raise KeyboardInterrupt


def test_a_file_that_is_replaced_after_a_kill_is_copied_again(tmp_path: Path, command: Command):
    old, new = tmp_path / "old", tmp_path / "new"
    for name in "ab":
        write(old / f"{name}.tfrecord", RECORDS)
    pattern = f"{old}/*.tfrecord"
    with pytest.raises(KeyboardInterrupt):
        reshard(pattern, str(new), file_format="array_record", run=killed)
    kept = next(new.glob("*-00000-of-00002.*")).stat().st_mtime_ns
    other = RECORDS[::-1]
    write(old / "a.tfrecord", other)  # as many bytes
    arguments = ["reshard", pattern, new, "--file_format=array_record"]
    # Another command does not replace one that may still run.
    code, _, err = command("reshard", pattern, new, "--file_format=tfrecord")
    assert code == 2
    assert "holds another data set" in err
    assert command(*arguments)[0] == 0
    assert read(new / "train-*") == other + RECORDS
    assert next(new.glob("*-00000-of-00002.*")).stat().st_mtime_ns != kept
    before = every_file(new)
    assert command(*arguments)[0] == 0
    assert every_file(new) == before
    write(old / "b.tfrecord", other)
    os.utime(old / "b.tfrecord", ns=(1, 1))
    for beam in ([], BEAM):
        code, _, err = command(*arguments, *beam)
        assert (code, err.count("\n")) == (1, 1)
        assert f"{old}/b.tfrecord: missing, or changed since it was copied" in err
        assert every_file(new) == before


def test_files_that_appear_while_others_are_copied_are_not_copied(tmp_path: Path):
    old, new = tmp_path / "old", tmp_path / "new"
    write(old / "b.tfrecord", RECORDS)

    def meanwhile(operation: Operation[Any, Any]) -> dict[str, Any]:
        write(old / "a.tfrecord", RECORDS[:1])
        return run_here(operation)

    done = reshard(f"{old}/*", str(new), file_format="tfrecord", run=meanwhile)
    assert done.records == len(RECORDS)
    assert read(new / "train-*") == RECORDS


def test_files_of_others_are_converted_one_by_one(tmp_path: Path, command: Command):
    old = tmp_path / "old"
    old.mkdir()
    written = {}
    for name, compression in (
        ("train-00003-of-00009", ""), ("train-00007-of-00009", ""), ("more.tfrecord.gz", "GZIP"),
        ("test.tfrecord-00000-of-00001", ""),
    ):  # fmt: skip
        written[name] = [f"{name} {number}".encode() for number in range(40)]
        with tf.io.TFRecordWriter(str(old / name), compression) as writer:
            for record in written[name]:
                writer.write(record)
    new = tmp_path / "new"
    code, out, err = command("reshard", old / "*", new, "--file_format=array_record")
    assert (code, err) == (0, ""), err
    assert "160 records" in out
    shards = {
        "train-00000-of-00003": "more.tfrecord.gz", "train-00001-of-00003": "train-00003-of-00009",
        "train-00002-of-00003": "train-00007-of-00009",
        "test-00000-of-00001": "test.tfrecord-00000-of-00001",
    }  # fmt: skip
    for shard, source in shards.items():
        found = reader.open(new / f"{shard}.array_record")
        assert [found.serialized(n) for n in range(len(found))] == written[source]
    # A later run writes what is missing; grouped ArrayRecords are read, too.
    before = every_file(new)
    (new / "train-00001-of-00003.array_record").unlink()
    assert command("reshard", old / "*", new, "--file_format=array_record")[0] == 0
    assert every_file(new) == before
    back = tmp_path / "back"
    assert command("reshard", new / "*.array_record", back, "--file_format=tfrecord")[0] == 0
    path = back / "test-00000-of-00001.tfrecord"
    assert path.read_bytes() == (old / "test.tfrecord-00000-of-00001").read_bytes()
    for arguments, problem in (
        ([old / "*", new, "--file_format=tfrecord"], "holds another data set"),
        ([old / "*", old, "--file_format=array_record"], "contains files to copy"),
        ([old / "*", tmp_path / "n", "--num_shards=2"], "each file becomes one shard"),
        ([tmp_path / "none-*", tmp_path / "n", "--file_format=tfrecord"], "no file matches"),
    ):
        code, _, err = command("reshard", *arguments)
        assert code
        assert problem in err
        assert len(err.splitlines()) == 1
    path.write_bytes(path.read_bytes()[:-3])
    code, _, err = command("reshard", path, tmp_path / "n", "--file_format=array_record")
    assert (code, f"{path}: record at byte" in err, len(err.splitlines())) == (1, True, 1)


def test_a_data_set_of_tensorflow_datasets_stays_one(tmp_path: Path, command: Command):
    old, new = tmp_path / "old", tmp_path / "new"
    features = tfds.features.FeaturesDict({"x": tfds.features.Scalar(np.int64)})
    old.mkdir()
    identity = tfds.core.dataset_info.DatasetIdentity(
        name="numbers", version=tfds.core.Version("1.0.0"), data_dir=str(old), module_name="numbers"
    )
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    writer = tfds.core.SequentialWriter(info, 20)
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [{"x": n} for n in range(50)]})
    writer.close_all()
    files = f"{old}/*.tfrecord*"
    code, _, err = command("reshard", files, new, "--file_format=array_record")
    assert code == 0, err
    source = tfds.builder_from_directory(str(new)).as_data_source("train")
    assert sorted(int(row["x"]) for row in source) == list(range(50))
