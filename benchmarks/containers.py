"""Compares the containers of records: python -m benchmarks.containers IMAGES [--copies 5].

IMAGES is a folder of JPEGs, CLASS/NAME.jpg. Each is built into TFRecord and ArrayRecord shards, in
turns, and the data sets are read: in order, at random, and at random from a local server with the
protocol of Cloud Storage. Prints medians of the rounds: wall time, and CPU time, which other
programs on the machine disturb less. Requests and bytes are counted.

Runs in the environment of imageshards (extra `dev`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.measure import measure
from benchmarks.scratch import choose_folder, copy_images, find_images, scratch_folder

_FORMATS = ("tfrecord", "array_record")
_RANDOM = 2000
_REMOTE = 100


def build(images: Path, folder: Path, rounds: int, check: str) -> None:
    """Prints what each build takes."""
    for _ in range(rounds):
        for name in _FORMATS:
            shutil.rmtree(folder / name, ignore_errors=True)  # or the build is resumed
            options = f"--num_shards=4 --workers=1 --name=x --quiet --check={check}"
            command = [
                sys.executable, "-m", "imageshards.launch.cli", "build", f"--input={images}",
                f"--output={folder / name}", f"--file_format={name}", *options.split(),
            ]  # fmt: skip
            found = measure(command, timeout=600)
            if found.problem:
                raise SystemExit(found.problem)
            _add(f"build, --check {check}", name, found.seconds, found.cpu_seconds)
            _PEAKS.setdefault((check, name), []).append(found.peak_bytes)


_TIMES: dict[str, dict[str, list[tuple[float, float]]]] = {}
_PEAKS: dict[tuple[str, str], list[int]] = {}


def _add(what: str, name: str, wall: float, cpu: float) -> None:
    _TIMES.setdefault(what, {}).setdefault(name, []).append((wall, cpu))


def _time(what: str, name: str, read: Callable[[], int]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    records = read()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    _add(what, name, wall / records, cpu / records)


def read(folder: Path, rounds: int) -> None:
    """Reads each data set in several ways."""
    import grain
    import tensorflow as tf

    from imageshards import reader

    def counted(items: Iterable[object]) -> int:
        return sum(1 for _ in items)

    numbers = Random(1).sample(range(len(reader.open(folder / "tfrecord", "train"))), _RANDOM)
    for _ in range(rounds):
        for name in _FORMATS:
            records = reader.open(folder / name, "train", decode=False)
            _time("reader.open, in order", name, lambda r=records: counted(r))
            _time(
                "reader.open, at random", name,
                lambda r=records: counted(r.serialized(number) for number in numbers),
            )  # fmt: skip
        files = sorted(map(str, (folder / "tfrecord").glob("train-*")))
        _time("the format's own reader, in order", "tfrecord",
              lambda f=files: counted(tf.data.TFRecordDataset(f).as_numpy_iterator()))  # fmt: skip
        files = sorted(map(str, (folder / "array_record").glob("train-*")))
        source = grain.sources.ArrayRecordDataSource(files)
        _time("the format's own reader, in order", "array_record",
              lambda s=source: counted(s[n] for n in range(len(s))))  # fmt: skip
        _time("the format's own reader, at random", "array_record",
              lambda s=source: counted(s[n] for n in numbers))  # fmt: skip


def remote(folder: Path) -> None:
    """Prints the requests and bytes of random records in a bucket."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import gcs_server

    from imageshards import reader

    with gcs_server.running() as server:
        os.environ.update(server.environment)
        for name in _FORMATS:
            server.put_folder(folder / name, name)
            records = reader.open(f"gs://bucket/{name}", "train", decode=False)
            records.serialized(0)
            before = server.requests["GET media"]
            for number in Random(2).sample(range(len(records)), _REMOTE):
                records.serialized(number)
            took = server.requests["GET media"] - before
            print(f"gs://, {name}: {took / _REMOTE:.2f} requests for a random record")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    size = sum(path.stat().st_size for path in find_images(args.images)) * args.copies
    with scratch_folder(choose_folder(3 * size)) as scratch:
        images = copy_images(args.images, scratch / "in", args.copies)
        print(f"{images.count:,} images, {images.bytes / 1e6:,.1f} MB, in {scratch}")
        for check in ("header", "full"):
            build(images.folder, scratch, args.rounds, check)
        for name in _FORMATS:
            stored = sum(path.stat().st_size for path in (scratch / name).glob("train-*"))
            print(f"{name}: {stored - images.bytes:,} bytes more than the images")
        for (check, name), peaks in _PEAKS.items():
            print(f"{name}, --check {check}: peak {median(peaks) / 1e6:,.0f} MB")
        read(scratch, args.rounds)
        remote(scratch)
    for what, of_format in _TIMES.items():
        unit = images.count if what.startswith("build") else 1
        for name, times in of_format.items():
            wall, cpu = (median(column) / unit * 1e6 for column in zip(*times, strict=True))
            print(
                f"{what}, {name}: {cpu:,.0f} us of CPU a record, {1e6 / wall:,.0f} records/s "
                "by the wall clock"
            )


if __name__ == "__main__":
    main()
