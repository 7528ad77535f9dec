"""Versions of a data set in a bucket, and the pointer to the published one."""

import json
import os
import subprocess
import sys
from pathlib import Path

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


PUBLISHERS = """
import random, sys
from concurrent.futures import ThreadPoolExecutor
from imageshards.pipeline.publish import publish
from imageshards.transforms.elements import BuildError

base, seed = sys.argv[1], int(sys.argv[2])
choice = random.Random(seed)

def attempt(version, pointer, rollback, keep):
    try:
        publish(f"{base}/v{version}", pointer=pointer, rollback=rollback, keep_versions=keep)
    except BuildError as error:
        print(error)

latest, stable = f"{base}/latest", "gs://bucket/other/stable"
for version in (1, 2, 3):
    for pointer in (latest, stable):
        attempt(version, pointer, False, 0)
with ThreadPoolExecutor(3) as threads:
    for _ in range(3):
        back = choice.randint(1, 3), choice.choice([latest, stable]), True, choice.randint(0, 1)
        threads.submit(attempt, *back)
    threads.submit(attempt, 4, latest, False, 1)
"""


def test_publishers_at_the_same_time_leave_no_pointer_to_a_deleted_version(
    gcs: dict[str, str], server: GcsServer
):
    build = {"counts": {"records": 1, "rejects": 0, "bytes": 1}, "classes": [], "splits": {}}
    server.delay = 0.005
    try:
        for seed in range(4):
            for version in range(1, 5):
                folder = f"race{seed}/v{version}"
                server.put(f"{folder}/dataset_info.json", b'{"name": "x"}')
                content = json.dumps({**build, "version": version}).encode()
                server.put(f"{folder}/metadata/build.json", content)
            done = subprocess.run(
                [sys.executable, "-c", PUBLISHERS, f"gs://bucket/race{seed}", str(seed)],
                capture_output=True, text=True, timeout=120, env={**os.environ, **gcs},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            for pointer in (f"race{seed}/latest", "other/stable"):
                named = json.loads(server.get(pointer))["uri"].removeprefix("gs://bucket/")
                assert server.get(f"{named}/dataset_info.json"), f"{pointer} names {named}"
            server.delete("other/stable")
    finally:
        server.delay = 0
