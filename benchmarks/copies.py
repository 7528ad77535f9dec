"""Measures what one worker does with equal images: python benchmarks/copies.py WHAT COUNT.

    digests  compares the digests of COUNT different records of two splits (`find leaks`)
    copies   does the same, with COUNT records of one image, in shards of 1,000
    pixels   marks COUNT references with the same pixels as duplicates (`--dedupe pixels`)

Prints the seconds and the peak memory as JSON. Runs in the environment of imageshards.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_SHARD = 1000
_BATCH = 20_000
"""References in an element that reaches the worker."""


class _Again:
    """An iterable that makes its elements each time, as a runner reads a group from its shuffle."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def digests(count: int, *, equal: bool) -> dict[str, int]:
    """Runs the steps between the writers of shards and the finish; returns what they found."""
    from imageshards.transforms.elements import ShardId, ShardReport
    from imageshards.transforms.references.plan import Plan, SplitPlan
    from imageshards.transforms.shards.facts import Collector, merge
    from imageshards.transforms.shards.layout import Layout
    from imageshards.transforms.shards.state import ShardResult

    each = max(1, count // _SHARD // 2)
    splits = {name: SplitPlan(each * _SHARD, each, 0, {}) for name in ("train", "test")}
    plan = Plan(splits, (), {}, count, 0, 0, (), "synthetic")
    generator = np.random.default_rng(0)
    one = generator.integers(0, 1 << 63, 1, np.uint64).repeat(_SHARD).tobytes()
    groups: dict[Any, list[Any]] = {}
    largest = 0
    for number in range(2 * each):
        split, index = ("train", number) if number < each else ("test", number - each)
        found = one if equal else generator.integers(0, 1 << 63, _SHARD, np.uint64).tobytes()
        report = ShardReport(ShardId(split, index, each), _SHARD, 0, 0, {}, {}, {}, (1, 1), (1, 1))
        collector = Collector(plan)  # a bundle for each shard: the smallest ones
        for key, value in (*collector.add(ShardResult(report, None, found)), *collector.flush()):
            if key[0] == "digests":
                groups.setdefault(key, []).append(value)
                largest = max(largest, len(groups[key]))
    layout = Layout("/nowhere")
    leaks = sum(merge(key, values, layout).count for key, values in groups.items())  # type: ignore[union-attr]
    return {"leaks": leaks, "groups": len(groups), "values": largest}


def pixels(count: int) -> dict[str, int]:
    """Marks references with the same pixels, all of one group."""
    import pyarrow as pa

    from imageshards.transforms.dedupe import _mark
    from imageshards.transforms.references.batch import RefBatch, binary_column

    def batches() -> Iterator[RefBatch]:
        for first in range(0, count, _BATCH):
            some = range(first, min(first + _BATCH, count))
            refs = RefBatch.listed([f"/data/train/n{at % 1000:08}/{at:010}.jpg" for at in some],
                                   [12] * len(some))  # fmt: skip
            # Any permutation of the numbers, as hashes are.
            keys = np.array(some, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            labels = binary_column([f"n{at % 1000:08}" for at in some])
            splits = pa.array(["train"] * len(some), pa.string())
            refs = refs.annotated(keys, labels, splits)
            yield refs.with_pixels([b"0123456789abcdef"] * len(some))

    kept = rejected = 0
    for _, batch in _mark((0, _Again(batches))):
        marked = len(batch.problems)
        rejected += marked
        kept += len(batch) - marked
    return {"kept": kept, "rejected": rejected}


if __name__ == "__main__":
    what, number = sys.argv[1], int(sys.argv[2])
    begin = time.perf_counter()
    made = pixels(number) if what == "pixels" else digests(number, equal=what == "copies")
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({**made, "loop_seconds": round(seconds, 2), "peak_mib": peak}))
