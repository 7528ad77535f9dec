"""`verify --sample`: some records of all shards."""

import gzip
import json
import struct
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import Command
from helpers import shards

from imageshards.reader.verify import verify
from imageshards.transforms.records.tfrecord import FRAME_BYTES, frame


@pytest.fixture
def dataset(tmp_path: Path, photos: Path, command: Command) -> Path:
    output = tmp_path / "out"
    assert command("build", "--input", photos, "--output", output, "--num_shards=4")[0] == 0
    return output


@pytest.mark.parametrize(
    ("sample", "looked_at"), [(0, 120), (1, 1), (7, 7), (120, 120), (999, 120)]
)
def test_a_sample_has_the_requested_size(dataset: Path, sample: int, looked_at: int):
    verdict = verify(str(dataset), sample)
    assert (verdict.records, verdict.problems) == (looked_at, ())
    assert "no problems" in str(verdict)


def test_damage_is_found_in_sampled_records_only(dataset: Path):
    for path in shards(dataset):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert len(verify(str(dataset), 120).problems) == 4
    third = shards(dataset)[2]
    third.write_bytes(bytes(third.stat().st_size))
    # Four records of four shards are one of each.
    assert any(third.name in problem for problem in verify(str(dataset), 4).problems)


def test_sizes_and_metadata_are_always_compared(dataset: Path):
    shards(dataset)[0].open("ab").write(b"\0")
    shards(dataset)[1].unlink()
    (dataset / "metadata/rejects.jsonl").write_text('{"uri": "x"}\n')
    problems = " ".join(verify(str(dataset), 1).problems)
    assert "its size" in problems
    assert "missing" in problems
    assert "rejects.jsonl" in problems


def test_an_index_that_does_not_match_is_a_problem(dataset: Path):
    index = next((dataset / "metadata/index").iterdir())
    index.write_text("".join(f"{line}\n" for line in index.read_text().splitlines()[1:]))
    assert "does not match" in verify(str(dataset), 1).problems[0]
    index.write_text("9999999 5\n" * 30)
    assert "record" in verify(str(dataset), 120).problems[0]


def test_an_empty_label_is_a_problem(dataset: Path):
    path = min(shards(dataset))
    data = path.read_bytes()
    end = struct.unpack_from("<Q", data)[0] + FRAME_BYTES
    record = tf.train.Example.FromString(data[12 : end - 4])
    record.features.feature["image/class/label"].int64_list.ClearField("value")
    path.write_bytes(b"".join(frame([record.SerializeToString()])) + data[end:])
    problems = verify(str(dataset)).problems
    assert any(problem.startswith(f"{path}: record 0: 0 labels") for problem in problems)


@pytest.fixture
def compressed(tmp_path: Path, photos: Path, command: Command) -> Path:
    output = tmp_path / "out"
    options = ["--features=pixels", "--resize=8x8", "--compression=gzip", "--num_shards=4"]
    assert command("build", "--input", photos, "--output", output, *options)[0] == 0
    return output


@pytest.mark.parametrize(("sample", "looked_at"), [(1, 1), (7, 7), (999, 120)])
def test_compressed_shards_are_sampled(compressed: Path, sample: int, looked_at: int):
    verdict = verify(str(compressed), sample)
    assert (verdict.records, verdict.problems) == (looked_at, ())


def test_damage_to_compressed_shards_is_found(compressed: Path):
    one, two, three, four = sorted(compressed.glob("*.gz"))
    three.unlink()
    two.write_bytes(gzip.compress(gzip.decompress(two.read_bytes())[:-100]))
    data = gzip.decompress(one.read_bytes())
    second = struct.unpack_from("<Q", data)[0] + FRAME_BYTES
    one.write_bytes(gzip.compress(data[second:]))  # whole records, but one of them is gone
    problems = verify(str(compressed), 8).problems
    assert f"{one}: 29 records, but 30 in build.json" in problems
    assert any(problem.startswith(f"{two}: ") for problem in problems)
    assert f"{three}: missing" in problems
    assert not any(four.name in problem for problem in problems)


def test_a_record_of_a_compressed_shard_must_decode(compressed: Path):
    path = min(compressed.glob("*.gz"))
    length = struct.unpack_from("<Q", gzip.decompress(path.read_bytes()))[0]
    rest = gzip.decompress(path.read_bytes())[length + FRAME_BYTES :]
    with gzip.open(path, "wb") as file:
        file.write(b"".join(frame([b""])) + rest)
    # The first record of the first shard is in every sample.
    problems = verify(str(compressed), 1).problems
    assert any("record 0: does not have" in problem for problem in problems)


def test_the_command(dataset: Path, command: Command):
    code, out, _ = command("verify", dataset, "--sample=5", "--json")
    result = json.loads(out)
    assert (code, result["records"], result["sample"], result["rejects"]) == (0, 5, 5, 0)
    assert result["report"] == str(dataset / "metadata/report.html")
    assert "a sample read" in command("verify", dataset, "--sample=5")[1]
    assert command("verify", dataset, "--sample=few")[0] == 2
