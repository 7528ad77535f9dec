"""Builds with gs:// inputs, manifests and outputs, on a local server with the same protocol."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from gcs_server import GcsServer
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import TransportError
from helpers import image_bytes, imageshards, write_images

from imageshards.transforms import storage
from imageshards.transforms.storage import gcs_auth, retry
from imageshards.transforms.storage.retry import RetryPolicy


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
def test_a_build_reads_from_a_bucket_and_writes_to_it(bucket: dict[str, str], writer: str):
    out = f"gs://bucket/out-{writer}"
    options = ["--output", out, "--num_shards", 2, "--writer", writer, "--json"]
    done = imageshards("build", "--input", "gs://bucket/photos", *options, **bucket)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["records"], result["rejects"], result["passed_over"]) == (14, 0, 1)
    done = imageshards("verify", out, **bucket)
    assert done.returncode == 0, done.stderr
    assert "14 records in 2 shards" in done.stdout


def test_a_repeated_build_does_nothing_and_another_build_is_refused(bucket: dict[str, str]):
    options = ["--input", "gs://bucket/photos", "--output", "gs://bucket/again"]
    assert imageshards("build", *options, "--num_shards=2", **bucket).returncode == 0
    done = imageshards("build", *options, "--num_shards=2", **bucket)
    assert "nothing to do" in done.stdout, done.stderr
    done = imageshards("build", *options, "--num_shards=3", **bucket)
    assert done.returncode == 2
    assert "holds a build with other options: --num_shards was 2, now 3" in done.stderr


def test_a_manifest_and_a_pattern_give_the_same_bytes(bucket: dict[str, str], tmp_path: Path):
    done = [
        imageshards("build", "--input", source, "--output", tmp_path / name, "--num_shards=2",
                    "--base_uri=gs://bucket/photos", **bucket)
        for name, source in (("a", "gs://bucket/list.jsonl"), ("b", "gs://bucket/photos/**.jpg"))
    ]  # fmt: skip
    assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
    for name in ("train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"):
        a, b = ((tmp_path / place / name).read_bytes() for place in "ab")
        assert len(a) > 0
        assert a == b


READ = """
import sys
from imageshards import reader

records = reader.open(sys.argv[1], "train")
print(*(label for _, label in records))
print(*(records[number][1] for number in range(len(records))))
assert "tensorflow" not in sys.modules
"""


def test_records_are_read_by_number_and_resharded_in_a_bucket(bucket: dict[str, str]):
    options = ["--output", "gs://bucket/read", "--num_shards", 3]
    done = imageshards("build", "--input", "gs://bucket/photos", *options, **bucket)
    assert done.returncode == 0, done.stderr
    done = imageshards("reshard", "gs://bucket/read", "gs://bucket/new", "--num_shards=2", **bucket)
    assert done.returncode == 0, done.stderr
    assert imageshards("verify", "gs://bucket/new", **bucket).returncode == 0
    found = [
        subprocess.run(
            [sys.executable, "-c", READ, place], env={**os.environ, **bucket}, check=True,
            capture_output=True, text=True, timeout=120,
        ).stdout.splitlines()
        for place in ("gs://bucket/read", "gs://bucket/new")
    ]  # fmt: skip
    in_order, by_number = found[0]
    assert in_order == by_number
    assert sorted(in_order.split()) == ["0"] * 9 + ["1"] * 5
    assert found[1] == found[0]


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


def test_archives_in_a_bucket_are_read(bucket: dict[str, str], tmp_path: Path):
    found = {}
    for name in ("a.tar", "a.tgz", "a.zip"):
        uri = f"gs://bucket/archives/{name}"
        for out in (tmp_path / name, f"gs://bucket/out-{name}"):
            done = imageshards(
                "build", "--input", uri, "--output", out, "--num_shards=2", "--json",
                **bucket,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)
            assert (result["records"], result["rejects"]) == (9, 0)
        found[name] = [path.read_bytes() for path in sorted((tmp_path / name).glob("train-*"))]
        done = imageshards("verify", f"gs://bucket/out-{name}", **bucket)
        assert "9 records in 2 shards" in done.stdout, done.stderr
    assert len(found["a.tar"]) == 2
    assert found["a.tar"] == found["a.tgz"] == found["a.zip"]


def test_tfrecord_files_in_a_bucket_are_read(bucket: dict[str, str], tmp_path: Path):
    out = "gs://bucket/records"
    done = imageshards("build", "--input", "gs://bucket/photos", "--output", out, **bucket)
    assert done.returncode == 0, done.stderr
    done = imageshards(
        "build", "--input", f"{out}/train-*", "--output", tmp_path / "out", "--json",
        "--name_key=image/filename", **bucket,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 14


def test_short_pages_of_a_list_lose_nothing(
    server: GcsServer, gcs: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in gcs.items():
        monkeypatch.setenv(name, value)
    names = [f"short/{number:05}" for number in range(3500)]
    for name in names:
        server.put(name, b"x")
    monkeypatch.setattr(server, "short_pages", True)
    found = [uri for uri, *_ in storage.match("gs://bucket/short/**")]
    assert sorted(found) == [f"gs://bucket/{name}" for name in names]
    assert storage.names_in("gs://bucket/short") == [name[6:] for name in names]


@pytest.mark.parametrize("name", ["a//b", "/a", "a/./b", "a\tb", "a/b/"])
def test_names_that_obstore_cannot_express_are_read_and_written(
    server: GcsServer, gcs: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str
):
    for variable, value in gcs.items():
        monkeypatch.setenv(variable, value)
    uri = f"gs://bucket/{name}"
    assert storage.create(uri, b"0123456789", "")
    assert not storage.create(uri, b"other", "")
    data, stamp = storage.read(uri)
    assert (data, storage.stat(uri)) == (b"0123456789", (10, stamp))
    assert storage.read_range(uri, 2, 3, stamp) == b"234"
    assert storage.read_range(uri, 10, 3, stamp) == b""
    with pytest.raises(storage.ReadError, match="10 bytes, more than 9"):
        storage.read(uri, limit=9)
    assert storage.replace(uri, b"new", "", stamp)
    with pytest.raises(storage.ReadError, match="was replaced"):
        storage.read(uri, stamp=stamp)
    storage.delete([uri])
    assert not storage.exists(uri)


class Unsteady(Credentials):
    """Credentials whose server fails a number of times before it returns a token."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.asked = 0

    def refresh(self, request: object) -> None:
        self.asked += 1
        if self.asked <= self.failures:
            raise TransportError("the metadata server is not there", retryable=True)
        self.token = "t"


@pytest.mark.parametrize("failures", [2, 1000])
def test_requests_for_a_token_are_retried(
    server: GcsServer, gcs: dict[str, str], monkeypatch: pytest.MonkeyPatch, failures: int
):
    for name, value in gcs.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(total=1.5, first_wait=0.05))
    monkeypatch.setattr(gcs_auth, "_find_credentials", lambda: Unsteady(failures))
    monkeypatch.setattr(gcs_auth, "_found", None)
    server.put("late", b"data")
    if failures == 2:
        assert storage.read("gs://bucket/late")[0] == b"data"
    else:
        with pytest.raises(storage.StoreError, match="credentials: the metadata server is not"):
            storage.read("gs://bucket/late")


def test_anonymous_credentials_are_looked_up_again_after_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    found = iter([AnonymousCredentials(), Unsteady(0)])
    monkeypatch.setattr(gcs_auth, "_find_credentials", lambda: next(found))
    monkeypatch.setattr(gcs_auth, "_found", None)
    assert gcs_auth.are_anonymous(gcs_auth.credentials())
    assert gcs_auth.are_anonymous(gcs_auth.credentials())
    assert gcs_auth._found
    gcs_auth._found = (gcs_auth._found[0], 0.0, gcs_auth._found[2])
    assert not gcs_auth.are_anonymous(gcs_auth.credentials())
