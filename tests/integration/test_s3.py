"""Whole builds with inputs and outputs at s3:// URIs, on a server of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_server
from helpers import contents, write_images
from s3_server import S3Server

from imageshards.launch.cli import main

OPTIONS = ["--name=x", "--num_shards=3", "--splits=train=0.7,test=0.3", "--workers=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 60 images in 3 class folders."""
    folder = tmp_path_factory.mktemp("photos")
    write_images(folder / "photos", 3, 20)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[S3Server]:
    with s3_server.running() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        running.put_folder(folder / "photos", "photos")
        yield running


def build(source: str, output: str | Path, *options: str) -> int:
    return main(["build", f"--input={source}", f"--output={output}", *OPTIONS, *options])


def shards(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith((".tfrecord", ".idx"))}


def test_a_build_from_a_bucket_to_a_bucket_has_the_bytes_of_a_local_one(
    server: S3Server, folder: Path, tmp_path: Path
):
    assert build(str(folder / "photos"), tmp_path / "out") == 0
    server.proxy.log.clear()
    assert build("s3://bucket/photos", "s3://bucket/out") == 0
    assert server.proxy.count("GET", "/bucket/photos/") == 60
    assert server.proxy.count("HEAD", "/bucket/photos/") == 0
    local, remote = contents(tmp_path / "out"), server.contents("out")
    assert local.keys() == remote.keys()
    assert shards(local) == shards(remote)
    assert main(["verify", "s3://bucket/out"]) == 0
    server.proxy.log.clear()
    assert build("s3://bucket/photos", "s3://bucket/out") == 0
    assert server.proxy.count("GET", "/bucket/photos/") == 0
    assert server.proxy.count("PUT", ".tfrecord") == 0
