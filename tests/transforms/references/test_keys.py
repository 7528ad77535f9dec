from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from imageshards.transforms.elements import to_bytes
from imageshards.transforms.references import keys


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_keys_never_change():
    # Every data set that was ever built depends on these.
    order, split = keys.hash_keys(0, [b"a", "gs://b/ü.jpg".encode()])
    assert (order.tolist(), split.tolist()) == GOLDEN
    assert keys.hash_keys(1, [b"a"])[0][0] != order[0]


GOLDEN = (
    [17452961901897552640, 8635451042688379466],
    [4583466965643706229, 17676218766732760677],
)


def test_names_that_are_not_utf8_have_keys():
    name = to_bytes(b"caf\xe9.jpg".decode("utf-8", "surrogateescape"))
    assert len(set(keys.hash_keys(0, [name, "café.jpg".encode()])[0])) == 2


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_shards_are_even_and_complete(total: int, num_shards: int):
    pieces = keys.cut(0, total, num_shards, total)
    assert sum(stop - start for _, start, stop in pieces) == total
    sizes = Counter({shard: stop - start for shard, start, stop in pieces})
    if total >= num_shards:
        assert len(sizes) == num_shards
        assert max(sizes.values()) - min(sizes.values()) <= 1


@given(st.integers(1, 2_000), st.integers(1, 50), st.data())
def test_cuts_agree_wherever_a_group_begins(total: int, num_shards: int, data: st.DataObject):
    first = data.draw(st.integers(0, total))
    count = data.draw(st.integers(0, total - first))
    of_rank = {
        first + rank: shard
        for shard, start, stop in keys.cut(first, count, num_shards, total)
        for rank in range(start, stop)
    }
    assert of_rank == {rank: rank * num_shards // total for rank in range(first, first + count)}


def test_thresholds_give_the_ratios():
    _, drawn = keys.hash_keys(3, numbers(20_000))
    counts = Counter(keys.split_indices(drawn, keys.split_thresholds([0.7, 0.2, 0.1])).tolist())
    assert abs(counts[0] / 20_000 - 0.7) < 0.01
    assert abs(counts[2] / 20_000 - 0.1) < 0.01


def test_order_and_split_are_independent():
    order, split = keys.hash_keys(0, numbers(20_000))
    middle = 1 << 63
    both = sum(a < middle and b < middle for a, b in zip(order, split, strict=True))
    assert abs(both / 20_000 - 0.25) < 0.012


def test_a_split_keeps_its_images_when_a_later_ratio_changes():
    _, drawn = keys.hash_keys(0, numbers(1000))
    two = keys.split_indices(drawn, keys.split_thresholds([0.8, 0.2]))
    three = keys.split_indices(drawn, keys.split_thresholds([0.8, 0.1, 0.1]))
    assert [place == 0 for place in two] == [place == 0 for place in three]


def test_a_tiny_ratio_still_gets_the_largest_key():
    largest = np.array([2**64 - 1], dtype=np.uint64)
    assert keys.split_indices(largest, keys.split_thresholds([1 - 1e-20, 1e-20])) == [1]
