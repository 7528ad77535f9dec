"""`--dry_run`: what a build would do, without writing anything."""

import io
import json
import os
import tarfile
from pathlib import Path

import gcs_server
import pytest
from conftest import Build, Command
from helpers import build_json, contents, image_bytes, imageshards, write_images

from imageshards.pipeline.job import forecast as job_forecast
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.transforms.elements import UsageError

SPLITS = "--splits=train=0.7,test=0.3"


def forecast(command: Command, *arguments: object) -> dict:  # type: ignore[type-arg]
    code, out, error = command("build", *arguments, "--dry_run", "--json")
    found = json.loads(out)
    assert (code, error) == (1 if found["would_fail"] else 0, "")
    return found  # type: ignore[no-any-return]


def test_it_plans_what_the_build_then_does(
    build: Build, photos: Path, tmp_path: Path, command: Command
):
    places = [photos, photos / "class00"]
    arguments = [*(f"--input={place}" for place in places), "--output", tmp_path / "out", SPLITS]
    found = forecast(command, *arguments, "--num_shards=4")
    assert not (tmp_path / "out").exists()
    build(*places, num_shards="4", splits=SPLITS[9:])
    built = build_json(tmp_path / "out")
    assert found["output"] == str(tmp_path / "out")
    for name in ("inputs", "duplicates", "passed_over"):
        assert found[name] == built["counts"][name]
    assert found["duplicates"] == 20
    assert list(found["splits"]) == list(built["splits"]) == ["train", "test"]
    for name, split in found["splits"].items():
        assert (split["images"], split["shards"]) == (built["splits"][name]["images"], 4)
        rows = [row["records"] for row in built["shards"] if row["name"].startswith(name)]
        assert split["records_per_shard"] == [min(rows), max(rows)]
        labels = {built["classes"][int(k)]: n for k, n in built["splits"][name]["labels"].items()}
        assert split["classes"] == labels
    total = sum(split["bytes"] for split in found["splits"].values())
    assert total == sum(path.stat().st_size for path in photos.rglob("*.jpg"))


def test_it_writes_nothing_anywhere(photos: Path, tmp_path: Path, command: Command):
    with tarfile.open(tmp_path / "photos.tgz", "w:gz") as tar:
        tar.add(photos, arcname=".")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = contents(tmp_path)
    done = imageshards(
        "build", "--input", tmp_path / "photos.tgz", "--output", tmp_path / "deep/out",
        "--dry_run", "--runner=FlinkRunner", TMPDIR=str(scratch),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/deep/out (dry run: nothing was written)\n")
    assert "train: 120 images, " in done.stdout
    assert "1 shard of 120; 6 classes: class00 20, class01 20" in done.stdout
    assert contents(tmp_path) == before
    assert not os.listdir(scratch)
    assert not (tmp_path / "deep").exists()


def test_rejects_that_the_listing_shows_are_counted(tmp_path: Path, command: Command):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(4):
            data = image_bytes(number)
            info = tarfile.TarInfo(f"cat/{number}.jpg" if number else "../cat/0.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        large = tarfile.TarInfo("dog/large.jpg")
        large.size = 50_000
        tar.addfile(large, io.BytesIO(bytes(large.size)))
    found = forecast(
        command, "--input", tmp_path / "a.tar", "--output", tmp_path / "out", "--max_bytes=40000"
    )
    assert (found["rejects"], found["errors"]) == (2, {"TooLarge": 1, "UnsafeName": 1})
    assert found["splits"]["train"]["classes"] == {"cat": 3}
    assert found["splits"]["train"]["images"] == 5
    assert found["would_fail"] == [
        "2 of 5 images (40.0%) would be rejected, more than --max_reject_fraction 0.01"
    ]


def test_a_build_without_an_image_left_would_fail_whatever_the_limit_is(
    tmp_path: Path, command: Command
):
    (tmp_path / "in").mkdir()
    for number in range(5):
        (tmp_path / "in" / f"{number}.jpg").write_bytes(b"no image")
    arguments = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    arguments.append("--max_reject_fraction=1")
    (reason,) = forecast(command, *arguments)["would_fail"]
    assert reason.startswith("5 images read as a sample: 5 rejects, such as ")
    found = forecast(command, *arguments, "--max_bytes=3")["would_fail"]
    assert found == ["every image of the split 'train' would be rejected"]
    code, _, error = command("build", *arguments, "--workers=1")
    assert (code, error.count("every image of the split 'train' was rejected")) == (1, 1)


@pytest.mark.slow
def test_a_truncated_archive_would_fail_for_the_reason_of_the_build(
    photos: Path, tmp_path: Path, command: Command
):
    with tarfile.open(tmp_path / "whole.tar", "w") as tar:
        tar.add(photos, arcname=".")
    data = (tmp_path / "whole.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[: len(data) * 2 // 3])
    arguments = ["--input", tmp_path / "cut.tar", "--output", tmp_path / "out", "--workers=1"]
    found = forecast(command, *arguments)
    assert found["errors"] == {"Lost": 1}
    reason = found["would_fail"][0]
    assert f"\n  WOULD FAIL: {reason}" in command("build", *arguments, "--dry_run")[1]
    code, _, error = command("build", *arguments)
    assert code == 1
    assert f"imageshards: {reason}; see " in error
    accepted = forecast(command, *arguments, "--max_reject_fraction=1")
    assert accepted["would_fail"] == []


@pytest.mark.slow
def test_it_reports_what_the_output_holds(
    build: Build, photos: Path, tmp_path: Path, command: Command
):
    arguments = ["--input", photos, "--output", tmp_path / "out"]
    assert forecast(command, *arguments)["found"] == "a new data set"
    build(photos)
    assert "only shards of changed images would be" in forecast(command, *arguments)["found"]
    (tmp_path / "out/dataset_info.json").unlink()
    assert "would be resumed" in forecast(command, *arguments)["found"]
    before = contents(tmp_path / "out")
    other = [*arguments, "--seed=1"]
    code, out, error = command("build", *other, "--dry_run")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "holds an incomplete build with other options: --seed was 0, now 1" in error
    assert "would be replaced" in forecast(command, *other, "--overwrite")["found"]
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    "more",
    [
        ["--num_shards=9"],
        ["--splits=column:split"],
        ["--runner=DataflowRunner"],
        ["--workers=2", "--direct_running_mode=multi_processing"],
    ],
)
def test_what_would_fail_fails_in_one_line(tmp_path: Path, command: Command, more: list[str]):
    write_images(tmp_path / "in", 1, 3)
    arguments = ["--input", tmp_path / "in", "--output", tmp_path / "out", *more]
    code, out, error = command("build", *arguments, "--dry_run")
    assert code in (1, 2)
    assert (out, error.count("\n")) == ("", 1)
    assert (code, "", error) == command("build", *arguments)


def test_what_the_workers_of_a_service_cannot_read_is_refused_as_in_the_build(
    photos: Path, monkeypatch: pytest.MonkeyPatch
):
    with gcs_server.running() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        server.put("local/list.txt", f"{photos}/class00/0000.jpg\n".encode())
        options = BuildOptions.of(
            input=("gs://bucket/local/list.txt",), output="gs://bucket/out", num_shards="1"
        )
        assert job_forecast.forecast(options).would_fail == ()
        with pytest.raises(UsageError, match="cannot read files of this machine"):
            job_forecast.forecast(options, reads_local_files=False)


def test_missing_files_of_a_manifest_would_fail(tmp_path: Path, command: Command):
    write_images(tmp_path / "in", 1, 20)
    rows = [f"in/class00/{number:04d}" for number in range(20)]
    (tmp_path / "list.csv").write_text("\n".join(["uri", *rows]))
    arguments = ["--input", tmp_path / "list.csv", "--output", tmp_path / "out", "--num_shards=1"]
    found = forecast(command, *arguments)
    assert found["would_fail"] == [
        "20 of 20 images looked at are missing; 20 of 20 missing images that were looked for exist "
        "with .jpg at the end: add it to the URIs in the manifest, or set --uri_template "
        "'{uri}.jpg'"
    ]
    (tmp_path / "list.csv").write_text("\n".join(["uri", *(f"{row}.jpg" for row in rows)]))
    (tmp_path / "in/class00/0003.jpg").unlink()
    (tmp_path / "in/class00/0004.jpg").write_bytes(b"")
    found = forecast(command, *arguments)
    assert found["would_fail"] == []
    assert "1 of 20 images looked at is missing, 1 empty" in found["notes"]


def test_files_on_web_servers_are_said_not_to_be_looked_at(tmp_path: Path, command: Command):
    (tmp_path / "list.csv").write_text("uri\nhttp://127.0.0.1:1/a/1.jpg\n")
    found = forecast(command, "--input", tmp_path / "list.csv", "--output", tmp_path / "out")
    assert found["notes"][-1] == "images on web servers were not looked at"


def test_a_sample_of_the_images_is_read_as_the_build_reads_them(tmp_path: Path, command: Command):
    paths = write_images(tmp_path / "in", 2, 40)
    broken = [path for path in paths if path.stem.endswith("7")]
    for path in broken:
        path.write_bytes(path.read_bytes()[:200])
    with tarfile.open(tmp_path / "in.tgz", "w:gz") as tar:
        tar.add(tmp_path / "in", arcname=".")
    for place in ("in", "in.tgz"):
        arguments = [f"--input={tmp_path / place}", f"--output={tmp_path / 'out'}"]
        found = forecast(command, *arguments)["sample"]
        assert found["images"] > 50
        assert 0 < found["rejected"] <= len(broken)
        assert len(found["rejects"]) <= 3
        name, error, _ = found["rejects"][0]
        assert (name[-5:], error) == ("7.jpg", "Truncated")
        assert found["cpu_seconds"] > 0
    _, text, _ = command("build", *arguments, "--dry_run")
    assert " read as a sample: " in text
    assert "\n  estimate: less than a second, on 1 core of this machine" in text
    for path in paths:
        path.write_bytes(path.read_bytes()[:200])
    assert (
        "read as a sample"
        in forecast(command, f"--input={tmp_path / 'in'}", *arguments[1:])["would_fail"][0]
    )
    assert not (tmp_path / "out").exists()
