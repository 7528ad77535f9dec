"""gs:// for inputs, manifests and outputs, on a server that speaks the protocol."""

import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from gcs_server import GcsServer
from helpers import image_bytes, imageshards, write_images


@pytest.fixture(scope="module")
def bucket(
    server: GcsServer, gcs: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """gs://bucket/photos/CLASS/NUMBER.jpg, with odd names among them."""
    folder = tmp_path_factory.mktemp("local")
    write_images(folder, 2, 5)
    for number, name in enumerate(["a b#?.jpg", "50%20.jpg", "[1]*.jpg", "ü.jpg"]):
        (folder / "class00" / name).write_bytes(image_bytes(100 + number))
    server.put_folder(folder, "photos")
    server.put("photos/readme.txt", b"no image")
    manifest = "".join(json.dumps({"uri": name}) + "\n" for name in server.names("photos/class"))
    server.put("list.jsonl", manifest.encode())
    with tarfile.open(folder / "a.tar", "w") as tar:
        tar.add(folder / "class00", "class00")
    with tarfile.open(folder / "a.tgz", "w:gz") as tar:
        tar.add(folder / "class00", "class00")
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((folder / "class00").iterdir()):
            archive.write(path, f"class00/{path.name}")
    for name in ("a.tar", "a.tgz", "a.zip"):
        server.put(f"archives/{name}", (folder / name).read_bytes())
    return gcs


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_from_a_bucket_to_a_bucket(bucket: dict[str, str], writer: str):
    out = f"gs://bucket/out-{writer}"
    options = ["--output", out, "--num_shards", 2, "--writer", writer, "--json"]
    done = imageshards("build", "--input", "gs://bucket/photos", *options, **bucket)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["records"], result["rejects"], result["passed_over"]) == (14, 0, 1)
    done = imageshards("verify", out, **bucket)
    assert done.returncode == 0, done.stderr
    assert "14 records in 2 shards" in done.stdout


def test_again_does_nothing_and_another_build_is_refused(bucket: dict[str, str]):
    options = ["--input", "gs://bucket/photos", "--output", "gs://bucket/again"]
    assert imageshards("build", *options, "--num_shards=2", **bucket).returncode == 0
    done = imageshards("build", *options, "--num_shards=2", **bucket)
    assert "nothing to do" in done.stdout, done.stderr
    done = imageshards("build", *options, "--num_shards=3", **bucket)
    assert done.returncode == 2
    assert "holds another build: --num_shards 2, now 3" in done.stderr


def test_the_bytes_are_those_of_a_manifest_to_a_disk(bucket: dict[str, str], tmp_path: Path):
    done = [
        imageshards("build", "--input", source, "--output", tmp_path / name, "--num_shards=2",
                    **bucket)
        for name, source in (("a", "gs://bucket/list.jsonl"), ("b", "gs://bucket/photos/**.jpg"))
    ]  # fmt: skip
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    for name in ("train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"):
        a, b = ((tmp_path / place / name).read_bytes() for place in "ab")
        assert len(a) > 0
        assert a == b


def test_a_missing_object_is_a_reject(bucket: dict[str, str], tmp_path: Path):
    manifest = tmp_path / "m.txt"
    manifest.write_text("gs://bucket/photos/class01/0001.jpg\ngs://bucket/photos/none.jpg\n")
    done = imageshards(
        "build", "--input", manifest, "--output", tmp_path / "out", "--max_reject_fraction=0.5",
        **bucket,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    line = json.loads((tmp_path / "out/metadata/rejects.jsonl").read_text())
    assert (os.path.basename(line["uri"]), line["error"]) == ("none.jpg", "Missing")


def test_archives_in_a_bucket(bucket: dict[str, str], tmp_path: Path):
    found = {}
    for name in ("a.tar", "a.tgz", "a.zip"):
        uri = f"gs://bucket/archives/{name}"
        for out in (tmp_path / name, f"gs://bucket/out-{name}"):
            done = imageshards(
                "build", "--input", uri, "--output", out, "--num_shards=2", "--base_uri", uri,
                "--json", **bucket,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)
            assert (result["records"], result["rejects"]) == (9, 0)
        found[name] = [path.read_bytes() for path in sorted((tmp_path / name).glob("train-*"))]
        done = imageshards("verify", f"gs://bucket/out-{name}", **bucket)
        assert "9 records in 2 shards" in done.stdout, done.stderr
    assert len(found["a.tar"]) == 2
    assert found["a.tar"] == found["a.tgz"] == found["a.zip"]


def test_records_in_a_bucket(bucket: dict[str, str], tmp_path: Path):
    out = "gs://bucket/records"
    done = imageshards("build", "--input", "gs://bucket/photos", "--output", out, **bucket)
    assert done.returncode == 0, done.stderr
    done = imageshards(
        "build", "--input", f"{out}/train-*", "--output", tmp_path / "out", "--json",
        "--name_key=image/filename", **bucket,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 14
