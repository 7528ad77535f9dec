"""The order of global batches: independent of the hosts, complete, well shuffled, resumable."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from imageshards.reader.ordering.global_order import NO_RECORD, GlobalOrder, block_and_run
from imageshards.transforms.elements import UsageError


def configurations(count: int) -> list[GlobalOrder]:
    """Random orders, of global batches that many numbers of hosts divide."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(count):
        batch = int(rng.choice([1, 6, 48, 96, 256, 720]))
        order = GlobalOrder(
            records=int(rng.integers(batch, 20 * batch + 50)),
            global_batch=batch,
            seed=int(rng.integers(1 << 62)),
            shuffle=bool(rng.random() < 0.8),
            block=int(rng.choice([1, 1, 2, 7, 64])),
            run=int(rng.integers(1, 12)),
            lanes=int(rng.choice([0, 0, 1])),  # 1 for compressed files
            remainder=str(rng.choice(["drop", "keep", "pad"])),  # type: ignore[arg-type]
        )
        found.append(replace(order, block=min(order.block, order.records)))
    return found


@pytest.mark.parametrize("order", configurations(16), ids=str)
def test_hosts_share_the_same_batches_and_read_each_record_once(order: GlobalOrder):
    samples = order.samples(np.arange(2 * order.steps * order.global_batch))
    epochs = samples.reshape(2, order.steps, order.global_batch)
    rng = np.random.default_rng(0)
    for hosts in range(1, 257):
        if order.global_batch % hosts:
            continue
        step = int(rng.integers(2 * order.steps))
        expected = epochs[step // order.steps, step % order.steps]
        size = order.global_batch // hosts
        assert replace(order).step_of(order.state(step)) == step
        for host in {0, int(rng.integers(hosts)), hosts - 1}:
            part = order.part(step, host, hosts)
            assert np.array_equal(part, expected[host * size : (host + 1) * size])
    for read in epochs:
        records, counts = np.unique(read[read != NO_RECORD], return_counts=True)
        assert len(records) == order.records - order.dropped
        assert records.max() < order.records
        assert counts.sum() == order.records - order.dropped + order.padded
        if order.padded <= order.records:
            assert counts.max() <= 2
        assert (read == NO_RECORD).sum() == (
            -order.records % order.global_batch if order.remainder == "keep" else 0
        )


def test_a_number_of_hosts_that_does_not_divide_the_batch_is_refused():
    order = GlobalOrder(records=100, global_batch=32)
    with pytest.raises(UsageError, match="batch of 32 cannot be divided among 5 hosts"):
        order.part(0, 0, 5)
    with pytest.raises(UsageError, match="invalid host 2 of 2"):
        order.part(0, 2, 2)
    with pytest.raises(UsageError, match="100 records do not fill a global batch of 128"):
        GlobalOrder(records=100, global_batch=128)
    assert GlobalOrder(records=100, global_batch=128, remainder="pad").steps == 1


def test_dropped_records_differ_between_epochs():
    for block in (1, 3):
        order = GlobalOrder(records=103, global_batch=10, block=block, run=4)
        read = [{r for s in range(10) for r in order.batch(10 * e + s).tolist()} for e in range(4)]
        assert order.dropped == 3
        assert {len(records) for records in read} == {100}
        assert len({frozenset(set(range(103)) - records) for records in read}) > 1


def test_a_slot_reads_whole_blocks():
    order = GlobalOrder(records=8000, global_batch=10, block=20, run=40)
    of_slot = order.samples(10 * np.arange(order.steps) + 3)
    for begin in range(0, order.steps, 40):
        # A run touches at most three blocks, and one that is cut by the end of the records.
        records = np.sort(of_slot[begin : begin + 40])
        assert (np.diff(records) != 1).sum() <= 3


def test_a_state_is_small_and_independent_of_hosts():
    order = GlobalOrder(
        records=10**8, global_batch=1 << 16, seed=2**62 - 1, block=10, run=40, data="0" * 12
    )
    state = order.state(10**9)
    assert len(json.dumps(state)) < 200
    assert order.step_of(json.loads(json.dumps(state))) == 10**9
    expected = order.batch(10**9)
    for hosts in (8, 64, 256):
        size = (1 << 16) // hosts
        part = order.part(order.step_of(state), hosts - 1, hosts)
        assert np.array_equal(part, expected[-size:])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data": "b"}, "its records differ"),
        ({"global_batch": 16}, "its global batch has 8 records, not 16"),
        ({"seed": 3}, "its seed is 0, not 3"),
        ({"run": 9}, "its shuffling differs"),
        ({"shuffle": False}, "its shuffling differs"),
        ({"remainder": "keep"}, "its shuffling differs"),
    ],
)
def test_a_state_of_another_order_is_refused_with_the_reason(change: dict, reason: str):
    order = GlobalOrder(records=100, global_batch=8, data="a", block=2, run=4)
    with pytest.raises(UsageError, match=reason):
        replace(order, **change).step_of(order.state(5))


def test_what_is_no_state_of_this_version_is_refused():
    order = GlobalOrder(records=100, global_batch=8)
    with pytest.raises(UsageError, match="was saved by an earlier version"):
        order.step_of({"records": 5, "order": "0123456789abcdef"})
    with pytest.raises(UsageError, match="another version of imageshards"):
        order.step_of({**order.state(1), "version": 2})
    with pytest.raises(UsageError, match="step of the state -1"):
        order.step_of({**order.state(1), "step": -1})
    for wrong in ({}, None, json.dumps(order.state(1))):
        with pytest.raises(UsageError, match="is not a state: pass the dict"):
            order.step_of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record_bytes", "batch", "window", "expected"),
    [
        (108_000, 128, None, (2, 9)),
        (108_000, 4096, None, (1, 4)),
        (2_000, 128, None, (128, 512)),
        (2_000, 1, None, (524, 65_536)),
        (20_000_000, 8, None, (1, 4)),
        (2_000, 128, 1024, (2, 8)),
    ],
)
def test_blocks_and_runs_are_bounded(record_bytes, batch, window, expected):
    assert block_and_run(1_000_000, record_bytes, batch, window) == expected


def together(order: GlobalOrder, epochs: int) -> np.ndarray:
    """bool [epochs, records]: whether a record and the next one of the files meet in a batch."""
    found = []
    for epoch in range(epochs):
        batch_of = np.full(order.records + 1, -1)
        numbers = np.arange(order.steps * order.global_batch)
        records = order.samples(numbers + epoch * len(numbers))
        batch_of[records] = numbers // order.global_batch
        batch_of[-1] = -2
        found.append((batch_of[:-2] == batch_of[1:-1]) & (batch_of[:-2] >= 0))
    return np.array(found)


def test_neighbours_of_the_files_rarely_meet_in_a_batch():
    records, batch = 40_000, 128
    block, run = block_and_run(records, 108_000, batch)
    in_blocks = together(GlobalOrder(records, batch, block=block, run=run), 2)
    permuted = together(GlobalOrder(records, batch), 2)
    chance = batch / records
    assert 0.5 * chance < permuted.mean() < 1.5 * chance
    # A tenth of the 5 % of tf.data's interleave and buffer of the same size.
    assert in_blocks.mean() < 1.5 * chance
    assert (in_blocks[0] & in_blocks[1]).mean() < 0.001


@pytest.mark.parametrize("remainder", ["keep", "pad"])
def test_an_incomplete_batch_is_shuffled_like_the_others(remainder):
    order = GlobalOrder(40_100, 128, block=16, run=64, remainder=remainder)
    places = order.records % order.global_batch
    for epoch in range(20):
        last = np.sort(order.batch(order.steps * (epoch + 1) - 1)[:places])
        assert len(np.unique(last)) == places
        # Neighbours in the files are as rare as in a random batch, where 0.1 are expected.
        assert (np.diff(last) < 16).sum() <= 5
        assert last[0] < 8_000
        assert last[-1] > 32_000


def test_states_of_a_permutation_do_not_depend_on_how_files_are_read():
    order = GlobalOrder(records=1000, global_batch=8, run=50)
    assert replace(order, run=1).step_of(order.state(5)) == 5


def test_batches_of_files_sorted_by_class_have_all_classes():
    records, batch, classes = 40_000, 128, 10
    block, run = block_and_run(records, 2_000, batch)
    order = GlobalOrder(records, batch, block=block, run=run)
    labels = order.samples(np.arange(order.steps * batch)).reshape(-1, batch) * classes // records
    counts = np.stack([(labels == label).sum(1) for label in range(classes)])
    # A random batch has a variance of batch * p * (1 - p) in each class.
    assert counts.var() < 1.3 * batch * 0.1 * 0.9
    assert abs(counts.mean(1) - batch / classes).max() < 0.5
