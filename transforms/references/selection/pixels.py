"""References of images with equal pixels: all but the first by key are rejected. Pure.

All images with one digest are compared by one worker, unless there are very many of them: their
first reference is found beforehand, and each reference is compared with it wherever it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import NamedTuple, TypeAlias, cast

from imageshards.transforms.elements import DUPLICATE_PIXELS, Problem, quoted
from imageshards.transforms.references.batch import RefBatch

COUNTERS = 1 << 12
"""Digests that are counted at a time."""
MANY_COPIES = 50_000
"""Images that make a digest frequent.

Of N images in all, up to N / `COUNTERS` of a digest are not counted: among a billion images, each
digest of 300,000 is found.
"""


class First(NamedTuple):
    """What a reject's reason says of the reference that is kept.

    Attributes:
      key: the key of the reference.
      uri: its URI.
      name: its name.
      label: its label, or None.
    """

    key: int
    uri: str
    name: str
    label: str | None


Firsts: TypeAlias = Mapping[bytes, First]
"""Digest of pixels -> the reference to keep: the first by key."""


def with_most(counts: Counter[bytes]) -> Counter[bytes]:
    """Returns counts of at most `COUNTERS` digests, those of the most frequent ones.

    This is the summary of Misra and Gries. Counts may be added up and reduced in any order: of N
    images, the count of a digest is too small by at most N / `COUNTERS`, and never too large.
    """
    if len(counts) <= COUNTERS:
        return counts
    less = sorted(counts.values())[-COUNTERS - 1]
    return Counter({digest: count - less for digest, count in counts.items() if count > less})


def frequent(counts: Mapping[bytes, int]) -> frozenset[bytes]:
    """Returns the digests that have many images; see `with_most` for the counts."""
    return frozenset(digest for digest, count in counts.items() if count >= MANY_COPIES)


def firsts(wanted: Container[bytes], batches: Iterable[RefBatch]) -> dict[bytes, First]:
    """Returns the first reference of each wanted digest, of references with digests."""
    found: dict[bytes, First] = {}
    for batch in batches:
        for _, digest, candidate in _with_digests(wanted, *copy(batch).pop_pixels()):
            found[digest] = min(candidate, found.get(digest, candidate), key=_place)
    return found


def merge_firsts(found: Iterable[Firsts]) -> dict[bytes, First]:
    """Returns the first reference of each digest."""
    merged: dict[bytes, First] = {}
    for some in found:
        for digest, candidate in some.items():
            merged[digest] = min(candidate, merged.get(digest, candidate), key=_place)
    return merged


def mark(batch: RefBatch, digests: Sequence[bytes | None], kept: Firsts) -> RefBatch:
    """Adds the problem `DuplicatePixels` to all references but those that are kept.

    `sort_group` handles references with the same URI.

    Args:
      batch: references, without digests.
      digests: their digests.
      kept: the reference to keep of each digest that several references have.
    """
    problems = batch.problems
    before = len(problems)
    for row, digest, found in _with_digests(kept, batch, digests):
        first = kept[digest]
        if found.uri != first.uri:
            reason = f"the same pixels as {first.name}"
            if found.label != first.label:
                labels = f"{quoted(first.label)} and not {quoted(found.label)}"
                reason += f", whose label is {labels}"
            problems[row] = Problem("dedupe", DUPLICATE_PIXELS, reason)
    return batch.with_problems(problems) if len(problems) > before else batch


def mark_group(batches: Iterable[RefBatch]) -> Iterator[RefBatch]:
    """Marks references of which all that have the same digest are given; see `mark`.

    Args:
      batches: references with the digests of their pixels. They are read three times, and unpacked
        one at a time.

    Yields:
      The references of each batch, without digests.
    """
    # A copy leaves the batch of the caller packed.
    counts = Counter(digest for batch in batches for digest in copy(batch).pop_pixels()[1])
    repeated = {digest for digest, count in counts.items() if digest and count > 1}
    kept = firsts(repeated, batches)
    for batch in batches:
        yield mark(*copy(batch).pop_pixels(), kept)


def _place(reference: First) -> tuple[int, str]:
    return reference.key, reference.uri


def _with_digests(
    wanted: Container[bytes], batch: RefBatch, digests: Sequence[bytes | None]
) -> Iterator[tuple[int, bytes, First]]:
    """Yields (row, digest, reference) of the rows of a batch that have wanted digests."""
    chosen = [(row, digest) for row, digest in enumerate(digests) if digest in wanted]
    if not chosen:
        return
    part = batch.take([row for row, _ in chosen])
    values = zip(part.keys.tolist(), part.uris, part.names, part.labels, strict=True)
    for (row, digest), found in zip(chosen, values, strict=True):
        yield row, cast(bytes, digest), First(*found)
