"""Divides classes into parts of exact sizes, each within one reference of the class's share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

_MOST = 1 << 62
_GOLDEN = (5**0.5 - 1) / 2


def stratified(sizes: np.ndarray, weights: Sequence[int], preferred: int) -> np.ndarray:
    """Divides classes into parts; each part is within one of the class's share.

    Args:
      sizes: references of each class, int64.
      weights: of the parts.
      preferred: the part that has at least one reference of each class, if its weight is not 0.

    Returns:
      The rank that ends each part; int64, [classes, parts].

    >>> stratified(np.array([10, 1]), [8, 2], preferred=0).tolist()
    [[8, 10], [1, 1]]
    """
    total = sum(weights)
    # Shares are exact integers of `total`: Python's if they have more than 63 bits.
    dtype = np.int64 if int(sizes.max()) * total < _MOST else object
    whole = sizes.astype(dtype)
    ends = whole[:, None] * np.cumsum(np.array(weights, dtype))
    # A class's parts are rounded from an offset; a low-discrepancy sequence of these lets the
    # rounding of different classes cancel out.
    offsets = np.arange(len(sizes)).astype(dtype) * int(total * _GOLDEN) % total
    share = whole * weights[preferred]
    is_small = (share > 0) & (share < total)
    shift = -ends[:, preferred] + offsets % np.where(is_small, share, 1)
    offsets = np.where(is_small, shift % total, offsets)
    ranks: np.ndarray = (ends + offsets[:, None]) // total
    return ranks.astype(np.int64)


def balance(parts: np.ndarray, weights: Sequence[int]) -> None:
    """Moves references between the parts of classes, until each part has its weight in all.

    Each part stays within one of its class's share. This is a maximal flow from parts with too many
    references to those with too few, along paths of parts.

    Args:
      parts: references in each part; int64, [classes, parts]; changed in place.
      weights: the references of each part in all classes; their sum is that of `parts`.
    """
    total = sum(weights)
    sizes = parts.sum(axis=1)
    dtype = np.int64 if int(sizes.max()) * total < _MOST else object
    shares = sizes.astype(dtype)[:, None] * np.array(weights, dtype)

    def movable(source: int, target: int) -> np.ndarray:
        above = parts[:, source].astype(dtype) * total > shares[:, source]
        below = parts[:, target].astype(dtype) * total < shares[:, target]
        rows = np.flatnonzero(above & below)
        return rows[np.argsort(-sizes[rows], kind="stable")]  # large classes change least

    surplus = parts.sum(axis=0) - np.array(weights)
    while surplus.any():
        path = [int(np.argmax(surplus))]
        paths = [path]
        seen = set(path)
        for path in paths:
            if surplus[path[-1]] < 0:
                break
            for target in range(len(weights)):
                if target not in seen and len(movable(path[-1], target)):
                    seen.add(target)
                    paths.append([*path, target])
        steps = list(pairwise(path))
        most = min(surplus[path[0]], -surplus[path[-1]])
        most = min(most, *(len(movable(*step)) for step in steps))
        for source, target in steps:
            rows = movable(source, target)[:most]
            parts[rows, source] -= 1
            parts[rows, target] += 1
        surplus = parts.sum(axis=0) - np.array(weights)
