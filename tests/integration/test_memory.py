"""Peak memory does not grow with the data set."""

import os
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
from helpers import IMAGESHARDS
from PIL import Image

LIMIT = 400e6


def peak_rss(command: list[str]) -> float:
    """Runs a command; returns the peak resident memory (RSS) of its process in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0.0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                return
            found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
            peak = max([peak, *(float(kilobytes) * 1024 for kilobytes in found)])
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    assert process.wait() == 0
    thread.join()
    return peak


def test_a_build_of_a_gigabyte_of_images_needs_400_megabytes(tmp_path: Path):
    # Noise compresses badly: 200 kB per file. Hard links make 5,000 files of 20.
    rng = np.random.default_rng(0)
    originals = []
    for number in range(20):
        path = tmp_path / f"{number}.jpg"
        noise = rng.integers(0, 255, (400, 500, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path, quality=85)
        originals.append(path)
    folder = tmp_path / "in" / "noise"
    folder.mkdir(parents=True)
    total = 0
    for number in range(100_000):
        source = originals[number % 20]
        os.link(source, folder / f"{number}.jpg")
        total += source.stat().st_size
        if total > 1e9:
            break
    arguments = ["build", f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--num_shards=8"]
    assert peak_rss([*IMAGESHARDS, *arguments]) < LIMIT
    written = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tfrecord"))
    assert written > 1e9


def test_a_build_of_a_hundred_megabytes_of_text_needs_500(tmp_path: Path):
    lines = 100_000_000 // 200
    with open(tmp_path / "a.txt", "wb") as file:
        for number in range(lines):
            file.write(b"%0199d\n" % number)
    arguments = ["build", f"--input={tmp_path}/a.txt", f"--output={tmp_path}/out", "--num_shards=4"]
    peak = peak_rss([*IMAGESHARDS, *arguments, "--features=text", "--labels=none"])
    assert peak < 500e6
    assert sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tfrecord")) > 1e8
