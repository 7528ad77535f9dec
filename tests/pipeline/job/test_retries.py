"""A runner's retries of a job whose user has to mend something end at once."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import apache_beam as beam
import pytest
import web_server
from helpers import contents, image_bytes, write_images
from web_server import status

from imageshards.pipeline import graph
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.transforms import metrics, read
from imageshards.transforms.elements import BuildError
from imageshards.transforms.inputs.kind import list_references
from imageshards.transforms.shards.encoder import ImageEncoder
from imageshards.transforms.storage import ReadError, StoreError


class Broken(ImageEncoder):
    """An encoder with an error that a user has to mend."""

    def encode(self, *_: object, **__: object) -> NoReturn:  # type: ignore[override]
        raise BuildError("images cannot be encoded")

    pixel_digest = encode  # type: ignore[assignment]


def attempt(spec: BuildSpec) -> str:
    """Runs the graph as a runner does for each attempt at a job; returns its error."""
    pipeline = beam.Pipeline(runner="FnApiRunner")
    try:
        graph.build(pipeline, spec)
        pipeline.run()
    except Exception as error:
        return str(error).partition(" [while")[0]
    return ""


def spec_of(tmp_path: Path, job: str, **options: object) -> BuildSpec:
    manifest = str(tmp_path / "m.jsonl")
    options = {"input": (manifest,), "output": str(tmp_path / "out"), "name": "x", **options}
    return BuildSpec(BuildOptions.of(num_shards="1", **options), job)


@pytest.fixture
def rows(tmp_path: Path) -> list[str]:
    return [json.dumps({"uri": str(path)}) for path in write_images(tmp_path / "in", 1, 4)]


def test_a_bad_manifest_is_read_once_for_all_attempts_at_a_job(tmp_path: Path, rows: list[str]):
    manifest = tmp_path / "m.jsonl"
    manifest.write_text("\n".join([*rows, "no JSON"]))
    first = attempt(spec_of(tmp_path, "job1"))
    assert "m.jsonl:5: not JSON" in first
    # Another attempt at this job would succeed now, if it read the manifest again.
    manifest.write_text("\n".join(rows))
    assert attempt(spec_of(tmp_path, "job1")) == first
    assert attempt(spec_of(tmp_path, "job2")) == ""
    (tmp_path / "other").mkdir()
    assert attempt(spec_of(tmp_path, "", output=str(tmp_path / "other/out"))) == ""
    assert contents(tmp_path / "out") == contents(tmp_path / "other/out")


def test_images_are_read_once_if_too_many_are_rejected(tmp_path: Path, rows: list[str]):
    with web_server.running() as server:
        server.pages = {"/good.jpg": image_bytes(1), "/busy.jpg": status(500)}
        rows += [json.dumps({"uri": f"{server.url}{path}"}) for path in server.pages]
        (tmp_path / "m.jsonl").write_text("\n".join(rows))
        web = {"web_retries": 0, "allow_private_hosts": True, "labels": "none"}
        first = attempt(spec_of(tmp_path, "job1", **web))
        assert "1 of 6 images (16.7%) was rejected" in first
        assert attempt(spec_of(tmp_path, "job1", **web)) == first
        assert server.requests == {"/good.jpg": 1, "/busy.jpg": 1}
        server.pages["/busy.jpg"] = image_bytes(2)
        assert attempt(spec_of(tmp_path, "job2", **web)) == ""


def test_two_images_with_one_name_fail_all_attempts(tmp_path: Path):
    inputs = tuple(str(tmp_path / name) for name in ("a", "b"))
    for folder in inputs:
        write_images(Path(folder), 1, 1)
    first = attempt(spec_of(tmp_path, "job1", input=inputs))
    assert "two images have the name 'class00/0000.jpg'" in first
    (tmp_path / "b/class00/0000.jpg").rename(tmp_path / "b/class00/other.jpg")
    assert attempt(spec_of(tmp_path, "job1", input=inputs)) == first
    assert attempt(spec_of(tmp_path, "job2", input=inputs)) == ""


def test_labels_that_cannot_be_numbered_fail_all_attempts(tmp_path: Path, rows: list[str]):
    manifest = tmp_path / "m.jsonl"
    manifest.write_text("\n".join(row.replace("}", ', "label": 0.5}') for row in rows))
    first = attempt(spec_of(tmp_path, "job1"))
    assert "not whole" in first
    manifest.write_text("\n".join(rows))
    assert attempt(spec_of(tmp_path, "job1")) == first


def test_failures_of_a_store_are_not_recorded(tmp_path: Path):
    failures = spec_of(tmp_path, "job1").failures
    for error in (StoreError("no connection"), ReadError("Timeout", "no data"), OSError("full")):
        with pytest.raises(type(error)), failures.recording():
            raise error
    failures.check()
    assert not (tmp_path / "out").exists()


def test_a_unit_that_is_listed_again_is_counted_once(
    tmp_path: Path, rows: list[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "m.jsonl").write_text("\n".join(rows))
    interrupted = []

    def first_interrupted(*given: object) -> Iterator[object]:
        yield from list_references(*given)  # type: ignore[arg-type]
        if len(interrupted) < 2:
            interrupted.append(given)
            raise StoreError("connection reset")

    monkeypatch.setattr(read, "list_references", first_interrupted)
    before = metrics.LISTED.value
    assert attempt(spec_of(tmp_path, "job1")) == ""
    assert len(interrupted) == 2
    assert metrics.LISTED.value - before == len(rows)


def all_rejected(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    (tmp_path / "m.jsonl").write_text(json.dumps({"uri": str(tmp_path / "bad.jpg")}))


@pytest.mark.parametrize("job", ["", "job1"])
def test_a_build_that_failed_without_a_shard_is_replaced(tmp_path: Path, rows: list[str], job: str):
    all_rejected(tmp_path)
    assert "1 of 1 image (100.0%) was rejected" in attempt(spec_of(tmp_path, job))
    (tmp_path / "m.jsonl").write_text("\n".join(rows))
    assert attempt(spec_of(tmp_path, "job2", seed=1)) == ""
    assert not (tmp_path / "out/metadata/shards/failure.json").exists()


def test_a_build_that_may_be_running_is_not_replaced(tmp_path: Path, rows: list[str]):
    # Uploads in progress are invisible: a running build has nothing but its plan at first.
    all_rejected(tmp_path)
    attempt(spec_of(tmp_path, ""))
    (tmp_path / "out/metadata/shards/failure.json").unlink(missing_ok=True)
    before = contents(tmp_path / "out")
    (tmp_path / "m.jsonl").write_text("\n".join(rows))
    refused = attempt(spec_of(tmp_path, "job2", seed=1))
    assert "holds an incomplete build with other options: --seed" in refused
    assert contents(tmp_path / "out") == before


def test_a_build_that_is_begun_again_is_not_replaced(tmp_path: Path, rows: list[str]):
    all_rejected(tmp_path)
    attempt(spec_of(tmp_path, "job1"))
    # Another job of that build has claimed the output since.
    spec = spec_of(tmp_path, "job2")
    spec.failures.clear()
    with pytest.raises(BuildError, match="no listing"), spec.failures.recording():
        raise BuildError("no listing")
    (tmp_path / "m.jsonl").write_text("\n".join(rows))
    assert "holds an incomplete build" in attempt(spec_of(tmp_path, "job3", seed=1))


def test_a_refusal_leaves_the_data_set_of_another_build_as_it_is(tmp_path: Path, rows: list[str]):
    (tmp_path / "m.jsonl").write_text("\n".join(rows))
    assert attempt(spec_of(tmp_path, "job1")) == ""
    before = contents(tmp_path / "out")
    (tmp_path / "m.jsonl").write_text("\n".join(rows[:-1]))
    assert "with other inputs" in attempt(spec_of(tmp_path, "job2"))
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("options", [{}, {"dedupe": "pixels"}])
def test_an_error_of_the_writers_fails_all_attempts(
    tmp_path: Path, rows: list[str], options: dict[str, object]
):
    (tmp_path / "m.jsonl").write_text("\n".join(rows))
    spec = spec_of(tmp_path, "job1", **options)
    vars(spec)["encoder"] = Broken(spec.schema, spec.rules, spec.reader)
    assert attempt(spec) == "images cannot be encoded"
    assert attempt(spec_of(tmp_path, "job1", **options)) == "images cannot be encoded"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt", "parquet"])
def test_a_manifest_that_a_disk_fails_to_read_is_read_again(tmp_path: Path, suffix: str):
    folder = tmp_path / "in"
    write_images(folder, 1, 1)
    manifest = tmp_path / f"m.{suffix}"
    manifest.symlink_to("/proc/self/mem")  # reading it is an input/output error
    given = {"input": (str(folder), str(manifest))}
    assert f"m.{suffix}: " in attempt(spec_of(tmp_path, "job1", **given))
    assert not (tmp_path / "out").exists()


def test_a_damaged_manifest_fails_all_attempts(tmp_path: Path):
    manifest = tmp_path / "m.csv.gz"
    manifest.write_bytes(gzip.compress(b"uri\n/a.jpg\n")[:-4])
    first = attempt(spec_of(tmp_path, "job1", input=(str(manifest),)))
    assert "m.csv.gz: cannot be read: " in first
    manifest.write_bytes(gzip.compress(b"uri\n/a.jpg\n"))
    assert attempt(spec_of(tmp_path, "job1", input=(str(manifest),))) == first


def test_a_local_build_that_fails_leaves_no_record(tmp_path: Path, rows: list[str]):
    (tmp_path / "m.jsonl").write_text("\n".join([*rows, "no JSON"]))
    assert "not JSON" in attempt(spec_of(tmp_path, ""))
    assert not (tmp_path / "out").exists()
