"""Mixtures and weights: exact proportions, independent of the hosts, resumable."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from imageshards.reader.ordering.mixture import Mixture
from imageshards.reader.ordering.timeline import Timeline
from imageshards.reader.ordering.weights import weights_of
from imageshards.transforms.elements import UsageError

SIZES = (500, 3000, 40)
ORDER = Mixture(weights_of([0.7, 0.25, 0.05], "abc", SIZES), global_batch=96, seed=5, data="x")


def part_of(records: np.ndarray, sizes: tuple[int, ...] = SIZES) -> np.ndarray:
    return np.searchsorted(np.cumsum(sizes), records, side="right")


@pytest.mark.parametrize("batch", [1, 96, 4_096, 65_536])
@pytest.mark.parametrize("weight", [0.7, lambda _: 0.7], ids=["constant", "function"])
def test_every_window_of_ten_thousand_records_has_the_proportions(batch: int, weight: object):
    order = replace(
        ORDER, global_batch=batch, weights=weights_of([weight, 0.25, 0.05], "abc", SIZES)
    )
    parts = part_of(order.samples(np.arange(140_000)))
    for part, share in enumerate((0.7, 0.25, 0.05)):
        sums = np.cumsum(parts == part)
        # 1 % is promised.
        assert np.abs((sums[10_000:] - sums[:-10_000]) / 10_000 - share).max() < 0.006


def test_a_thousand_classes_are_balanced():
    rng = np.random.default_rng(0)
    labels = rng.integers(1000, size=20_000) ** 2 // 1000
    sizes = np.bincount(labels, minlength=1000)
    weights = [int(size > 0) for size in sizes]
    order = Mixture(
        weights_of(weights, list(map(str, range(1000))), sizes.tolist()), 128,
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


@pytest.mark.parametrize("kind", ["constant", "steps", "function", "classes"])
def test_any_number_of_hosts_shares_the_same_batches(kind: str):
    weights = {
        "constant": [0.7, 0.25, 0.05],
        "steps": [1, [(0, 0), (50, 1)], [(0, 0.5), (77, 0)]],
        "function": [1, lambda step: step / (step + 100), lambda step: 0.1 * (step % 40 < 20)],
        "classes": [1, 1, 1],
    }[kind]
    numbers = np.random.default_rng(0).permutation(sum(SIZES)) if kind == "classes" else None

    def fresh() -> Mixture:
        return replace(
            ORDER, weights=weights_of(weights, "abc", SIZES), global_batch=720, numbers=numbers
        )

    order, rng = fresh(), np.random.default_rng(1)
    whole = order.samples(np.arange(300 * 720)).reshape(300, 720)
    for hosts in (number for number in range(1, 257) if not 720 % number):
        step = int(rng.integers(300))
        restored = fresh()
        assert restored.step_of(order.state(step)) == step
        host = int(rng.integers(hosts))
        expected = np.split(whole[step], hosts)[host]
        assert np.array_equal(restored.part(step, host, hosts), expected)


def test_a_curriculum_changes_the_weights_at_its_steps():
    weights = weights_of([1, [(0, 0), (50, 1)], [(0, 0), (50, 1), (80, 6)]], "abc", SIZES)
    assert weights.changes == [0, 50, 80]
    assert [weights.at(step).tolist() for step in (0, 49, 50, 10**9)] == [
        [1, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 6],
    ]  # fmt: skip
    order = replace(ORDER, weights=weights)
    parts = part_of(order.samples(np.arange(96 * 200))).reshape(200, 96)
    assert not parts[:50].any()
    counts = [
        np.bincount(parts[begin:end].ravel(), minlength=3).tolist()
        for begin, end in ((50, 80), (80, 200))
    ]
    assert counts[0] == [960, 960, 960]
    # The last weights have no end, and are exact in their period alone.
    np.testing.assert_allclose(counts[1], [1440, 1440, 8640], atol=2)
    assert np.array_equal(order.batch(150), order.samples(150 * 96 + np.arange(96)))


def curriculum(batch: int = 32) -> Mixture:
    """A part that grows over 3,000 steps, one that ends, and one of rare records."""
    weights = weights_of(
        [1, lambda step: min(step / 3_000, 1), lambda step: 0.003 * (step < 2_000)], "abc", SIZES
    )
    return replace(ORDER, weights=weights, global_batch=batch)


def test_a_curriculum_that_is_a_function_is_exact():
    order, steps = curriculum(), 6_000
    parts = part_of(order.samples(np.arange(32 * steps))).reshape(steps, 32)
    # 128 steps of 32 records are a phase.
    exact = np.array([order.weights.at(step // 128 * 128) for step in range(steps)])
    exact *= 32 / exact.sum(1, keepdims=True)
    counts = np.stack([(parts == part).sum(1) for part in range(3)], 1)
    # From the start to any step, the error is a few records, also of the rare part.
    assert np.abs(np.cumsum(counts - exact, 0)).max() < 4
    assert counts[:2_000, 2].sum() > 140
    assert not counts[2_048:, 2].any()
    assert not counts[:128, 1].any()


def test_a_curriculum_is_random_access():
    whole = curriculum().samples(np.arange(32 * 5_000)).reshape(-1, 32)
    for step in (4_999, 3, 2_000, 2_047, 128):
        assert np.array_equal(curriculum().batch(step), whole[step])
        parts = [curriculum().part(step, host, 8) for host in range(8)]
        assert np.array_equal(np.concatenate(parts), whole[step])
    # Each record of a part is read once before any is read twice.
    read = whole[part_of(whole) == 0]
    counts = np.bincount(read, minlength=500)
    assert counts.max() - counts.min() <= 1


def test_a_state_of_a_curriculum_covers_the_steps_before_it():
    order = curriculum()
    state = order.state(2_500)
    assert len(json.dumps(state)) < 200
    later = [*order.weights.parts[:1], lambda step: min(step / 3_000, 0.9), order.weights.parts[2]]
    changed = replace(order, weights=weights_of(later, "abc", SIZES))
    assert changed.step_of(state) == 2_500  # until here, the functions are equal
    assert np.array_equal(changed.batch(2_500), order.batch(2_500))
    with pytest.raises(UsageError, match="its shuffling differs"):
        changed.step_of(order.state(2_900))


def test_a_curriculum_of_a_hundred_million_records_calls_a_function_once_in_4096():
    calls: list[int] = []

    def weight(step: int) -> float:
        calls.append(step)
        return 1 + step % 7

    weights = weights_of([1, weight], "ab")
    calls.clear()
    step = 10**8 // 1024
    Timeline(weights, 1024).parts(np.array([step * 1024]))
    assert calls == list(range(0, step + 1, 4))


def test_a_state_of_other_weights_is_refused():
    for change in (
        {"weights": weights_of([0.6, 0.35, 0.05], "abc", SIZES)},
        {"weights": weights_of([0.7, 0.25, 0.05], "abc", (500, 2999, 41))},
        {"numbers": np.arange(sum(SIZES))},
    ):
        with pytest.raises(UsageError, match="its shuffling differs"):
            replace(ORDER, **change).step_of(ORDER.state(3))


@pytest.mark.parametrize("weight", [-1, "x", [], [(5, 1)], [(0, 1), (0, 2)], [1, 2], float("nan")])
def test_invalid_weights_are_one_line(weight: object):
    with pytest.raises(UsageError, match=r"invalid weight .* of b: must be"):
        weights_of([1, weight], "ab")


def test_weights_need_records():
    with pytest.raises(UsageError, match="the weights of step 9 are all 0"):
        weights_of([[(0, 1), (9, 0)], 0], "ab")
    with pytest.raises(UsageError, match=r"the weight 1e-06 of b is too small: must be 0, or"):
        weights_of([1, 1e-6], "ab")
    for weight in (1, [(0, 0), (9, 1)], lambda _: 1):
        with pytest.raises(UsageError, match="b has a weight, but no records: set it to 0"):
            weights_of([1, weight], "ab", (5, 0))
