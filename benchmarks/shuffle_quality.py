"""Measures how well orders of records are shuffled: python -m benchmarks.shuffle_quality.

A record and the next one of its file are neighbours. In an epoch of each order, this counts the
neighbours that meet again in one batch, in one batch of two epochs running, and in the same or the
next batch. The orders have windows of the same size. No file is read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from imageshards.reader.ordering.global_order import GlobalOrder, block_and_run

_FILES = 16
_CYCLE, _BLOCK = 4, 16

Epoch = Callable[[int], np.ndarray]
"""Epoch -> the records in the order in which they are read, int64 [records]."""


def windows(records: int, window: int) -> Epoch:
    """Returns an order of windows: 16 blocks at random in each, which is shuffled."""

    def epoch(number: int) -> np.ndarray:
        rng = np.random.default_rng(number)
        block = window // 16
        starts = rng.permutation(np.arange(0, records, block))
        read = [np.arange(start, min(start + block, records)) for start in starts]
        found = [
            rng.permutation(np.concatenate(read[at : at + 16])) for at in range(0, len(read), 16)
        ]
        return np.concatenate(found)

    return epoch


def interleaved(records: int, window: int) -> Epoch:
    """Returns the order of tf.data: files.shuffle().interleave(4, block_length=16).shuffle()."""

    def epoch(number: int) -> np.ndarray:
        rng = np.random.default_rng(number)
        parts = np.array_split(np.arange(records), _FILES)
        files = iter([parts[at].tolist() for at in rng.permutation(_FILES)])
        cycle: list[Iterator[int]] = [iter(file) for file in islice(files, _CYCLE)]

        def read() -> Iterator[int]:
            while cycle:
                for file in list(cycle):
                    taken = list(islice(file, _BLOCK))
                    yield from taken
                    if len(taken) < _BLOCK:
                        at = cycle.index(file)
                        cycle[at : at + 1] = [iter(each) for each in islice(files, 1)]

        source = read()
        held = list(islice(source, window))
        found = []
        for record in source:
            at = int(rng.integers(len(held)))
            found.append(held[at])
            held[at] = record
        return np.array(found + rng.permutation(held).tolist())

    return epoch


def ordered(order: GlobalOrder) -> Epoch:
    """Returns an order of `reader.load`."""
    samples = order.steps * order.global_batch
    return lambda number: order.samples(number * samples + np.arange(samples))


def measure(epoch: Epoch, records: int, batch: int) -> tuple[float, float, float]:
    """Returns the shares of neighbours that meet; see the module."""
    gaps = []
    for number in range(2):
        found = epoch(number)
        batch_of = np.full(records, -(10**9))
        batch_of[found] = np.arange(len(found)) // batch
        gap = np.abs(np.diff(batch_of))
        gaps.append(np.where(np.minimum(batch_of[1:], batch_of[:-1]) < 0, 10**9, gap))
    same = [gap == 0 for gap in gaps]
    return float(same[0].mean()), float((same[0] & same[1]).mean()), float((gaps[0] <= 1).mean())


def main() -> None:
    """Prints the figures of all orders."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shuffle_quality")
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--record_bytes", type=int, default=108_000)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    window = (128 << 20) // args.record_bytes
    block, run = block_and_run(args.records, args.record_bytes, args.batch)
    orders = {
        f"reader.load, TFRecord (blocks of {block}, runs of {run})": ordered(
            GlobalOrder(args.records, args.batch, block=block, run=run)
        ),
        "reader.load, ArrayRecord": ordered(GlobalOrder(args.records, args.batch)),
        "tf.data interleave and buffer": interleaved(args.records, window),
        "windows": windows(args.records, window),
    }
    print(f"{'':50}{'one batch':>12}{'two epochs':>12}{'or the next':>12}")
    for name, epoch in orders.items():
        shares = measure(epoch, args.records, args.batch)
        print(f"{name:50}" + "".join(f"{share:12.2%}" for share in shares))


if __name__ == "__main__":
    main()
