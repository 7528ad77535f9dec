"""The order of references: partition by key, sort, and drop duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from imageshards.transforms.elements import BuildError, Problem, quoted
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.keys import BUCKET_BITS, KEY_BITS

_MOST_HELD = 1 << 19
"""References of a group after which repeated ones are dropped. Keys of distinct URIs make no group
of more than 250,000."""
_MOST_OF_URI = 100_000
"""References of a URI in a larger group: each takes 1.1 kB of memory where duplicates are found."""


def key_order(batch: RefBatch) -> np.ndarray:
    """Rows of a batch (int64) in the order of their keys: this sort is the shuffle."""
    return np.argsort(batch.keys, kind="stable")


def partition(batch: RefBatch, bits: int = BUCKET_BITS) -> Iterator[tuple[int, RefBatch]]:
    """Yields (bucket, its rows in key order) for every bucket that has rows in a batch.

    Args:
      batch: references.
      bits: how many top bits of the key are the number of the bucket.
    """
    return divide(batch, batch.keys, bits)


def divide(batch: RefBatch, values: np.ndarray, bits: int) -> Iterator[tuple[int, RefBatch]]:
    """Yields (top bits, rows with these top bits) of values (uint64), one for each row, in order.

    Args:
      batch: references.
      values: a value for each of them.
      bits: how many bits, 1 or more.
    """
    order = np.argsort(values, kind="stable")
    in_order = batch.take(order)
    buckets = (values[order] >> np.uint64(KEY_BITS - bits)).astype(np.int64)
    numbers, begins = np.unique(buckets, return_index=True)
    bounds = [*begins.tolist(), len(in_order)]
    for at, number in enumerate(numbers.tolist()):
        yield number, in_order[bounds[at] : bounds[at + 1]]


def without_repeated(batch: RefBatch) -> RefBatch:
    """Drops rows that are equal to another row in all columns.

    `sort_group` would drop them too. They are dropped earlier because a manifest that repeats a
    line millions of times would make one group of millions of references.

    Args:
      batch: annotated references.

    Returns:
      The other rows, in the same order.
    """
    ordered = np.sort(batch.keys)  # faster than sorting rows, and most batches have no equal keys
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return batch
    rows = np.flatnonzero(np.isin(batch.keys, repeated))
    first: dict[str, int] = {}
    for row, values in zip(rows.tolist(), batch.take(rows).rows.to_pylist(), strict=True):
        first.setdefault(f"{values}", row)
    keep = np.ones(len(batch), bool)
    keep[rows] = False
    keep[list(first.values())] = True
    return batch.take(np.flatnonzero(keep)) if len(first) < len(rows) else batch


def sort_group(batches: Iterable[RefBatch]) -> tuple[dict[str, RefBatch], int]:
    """Sorts all references of a group, and keeps one reference of each URI.

    A URI that was listed with different splits, labels or features is a conflict: the first
    reference is kept, and the others become rejects.

    Returns:
      split -> references in key order, and the number of duplicates that were dropped.

    Raises:
      BuildError: two images have the same name, or a URI is listed too often.
    """
    batch, listed = _gathered(batches)
    batch, rows = unique_rows(batch, batch.keys, key_order(batch))
    return batch.by_split(rows), listed - len(rows)


def _gathered(batches: Iterable[RefBatch]) -> tuple[RefBatch, int]:
    """Returns the references of a group in one batch, and their number with those dropped here."""
    held: list[RefBatch] = []
    count = listed = 0
    most = _MOST_HELD
    for batch in batches:
        held.append(batch)
        count += len(batch)
        listed += len(batch)
        if count > most:
            held = [without_repeated(RefBatch.concat(held))]
            count = len(held[0])
            _check_most_frequent(held[0])
            most = count + _MOST_HELD
    return RefBatch.concat(held), listed


def _check_most_frequent(batch: RefBatch) -> None:
    _, first, counts = np.unique(batch.keys, return_index=True, return_counts=True)
    most = int(counts.argmax())
    if counts[most] > _MOST_OF_URI:
        uri = batch.take(first[most : most + 1]).uris[0]
        raise BuildError(
            f"{quoted(uri)} is listed more than {_MOST_OF_URI:,} times with different labels, "
            "splits or features: list each image once, or set --uri_column to the column that "
            "has the URIs"
        )


def unique_rows(
    batch: RefBatch, values: np.ndarray, order: np.ndarray
) -> tuple[RefBatch, np.ndarray]:
    """Drops the duplicates of sorted references, as `sort_group` does.

    Args:
      batch: references.
      values: a value for each of them (uint64), which is equal where the keys are.
      order: all rows in the order of their values.

    Returns:
      The references, of which some may have become rejects, and the rows to keep, in order.

    Raises:
      BuildError: two images have the same name.
    """
    in_order = values[order]
    equal = in_order[1:] == in_order[:-1]
    if not equal.any():
        return batch, order
    tied = np.append(equal, False) | np.append(False, equal)
    kept, problems = _without_duplicates(batch, order[tied])
    rows = np.concatenate((order[~tied], kept))
    # Stable: rows with equal keys stay in the order of `kept`.
    rows = rows[np.argsort(values[rows], kind="stable")]
    return batch.with_problems(problems), rows


class _Row(NamedTuple):
    """A row that has the same key as another row.

    Attributes:
      row: index in its batch.
      uri: its URI.
      name: its name.
      problem: its problem, or None.
      facts: name -> value that must be equal in all rows with this URI.
      rank: sort key, independent of the order of arrival: the first row of a URI is kept. Rows
        without a problem come first; then the last of the members of an archive with one name, as
        when the archive is unpacked; then rows whose size is known.
    """

    row: int
    uri: str
    name: str
    problem: Problem | None
    facts: dict[str, object]
    rank: tuple[object, ...]


def _tied_rows(batch: RefBatch, rows: np.ndarray) -> Iterator[_Row]:
    part = batch.take(rows)
    problems = part.problems
    columns = zip(
        rows.tolist(), part.keys.tolist(), part.uris, part.names, part.splits, part.labels,
        part.features, part.ranges, part.sizes.tolist(), strict=True,
    )  # fmt: skip
    for index, (row, key, uri, name, split, label, values, span, size) in enumerate(columns):
        problem = problems.get(index)
        features = values and sorted(values.items())
        file, offset = (span.uri, span.offset) if span else ("", 0)
        # Names of records come from a feature, so two records may have the same name by mistake.
        record = f"byte {offset} of {file}" if span and span.codec == "example" else None
        facts = {"split": split, "label": label, "features": features, "record": record}
        shown = f"{problem}" if problem else ""
        rank = (key, uri, shown, split, label or "", f"{features}", file, -offset, -size)
        yield _Row(row, uri, name, problem, facts, rank)


def _without_duplicates(batch: RefBatch, rows: np.ndarray) -> tuple[np.ndarray, dict[int, Problem]]:
    """Drops duplicates from rows that share their keys.

    Returns:
      The rows that are kept, in order, and all problems of the batch.

    Raises:
      BuildError: two images have the same name.
    """
    problems = batch.problems
    kept: list[int] = []
    first: _Row | None = None
    uris: dict[str, str] = {}  # name -> URI of the images that may be in the data set
    for row in sorted(_tied_rows(batch, rows), key=lambda row: row.rank):
        if not row.problem and (other := uris.setdefault(row.name, row.uri)) != row.uri:
            raise BuildError(_same_name(row.name, other, row.uri))
        if first is None or row.uri != first.uri:
            first = row
        elif row.problem == first.problem:
            difference = _difference(first, row)
            if not difference:
                continue
            problems[row.row] = Problem("read", "ConflictingDuplicate", difference)
        # Otherwise the row is rejected for its own problem.
        kept.append(row.row)
    return np.array(kept, dtype=np.int64), problems


def _difference(first: _Row, second: _Row) -> str:
    for name, value in first.facts.items():
        if value != (other := second.facts[name]):
            values = f"{quoted(value)} and {quoted(other)}"
            return f"named twice, with {name} {values}; the first is taken"
    return ""


def _same_name(name: str, first: str, second: str) -> str:
    common = 0
    for end, pair in enumerate(zip(first, second, strict=False), 1):
        if pair[0] != pair[1]:
            break
        common = end if pair[0] == "/" else common
    folder = first[:common]
    advice = f"set --base_uri {folder.rstrip('/') or '/'}, which contains both"
    if not folder or folder.endswith("://"):
        advice = "list them in a manifest, which names them by their whole URIs"
    return f"two images have the name {name!r}, {first} and {second}: {advice}"
