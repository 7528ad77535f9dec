"""Data sets in a bucket: their names, and how often an object of one name is changed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gcs_server
import numpy as np
import pytest
from gcs_server import GcsServer
from helpers import image_bytes, write_images
from PIL import Image

from imageshards import reader
from imageshards.launch.cli import main
from imageshards.transforms.records import example
from imageshards.transforms.shards import state


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GcsServer]:
    """A server with images, for clients in this process."""
    write_images(tmp_path / "photos", 3, 8)
    with gcs_server.running() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        running.put_folder(tmp_path / "photos", "photos")
        yield running


def build(output: str, *options: str) -> int:
    return main(
        ["build", "--input=gs://bucket/photos", f"--output={output}", "--name=x", "--num_shards=4",
         *options]
    )  # fmt: skip


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_a_slash_at_the_end_of_a_folder_changes_nothing(server: GcsServer, writer: str):
    assert build("gs://bucket/a", f"--writer={writer}") == 0
    assert build("gs://bucket/v/1//", f"--writer={writer}") == 0
    a, b = server.contents("a"), server.contents("v/1")
    assert a.keys() == b.keys()
    if writer == "shard":
        assert a == b
    assert main(["verify", "gs://bucket/v/1/"]) == 0
    assert main(["inspect", "gs://bucket/v/1/"]) == 0
    assert main(["features", "gs://bucket/v/1/"]) == 0
    assert main(["reshard", "gs://bucket/v/1/", "gs://bucket/v/2/", "--num_shards=2"]) == 0
    assert main(["verify", "gs://bucket/v/2/"]) == 0
    assert main(["publish", "gs://bucket/v/1/"]) == 0
    assert main(["publish", "gs://bucket/v/2/", "--keep_versions=1"]) == 0
    assert b'"gs://bucket/v/2"' in server.get("v/latest")
    assert not server.names("v/1")
    assert not [name for name in server.names() if "//" in name]


def test_a_bucket_itself_is_an_output(server: GcsServer):
    assert build("gs://bucket/") == 0
    assert "dataset_info.json" in server.names()
    assert main(["verify", "gs://bucket/"]) == 0


def test_a_build_that_writes_all_shards_again_deletes_dataset_info_once(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
):
    deletions = r"DELETE .*dataset_info.json"
    assert build("gs://bucket/out") == 0
    assert server.matching(deletions) == 0
    before = server.contents("out")
    # As after an update of a library that encodes images: no shard can be resumed.
    monkeypatch.setattr(state, "_image_libraries", lambda: "others")
    assert build("gs://bucket/out") == 0
    assert server.matching(deletions) == 1
    assert server.contents("out").keys() == before.keys()


def test_a_repeated_build_of_a_complete_data_set_leaves_it_complete(server: GcsServer):
    assert build("gs://bucket/out") == 0
    server.log.clear()
    assert build("gs://bucket/out") == 0
    assert server.matching("DELETE .*dataset_info.json") == 0


def test_a_data_set_is_incomplete_before_any_of_its_shards_is_written_again(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
):
    assert build("gs://bucket/out") == 0
    monkeypatch.setattr(state, "_image_libraries", lambda: "others")
    server.log.clear()
    assert build("gs://bucket/out") == 0
    deleted = server.first(r"DELETE .*dataset_info.json")
    assert deleted < server.first(r"(POST|PUT) /upload/.*train-0000")


def test_worker_processes_of_a_runner_name_the_project_that_pays(server: GcsServer):
    server.requester_pays = "payer"
    options = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    assert build("gs://bucket/out", "--billing_project=payer", *options) == 0
    assert main(["verify", "gs://bucket/out", "--billing_project=payer"]) == 0


def test_relative_uris_in_a_manifest_name_objects_not_paths(server: GcsServer):
    listed = ["a//1.jpg", "x/../2.jpg", "./3.jpg", "d/./4.jpg"]
    for number, name in enumerate(["a//1.jpg", "x/../2.jpg", "3.jpg", "d/./4.jpg"]):
        server.put(f"odd/{name}", image_bytes(number))
    # A path would lead to these.
    for number, name in enumerate(["a/1.jpg", "2.jpg", "d/4.jpg"], 10):
        server.put(f"odd/{name}", image_bytes(number))
    server.put("odd/list.txt", "".join(f"{name}\n" for name in listed).encode())
    options = ["--input=gs://bucket/odd/list.txt", "--output=gs://bucket/out", "--labels=none"]
    assert main(["build", *options, "--num_shards=1"]) == 0
    records = reader.open("gs://bucket/out", "train")
    found = {
        example.decode(records.serialized(number))["image/encoded"][0]
        for number in range(len(records))
    }
    assert found == {image_bytes(number) for number in range(4)}


WRITTEN = """
import resource, sys
from imageshards.launch.cli import main

assert main(["build", *sys.argv[1:]]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_oublock * 512)
"""


def test_array_records_reach_a_bucket_without_a_file_on_a_disk(server: GcsServer, tmp_path: Path):
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for number in range(8):  # 8 MB
        pixels = rng.integers(0, 255, (640, 530, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"in/{number}.png", compress_level=0)
    arguments = [f"--input={tmp_path}/in", "--num_shards=2", "--file_format=array_record"]
    same = ["--name=x", "--workers=1", f"--base_uri={tmp_path}/in", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", WRITTEN, *arguments, *same, "--output=gs://bucket/arrays"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    remote = server.contents("arrays")
    assert sum(map(len, remote.values())) > 8e6
    assert int(done.stdout.split()[-1]) < 1e6  # bytes on disks
    assert main(["build", *arguments, *same, f"--output={tmp_path}/out"]) == 0
    for path in (tmp_path / "out").glob("*.array_record"):
        assert remote[path.name] == path.read_bytes()
    assert main(["verify", "gs://bucket/arrays"]) == 0
    assert main(["reshard", "gs://bucket/arrays", "gs://bucket/t", "--file_format=tfrecord"]) == 0
    here, there = (
        reader.open(place, "train", decode=False) for place in (tmp_path / "out", "gs://bucket/t")
    )
    assert [here.serialized(n) for n in range(8)] == [there.serialized(n) for n in range(8)]
    bare = reader.open("gs://bucket/arrays/*.array_record", "", decode=False)
    assert bare.serialized(7) == here.serialized(7)
