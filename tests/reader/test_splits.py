"""Parts of splits, and the shares of hosts."""

from itertools import pairwise

import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from imageshards.reader.splits import Span, folds, parse_split, share_of, spans_of, take
from imageshards.transforms.elements import UsageError

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(lambda x: sum(x) > 0)


def numbered(spans: list[Span]) -> list[tuple[int, int]]:
    """Every record, as (file, number)."""
    return [(span.file, number) for span in spans for number in range(span.begin, span.end)]


def cut(split: str, lengths: list[int]) -> list[tuple[int, int]]:
    try:
        return numbered(spans_of(split, {"train": dict(enumerate(lengths))}))
    except UsageError as error:
        if "it has no records" not in str(error):
            raise
        return []


@given(LENGTHS, st.lists(st.decimals(0, 100, places=2, allow_nan=False), min_size=1, max_size=6))
def test_parts_of_a_split_are_disjoint_and_complete(lengths, percentages):
    bounds = ["", *(f"{value}%" for value in sorted(percentages)), ""]
    parts = [cut(f"train[{a}:{b}]", lengths) for a, b in pairwise(bounds)]
    whole = cut("train", lengths)
    assert len(whole) == sum(lengths)
    assert [record for part in parts for record in part] == whole


@given(LENGTHS, st.integers(2, 12))
def test_folds_are_disjoint_and_complete(lengths, k):
    whole = sorted(cut("train", lengths))
    tested = []
    for train, test in folds("train", k):
        fold = cut(test, lengths)
        assert sorted(fold + cut(train, lengths)) == whole
        assert abs(len(fold) - len(whole) / k) <= 1
        tested += fold
    assert sorted(tested) == whole


@given(LENGTHS, st.integers(1, 12), st.data())
def test_shares_of_hosts_are_disjoint_and_complete(lengths, hosts, data):
    spans = spans_of("train", {"train": dict(enumerate(lengths))})
    whole = numbered(spans)
    if len(whole) < hosts:
        return
    shares = [numbered(share_of(spans, hosts, host)) for host in range(hosts)]
    assert [record for share in shares for record in share] == whole
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= max(1, 0.05 * max(sizes))


def test_more_hosts_than_records_are_refused():
    with pytest.raises(UsageError, match="use fewer hosts"):
        share_of([Span(0, 0, 2)], 3, 0)
    with pytest.raises(UsageError, match="use fewer hosts"):
        share_of([], 2, 0)


def test_hosts_get_whole_files_if_their_number_is_a_multiple():
    spans = spans_of("train", {"train": {file: 100 + file % 2 for file in range(16)}})
    assert share_of(spans, 8, 3) == [Span(6, 0, 100), Span(7, 0, 101)]


@given(LENGTHS, st.integers(0, 100), st.integers(0, 500))
def test_take_is_a_slice(lengths, begin, count):
    spans = spans_of("train", {"train": dict(enumerate(lengths))})
    assert numbered(take(spans, begin, begin + count)) == numbered(spans)[begin : begin + count]


@pytest.mark.parametrize(
    "split",
    [
        "train", "train[:10%]", "train[33%:67%]", "train[-25%:]", "train[:-25%]", "train[50:60]",
        "train[1_0:]", "train[-7:]", "train[2shard:4shard]", "train[-1shard:]",
        "train[:5%]+test", "train[95%:]+train[:5%]",
    ],
)  # fmt: skip
def test_bounds_are_those_of_tensorflow_datasets(split):
    lengths = {"train": [29, 30, 31, 30, 29], "test": [7, 8]}
    infos = [
        tfds.core.SplitInfo(
            name=name, shard_lengths=sizes, num_bytes=0,
            filename_template=tfds.core.ShardedFileTemplate(
                data_dir="/none", dataset_name="x", split=name, filetype_suffix="tfrecord"
            ),
        )
        for name, sizes in lengths.items()
    ]  # fmt: skip
    theirs = []
    for instruction in tfds.core.splits.SplitDict(infos)[split].file_instructions:
        name, shard = instruction.filename.split("/")[-1].split(".tfrecord-")
        place = int(shard.split("-")[0]) + (5 if name.endswith("test") else 0)
        begin, count = instruction.skip, instruction.take
        end = (lengths["train"] + lengths["test"])[place] if count == -1 else begin + count
        theirs += [(place, number) for number in range(begin, end)]
    ours = numbered(
        spans_of(
            split,
            {
                "train": dict(enumerate(lengths["train"])),
                "test": {5 + place: size for place, size in enumerate(lengths["test"])},
            },
        )
    )
    assert theirs == ours


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("valid", "there is no 'valid'; there are train"),
        ("train[", "at 'train['"),
        ("train[0.5:]", "must be an integer or a percentage"),
        ("train[:101%]", "at most 100"),
        ("train[:11]", "the split has 10 records"),
        ("train[3shard:]", "the split has 2 shards"),
        ("train[5:5]", "it has no records"),
        ("train[a:b]", "at 'train[a:b]'"),
        ("train[_:]", "at 'train[_:]'"),
        ("train[:-_%]", "at 'train[:-_%]'"),
    ],
)
def test_a_wrong_split_is_one_line(split, message):
    with pytest.raises(UsageError) as caught:
        spans_of(split, {"train": {0: 5, 1: 5}})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folds_of_a_part_are_refused():
    with pytest.raises(UsageError, match="folds require a whole split"):
        folds("train[:50%]", 5)
    with pytest.raises(UsageError, match="must be at least 2"):
        folds("train", 1)


def test_a_sum_is_parsed_to_its_terms():
    assert [part.name for part in parse_split("train[:50%] + validation")] == [
        "train", "validation",
    ]  # fmt: skip
