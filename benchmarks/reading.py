"""Compares readers of a data set: python -m benchmarks.reading DIR [--rounds 5].

DIR is a data set of JPEGs that imageshards built without compression. The contenders take turns.
Each reads the first split repeatedly, up to the given number of records, in batches of 128, and
shuffled unless its name says otherwise. The medians are printed, and their ratio to TensorFlow
Datasets and to a pipeline written by hand.
Reading without TensorFlow is compared with the tfrecord package, resharding with `cp -r`.

Runs in the environment of imageshards (extra `dev`). Put DIR on a tmpfs to measure the readers and
not the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_datasets as tfds

from benchmarks.scratch import scratch_folder
from imageshards import reader
from imageshards.pipeline.operations.reshard import reshard
from imageshards.reader.dataset import open_dataset

_BATCH = 128
_SIDE = 224
_WINDOW = 1024
_AUTO = tf.data.AUTOTUNE
_SPEC = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
_PEER = Path(__file__).resolve().parent / "peers" / "read_without_tensorflow.py"
_HAND = "by hand"
_TFDS = "tensorflow_datasets"

Make = Callable[[], tf.data.Dataset]


def _files(folder: Path, split: str) -> list[str]:
    return sorted(map(str, folder.glob(f"{split}-*.tfrecord")))


def _interleaved(files: list[str]) -> tf.data.Dataset:
    """Reads files in parallel, in no fixed order.

    This was the fastest of cycles of 2, 4 and 16 files and of blocks of 1, 16 and 32 records.
    """
    return (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files))
        .interleave(
            tf.data.TFRecordDataset,
            cycle_length=4,
            block_length=16,
            num_parallel_calls=4,
            deterministic=False,
        )
    )


def _label(parsed: dict[str, tf.Tensor]) -> tf.Tensor:
    return tf.cast(parsed["image/class/label"], tf.int32)


def _parsed_batch(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    parsed = tf.io.parse_example(data, _SPEC)
    return parsed["image/encoded"], _label(parsed)


def _parsed_one(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    parsed = tf.io.parse_single_example(data, _SPEC)
    return parsed["image/encoded"], _label(parsed)


def _resized(image: tf.Tensor) -> tf.Tensor:
    image = tf.image.resize(image, (_SIDE, _SIDE)) / 255.0
    return tf.ensure_shape(image, (_SIDE, _SIDE, 3))


def _decoded(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes the whole image, then resizes it."""
    image, label = _parsed_one(data)
    return _resized(tf.io.decode_image(image, channels=3, expand_animations=False)), label


def _cropped(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes only the centered square of a JPEG, then resizes it."""
    image, label = _parsed_one(data)
    shape = tf.io.extract_jpeg_shape(image)
    side = tf.minimum(shape[0], shape[1])
    window = tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
    return _resized(tf.io.decode_and_crop_jpeg(image, window, channels=3)), label


def undecoded(folder: Path, split: str) -> dict[str, Make]:
    """Returns the contenders that yield batches of (encoded image, label)."""
    files = _files(folder, split)

    def from_tfds() -> tf.data.Dataset:
        data = tfds.builder_from_directory(str(folder)).as_dataset(
            split=split,
            shuffle_files=True,
            decoders={"image/encoded": tfds.decode.SkipDecoding()},
        )
        data = data.map(
            lambda one: (one["image/encoded"], tf.cast(one["image/class/label"], tf.int32)), _AUTO
        )
        return data.shuffle(_WINDOW).repeat().batch(_BATCH).prefetch(_AUTO)

    def load(**options: Any) -> tf.data.Dataset:
        return reader.load(folder, split, batch_size=_BATCH, decode=False, **options)

    return {
        "raw records": lambda: _interleaved(files).repeat().batch(_BATCH).prefetch(_AUTO),
        "plain map": lambda: tf.data.TFRecordDataset(files).map(_parsed_one).repeat().batch(_BATCH),
        _TFDS: from_tfds,
        _HAND: lambda: (
            _interleaved(files).shuffle(_WINDOW).repeat().batch(_BATCH).map(_parsed_batch, _AUTO)
            .prefetch(_AUTO)
        ),
        "reader.load": lambda: load(shuffle=_WINDOW),
        "reader.load, not deterministic": lambda: load(shuffle=_WINDOW, deterministic=False),
        "reader.load, in order": lambda: load(shuffle=False),
    }  # fmt: skip


def decoded(folder: Path, split: str) -> dict[str, Make]:
    """Returns the contenders that yield batches of float32 images of 224 x 224 pixels."""
    files = _files(folder, split)

    def from_tfds() -> tf.data.Dataset:
        data = tfds.builder_from_directory(str(folder)).as_dataset(split=split, shuffle_files=True)
        data = data.shuffle(_WINDOW).map(
            lambda one: (
                _resized(one["image/encoded"]),
                tf.cast(one["image/class/label"], tf.int32),
            ),
            _AUTO,
        )
        return data.repeat().batch(_BATCH).prefetch(_AUTO)

    def by_hand() -> tf.data.Dataset:
        data = _interleaved(files).shuffle(_WINDOW).repeat()
        data = data.map(_cropped, _AUTO, deterministic=False)
        return data.batch(_BATCH).prefetch(_AUTO)

    def load(**options: Any) -> tf.data.Dataset:
        return reader.load(
            folder, split, batch_size=_BATCH, image_size=_SIDE, shuffle=_WINDOW, **options
        )  # fmt: skip

    return {
        "plain map": lambda: tf.data.TFRecordDataset(files).map(_decoded).repeat().batch(_BATCH),
        _TFDS: from_tfds,
        _HAND: by_hand,
        "reader.load": load,
        "reader.load, not deterministic": lambda: load(deterministic=False),
        "reader.load, augmented": lambda: load(augment=True),
    }


def rate(make: Make, records: int) -> float:
    """Returns records per second, from the first request to a new pipeline to the last batch."""
    data = make()
    begin = time.perf_counter()
    batches = iter(data)
    seen = 0
    while seen < records:
        seen += int(tf.nest.flatten(next(batches))[0].shape[0])
    # Tearing down a pipeline is not measured: it sometimes takes TensorFlow half a second.
    return seen / (time.perf_counter() - begin)


def compare(title: str, contenders: dict[str, Make], records: int, rounds: int) -> None:
    """Measures the contenders in turns, and prints the medians."""
    runs: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, make in contenders.items():
            found = rate(make, records)
            if number:  # the first round is a warm-up
                runs[name].append(found)
    print(f"\n{title}: {records:,} records, medians of {rounds} rounds")
    print(f"{'':34}{'records/s':>11}{'/ TFDS':>10}{'/ by hand':>12}")
    for name, rates in runs.items():
        to_tfds, to_hand = (_ratio(rates, runs[peer]) for peer in (_TFDS, _HAND))
        print(f"{name:34}{median(rates):11,.0f}{to_tfds:10.2f}{to_hand:12.2f}")


def _ratio(mine: list[float], others: list[float]) -> float:
    """Compares within each round, because the speed of a machine varies over time."""
    return median(a / b for a, b in zip(mine, others, strict=True))


def without_tensorflow(folder: Path, split: str, rounds: int) -> None:
    """Compares sequential and random reading with the tfrecord package, a process for each."""
    runs: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in ("open", "open-unchecked", "open-random", "tfrecord", "tfrecord-random"):
            done = subprocess.run(
                [sys.executable, _PEER, name, folder, split],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            runs.setdefault(name, []).append(json.loads(done.stdout)["rate"])
    print(f"\nWithout TensorFlow, encoded image and label, records/s: medians of {rounds}")
    for name, rates in runs.items():
        print(f"{name:34}{median(rates):11,.0f}")


def resharding(folder: Path, rounds: int) -> None:
    """Compares `reshard` with `cp -r`, within the file system of the data set."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    taken: dict[str, list[float]] = {"reshard --num_shards 24": [], "cp -r": []}
    with scratch_folder(folder.resolve().parent) as scratch:
        for _ in range(rounds):
            for name, times in taken.items():
                target = scratch / "target"
                begin = time.perf_counter()
                if name == "cp -r":
                    subprocess.run(["cp", "-r", folder, target], check=True)
                else:
                    reshard(str(folder), str(target), "24")
                times.append(time.perf_counter() - begin)
                shutil.rmtree(target)
    print(f"\n{size / 1e9:.2f} GB: medians of {rounds}")
    for name, times in taken.items():
        print(f"{name:34}{median(times):10.2f} s{size / 1e9 / median(times):8.2f} GB/s")


def main() -> None:
    """Runs the comparisons, and prints them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument(
        "--records", type=int, default=40_000, metavar="N",
        help="number of records to read without decoding (default 40000)",
    )  # fmt: skip
    parser.add_argument(
        "--decoded", type=int, default=5_000, metavar="N", help="number to decode (default 5000)"
    )
    parser.add_argument(
        "--only", choices=("undecoded", "decoded", "open", "reshard"), help="run only this part"
    )
    args = parser.parse_args()
    dataset = open_dataset(str(args.folder))
    split = next(iter(dataset.lengths))
    if args.only in (None, "undecoded"):
        compare("Not decoded", undecoded(args.folder, split), args.records, args.rounds)
    if args.only in (None, "decoded"):
        title = f"Decoded to {_SIDE} x {_SIDE}"
        compare(title, decoded(args.folder, split), args.decoded, args.rounds)
    if args.only in (None, "open"):
        without_tensorflow(args.folder, split, args.rounds)
    if args.only in (None, "reshard"):
        resharding(args.folder, args.rounds)


if __name__ == "__main__":
    main()
