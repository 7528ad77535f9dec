"""Whole builds with inputs and outputs at s3:// and az:// URIs, on servers of the protocols."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import azure_server
import pytest
import s3_server
from fault_proxy import FaultProxy, refusing
from gcs_faults import Fault
from helpers import IMAGESHARDS, contents, imageshards, told, write_images

from imageshards import reader
from imageshards.launch.cli import main
from imageshards.transforms import storage
from imageshards.transforms.storage.clouds import azure

OPTIONS = ["--name=x", "--num_shards=3", "--splits=train=0.7,test=0.3", "--workers=1"]
IMAGES = 60


@dataclass(frozen=True)
class Server:
    """A server with the bucket `bucket`, and the images below `photos`.

    Attributes:
      bucket: the bucket's URI.
      photos: a folder with the same images.
      proxy: counts the requests, and injects faults.
    """

    bucket: str
    photos: Path
    proxy: FaultProxy

    def contents(self, folder: str) -> dict[str, bytes]:
        """Returns name below a folder -> content."""
        root = f"{self.bucket}/{folder}/"
        found = storage.match(root + "**")
        return {uri.removeprefix(root): storage.read(uri)[0] for uri, *_ in sorted(found)}

    def reads(self) -> int:
        """Number of requests that read images."""
        return sum("/photos/" in line for line in self.proxy.log)


@pytest.fixture(scope="module", params=["s3", "az"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    photos = tmp_path_factory.mktemp("images") / "photos"
    write_images(photos, 3, IMAGES // 3)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "s3":
            running = s3_server.running()
            opened = running.__enter__()
            proxy, environment = opened.proxy, opened.environment
        else:
            if reason := azure_server.missing():
                pytest.skip(reason)
            running = azure_server.running()
            proxy, environment = running.__enter__()
        for name, value in environment.items():
            patch.setenv(name, value)
        if request.param == "az":
            azure._send("az://bucket", "create_container")
        try:
            there = Server(f"{request.param}://bucket", photos, proxy)
            for path in photos.rglob("*.jpg"):
                name = path.relative_to(photos.parent)
                storage.create(f"{there.bucket}/{name}", path.read_bytes(), "")
            yield there
        finally:
            running.__exit__(None, None, None)


@pytest.fixture(scope="module")
def local(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set that a build of the same images on a disk has."""
    folder = tmp_path_factory.mktemp("local") / "out"
    assert build(server.photos, folder) == 0
    return folder


def build(source: str | Path, output: str | Path, *options: str) -> int:
    return main(["build", f"--input={source}", f"--output={output}", *OPTIONS, *options])


def records(place: str | Path) -> int:
    """The number of records in a data set, of which the last one is read."""
    found = 0
    for split in ("train", "test"):
        source = reader.open(str(place), split)
        found += len(source)
        image, _ = source[len(source) - 1]
        assert image.shape == (16, 24, 3)
    return found


def shards(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith((".tfrecord", ".idx"))}


def test_a_build_from_a_bucket_to_a_bucket_has_the_bytes_of_a_local_one(
    server: Server, local: Path
):
    out = f"{server.bucket}/out"
    server.proxy.log.clear()
    assert build(f"{server.bucket}/photos", out) == 0
    assert server.reads() == IMAGES  # one request each, and none of them for sizes
    assert contents(local).keys() == server.contents("out").keys()
    assert shards(contents(local)) == shards(server.contents("out"))
    assert main(["verify", out]) == 0
    server.proxy.log.clear()
    assert build(f"{server.bucket}/photos", out) == 0
    assert server.reads() == 0
    assert server.proxy.count("PUT", ".tfrecord") == 0
    assert records(out) == IMAGES


def test_tensorflow_reads_a_data_set_in_a_bucket(server: Server, local: Path):
    for name, data in contents(local).items():
        storage.create(f"{server.bucket}/loaded/{name}", data, "")
    seen = 0
    for images, labels in reader.load(
        f"{server.bucket}/loaded", "train", batch_size=8, repeat=False
    ):
        assert images.shape[1:] == (16, 24, 3)
        seen += len(labels)
    assert seen == len(reader.open(str(local), "train"))


def test_manifests_patterns_and_archives_are_inputs(server: Server, local: Path, tmp_path: Path):
    names = sorted(path.relative_to(server.photos.parent) for path in server.photos.rglob("*.jpg"))
    lines = [f"{server.bucket}/{name},{name.parent.name}" for name in names]
    storage.create(f"{server.bucket}/list.csv", "\n".join(["uri,label", *lines]).encode(), "")
    archive = tmp_path / "photos.tar"
    with tarfile.open(archive, "w") as tar:
        for name in names:
            tar.add(server.photos.parent / name, name.relative_to("photos"))
    storage.create(f"{server.bucket}/photos.tar", archive.read_bytes(), "")
    assert build(archive, tmp_path / "of_archive") == 0
    for source, expected in (
        ("list.csv", None),
        ("photos/**.jpg", contents(local)),
        ("photos.tar", contents(tmp_path / "of_archive")),
    ):
        folder = re.sub(r"\W+", "_", source)
        server.proxy.log.clear()
        assert build(f"{server.bucket}/{source}", tmp_path / folder) == 0
        found = contents(tmp_path / folder)
        assert records(tmp_path / folder) == IMAGES
        assert expected is None or shards(found) == shards(expected)
        if source == "photos.tar":
            # One range for each image, and a few to find them.
            assert sum("photos.tar" in line for line in server.proxy.log) <= IMAGES + 5


def test_a_data_set_in_a_bucket_is_an_input(server: Server, local: Path, tmp_path: Path):
    for path in local.glob("*.tfrecord"):
        storage.create(f"{server.bucket}/records/{path.name}", path.read_bytes(), "")
    assert build(f"{server.bucket}/records/*.tfrecord", tmp_path / "out") == 0
    assert records(tmp_path / "out") == IMAGES


def test_versions_are_published_and_resharded(server: Server):
    for version in ("v1", "v2"):
        assert build(f"{server.bucket}/photos", f"{server.bucket}/versions/{version}") == 0
        assert main(["publish", f"{server.bucket}/versions/{version}"]) == 0
    pointer = json.loads(storage.read(f"{server.bucket}/versions/latest")[0])
    assert (pointer["uri"], pointer["records"]) == (f"{server.bucket}/versions/v2", IMAGES)
    assert main(["reshard", f"{server.bucket}/versions/v1", f"{server.bucket}/five",
                 "--num_shards=5"]) == 0  # fmt: skip
    assert main(["verify", f"{server.bucket}/five"]) == 0
    assert main(["fingerprint", f"--input={server.bucket}/photos",
                 f"--output={server.bucket}/versions/v2", *OPTIONS]) == 0  # fmt: skip
    assert main(["inspect", f"{server.bucket}/five"]) == 0


def test_a_fault_that_lasts_is_one_line_and_the_build_is_resumed(
    server: Server, local: Path, capsys: pytest.CaptureFixture[str]
):
    out, denied = f"{server.bucket}/denied", Fault(refusing(403, "AccessDenied"), r"PUT .*tfrecord")
    with server.proxy.failing(denied):
        assert build(f"{server.bucket}/photos", out) == 1
    (line,) = told(capsys.readouterr().err)
    assert re.match(rf"imageshards: {out}/\S+tfrecord\S*: ", line)
    assert "dataset_info.json" not in server.contents("denied")
    assert build(f"{server.bucket}/photos", out) == 0
    assert shards(server.contents("denied")) == shards(contents(local))


def test_an_image_that_does_not_exist_is_a_reject(server: Server, tmp_path: Path):
    lines = ["uri,label", f"{server.bucket}/photos/none.jpg,a",
             f"{server.bucket}/photos/class00/0000.jpg,a"]  # fmt: skip
    (tmp_path / "list.csv").write_text("\n".join(lines))
    options = [f"--input={tmp_path}/list.csv", f"--output={tmp_path}/out", "--workers=1"]
    assert main(["build", *options, "--max_reject_fraction=0.5"]) == 0
    assert '"error": "Missing"' in (tmp_path / "out/metadata/rejects.jsonl").read_text()


def test_a_killed_build_leaves_no_part_of_an_object_and_is_resumed(server: Server, local: Path):
    out = f"{server.bucket}/killed"
    command = [*IMAGESHARDS, "build", f"--input={server.bucket}/photos", f"--output={out}"]
    server.proxy.log.clear()
    process = subprocess.Popen([*command, *OPTIONS], start_new_session=True)
    deadline = time.monotonic() + 120
    while server.proxy.count("PUT", ".tfrecord") < 1 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = shards(server.contents("killed"))
    assert found.items() <= shards(contents(local)).items()
    assert imageshards(*command[3:], *OPTIONS).returncode == 0
    assert shards(server.contents("killed")) == shards(contents(local))


def test_beams_own_sink_is_refused(server: Server, capsys: pytest.CaptureFixture[str]):
    out = f"{server.bucket}/beam"
    options = [f"--input={server.bucket}/photos", f"--output={out}", "--writer=beam"]
    assert main(["build", *options, "--num_shards=2"]) == 2
    assert f"--writer beam cannot write to {out}: use --writer shard" in capsys.readouterr().err
