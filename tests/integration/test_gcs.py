"""Builds with gs:// inputs, manifests and outputs, on a local server with the same protocol."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from gcs_faults import Fault, corrupt, reset_at, status
from gcs_server import GcsServer
from google.auth.compute_engine import _metadata
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import TransportError
from helpers import image_bytes, imageshards, told, write_images
from PIL import Image

from imageshards.transforms import storage
from imageshards.transforms.storage import gcs_auth, gcs_read, retry
from imageshards.transforms.storage.retry import Pace, RetryPolicy


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
    assert "all shards were complete" in done.stdout, done.stderr
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


def test_an_object_that_is_replaced_after_the_listing_is_not_read(
    server: GcsServer, gcs: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for variable, value in gcs.items():
        monkeypatch.setenv(variable, value)
    server.put("listed/a.jpg", b"one")
    ((uri, size, stamp),) = storage.match("gs://bucket/listed/*.jpg")
    assert stamp
    assert (storage.read(uri, stamp=stamp), storage.stat(uri)) == ((b"one", stamp), (size, stamp))
    server.put("listed/a.jpg", b"two")
    with pytest.raises(storage.ReadError, match="was replaced"):
        storage.read(uri, stamp=stamp)
    assert storage.read(uri) == (b"two", storage.stat(uri)[1])


@pytest.mark.parametrize("name", ["a//b", "/a", "a/./b", "a\tb", "a/b/"])
def test_odd_names_are_read_and_written(
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


@pytest.fixture
def compressed(server: GcsServer, gcs: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """gs://bucket/z/CLASS/NUMBER.png with `Content-Encoding: gzip`; gs://bucket/y without."""
    for number in range(20):
        name, data = f"c{number % 2}/{number}.png", image_bytes(number, "PNG", (80, 60))
        server.put(f"y/{name}", data)
        server.put(f"z/{name}", gzip.compress(data), encoding="gzip")
    # The server reports no length of an object as large as this.
    noise = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (1800, 1800, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(noise, "PNG", compress_level=0)
    server.put("y/c0/large.png", noise.getvalue())
    server.put("z/c0/large.png", gzip.compress(noise.getvalue(), 1), encoding="gzip")
    return gcs


def test_objects_that_are_stored_compressed_are_built_as_their_content(
    server: GcsServer, compressed: dict[str, str], tmp_path: Path
):
    for name in "yz":
        done = imageshards(
            "build", "--input", f"gs://bucket/{name}", "--output", tmp_path / name, "--num_shards",
            2, "--base_uri", f"gs://bucket/{name}", "--json", **compressed,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert (result["records"], result["rejects"]) == (21, 0)
    y, z = (
        [path.read_bytes() for path in sorted((tmp_path / name).glob("train-*"))] for name in "yz"
    )
    assert len(y) == 2
    assert y == z


@pytest.mark.parametrize("name", ["list.jsonl", "list.jsonl.gz", "list.csv"])
def test_a_manifest_that_is_stored_compressed_is_read(
    server: GcsServer, compressed: dict[str, str], tmp_path: Path, name: str
):
    uris = [f"gs://bucket/{uri}" for uri in server.names("z/")]
    lines = [json.dumps({"uri": uri}) for uri in uris] if "jsonl" in name else ["uri", *uris]
    server.put(name, gzip.compress("\n".join(lines).encode()), encoding="gzip")
    done = imageshards(
        "build", "--input", f"gs://bucket/{name}", "--output", tmp_path / "out", "--json",
        **compressed,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 21


def test_an_archive_that_is_stored_compressed_is_read_if_it_is_unpacked_and_refused_if_not(
    bucket: dict[str, str], server: GcsServer, tmp_path: Path
):
    # Some tools set the encoding of a .tar.gz from its name.
    server.put("encoded/a.tar.gz", server.get("archives/a.tgz"), encoding="gzip")
    server.put("encoded/a.tar", gzip.compress(server.get("archives/a.tar")), encoding="gzip")
    build = ["build", "--output", tmp_path / "out", "--input"]
    done = imageshards(*build, "gs://bucket/encoded/a.tar.gz", "--json", **bucket)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 9
    done = imageshards(*build, "gs://bucket/encoded/a.tar", "--overwrite", **bucket)
    assert done.returncode == 1
    (line,) = told(done.stderr)
    assert "gs://bucket/encoded/a.tar: parts of it cannot be read, because it is stored" in line


def test_a_compressed_object_that_expands_beyond_the_limit_is_a_reject(
    compressed: dict[str, str], server: GcsServer, tmp_path: Path
):
    server.put("z/c0/bomb.png", gzip.compress(bytes(100 << 20)), encoding="gzip")
    done = imageshards(
        "build", "--input", "gs://bucket/z", "--output", tmp_path / "out",
        "--max_reject_fraction=0.1", "--max_bytes", 50 << 20, **compressed,
    )  # fmt: skip
    server.delete("z/c0/bomb.png")
    assert done.returncode == 0, done.stderr
    (reject,) = map(json.loads, (tmp_path / "out/metadata/rejects.jsonl").open())
    assert (os.path.basename(reject["uri"]), reject["error"]) == ("bomb.png", "TooLarge")


def test_a_file_that_is_read_in_pieces_is_compared_with_its_checksum(
    server: GcsServer, gcs: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in gcs.items():
        monkeypatch.setenv(name, value)
    data = bytes(9 << 20)
    server.put("pieces", data)
    with storage.open_read("gs://bucket/pieces") as file:
        assert file.read() == data
    with (
        server.failing(Fault(corrupt, "GET /bucket/pieces", after=1, times=1)),
        storage.open_read("gs://bucket/pieces") as file,
        pytest.raises(storage.StoreError, match="its bytes differ from its CRC-32C"),
    ):
        file.read()


def test_an_object_that_is_replaced_while_it_is_read_is_read_again(
    server: GcsServer, gcs: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in gcs.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(first_wait=0.01))
    server.put("replaced", bytes(1 << 20))
    new = b"new" * 100_000

    def late(handler: object, head: bytes, body: bytes) -> None:
        server.put("replaced", new)
        reset_at(512 << 10)(handler, head, body)  # type: ignore[arg-type]

    with server.failing(Fault(late, "GET /bucket/replaced", times=1)):
        assert storage.read("gs://bucket/replaced")[0] == new


def test_reads_adapt_to_a_service_that_refuses_many_at_a_time(
    server: GcsServer, gcs: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in gcs.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(first_wait=0.01, longest_wait=0.05))
    monkeypatch.setattr(gcs_read, "PACE", Pace())
    names = [f"many/{number}" for number in range(1000)]
    for name in names:
        server.put(name, name.encode())
    monkeypatch.setattr(server, "reads_at_a_time", 4)
    monkeypatch.setattr(server, "delay", 0.002)
    server.refused = 0
    with ThreadPoolExecutor(32) as threads:
        found = list(threads.map(lambda name: storage.read(f"gs://bucket/{name}")[0], names))
    assert found == [name.encode() for name in names]
    # Threads that only wait between their attempts are refused some 600 times here.
    assert 0 < server.refused < 300
    assert gcs_read.PACE.limit < 10


@contextmanager
def metadata_server(token: bytes) -> Iterator[str]:
    """Runs a metadata server, as Compute Engine and Colab do; with `token`, or without account."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = token if "/service-accounts/" in self.path else b"{}"
            if "/token" not in self.path and found:
                found = b'{"email": "a@b", "scopes": []}'
            self.send_response(200 if found else 404)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.parametrize("token", [b"", b'{"access_token": "t", "expires_in": 3600}'])
def test_a_machine_without_a_service_account_reads_what_is_public(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    tmp_path: Path, token: bytes,
):  # fmt: skip
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))  # no login of gcloud
    monkeypatch.setattr(gcs_auth, "endpoint", lambda: server.url)
    monkeypatch.setattr(gcs_auth, "_found", None)
    monkeypatch.setattr(gcs_auth, "_no_token", "")
    server.put("public", b"data")
    with metadata_server(token) as address:
        monkeypatch.setenv("GCE_METADATA_IP", address)
        monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", address)
        for _ in range(2):
            assert storage.read("gs://bucket/public")[0] == b"data"
            assert storage.stat("gs://bucket/public")[0] == 4
        lines = [record.message for record in caplog.records if record.name == "imageshards"]
        if token:
            assert lines == []
            return
        (line,) = lines
        assert line.startswith("no access token for the Google Cloud credentials: ")
        with (
            server.failing(Fault(status(403), "GET /bucket/public")),
            pytest.raises(storage.StoreError, match="not public, and there is no access token"),
        ):
            storage.read("gs://bucket/public")


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
