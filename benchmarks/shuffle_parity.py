"""Trains the same network on several orders of records: python -m benchmarks.shuffle_parity DIR.

DIR is a data set with classes; `imageshards demo DIR` builds one of handwritten digits, in
DIR/digits. Each order trains with the same seeds, which determine the weights at the beginning and
the shuffling. The orders are:

- a random permutation of all records in each epoch;
- `reader.load`, with blocks of 8 records and runs of 16, larger than it takes for a small data set;
- tf.data: 4 of 16 files interleaved in blocks of 16 records, and a buffer;
- the same from files that are sorted by class, and `reader.load` from such files.

The images are held in memory, so that only the order differs. The network has two convolutions.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.shuffle_quality import Epoch, interleaved, ordered
from imageshards import reader
from imageshards.reader.ordering.global_order import GlobalOrder

_BLOCK, _RUN = 8, 16
_MOMENTUM = 0.9


def load(folder: str, split: str, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images of a split, float32 [n, side, side, 3], and their labels, int64 [n]."""
    records = reader.open(folder, split, image_size=side)
    images, labels = zip(*records, strict=True)
    return np.stack(images).astype(np.float32) / 255, np.array(labels, np.int64)


def network(side: int, classes: int) -> tf.keras.Model:
    """Returns the network, with weights that are replaced before each training."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((side, side, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(classes),
        ]
    )


class Training:
    """Trains one network again and again, so that TensorFlow compiles it once."""

    def __init__(self, side: int, classes: int, rate: float) -> None:
        self._model = network(side, classes)
        self._speeds = [tf.Variable(tf.zeros_like(w)) for w in self._model.trainable_variables]
        self._rate = tf.Variable(rate)
        self._first_rate = rate

    def reset(self, seed: int) -> None:
        """Draws the weights: normal, by the number of inputs."""
        rng = np.random.default_rng(seed)
        for weight, speed in zip(self._model.trainable_variables, self._speeds, strict=True):
            inputs = int(np.prod(weight.shape[:-1]))
            scale = np.sqrt(2 / inputs) if len(weight.shape) > 1 else 0.0
            weight.assign(rng.normal(0, 1, weight.shape).astype(np.float32) * scale)
            speed.assign(tf.zeros_like(speed))

    def slow_down(self, done: float) -> None:
        """Sets the learning rate of a cosine, given the part of the training that is done."""
        self._rate.assign(self._first_rate * (1 + np.cos(np.pi * done)) / 2)

    @tf.function(reduce_retracing=True)
    def step(self, images: tf.Tensor, labels: tf.Tensor) -> None:
        """Takes a step of gradient descent with momentum."""
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self._model(images))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self._model.trainable_variables)
        for weight, speed, gradient in zip(
            self._model.trainable_variables, self._speeds, gradients, strict=True
        ):
            speed.assign(_MOMENTUM * speed + gradient)
            weight.assign_sub(self._rate * speed)

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Returns the share of images whose class is found."""
        found = [
            np.argmax(self._model(images[at : at + 512]), 1) for at in range(0, len(images), 512)
        ]
        return float((np.concatenate(found) == labels).mean())


def orders(records: int, batch: int, window: int, seed: int) -> dict[str, tuple[Epoch, bool]]:
    """Returns name -> (order, whether the files are sorted by class)."""

    def permuted(epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(records)

    ours = ordered(GlobalOrder(records, batch, seed=seed, block=_BLOCK, run=_RUN))
    buffered = interleaved(records, window)

    def seeded(epoch: int) -> np.ndarray:
        return buffered(1000 * seed + epoch)

    return {
        "a permutation in each epoch": (permuted, False),
        "reader.load": (ours, False),
        "interleave and buffer": (seeded, False),
        "files sorted by class, interleave and buffer": (seeded, True),
        "files sorted by class, reader.load": (ours, True),
    }


def main() -> None:
    """Trains, and prints the accuracies."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shuffle_parity")
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--split", default="train")
    parser.add_argument("--test_split", default="test")
    parser.add_argument("--image_size", type=int, default=8, metavar="PIXELS")
    parser.add_argument("--batch_size", type=int, default=32, metavar="N")
    parser.add_argument("--epochs", type=int, default=12, metavar="N")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--learning_rate", type=float, default=0.1, metavar="RATE")
    parser.add_argument(
        "--window", type=int, help="records in the buffer (default: a twentieth of all)"
    )
    args = parser.parse_args()
    images, labels = load(args.folder, args.split, args.image_size)
    test = load(args.folder, args.test_split, args.image_size)
    by_class = np.argsort(labels, kind="stable")
    training = Training(args.image_size, int(labels.max()) + 1, args.learning_rate)
    window = args.window or len(labels) // 20
    print(f"{len(labels):,} records, batches of {args.batch_size}, a buffer of {window:,}")
    found: dict[str, list[float]] = {}
    steps = len(labels) // args.batch_size
    for seed in range(args.seeds):
        for name, (epoch, is_sorted) in orders(len(labels), args.batch_size, window, seed).items():
            training.reset(seed)
            for number in range(args.epochs):
                order = by_class[epoch(number)] if is_sorted else epoch(number)
                for step in range(steps):
                    training.slow_down((number + step / steps) / args.epochs)
                    rows = order[step * args.batch_size : (step + 1) * args.batch_size]
                    training.step(images[rows], labels[rows])
            found.setdefault(name, []).append(training.accuracy(*test))
    for name, accuracies in found.items():
        spread = np.std(accuracies, ddof=1) if len(accuracies) > 1 else 0.0
        each = " ".join(f"{accuracy:.1%}" for accuracy in accuracies)
        print(f"{name:46}{np.mean(accuracies):7.1%} +- {spread:.1%}   {each}")


if __name__ == "__main__":
    main()
