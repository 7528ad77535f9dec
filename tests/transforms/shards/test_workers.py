"""Shards written by processes of their own: the same bytes, and no orphan."""

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import web_server
from helpers import IMAGESHARDS, contents, imageshards, told

from imageshards.launch.cli import main
from imageshards.transforms.shards import workers
from imageshards.transforms.shards.workers import choose_workers


@pytest.mark.parametrize(
    ("wanted", "images", "shards", "processes"),
    [(None, 1999, 16, 1), (None, 10_000, 16, 4), (None, 10_000, 3, 3), (1, 10**6, 16, 1),
     (3, 10, 16, 3), (8, 10**6, 5, 5), (None, 0, 1, 1)],
)  # fmt: skip
def test_as_many_processes_start_as_save_time(
    wanted: int | None, images: int, shards: int, processes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workers, "cores", lambda: 4)
    assert choose_workers(wanted, images, shards) == processes


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same(photos: Path, tmp_path: Path):
    photos = shutil.copytree(photos, tmp_path / "photos")
    (photos / "class00/bad.jpg").write_bytes(b"no image")
    for count in (1, 3):
        done = imageshards(
            "build", "--input", photos, "--output", tmp_path / f"{count}", "--num_shards=5",
            "--splits=train=0.7,test=0.3", "--name=x", "--max_reject_fraction=0.1",
            f"--workers={count}",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    again = imageshards(
        "build", "--input", photos, "--output", tmp_path / "3", "--num_shards=5",
        "--splits=train=0.7,test=0.3", "--name=x", "--max_reject_fraction=0.1", "--workers=2",
    )  # fmt: skip
    assert "all shards were complete" in again.stdout


def test_workers_are_refused_where_the_runner_has_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    build = ["build", "--input=photos", f"--output={tmp_path / 'out'}"]
    for option in ("--direct_running_mode=multi_processing", "--runner=DirectRunner"):
        assert main([*build, "--workers=2", option]) == 2
        assert "--workers is for the local runner in one process" in capsys.readouterr().err
    for value in ("0", "many", "-1", "1.5"):
        assert main([*build, f"--workers={value}"]) == 2
        assert "expected auto or a number from 1" in capsys.readouterr().err


@pytest.fixture
def building(tmp_path: Path, request: pytest.FixtureRequest):
    """A build whose workers wait for images that never come: (process, who writes)."""
    workers = getattr(request, "param", 2)

    def never(_: object) -> None:
        ended.wait()

    ended = threading.Event()
    with web_server.running() as server:
        server.pages = {f"/photos/{number}.jpg": never for number in range(20)}
        manifest = tmp_path / "m.txt"
        manifest.write_text("".join(f"{server.url}{path}\n" for path in server.pages))
        process = subprocess.Popen(
            [*IMAGESHARDS, "build", "--input", str(manifest), "--output", str(tmp_path / "out"),
             "--num_shards=2", f"--workers={workers}", "--allow_private_hosts"],
            stderr=subprocess.PIPE, text=True,
            # Where the tests run in the background of a shell, they have it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while len(found := writing(tmp_path / "out")) < workers:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process, found
        process.kill()
        process.wait()
        ended.set()


def writing(out: Path) -> list[int]:
    """Processes that hold a growing shard open."""
    found = []
    for place in Path("/proc").glob("[0-9]*/fd"):
        try:
            files = [os.readlink(file) for file in place.iterdir()]
        except OSError:
            continue
        if any(file.startswith(f"{out}/metadata/shards/") for file in files):
            found.append(int(place.parent.name))
    return found


@pytest.mark.slow
def test_a_killed_worker_is_reported(building: tuple[subprocess.Popen[str], list[int]]):
    process, found = building
    os.kill(found[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("imageshards: a worker process was killed")


@pytest.mark.slow
def test_workers_end_with_their_build(
    building: tuple[subprocess.Popen[str], list[int]], tmp_path: Path
):
    process, found = building
    assert process.pid not in found
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("building", [1, 2], indirect=True)
@pytest.mark.slow
def test_an_interrupt_is_one_line(building: tuple[subprocess.Popen[str], list[int]]):
    process, found = building
    for pid in {*found, process.pid}:  # a terminal sends it to all
        os.kill(pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told(errors) == ["imageshards: interrupted; run the same command again to resume"]
