"""reshard and advise."""

from __future__ import annotations

import json
import pickle
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import build_json, every_file, records, shards

from imageshards import reader
from imageshards.pipeline.claim import clear
from imageshards.pipeline.operations.operation import Operation, run_here
from imageshards.pipeline.operations.reshard import reshard
from imageshards.pipeline.operations.resharding.dataset import Resharding
from imageshards.pipeline.operations.resharding.target import Format, Target
from imageshards.reader.advise import advised_shards
from imageshards.reader.verify import verify
from imageshards.transforms.elements import BuildError
from imageshards.transforms.references.keys import first_rank
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.shards.read_back import read_shard


def frames(folder: Path, split: str) -> bytes:
    return b"".join(path.read_bytes() for path in shards(folder, split))


@pytest.mark.parametrize(
    ("num_shards", "train", "test"), [("3", 3, 3), ("train=8", 8, 2), ("train=1,test=7", 1, 7)]
)
def test_records_keep_their_order_and_bytes(
    dataset: Path, tmp_path: Path, command: Command, num_shards: str, train: int, test: int
):
    new = tmp_path / "new"
    code, out, _ = command("reshard", dataset, new, "--num_shards", num_shards)
    assert code == 0
    assert f"train 5 -> {train:,}, test 2 -> {test:,}" in out
    for split, count in (("train", train), ("test", test)):
        assert frames(new, split) == frames(dataset, split)
        found = shards(new, split)
        assert len(found) == count
        total = len(records(new, split))
        firsts = [first_rank(shard, count, total) for shard in range(count + 1)]
        dealt = [len(list(read_shard(str(path)))) for path in found]
        assert dealt == [b - a for a, b in pairwise(firsts)]
        assert tfds.builder_from_directory(str(new)).info.splits[split].num_examples == total
    verdict = verify(str(new))
    assert not verdict.problems
    assert build_json(new)["resharded"] == {
        "from": str(dataset), "num_shards": "train=5,test=2",
    }  # fmt: skip
    assert build_json(new)["counts"] == build_json(dataset)["counts"]
    assert build_json(new)["options"]["num_shards"] == f"train={train},test={test}"
    code, _, _ = command(
        "build", "--config", new / "metadata/build.yaml", "--output", tmp_path / "again"
    )
    assert code == 0
    assert [path.read_bytes() for path in shards(tmp_path / "again")] == [
        path.read_bytes() for path in shards(new)
    ]
    assert '"name":"train"' in (new / "metadata/report.html").read_text()
    assert list(reader.open(new, "train", decode=False)) == list(
        reader.open(dataset, "train", decode=False)
    )


def test_resharding_again_does_nothing_and_other_numbers_are_refused(
    dataset: Path, tmp_path: Path, command: Command
):
    new = tmp_path / "new"
    assert command("reshard", dataset, new, "--num_shards", 3)[0] == 0
    before = every_file(new)
    code, out, _ = command("reshard", dataset, new, "--num_shards", 3, "--json")
    assert code == 0
    assert json.loads(out)["seconds"] == 0
    code, _, err = command("reshard", dataset, new, "--num_shards", 4)
    assert code == 2
    assert "holds another data set" in err
    assert err.count("\n") == 1
    assert every_file(new) == before
    (tmp_path / "elsewhere.jpg").touch()
    code, _, err = command("build", "--input", tmp_path / "elsewhere.jpg", "--output", new)
    assert code == 2
    assert "holds files of another build" in err


def test_of_two_reshards_into_one_folder_one_succeeds(dataset: Path, tmp_path: Path):
    new = tmp_path / "new"

    def meanwhile(operation: Operation[Any, Any]) -> dict[str, Any]:
        with pytest.raises(BuildError, match="another reshard or build has claimed this folder"):
            reshard(str(dataset), str(new), "4")
        # A service may finish an operation whose folder was cleared and claimed again.
        outcome = run_here(operation)
        (new / "dataset_info.json").unlink()
        (new / "metadata/shards/reshard.json").write_text("{}")
        with pytest.raises(BuildError, match="another reshard or build has claimed this folder"):
            run_here(operation)
        assert not (new / "dataset_info.json").exists()
        return outcome

    with pytest.raises(BuildError, match="not a data set"):
        reshard(str(dataset), str(new), "3", run=meanwhile)


def test_a_new_shard_takes_few_bytes_for_each_old_one(build: Build, tmp_path: Path, photos: Path):
    build(photos, num_shards="60")
    source = Layout(str(tmp_path / "out"))
    target = Target((("train", 1),), Format())
    (part,) = Resharding(source, Layout(str(tmp_path / "new")), target, False).parts()
    assert len(list(part.pieces(source))) == 60
    assert len(pickle.dumps(part)) < 1000


def test_a_build_in_the_output_is_refused(
    dataset: Path, photos: Path, tmp_path: Path, build: Build, command: Command
):
    new = tmp_path / "new"
    assert command("reshard", dataset, new, "--num_shards", 2)[0] == 0
    marker = (new / "metadata/shards/reshard.json").read_bytes()
    build(photos, output=new, num_shards="5", overwrite=True)
    assert not (new / "metadata/shards/reshard.json").exists()
    before = every_file(new)
    for _ in range(2):
        code, _, err = command("reshard", dataset, new, "--num_shards", 2)
        assert code == 2
        assert "holds another data set" in err
        assert every_file(new) == before
        # The same where another process wrote the marker again, and where there is no plan.
        (new / "metadata/shards/reshard.json").write_bytes(marker)
        (new / "metadata/shards/plan.json").unlink(missing_ok=True)
        before = every_file(new)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_overwrite_deletes_a_resharded_data_set(
    build: Build, photos: Path, tmp_path: Path, command: Command, compression: str
):
    new = tmp_path / "new"
    build(photos, num_shards="3", features="pixels", resize="8x8", compression=compression)
    assert command("reshard", tmp_path / "out", new, "--num_shards", 4)[0] == 0
    (new / "metadata/mine.csv").write_text("not of reshard")
    clear(Layout(str(new)))
    assert every_file(new) == {str(new / "metadata/mine.csv"): b"not of reshard"}


def test_an_interrupted_reshard_is_completed_by_the_same_command(
    dataset: Path, tmp_path: Path, command: Command
):
    whole, new = tmp_path / "whole", tmp_path / "new"
    assert command("reshard", dataset, whole, "--num_shards", 3)[0] == 0
    shutil.copytree(whole, new)
    (new / "dataset_info.json").unlink()
    shards(new)[2].unlink()
    assert command("reshard", dataset, new, "--num_shards", 3)[0] == 0
    assert every_file(new).keys() == {
        path.replace(str(whole), str(new)) for path in every_file(whole)
    }
    assert frames(new, "train") == frames(whole, "train")
    assert not verify(str(new)).problems


def test_verify_names_the_command_that_repairs_a_resharded_data_set(
    dataset: Path, tmp_path: Path, command: Command
):
    new = tmp_path / "new"
    assert command("reshard", dataset, new, "--num_shards", 3)[0] == 0
    shards(new)[0].unlink()
    code, out, _ = command("verify", new)
    assert code == 1
    assert f"run the reshard command again to copy them from {dataset}" in out
    (new / "dataset_info.json").unlink()
    assert command("reshard", dataset, new, "--num_shards", 3)[0] == 0
    assert command("verify", new)[0] == 0


def test_a_damaged_shard_is_not_copied(dataset: Path, tmp_path: Path, command: Command):
    path = shards(dataset, "train")[1]
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    code, _, err = command("reshard", dataset, tmp_path / "new", "--num_shards", 3)
    assert code == 1
    assert f"{path}: its CRC32C is not the one in build.json" in err
    assert not (tmp_path / "new" / "dataset_info.json").exists()


@pytest.mark.parametrize(
    ("num_shards", "message"),
    [
        ("auto", "specify numbers"),
        ("0", "write a number from 1"),
        ("500", "set a smaller --num_shards"),
        ("valid=3", "names the split 'valid'; the splits are train, test"),
    ],
)
def test_invalid_numbers_of_shards_are_one_line(
    dataset: Path, tmp_path: Path, command: Command, num_shards: str, message: str
):
    code, _, err = command("reshard", dataset, tmp_path / "new", "--num_shards", num_shards)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_the_data_set_itself_is_refused_as_output(dataset: Path, command: Command):
    code, _, err = command("reshard", dataset, dataset, "--num_shards", 3)
    assert code == 2
    assert "is the data set to reshard" in err


def test_compressed_shards_are_resharded(
    build: Build, photos: Path, tmp_path: Path, command: Command
):
    build(photos, num_shards="4", features="pixels", resize="8x8", compression="gzip")
    new = tmp_path / "new"
    code, _, err = command("reshard", tmp_path / "out", new, "--num_shards", 3)
    assert (code, err) == (0, "")
    assert not verify(str(new)).problems
    old = reader.open(tmp_path / "out", "train")
    found = reader.open(new, "train")
    assert [label for _, label in found] == [label for _, label in old]
    assert all((a == b).all() for (a, _), (b, _) in zip(found, old, strict=True))
    data = reader.load(new, batch_size=40, dtype="uint8", repeat=False)
    images = {image.tobytes() for batch, _ in data.as_numpy_iterator() for image in batch}
    assert images == {image.tobytes() for image, _ in old}
    assert data.element_spec[0] == tf.TensorSpec((None, 8, 8, 3), tf.uint8)


@pytest.mark.parametrize(
    ("records", "size", "hosts", "expected"),
    [
        (1_281_167, 140_000_000_000, 32, 928),  # ImageNet: 150 MB a file, 29 a host
        (50_000_000, 5_000_000_000_000, 128, 33_280),
        (10_000, 1_100_000_000, 8, 8),
        (100_000, 40_000_000_000, 8, 264),
        (10_000, 10_000_000, 32, 32),
        (100, 10_000_000, 32, 32),
        (20, 1000, 32, 20),
        (1797, 400_000, 1, 1),
    ],
)
def test_the_advised_number_of_shards(records: int, size: int, hosts: int, expected: int):
    assert advised_shards(records, size, hosts)[0] == expected


def test_advise_says_what_is_wrong_and_what_to_do(dataset: Path, tmp_path: Path, command: Command):
    code, out, _ = command("advise", dataset, "--hosts", 3)
    assert code == 0
    assert "WARNING: 5 shards are not a multiple of 3 hosts" in out
    assert "WARNING: 2 shards for 3 hosts" in out
    line = out.splitlines()[-1].strip()
    assert line == f"imageshards reshard {dataset} NEW --num_shards train=3,test=3"
    new = tmp_path / "new"
    assert command(*line.replace("NEW", str(new)).split()[1:])[0] == 0
    code, out, _ = command("advise", new, "--hosts", 3)
    assert "WARNING" not in out
    assert "reshard" not in out
    code, out, _ = command("advise", new, "--hosts", 3, "--json")
    assert json.loads(out)["num_shards"] == ""
    assert command("advise", new, "--hosts", 0)[0] == 2
