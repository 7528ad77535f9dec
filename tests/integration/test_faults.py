"""Builds that meet faults of Cloud Storage or of the disk.

Each build ends with the bytes of a build without faults, at once or after it is resumed; or it
fails with one line that names the cause, and is not reported as complete.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import faults
import pytest
from faults import LAST_OF_SHARD, LIST, MEDIA, TABLE, UPLOAD, Row, run
from gcs_faults import Fault, reset, short_body, slow, stall, status
from gcs_server import GcsServer
from helpers import IMAGESHARDS, contents, image_bytes, imageshards, told, write_images

from imageshards.launch.cli import main


@pytest.fixture
def server() -> Iterator[GcsServer]:
    """A server with images; clients in this process give up within seconds."""
    with faults.running() as running:
        yield running


@pytest.fixture
def whole(server: GcsServer) -> dict[str, bytes]:
    """The files of a build without faults."""
    assert run("whole").code == 0
    return server.contents("whole")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status(429, Retry_After="0"), MEDIA, times=20),
        Fault(status(500), LIST, times=3),
        Fault(status(429), UPLOAD, times=3),
        Fault(status(503), UPLOAD, after=4, times=3),
        Fault(status(503), "DELETE ", times=2),
        Fault(reset, LIST, times=2),
        Fault(short_body, LIST, times=2),
        Fault(stall, MEDIA, times=4),
        Fault(stall, LIST, times=1),
        Fault(stall, UPLOAD, times=1),
        Fault(slow(5, 0.05), MEDIA, times=20),
    ],
    ids=[
        "429 reads", "500 lists", "429 uploads", "503 uploads", "503 deletes", "reset lists",
        "short lists", "stalled reads", "stalled list", "stalled upload", "slow reads",
    ],
)  # fmt: skip
def test_transient_faults_leave_no_trace(server: GcsServer, whole: dict[str, bytes], fault: Fault):
    with server.failing(fault):
        done = run("out")
    assert fault.met, "no request met it"
    assert (done.code, done.lines) == (0, [])
    assert server.contents("out") == whole


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(status(503), MEDIA, after=10), r"photos/c\d/\d+\.png: cannot be read: .*503"),
        (Fault(reset, MEDIA, after=10), r"photos/c\d/\d+\.png: cannot be read: "),
        (Fault(stall, MEDIA, after=10), r"photos/c\d/\d+\.png: cannot be read: "),
        (Fault(status(503), LIST, after=3), "gs://bucket: cannot be listed: status 503"),
        (Fault(stall, LIST, after=3), "gs://bucket: cannot be listed: "),
        (Fault(status(403), MEDIA, after=10), "no permission storage.objects.get"),
        (Fault(status(401), MEDIA, after=10), "no permission storage.objects.get"),
        (Fault(status(403), LIST, after=1), "no permission storage.objects.list"),
        (Fault(status(403), UPLOAD, after=3), "no permission storage.objects.create"),
        (Fault(status(503), UPLOAD, after=3), "cannot be written: status 503"),
        (Fault(status(503), LAST_OF_SHARD), "tfrecord: cannot be written: status 503"),
        (Fault(reset, LAST_OF_SHARD), "tfrecord: cannot be written: "),
        (Fault(stall, LAST_OF_SHARD), "tfrecord: cannot be written: "),
    ],
    ids=[
        "503 reads", "reset reads", "stalled reads", "503 lists", "stalled lists",
        "reads forbidden", "reads unauthorized", "lists forbidden", "uploads forbidden",
        "503 uploads", "503 at the end of uploads", "reset at the end of uploads",
        "stalled end of uploads",
    ],
)  # fmt: skip
def test_permanent_faults_are_one_line_and_the_build_can_be_resumed(
    server: GcsServer, whole: dict[str, bytes], fault: Fault, says: str
):
    with server.failing(fault):
        done = run("out")
    assert done.code in (1, 2)
    assert len(done.lines) == 1, done.lines
    assert re.search(says, done.lines[0]), done.lines
    assert "Debug" not in done.lines[0]
    assert len(done.lines[0]) < 300
    assert "dataset_info.json" not in server.contents("out")
    assert done.seconds < 60
    assert run("out").code == 0
    assert server.contents("out") == whole


@pytest.fixture(scope="module")
def table() -> Iterator[tuple[GcsServer, dict[str, bytes]]]:
    """A server with a large image among the others, and a build of them without faults."""
    with faults.running() as server:
        faults.put_large(server)
        assert run("whole").code == 0
        yield server, server.contents("whole")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_fault_of_the_testbench_is_retried_or_one_line(
    table: tuple[GcsServer, dict[str, bytes]], row: Row
):
    server, whole = table
    clean = 250  # requests of a build without faults, and some
    measured = faults.measure(server, row, whole)
    assert measured.outcome == ("one line" if row.says else "equal bytes")
    assert row.says or measured.requests <= clean + row.times


@pytest.mark.parametrize("kind", ["Missing", "Changed"])
def test_an_object_that_changes_after_it_was_listed_is_a_reject(
    server: GcsServer, whole: dict[str, bytes], kind: str
):
    name = "photos/c1/1.png"
    data = server.get(name)

    def before_it_is_read(handler: object, head: bytes, body: bytes) -> None:
        if kind == "Missing":
            server.delete(name)
        else:
            server.put(name, image_bytes(1000, "PNG"))
        status(404)(handler, head, body)  # type: ignore[arg-type]

    with server.failing(Fault(before_it_is_read, r"GET /bucket/photos.*1%2F1\.png", times=1)):
        done = run("out", "--max_reject_fraction=0.1")
    assert done.code == 0
    (reject,) = map(json.loads, server.get("out/metadata/rejects.jsonl").splitlines())
    assert (reject["uri"], reject["error"]) == (f"gs://bucket/{name}", kind)
    # The same object again is another generation of it, and another build.
    server.put(name, data)
    done = run("out", "--max_reject_fraction=0.1", "--overwrite")
    assert done.code == 0, done.lines
    same = [name for name in whole if name.startswith("train-") or name.startswith("test-")]
    assert [server.contents("out")[name] for name in same] == [whole[name] for name in same]


def test_objects_of_a_manifest_that_are_replaced_are_read_again(server: GcsServer):
    uris = "".join(f"gs://bucket/{name}\n" for name in server.names("photos"))
    server.put("list.txt", uris.encode())
    options = ["--input=gs://bucket/list.txt", "--output=gs://bucket/m", "--num_shards=3",
               "--workers=1"]  # fmt: skip
    assert main(["build", *options]) == 0
    server.requests.clear()
    assert main(["build", *options]) == 0
    # Metadata, and the records of which the report shows pictures; no image.
    assert server.requests["GET media"] < 40
    before = server.contents("m")
    server.put("photos/c0/0.png", image_bytes(1000, "PNG"))
    assert main(["build", *options]) == 0
    after = server.contents("m")
    changed = [
        name for name in before if name.endswith(".tfrecord") and after[name] != before[name]
    ]
    assert len(changed) == 1


def build_beside(server: GcsServer, output: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*IMAGESHARDS, "build", "--input=gs://bucket/photos", f"--output={output}", "--name=x",
         "--num_shards=3", "--splits=train=0.7,test=0.3", *options],
        env={**os.environ, **server.environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_two_concurrent_builds_give_the_same_bytes(server: GcsServer, whole: dict[str, bytes]):
    server.delay = 0.02
    both = [build_beside(server, "gs://bucket/out", "--workers=2") for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert server.contents("out") == whole


def test_a_killed_build_leaves_no_part_of_an_object(server: GcsServer, whole: dict[str, bytes]):
    server.delay = 0.05
    process = build_beside(server, "gs://bucket/out", "--workers=2")
    deadline = time.monotonic() + 60
    while not any(name.endswith(".tfrecord") for name in server.names("out")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    server.delay = 0
    there = server.contents("out")
    assert "dataset_info.json" not in there
    for name, data in there.items():
        if name.endswith(".tfrecord"):
            assert data == whole[name]
    assert run("out").code == 0
    assert server.contents("out") == whole


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem with room for 300 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no permission to mount a small filesystem here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_the_build_can_be_resumed(small_disk: Path, tmp_path: Path):
    write_images(tmp_path / "photos", 3, 100)
    options = ["build", "--input", tmp_path / "photos", "--num_shards=4", "--name=x"]
    assert imageshards(*options, "--output", tmp_path / "whole").returncode == 0
    out = small_disk / "out"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(150_000))
    done = imageshards(*options, "--output", out)
    assert done.returncode == 1
    (line,) = told(done.stderr)
    assert "cannot be written: No space left on device" in line
    assert not (out / "dataset_info.json").exists()
    assert not list(out.rglob("*.tmp"))
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)
    done = imageshards(*options, "--output", out)
    assert done.returncode == 0, done.stderr
    assert contents(out) == contents(tmp_path / "whole")


def test_a_read_only_output_is_one_line(small_disk: Path, tmp_path: Path):
    write_images(tmp_path / "photos", 1, 10)
    options = ["build", "--input", tmp_path / "photos", "--num_shards=1"]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = imageshards(*options, "--output", small_disk / "out")
    assert done.returncode in (1, 2)
    (line,) = told(done.stderr)
    assert str(small_disk) in line
    assert "Read-only file system" in line or "no permission" in line
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert imageshards(*options, "--output", small_disk / "out").returncode == 0


@pytest.mark.parametrize("managed_key", [False, True])
def test_a_build_whose_shard_was_replaced_is_not_complete(
    server: GcsServer,
    whole: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    managed_key: bool,
):
    monkeypatch.setattr(server, "managed_key", managed_key)
    shard = "out/train-00001-of-00003.tfrecord"

    def late(handler: object, head: bytes, body: bytes) -> None:
        server.put(shard, bytes(len(server.get(shard))))
        status(503)(handler, head, body)  # type: ignore[arg-type]

    with server.failing(Fault(late, r"(POST|PUT) /upload/.*report", times=1)):
        done = run("out")
    assert done.code == 1
    assert "train-00001-of-00003.tfrecord: changed after this run wrote it" in done.lines[0]
    assert "dataset_info.json" not in server.contents("out")
    assert run("out").code == 0
    assert server.contents("out") == whole


def test_an_upload_of_which_the_server_takes_parts_is_continued(
    server: GcsServer, whole: dict[str, bytes]
):
    server.taken_bytes = 10_000
    assert run("out").code == 0
    assert server.contents("out") == whole


def test_an_upload_of_which_the_server_takes_nothing_is_one_line(server: GcsServer):
    def nothing(handler: object, head: bytes, body: bytes) -> None:
        answer = b"HTTP/1.1 308 Resume Incomplete\r\nContent-Length: 0\r\n\r\n"
        handler.connection.sendall(answer)  # type: ignore[attr-defined]

    with server.failing(Fault(nothing, LAST_OF_SHARD)):
        done = run("out")
    assert done.code == 1
    assert re.search(r"tfrecord: cannot be written: the server received a part only", done.lines[0])
    assert not [name for name in server.names("out") if name.endswith(".tfrecord")]
