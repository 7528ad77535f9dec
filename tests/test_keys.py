from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from imageshards.transforms import keys


def test_keys_never_change():
    # Every data set that was ever built depends on these.
    assert keys.hash_keys(0, "shuffle", ["a", "gs://b/ü.jpg"]).tolist() == GOLDEN
    assert keys.hash_keys(1, "shuffle", ["a"])[0] != GOLDEN[0]
    assert keys.hash_keys(0, "split", ["a"])[0] != GOLDEN[0]


GOLDEN = [14299869903122803255, 1389006522101138338]


def test_names_that_are_not_utf8_have_keys():
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    assert len(set(keys.hash_keys(0, "shuffle", [name, "café.jpg"]))) == 2


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
    thresholds = keys.split_thresholds([0.7, 0.2, 0.1])
    drawn = keys.hash_keys(3, "split", map(str, range(20_000)))
    counts = Counter(keys.split_index(key, thresholds) for key in drawn)
    assert abs(counts[0] / 20_000 - 0.7) < 0.01
    assert abs(counts[2] / 20_000 - 0.1) < 0.01


def test_a_split_keeps_its_images_when_a_later_ratio_changes():
    drawn = keys.hash_keys(0, "split", map(str, range(1000)))
    two = keys.split_thresholds([0.8, 0.2])
    three = keys.split_thresholds([0.8, 0.1, 0.1])
    assert all(
        (keys.split_index(key, two) == 0) == (keys.split_index(key, three) == 0) for key in drawn
    )
