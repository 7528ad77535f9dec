"""Versions of a data set in a bucket, and the pointer to the published one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gcs_faults import Fault
from gcs_server import GcsServer
from helpers import imageshards


def test_versions_in_a_bucket_are_published_and_deleted(
    gcs: dict[str, str], server: GcsServer, photos: Path
):
    server.put_folder(photos / "class00", "in/class00")
    base = "gs://bucket/base"

    def run(*arguments: str) -> dict[str, object]:
        done = imageshards(*arguments, "--json", **gcs)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def build(version: str, *more: str) -> dict[str, object]:
        options = ["--input=gs://bucket/in", f"--output={base}/{version}", "--name=x", *more]
        found = run("fingerprint", *options)
        if found["state"] == "new":
            run("build", *options)
            run("publish", f"{base}/{version}", "--keep_versions=2",
                f"--fingerprint={found['digest']}")  # fmt: skip
        return found

    assert build("v9")["state"] == "new"
    assert build("v9")["state"] == "done"
    unchanged = build("v10")
    assert (unchanged["state"], unchanged["version"], unchanged["files"]) == ("unchanged", "v9", 20)
    assert build("v10", "--seed=1")["state"] == "new"
    server.put("in/class00/new.jpg", (photos / "class01/0000.jpg").read_bytes())
    assert build("v10", "--seed=1")["state"] == "changed"
    server.put("base/v9/mine.txt", b"not of the build")
    assert build("v11")["state"] == "new"
    pointer = json.loads(server.get("base/latest"))
    assert (pointer["uri"], pointer["records"]) == (f"{base}/v11", 21)
    assert list(server.contents("base/v9")) == ["mine.txt"]
    assert "dataset_info.json" in server.contents("base/v10")


def test_a_pointer_is_replaced_only_in_the_generation_that_was_read(
    gcs: dict[str, str], server: GcsServer
):
    code = (
        "from imageshards.transforms import storage as s\n"
        "uri = 'gs://bucket/pointer'\n"
        "print(s.replace(uri, b'1', '', 0), s.replace(uri, b'2', '', 0))\n"
        "stamp = s.read(uri)[1]\n"
        "print(s.replace(uri, b'3', '', stamp), s.replace(uri, b'4', '', stamp))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env={**os.environ, **gcs},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "False", "True", "False"], done.stderr
    assert server.get("pointer") == b"3"


def test_a_version_that_is_being_deleted_cannot_be_named(gcs: dict[str, str], server: GcsServer):
    build = {"counts": {"records": 1, "rejects": 0, "bytes": 1}, "classes": [], "splits": {}}
    for version in range(1, 5):
        server.put(f"race/v{version}/dataset_info.json", b'{"name": "x"}')
        content = json.dumps({**build, "version": version}).encode()
        server.put(f"race/v{version}/metadata/build.json", content)

    def publish(version: int, *options: str) -> str:
        return imageshards("publish", f"gs://bucket/race/v{version}", *options, **gcs).stderr

    stable = "--pointer=gs://bucket/other/stable"
    for version in (1, 2, 3):
        assert publish(version) + publish(version, stable) == ""
    said = []

    def delete_late(handler: Any, head: bytes, body: bytes) -> None:
        """Deletes the file after another publisher has tried to go back to the version."""
        said.append(publish(1, stable, "--rollback"))
        server.delete("race/v1/dataset_info.json")
        handler.connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with server.failing(Fault(delete_late, requests="DELETE .*v1.*dataset_info", times=1)):
        assert publish(4, "--keep_versions=1") == ""
    named = json.loads(server.get("other/stable"))["version"]
    assert "dataset_info.json" in server.contents(f"race/{named}")
    (line,) = said
    assert line.startswith("imageshards: gs://bucket/race/v1: another publish deletes this version")
