"""verify, reshard and fingerprint give the same result here and on a runner of Beam."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import gcs_server
import google_crc32c
import pytest
from conftest import Build, Command
from gcs_faults import Fault, refused
from gcs_server import GcsServer
from helpers import every_file, image_bytes, shards
from hypothesis import given
from hypothesis import strategies as st

from imageshards.launch.operations import job_name
from imageshards.pipeline.operations.fingerprint import Fingerprinting
from imageshards.pipeline.operations.operation import run_here
from imageshards.pipeline.operations.reshard import reshard
from imageshards.pipeline.operations.resharding.crc32c import combine
from imageshards.pipeline.operations.verify import verify
from imageshards.pipeline.options.beam_arguments import uses_other_machines
from imageshards.reader.verification.findings import Findings
from imageshards.reader.verification.problems import Missing, Problem, Unsuitable
from imageshards.reader.verify import verify as verify_in_turn
from imageshards.transforms import storage
from imageshards.transforms.inputs import files
from imageshards.transforms.inputs.kind import ListingOptions
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.references.names import Roots
from imageshards.transforms.storage import objects, retry, sink
from imageshards.transforms.storage.retry import RetryPolicy

# Every bundle is processed twice, as services may do.
BEAM = ["--runner=FnApiRunner", "--direct_runner_bundle_repeat=1"]


def below(folder: Path) -> dict[Path, bytes]:
    return {Path(path).relative_to(folder): data for path, data in every_file(folder).items()}


def damage(dataset: Path) -> None:
    train = shards(dataset, "train")
    train[0].unlink()
    for path, position in ((train[2], 300), (train[4], -300)):
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
    (dataset / "metadata/index/train-00001-of-00005.idx").unlink()
    (dataset / "train-00000-of-00009.tfrecord").touch()


@pytest.mark.parametrize("sample", [0, 30])
def test_verify_reports_the_same_lines_on_a_runner(dataset: Path, command: Command, sample: int):
    def found(*arguments: str) -> tuple[int, dict[str, object], str]:
        code, out, err = command("verify", dataset, "--json", f"--sample={sample}", *arguments)
        return code, {**json.loads(out), "seconds": 0}, err

    assert found() == found(*BEAM)
    assert found()[0] == 0
    damage(dataset)
    code, verdict, err = found()
    assert code == 1
    assert verdict["missing"] == 2
    assert err.count("\n") == len(verdict["problems"])  # type: ignore[arg-type]
    assert found(*BEAM) == (code, verdict, err)
    assert verdict == {**json.loads(verify_in_turn(str(dataset), sample).to_json()), "seconds": 0}


def test_findings_do_not_depend_on_the_order_of_the_parts():
    parts = []
    kinds = (Problem, Missing, Unsuitable)
    for number in range(30):
        parts.append(Findings(records=number))
        for position in range(number % 4):
            parts[-1].add(number, kinds[position % 3](f"{number}: {position}"))
    expected = Findings()
    for part in parts:
        expected.merge(part)
    assert expected.first[:3] == [(1, 0, "1: 0"), (2, 0, "2: 0"), (2, 1, "2: 1")]
    assert len(expected.lines) == 21
    for seed in range(5):
        random.Random(seed).shuffle(parts)
        groups = [Findings(), Findings()]
        for number, part in enumerate(parts):
            groups[number % 2].merge(part)
        groups[0].merge(groups[1])
        assert groups[0] == expected


@pytest.mark.parametrize("num_shards", ["3", "train=9,test=1"])
def test_reshard_writes_the_same_bytes_on_a_runner(
    dataset: Path, tmp_path: Path, command: Command, num_shards: str
):
    written = []
    for name, beam in (("here", []), ("beam", BEAM)):
        new = tmp_path / name / "new"
        assert command("reshard", dataset, new, "--num_shards", num_shards, *beam)[0] == 0
        written.append(
            {Path(path).relative_to(new): data for path, data in every_file(new).items()}
        )
    assert written[0] == written[1]


def test_a_resumed_reshard_keeps_the_shards_that_are_finished(
    dataset: Path, tmp_path: Path, command: Command
):
    new = tmp_path / "new"
    assert command("reshard", dataset, new, "--num_shards", "train=6,test=2")[0] == 0
    whole = every_file(new)
    first, second, *rest = shards(new, "train")
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    (new / "metadata/index/train-00002-of-00006.idx").unlink()
    (new / "dataset_info.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in (*rest, *shards(new, "test"))}
    assert command("reshard", dataset, new, "--num_shards", "train=6,test=2")[0] == 0
    assert every_file(new) == whole
    kept = {path for path, stamp in before.items() if path.stat().st_mtime_ns == stamp}
    assert kept == {*before} - {rest[0]}


def test_a_reshard_of_a_damaged_data_set_is_completed_after_its_repair(
    dataset: Path, tmp_path: Path, command: Command
):
    whole = tmp_path / "whole/new"
    assert command("reshard", dataset, whole, "--num_shards", 3)[0] == 0
    new = tmp_path / "damaged/new"
    path = shards(dataset, "train")[1]
    intact = path.read_bytes()
    path.write_bytes(intact[:300] + bytes([intact[300] ^ 1]) + intact[301:])
    for beam in ([], BEAM):
        code, _, err = command("reshard", dataset, new, "--num_shards", 3, *beam)
        assert code == 1
        assert f"imageshards: {path}: its CRC32C is not the one in build.json" in err
        assert err.count("\n") == 1
        assert not (new / "dataset_info.json").exists()
    path.write_bytes(intact)
    assert command("reshard", dataset, new, "--num_shards", 3)[0] == 0
    expected_files = {
        path.replace(str(whole), str(new)): d for path, d in every_file(whole).items()
    }
    assert every_file(new) == expected_files


def test_a_fingerprint_is_the_same_on_a_runner(
    photos: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    manifest = tmp_path / "list.csv"
    manifest.write_text("uri\n" + "".join(f"{path}\n" for path in photos.glob("*/*")))
    inputs = [f"--input={photos}/class00", f"--input={photos}/class01/*", f"--input={manifest}"]
    arguments = ("fingerprint", *inputs, f"--output={tmp_path / 'sets/v1'}", "--json")
    code, out, err = command(*arguments)
    assert (code, err) == (0, "")
    assert json.loads(out)["files"] == 41
    assert command(*arguments, *BEAM) == (code, out, err)
    # A folder is divided after so many files: here, after the first, into each of its folders.
    monkeypatch.setattr(files, "_FEW_ENTRIES", 1)
    monkeypatch.setattr(files, "_FEWEST_FOLDERS", 1)
    deep = ("fingerprint", f"--input={photos}", f"--output={tmp_path / 'sets/v1'}", "--json")
    whole = command(*deep)
    assert json.loads(whole[1])["files"] == 120
    assert command(*deep, *BEAM) == whole
    operation = Fingerprinting((identify(str(photos)),), ListingOptions(divide=True), Roots())
    (part,) = operation.parts()
    listing = operation.process(part)
    assert len(operation.rest(listing)) > 1
    assert sum(listing.files.values()) < 120
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, err = command(*arguments, f"--input={empty}")
    assert (code, out) == (2, "")
    assert err == f"imageshards: --input {empty}: no image found: there is no file in it\n"
    assert command(*arguments, f"--input={empty}", *BEAM) == (code, out, err)


def test_fingerprint_ignores_the_options_of_a_job_that_the_build_submits(
    photos: Path, tmp_path: Path, command: Command
):
    arguments = ["fingerprint", f"--input={photos}", f"--output={tmp_path}/1"]
    assert command(*arguments, "--region=r", "--project=p") == command(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--smaple", "3"], "unknown option --smaple, did you mean --sample?"),
        (["--num_worker=3"], "unknown option --num_worker=3, did you mean --num_workers?"),
        (["--region=r"], "--region requires --runner"),
        (["--runner="], "--runner is empty"),
        (["--runner=FlinkRunner", "--flink_master=host:8081"], "--temp_location is missing"),
        (
            ["--runner=FnApiRunner", "--temp_location=/dev/null/x"],
            "--temp_location /dev/null/x cannot be used",
        ),
        (["other"], "unexpected argument 'other': specify one data set at a time"),
        (["--runner=Flnk"], "unknown runner --runner=Flnk: did you mean FlinkRunner?"),
        (
            [
                "--runner=DataflowRunner",
                "--project=p",
                "--region=r",
                "--temp_location=gs://bucket/t",
            ],
            "workers cannot read files of this machine",
        ),
    ],
)
def test_wrong_arguments_are_one_line(
    dataset: Path, command: Command, arguments: list[str], message: str
):
    code, out, err = command("verify", dataset, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "uses_others"),
    [
        (["--runner=DirectRunner"], False),
        (["--runner=prism"], False),
        (["--runner=FlinkRunner"], False),
        (["--runner=FlinkRunner", "--job_endpoint=localhost:8099"], False),
        (["--runner", "FlinkRunner", "--flink_master", "http://127.0.0.1:8081"], False),
        (["--runner=PortableRunner", "--job_endpoint=cluster:8099"], True),
        (["--runner=SparkRunner"], True),
    ],
)
def test_runners_of_other_machines_are_known(arguments: list[str], uses_others: bool):
    assert uses_other_machines(arguments) == uses_others


def test_jobs_of_equal_folder_names_have_different_names():
    names = {job_name("verify", [f"gs://bucket/{year}/birds"]) for year in (2024, 2025)}
    assert len(names) == 2
    assert job_name("reshard", ["gs://b/new"]) == job_name("reshard", ["gs://b/new/"])
    assert len(job_name("verify", [f"gs://bucket/{'x' * 100}"])) < 50


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server, for clients in this process that send multiples of 256 KiB and give up soon."""
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(silence=0.3, total=1.0, first_wait=0.01))
    monkeypatch.setattr(objects, "UPLOAD_BYTES", 1 << 18)
    monkeypatch.setattr(sink, "_BATCH_BYTES", 1 << 18)
    with gcs_server.running() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def test_a_new_shard_whose_upload_is_lost_is_written_again(
    build: Build, tmp_path: Path, server: GcsServer
):
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / f"in/{number}.png").write_bytes(image_bytes(number, "PNG", (200, 200)))
    build(tmp_path / "in", num_shards="2")
    gone = Fault(refused(410, "Gone", "gone"), "PUT /upload/", after=1, times=1)
    with server.failing(gone):
        reshard(str(tmp_path / "out"), "gs://bucket/new", "1")
    assert server.failed == 1
    assert verify("gs://bucket/new", run=run_here).problems == ()
    whole = b"".join(path.read_bytes() for path in shards(tmp_path / "out"))
    with storage.open_read("gs://bucket/new/train-00000-of-00001.tfrecord") as file:
        assert file.read() == whole


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_the_crc_of_pieces_is_that_of_the_whole(pieces: list[bytes]):
    crc32c = 0
    for piece in pieces:
        crc32c = combine(crc32c, google_crc32c.value(piece), len(piece))
    assert crc32c == google_crc32c.value(b"".join(pieces))
