"""A build that is killed and run again writes the same bytes as an uninterrupted one."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers import IMAGESHARDS, contents, image_bytes, imageshards

KILLS = 10


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 3,000 small images, so that a build takes seconds."""
    folder = tmp_path_factory.mktemp("many")
    data = [image_bytes(number, size=(160, 120)) for number in range(50)]
    for number in range(3000):
        class_folder = folder / f"c{number % 5}"
        class_folder.mkdir(exist_ok=True)
        (class_folder / f"{number}.jpg").write_bytes(data[number % 50])
    return folder


@pytest.mark.parametrize(
    ("running", "file_format"),
    [
        ("in_memory", "tfrecord"),
        ("multi_processing", "tfrecord"),
        ("multi_processing", "array_record"),
    ],
)
def test_a_build_killed_at_random_moments_is_completed_by_the_next(
    many: Path, tmp_path: Path, running: str, file_format: str
):
    options = [
        "--input", many, "--num_shards", 12, "--splits", "train=0.8,test=0.2", "--name", "x",
        f"--direct_running_mode={running}", "--direct_num_workers=2",
        "--file_format", file_format,
    ]  # fmt: skip
    begin = time.monotonic()
    assert imageshards("build", "--output", tmp_path / "whole", *options).returncode == 0
    seconds = time.monotonic() - begin
    rng = random.Random(running)
    out = tmp_path / "out"
    command = [*IMAGESHARDS, "build", "--output", str(out), *map(str, options)]
    killed_between = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        # Some kills come before the first shard, most while shards are written.
        wanted = rng.randrange(-4, 23)
        if wanted < 0:
            time.sleep(rng.uniform(0.3, 0.7) * seconds)
        while process.poll() is None and len(list(out.glob(f"*.{file_format}"))) <= wanted:
            time.sleep(0.005)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        finished = len(list(out.glob(f"*.{file_format}")))
        killed_between += 0 < finished < 24
        if not finished or rng.random() < 0.3:
            continue
        # Delete half of the shards, so that the next build writes some again.
        for path in sorted(out.glob(f"*.{file_format}"))[::2]:
            path.unlink()
    assert killed_between, "no build was killed while it wrote shards: change the moments"
    done = imageshards("build", "--output", out, *options)
    assert done.returncode == 0, done.stderr
    assert contents(out) == contents(tmp_path / "whole")
    assert not list(out.rglob("*.tmp"))
