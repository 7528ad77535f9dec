"""Seeded keys, split thresholds and the arithmetic of ranks and shards. Pure.

The order of a data set is the order of its keys, and the key of an image is a keyed BLAKE2b
of its URI under the seed: a uniform random permutation that every machine finds again. To
change a hash in this module is to change every data set: a breaking change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate

import numpy as np

KEY_BITS = 64
BUCKET_BITS = 7
BUCKETS = 1 << BUCKET_BITS
"""References are sorted in this many groups, by the top bits of their key.

It bounds the references that one worker sorts at a time (1/128 of them) and leaves the order
as it is: groups follow one another in the order of their bits.
"""


def hash_keys(seed: int, texts: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Two independent uint64 keys of each text: one that orders, one that splits.

    They are the halves of one keyed 128-bit BLAKE2b, little-endian.
    """
    # Hashing the key once and copying the state costs a third less than a new one a text.
    copy = blake2b(digest_size=16, key=seed.to_bytes(8, "little"), person=b"imageshards").copy
    digests = []
    for text in texts:
        state = copy()
        state.update(text)
        digests.append(state.digest())
    halves = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64, copy=False)
    return halves[0::2], halves[1::2]


def split_thresholds(ratios: Sequence[float]) -> list[int]:
    """Upper bounds (exclusive) in key space of all splits but the last."""
    largest = (1 << KEY_BITS) - 1
    return [min(round(bound * (1 << KEY_BITS)), largest) for bound in accumulate(ratios[:-1])]


def split_indices(keys: np.ndarray, thresholds: Sequence[int]) -> np.ndarray:
    """The index of the split that each key (uint64) falls into: 0 .. len(thresholds)."""
    return np.searchsorted(np.array(thresholds, dtype=np.uint64), keys, side="right")


def first_rank(shard: int, num_shards: int, total: int) -> int:
    """The first rank of a shard; shards of `total` records differ by at most one.

    The inverse of shard = rank * num_shards // total.
    """
    return -(-shard * total // num_shards)


def cut(first: int, count: int, num_shards: int, total: int) -> list[tuple[int, int, int]]:
    """Cuts the ranks first .. first + count at the bounds of shards.

    Returns:
      (shard, start, stop) with start and stop relative to `first`.
    """
    pieces = []
    start = 0
    while start < count:
        shard = (first + start) * num_shards // total
        stop = min(count, first_rank(shard + 1, num_shards, total) - first)
        pieces.append((shard, start, stop))
        start = stop
    return pieces
