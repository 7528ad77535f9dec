"""The order of references: partition by key, sort, and drop duplicates. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from imageshards.transforms.elements import DUPLICATE_PIXELS, Problem
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.keys import BUCKET_BITS, BUCKETS, KEY_BITS


def key_order(batch: RefBatch) -> np.ndarray:
    """Rows of a batch in the order of their keys: this sort is the shuffle."""
    return np.argsort(batch.keys, kind="stable")


def partition(batch: RefBatch) -> Iterator[tuple[int, RefBatch]]:
    """Cuts a batch by bucket: (bucket, its rows in key order), for buckets that have rows."""
    in_order = batch.take(key_order(batch))
    buckets = (in_order.keys >> np.uint64(KEY_BITS - BUCKET_BITS)).astype(np.int64)
    bounds = np.searchsorted(buckets, np.arange(BUCKETS + 1))
    for bucket in np.unique(buckets).tolist():
        yield bucket, in_order[bounds[bucket] : bounds[bucket + 1]]


def sort_group(batches: Iterable[RefBatch]) -> tuple[dict[str, RefBatch], int]:
    """Sorts all references of a bucket and takes each URI once.

    A URI that is named again with another split or label cannot be right twice: the one that
    sorts first is taken, the other becomes a reject of its own.

    Returns:
      split -> references in key order, and the number of duplicates.
    """
    batch = RefBatch.concat(batches)
    order = key_order(batch)
    in_order = batch.keys[order]
    equal = in_order[1:] == in_order[:-1]
    if not equal.any():
        return batch.by_split(order), 0
    tied = np.append(equal, False) | np.append(False, equal)
    taken, problems = _take_once(batch, order[tied])
    rows = np.concatenate((order[~tied], taken))
    # Stable: among equal keys the order stays that of taken.
    rows = rows[np.argsort(batch.keys[rows], kind="stable")]
    return batch.with_problems(problems).by_split(rows), len(order) - len(rows)


def mark_same_pixels(batch: RefBatch) -> RefBatch:
    """Makes rejects of images whose pixels another image has, of all but the first by key.

    A URI that is named again is left alone: it is taken once anyway.
    """
    batch, digests = batch.pop_pixels()
    uris, labels, keys = batch.uris, batch.labels, batch.keys.tolist()
    first: dict[bytes, int] = {}
    for row, digest in enumerate(digests):
        if digest and (
            digest not in first
            or (keys[row], uris[row]) < (keys[first[digest]], uris[first[digest]])
        ):
            first[digest] = row
    problems = batch.problems
    for row, digest in enumerate(digests):
        if digest and uris[row] != uris[kept := first[digest]]:
            reason = f"the same pixels as {uris[kept]}"
            if labels[row] != labels[kept]:
                reason += f", whose label is {labels[kept]!r} and not {labels[row]!r}"
            problems[row] = Problem("dedupe", DUPLICATE_PIXELS, reason)
    return batch.with_problems(problems)


def _take_once(batch: RefBatch, rows: np.ndarray) -> tuple[np.ndarray, dict[int, Problem]]:
    """Of rows that share their keys those that are taken, in order, and all problems of a batch."""
    part = batch.take(rows)
    keys, sizes = part.keys.tolist(), part.sizes.tolist()
    uris, splits, labels = part.uris, part.splits, part.labels
    features = [row and sorted(row.items()) for row in part.features]
    problems = part.problems
    ranges = part.ranges
    # Of a name that an archive has twice the last is taken. Records have names of their own.
    records = [
        f"byte {place.offset} of {place.uri}" if place and place.codec == "example" else None
        for place in ranges
    ]
    late: dict[int, Problem] = {}

    def identity(row: int) -> tuple[int, str, str, str, str, str, str, int, int]:
        # Those without a problem first; of equals the one whose size is known, and of a name that
        # an archive has twice the last, as unpacking it would. Nothing here depends on the order
        # in which they came.
        problem, place = problems.get(row), ranges[row]
        return (
            keys[row], uris[row], f"{problem}" if problem else "",
            splits[row], labels[row] or "", f"{features[row]}",
            place.uri if place else "", -place.offset if place else 0, -sizes[row],
        )  # fmt: skip

    taken: list[int] = []
    previous = -1
    for row in sorted(range(len(part)), key=identity):
        if previous < 0 or uris[row] != uris[previous]:
            taken.append(row)
            previous = row
        elif problems.get(row) != problems.get(previous):
            taken.append(row)  # a reject for a reason of its own
        elif differs := _difference(
            previous, row, split=splits, label=labels, features=features, record=records
        ):
            late[row] = Problem("read", "ConflictingDuplicate", differs)
            taken.append(row)
    found = {int(rows[row]): problem for row, problem in late.items()}
    return rows[taken], {**batch.problems, **found}


def _difference(first: int, second: int, **columns: Sequence[Any]) -> str:
    for name, values in columns.items():
        if values[first] != values[second]:
            return (
                f"named twice, with {name} {values[first]!r} and {values[second]!r}; "
                "the first is taken"
            )
    return ""
