"""Parts of classes: the sum of each class, of each part, and the distance from the shares."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from imageshards.transforms.references.selection.shares import balance, stratified

sizes = st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any)


def parts_of(sizes: list[int], weights: list[int], preferred: int = 0) -> np.ndarray:
    return np.diff(stratified(np.array(sizes), weights, preferred), prepend=0)


def check(parts: np.ndarray, sizes: list[int], weights: list[int]) -> None:
    assert parts.sum(axis=1).tolist() == sizes
    for row, size in zip(parts.tolist(), sizes, strict=True):
        for got, weight in zip(row, weights, strict=True):
            assert abs(got - Fraction(size * weight, sum(weights))) < 1


@given(sizes, st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 4))
def test_each_part_is_within_one_of_the_share_of_its_class(
    sizes: list[int], weights: list[int], preferred: int
):
    preferred %= len(weights)
    parts = parts_of(sizes, weights, preferred)
    check(parts, sizes, weights)
    assert all(parts[row, preferred] for row, size in enumerate(sizes) if size)


@settings(max_examples=200)
@given(sizes, st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(0, 4))
def test_balanced_parts_have_exact_sums_too(sizes: list[int], weights: list[int], preferred: int):
    total = sum(sizes)
    counts = [weight * total // (sum(weights) + 1) for weight in weights]
    counts.append(total - sum(counts))
    parts = parts_of(sizes, counts, preferred % len(counts))
    balance(parts, counts)
    check(parts, sizes, counts)
    assert parts.sum(axis=0).tolist() == counts


def test_rounding_of_many_small_classes_cancels_out():
    parts = parts_of([3] * 10_000, [80, 10, 10])
    assert np.abs(parts.sum(axis=0) - np.array([24_000, 3_000, 3_000])).max() < 10


def test_a_million_classes_of_a_billion_references_are_balanced():
    sizes = np.random.default_rng(0).integers(1, 2000, 1_000_000)
    counts = [50_000_000, 7_777_777]
    counts.append(int(sizes.sum()) - sum(counts))
    parts = np.diff(stratified(sizes, counts, 0), prepend=0)
    balance(parts, counts)
    assert parts.sum(axis=0).tolist() == counts
    shares = sizes[:, None] * (np.array(counts) / sizes.sum())
    assert np.abs(parts - shares).max() < 1
