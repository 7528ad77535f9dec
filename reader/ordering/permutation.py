"""Keyed permutations of [0, n), of which any element is computed without the others.

A Feistel network of mixed radix permutes [0, a * b), the smallest such range that holds n with a
and b next to the square root of n. Results outside of [0, n) are permuted again until they are
inside, which takes 1 + O(1 / sqrt(n)) turns on average (Black and Rogaway, Ciphers with Arbitrary
Finite Domains, 2002).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_ROUNDS = 12
_STRIDE = np.uint64(_ROUNDS)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def derive(key: Keys, number: npt.ArrayLike) -> Keys:
    """Returns keys that differ for each pair of a key and a number.

    The mixing function is that of SplitMix64 (Steele et al., 2014).

    Args:
      key: uint64 of any shape.
      number: integers from 0, of a shape that broadcasts with `key`.
    """
    numbers = np.atleast_1d(np.asarray(number)).astype(np.uint64)
    mixed = key + (numbers + np.uint64(1)) * _GOLDEN
    mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _FACTORS[0]
    mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _FACTORS[1]
    result: Keys = mixed ^ (mixed >> _SHIFTS[2])
    return result


def first_key(seed: int) -> Keys:
    """Returns the key of a seed: uint64 [1]."""
    return derive(np.zeros(1, np.uint64), seed)


def permute(index: npt.ArrayLike, n: npt.ArrayLike, key: Keys) -> Numbers:
    """Returns the elements of permutations of [0, n) at the given positions.

    >>> permute(range(5), 5, first_key(7)).tolist()
    [2, 0, 1, 4, 3]

    Args:
      index: int64 of any shape, the positions, in [0, n).
      n: the size of the permutation; one number, or one for each position.
      key: uint64 that broadcasts with `index`, the key of the permutation at each position.

    Returns:
      int64, in the shape to which the arguments broadcast, at least one-dimensional.
    """
    numbers, sizes, keys = np.broadcast_arrays(
        np.atleast_1d(np.asarray(index)).astype(np.uint64), np.asarray(n).astype(np.uint64), key
    )
    shape = numbers.shape
    numbers, sizes, keys = (each.reshape(-1) for each in (numbers, sizes, keys))
    result = _feistel(numbers, sizes, keys)
    outside = np.flatnonzero(result >= sizes)
    while len(outside):
        again = _feistel(result[outside], sizes[outside], keys[outside])
        result[outside] = again
        outside = outside[again >= sizes[outside]]
    return result.astype(np.int64).reshape(shape)


def _feistel(x: Keys, n: Keys, key: Keys) -> Keys:
    """Permutes [0, a * b) for each n, where a * b >= n."""
    low = np.ceil(np.sqrt(n.astype(np.float64))).astype(np.uint64)
    high = (n + low - np.uint64(1)) // low
    left, right = np.divmod(x, low)
    for number in range(_ROUNDS):
        # A number for each pair of a round and a half.
        if number % 2:
            right = (right + derive(key, left * _STRIDE + np.uint64(number))) % low
        else:
            left = (left + derive(key, right * _STRIDE + np.uint64(number))) % high
    return left * low + right
