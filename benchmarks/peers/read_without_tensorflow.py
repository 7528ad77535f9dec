"""Reads images and labels without TensorFlow: python read_without_tensorflow.py HOW DIR SPLIT.

Prints records per second as JSON. The tfrecord package does not check CRCs. It uses an index only
to seek to the start of a part, so that each random record takes opening the file and a search.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FEATURES = {"image/encoded": "byte", "image/class/label": "int"}
_RANDOM_READS = 2000


def opened(how: str, folder: Path, split: str) -> Iterator[Any]:
    """Reads with imageshards."""
    from imageshards import reader

    records = reader.open(folder, split, decode=False, check=how != "open-unchecked")
    if how != "open-random":
        yield from records
        return
    rng = random.Random(0)
    for _ in range(_RANDOM_READS):
        yield records[rng.randrange(len(records))]


def by_tfrecord(how: str, folder: Path, split: str) -> Iterator[Any]:
    """Reads with the tfrecord package."""
    from tfrecord import tfrecord_loader

    paths = sorted(folder.glob(f"{split}-*.tfrecord"))
    if how == "tfrecord":
        for path in paths:
            yield from tfrecord_loader(str(path), None, _FEATURES)
        return
    rng = random.Random(0)
    for _ in range(_RANDOM_READS):
        path = rng.choice(paths)
        index = folder / "metadata" / "index" / f"{path.stem}.idx"
        # Without the argument `shard` it starts at a random record.
        yield next(iter(tfrecord_loader(str(path), str(index), _FEATURES)))


def main(how: str, folder: Path, split: str) -> None:
    """Reads all records, or some at random, and prints the rate."""
    source = by_tfrecord if how.startswith("tfrecord") else opened
    next(source(how, folder, split))
    begin = time.perf_counter()
    count = size = 0
    for record in source(how, folder, split):
        image = record["image/encoded"] if isinstance(record, dict) else record[0]
        count += 1
        size += len(image)
    print(json.dumps({"rate": count / (time.perf_counter() - begin), "bytes": size}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
