"""Seeded keys, thresholds of splits, and the arithmetic of ranks and shards.

The order of a data set is the order of its keys. The key of an image is a BLAKE2b of its name,
keyed with the seed: a uniform random permutation that is the same on every machine. A change of a
hash in this module changes every data set: it is a breaking change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate

import numpy as np

KEY_BITS = 64
BUCKET_BITS = 7
BUCKETS = 1 << BUCKET_BITS
"""Number of buckets that listed references are divided into, by the top bits of their keys."""
GROUP_REFERENCES = 200_000
GROUP_BYTES = 25 << 20
"""References and their bytes in a group that one worker sorts, at most, on average over all groups.

Keys of distinct names are uniform, so that no group of them holds more than 250,000 references or
32 MiB. All references with the same name are in one group: listing drops most of those that are
equal, and only references of one name with different labels or features make it larger. The order
of the data set does not depend on the number of groups, which are in the order of the top bits of
keys.
"""


def group_bits(references: int, num_bytes: int) -> int:
    """How many top bits of the keys references are grouped by, for sorting; at least 7.

    Args:
      references: their number.
      num_bytes: the bytes of their values.

    >>> [group_bits(count, 100 * count) for count in (10, 25_600_000, 1_000_000_000)]
    [7, 7, 13]
    """
    groups = max(-(-references // GROUP_REFERENCES), -(-num_bytes // GROUP_BYTES))
    return max(BUCKET_BITS, (groups - 1).bit_length())


def hash_keys(seed: int, texts: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Two independent keys (uint64 arrays) of each text: for the order, and for the split.

    They are the halves of one keyed 128-bit BLAKE2b, little-endian.
    """
    # Copying a state that has hashed the key takes a third less time than hashing the key again.
    copy = blake2b(digest_size=16, key=seed.to_bytes(8, "little"), person=b"imageshards").copy
    digests = []
    for text in texts:
        state = copy()
        state.update(text)
        digests.append(state.digest())
    halves = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64, copy=False)
    return halves[0::2], halves[1::2]


def split_thresholds(ratios: Sequence[float]) -> list[int]:
    """Upper bounds (exclusive) of the keys of all splits but the last."""
    largest = (1 << KEY_BITS) - 1
    return [min(round(bound * (1 << KEY_BITS)), largest) for bound in accumulate(ratios[:-1])]


def split_indices(keys: np.ndarray, thresholds: Sequence[int]) -> np.ndarray:
    """The index of the split that each key (uint64) falls into: 0 .. len(thresholds)."""
    return np.searchsorted(np.array(thresholds, dtype=np.uint64), keys, side="right")


def first_rank(shard: int, num_shards: int, total: int) -> int:
    """The rank of the first record of a shard; sizes of shards differ by at most one record.

    It is the inverse of shard = rank * num_shards // total.

    >>> [first_rank(shard, 3, 10) for shard in range(4)]
    [0, 4, 7, 10]
    """
    return -(-shard * total // num_shards)


def cut(first: int, count: int, num_shards: int, total: int) -> list[tuple[int, int, int]]:
    """Cuts the ranks first .. first + count at the bounds of shards.

    Returns:
      (shard, start, stop) for each piece, with start and stop relative to `first`.
    """
    pieces = []
    start = 0
    while start < count:
        shard = (first + start) * num_shards // total
        stop = min(count, first_rank(shard + 1, num_shards, total) - first)
        pieces.append((shard, start, stop))
        start = stop
    return pieces
