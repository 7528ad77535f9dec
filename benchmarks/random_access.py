"""Compares readers with random access: python -m benchmarks.random_access TFRECORDS ARRAYRECORDS.

Both folders are data sets of the same JPEGs that imageshards built, with `--file_format tfrecord`
and `array_record`. The contenders take turns: `reader.grain` and `reader.load` on both, a pipeline
of Grain written by hand on `ArrayRecordDataSource`, `tfds.data_source`, and `TFRecordDataset`. Each
reads the first split in batches of 128, shuffled as far as it can.

Printed are the medians of records per second, and of records per second of processor time. The
second figure also holds on a machine that does other work; where other processes read, it is
missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grain
import numpy as np
import simplejpeg
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import flags
from PIL import Image

from imageshards import reader
from imageshards.reader.dataset import open_dataset

_BATCH = 128
_SIDE = 224
_THREADS = os.cpu_count() or 1
_SPEC = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
_HAND = "Grain by hand"

Make = Callable[[], Iterable[Any]]


def _pair(record: bytes) -> tuple[bytes, int]:
    features = tf.train.Example.FromString(record).features.feature
    label = features["image/class/label"].int64_list.value[0]
    return features["image/encoded"].bytes_list.value[0], label


def _decoded(pair: tuple[bytes, int]) -> tuple[np.ndarray, np.int32]:
    """Decodes a JPEG, at a reduced size if that is enough, and crops its centered square."""
    data, label = pair
    least = 2 * _SIDE
    pixels = simplejpeg.decode_jpeg(data, "RGB", fastdct=True, min_height=least, min_width=least)
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(pixels[top : top + side, left : left + side])
    resized = square.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    return np.asarray(resized, np.float32) / np.float32(255), np.int32(label)


def _stacked(pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    images, labels = zip(*pairs, strict=True)
    return list(images), np.array(labels)


def _by_hand(folder: Path, split: str, decode: bool, workers: int) -> Iterable[Any]:
    files = sorted(map(str, folder.glob(f"{split}-*.array_record*")))
    data = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files))
    data = data.seed(0).shuffle().repeat().map(_pair)
    if decode:
        data = data.map(_decoded)
    options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=2 * _BATCH)
    batches = data.to_iter_dataset(options)
    batches = batches.batch(_BATCH) if decode else batches.batch(_BATCH, batch_fn=_stacked)
    if workers:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return batches


def _from_tfds(folder: Path, split: str, decode: bool) -> Iterable[Any]:
    decoders = {"image/encoded": tfds.decode.SkipDecoding()}
    source = tfds.builder_from_directory(str(folder)).as_data_source(split, decoders=decoders)

    def pair(element: dict[str, Any]) -> Any:
        found = element["image/encoded"], element["image/class/label"]
        return _decoded(found) if decode else found

    data = grain.MapDataset.source(source).seed(0).shuffle().repeat().map(pair)
    options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=2 * _BATCH)
    batches = data.to_iter_dataset(options)
    return batches.batch(_BATCH) if decode else batches.batch(_BATCH, batch_fn=_stacked)


def _plain(folder: Path, split: str, decode: bool) -> Iterable[Any]:
    def parsed(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_single_example(record, _SPEC)
        image = found["image/encoded"]
        if decode:
            image = tf.io.decode_jpeg(image, channels=3)
            image = tf.image.resize(image, (_SIDE, _SIDE)) / 255.0
        return image, found["image/class/label"]

    files = sorted(map(str, folder.glob(f"{split}-*.tfrecord")))
    data = tf.data.TFRecordDataset(files).shuffle(1024).repeat().map(parsed, tf.data.AUTOTUNE)
    return data.batch(_BATCH).prefetch(tf.data.AUTOTUNE)


def contenders(tfrecords: Path, arrays: Path, split: str, decode: bool) -> dict[str, Make]:
    """Returns name -> pipeline of batches; a name with "processes" uses two of them."""
    options: dict[str, Any] = {"batch_size": _BATCH}
    options |= {"image_size": _SIDE} if decode else {"decode": False}
    return {
        "reader.grain, TFRecord": lambda: reader.grain(tfrecords, split, **options),
        "reader.grain, ArrayRecord": lambda: reader.grain(arrays, split, **options),
        "reader.grain, 2 processes": lambda: reader.grain(arrays, split, workers=2, **options),
        _HAND: lambda: _by_hand(arrays, split, decode, 0),
        f"{_HAND}, 2 processes": lambda: _by_hand(arrays, split, decode, 2),
        "reader.load, TFRecord": lambda: reader.load(tfrecords, split, **options),
        "reader.load, ArrayRecord": lambda: reader.load(arrays, split, **options),
        "tfds.data_source": lambda: _from_tfds(arrays, split, decode),
        "plain TFRecordDataset": lambda: _plain(tfrecords, split, decode),
    }


def rates(make: Make, records: int) -> tuple[float, float]:
    """Returns records per second, and per second of this process' processor time."""
    batches: Iterator[Any] = iter(make())
    next(batches)  # starts threads and processes, and traces functions
    begin, cpu = time.perf_counter(), time.process_time()
    count = 0
    while count < records:
        count += len(next(batches)[1])
    found = count / (time.perf_counter() - begin), count / (time.process_time() - cpu)
    if hasattr(batches, "close"):
        batches.close()
    return found


def compare(title: str, makes: dict[str, Make], records: int, rounds: int) -> None:
    """Measures the contenders in turns, and prints the medians."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in makes}
    for _ in range(rounds):
        for name, make in makes.items():
            runs[name].append(rates(make, records))
    print(f"\n{title}: {records:,} records, medians of {rounds} rounds")
    print(f"{'':34}{'records/s':>11}{'/ CPU s':>11}{'/ by hand':>11}")
    for name, found in runs.items():
        wall, cpu = (median(values) for values in zip(*found, strict=True))
        alone = "processes" not in name
        # Compared within each round, by processor time, since the machine's speed varies.
        pairs = zip(found, runs[_HAND], strict=True)
        ratio = f"{median(mine[1] / hand[1] for mine, hand in pairs):11.2f}" if alone else ""
        print(f"{name:34}{wall:11,.0f}{f'{cpu:11,.0f}' if alone else '':>11}{ratio}")


def main() -> None:
    """Runs the comparisons, and prints them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_access", description=__doc__)
    parser.add_argument("tfrecords", type=Path, metavar="TFRECORDS")
    parser.add_argument("arrays", type=Path, metavar="ARRAYRECORDS")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--records", type=int, default=20_000, metavar="N", help="not decoded")
    parser.add_argument("--decoded", type=int, default=5_000, metavar="N", help="decoded")
    parser.add_argument("--only", choices=("undecoded", "decoded"), help="run only this part")
    args = parser.parse_args()
    flags.FLAGS(sys.argv[:1])  # Grain's processes read flags of their own
    split = next(iter(open_dataset(str(args.tfrecords)).lengths))
    both = args.tfrecords, args.arrays
    if args.only in (None, "undecoded"):
        compare("Not decoded", contenders(*both, split, False), args.records, args.rounds)
    if args.only in (None, "decoded"):
        title = f"Decoded to {_SIDE} x {_SIDE}"
        compare(title, contenders(*both, split, True), args.decoded, args.rounds)


if __name__ == "__main__":
    main()
