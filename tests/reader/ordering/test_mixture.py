"""Mixtures and weights: exact proportions, independent of the hosts, resumable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from imageshards.reader.ordering.mixture import Mixture, Phase, phases_of
from imageshards.transforms.elements import UsageError

SIZES = (500, 3000, 40)
ORDER = Mixture(SIZES, phases_of([0.7, 0.25, 0.05], "abc"), global_batch=96, seed=5, data="x")


def part_of(records: np.ndarray, sizes: tuple[int, ...] = SIZES) -> np.ndarray:
    return np.searchsorted(np.cumsum(sizes), records, side="right")


def test_every_window_of_ten_thousand_records_has_the_proportions():
    parts = part_of(ORDER.samples(np.arange(60_000)))
    for part, weight in enumerate((0.7, 0.25, 0.05)):
        counts = np.convolve(parts == part, np.ones(10_000), "valid")
        # 1 % is promised.
        assert np.abs(counts / 10_000 - weight).max() < 0.002


def test_a_thousand_classes_are_balanced():
    rng = np.random.default_rng(0)
    labels = rng.integers(1000, size=20_000) ** 2 // 1000
    sizes = np.bincount(labels, minlength=1000)
    weights = [int(size > 0) for size in sizes]
    order = Mixture(
        tuple(sizes.tolist()), phases_of(weights, list(map(str, range(1000)))), 128,
        numbers=np.argsort(labels, kind="stable"),
    )  # fmt: skip
    counts = np.bincount(labels[order.samples(123 * 128 + np.arange(10_000))], minlength=1000)
    expected = 10_000 / sum(weights)
    assert np.abs(counts[sizes > 0] - expected).max() <= 3
    assert not counts[sizes == 0].any()


def test_the_records_of_a_part_are_read_equally_often():
    for steps in (1, 40, 250):
        counts = np.bincount(ORDER.samples(np.arange(96 * steps)), minlength=sum(SIZES))
        for part in range(len(SIZES)):
            of_part = counts[part_of(np.arange(sum(SIZES))) == part]
            assert of_part.max() - of_part.min() <= 1


@pytest.mark.parametrize("hosts", [1, 2, 3, 8, 32, 48, 96])
def test_hosts_share_the_same_batches(hosts: int):
    for step in (0, 7, 10**9):
        parts = [ORDER.part(step, host, hosts) for host in range(hosts)]
        assert np.array_equal(np.concatenate(parts), ORDER.batch(step))
    assert ORDER.step_of(ORDER.state(10**9)) == 10**9


def test_a_curriculum_changes_the_weights_at_its_steps():
    phases = phases_of([1, [(0, 0), (50, 1)], [(0, 0), (50, 1), (80, 6)]], "abc")
    assert phases == (Phase(0, (1, 0, 0)), Phase(50, (1, 1, 1)), Phase(80, (1, 1, 6)))
    order = replace(ORDER, phases=phases)
    parts = part_of(order.samples(np.arange(96 * 200))).reshape(200, 96)
    shares = [
        np.bincount(parts[begin:end].ravel(), minlength=3) / (96 * (end - begin))
        for begin, end in ((0, 50), (50, 80), (80, 200))
    ]
    np.testing.assert_allclose(
        shares, [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [1 / 8, 1 / 8, 6 / 8]], atol=2e-3
    )
    assert np.array_equal(order.batch(150), order.samples(150 * 96 + np.arange(96)))


def test_a_state_of_other_weights_is_refused():
    for change in (
        {"phases": phases_of([0.6, 0.35, 0.05], "abc")},
        {"sizes": (500, 2999, 41)},
        {"numbers": np.arange(sum(SIZES))},
    ):
        with pytest.raises(UsageError, match="its shuffling differs"):
            replace(ORDER, **change).step_of(ORDER.state(3))


@pytest.mark.parametrize("weight", [-1, "x", [], [(5, 1)], [(0, 1), (0, 2)], [1, 2], float("nan")])
def test_invalid_weights_are_one_line(weight: object):
    with pytest.raises(UsageError, match=r"invalid weight .* of b: must be"):
        phases_of([1, weight], "ab")


def test_weights_need_records():
    with pytest.raises(UsageError, match="the weights of step 9 are all 0"):
        phases_of([[(0, 1), (9, 0)], 0], "ab")
    with pytest.raises(UsageError, match=r"the weight 1e-06 of b is too small: must be 0, or"):
        phases_of([1, 1e-6], "ab")
    with pytest.raises(UsageError, match="a part without records has a weight"):
        Mixture((5, 0), phases_of([1, 1], "ab"), 4)
