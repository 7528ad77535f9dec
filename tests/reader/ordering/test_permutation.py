"""Keyed permutations: bijective, uniform, and computable at any place."""

from __future__ import annotations

import numpy as np
import pytest

from imageshards.reader.ordering.permutation import derive, first_key, permute


@pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 1000, 99_991])
def test_every_element_occurs_once(n: int):
    found = permute(np.arange(n), n, first_key(3))
    assert np.array_equal(np.sort(found), np.arange(n))
    if n > 2:
        assert not np.array_equal(found, permute(np.arange(n), n, first_key(4)))


def test_an_element_needs_no_others():
    whole = permute(np.arange(1000), 1000, first_key(1))
    assert permute(617, 1000, first_key(1)).tolist() == [whole[617]]
    far = permute([0, 10**15 - 1], 10**15, first_key(1))
    assert ((far >= 0) & (far < 10**15)).all()


def test_sizes_and_keys_may_differ_between_elements():
    keys = derive(first_key(2), np.arange(3))
    together = permute([[1], [2], [3]], [[7], [50], [900]], keys[:, None])
    assert together.shape == (3, 1)
    for row, (index, n) in enumerate(((1, 7), (2, 50), (3, 900))):
        assert permute(index, n, keys[row : row + 1])[0] == together[row, 0]


@pytest.mark.parametrize("n", [3, 5])
def test_all_permutations_are_equally_likely(n: int):
    keys = derive(first_key(0), np.arange(6000))[:, None]
    _, counts = np.unique(permute(np.arange(n)[None], n, keys), axis=0, return_counts=True)
    all_of_them = np.prod(np.arange(1, n + 1))
    assert len(counts) == all_of_them
    mean = 6000 / all_of_them
    # Chi-squared, below its mean and six standard deviations.
    degrees = all_of_them - 1
    assert ((counts - mean) ** 2 / mean).sum() < degrees + 6 * np.sqrt(2 * degrees)


def test_neighbours_are_independent():
    found = permute(np.arange(20_000), 20_000, first_key(5))
    rising = (np.diff(found) > 0).mean()
    assert abs(rising - 0.5) < 0.02
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.03
