"""Labels, splits, groups, duplicates, and the plan made of their counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import annotator, batch_of, listing, tally

from imageshards.transforms import dedupe
from imageshards.transforms.elements import BuildError, Problem
from imageshards.transforms.references import order, plan
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.order import partition, sort_group
from imageshards.transforms.references.plan import Plan, Planner
from imageshards.transforms.references.rules import ShardCounts
from imageshards.transforms.references.tally import Tally


def planned(batch: RefBatch, planner: Planner | None = None) -> Plan:
    return (planner or Planner(ShardCounts.parse("1"))).plan(tally(batch))


def test_labels_follow_their_rule():
    uris = ["/d/cat/apple01.jpg", "/d/dog/Pear.jpg"]
    assert list(annotator().annotate(listing(uris)).labels) == ["cat", "dog"]
    assert list(annotator("none").annotate(listing(uris)).labels) == [None, None]
    batch = annotator(r"regex:([a-z]+)\d+\.jpg").annotate(listing(uris))
    assert list(batch.labels) == ["apple", None]
    assert batch.problems == {
        1: Problem("label", "NoLabel", r"the URI does not match '([a-z]+)\\d+\\.jpg'")
    }
    batch = annotator("column").annotate(listing(uris, label=["7", None]))
    assert list(batch.labels) == ["7", None]
    assert batch.problems[1].error == "NoLabel"


def test_auto_takes_a_column_if_there_is_one():
    uris = ["/d/cat/1.jpg"]
    assert list(annotator("auto").annotate(listing(uris, label=["x"])).labels) == ["x"]
    assert list(annotator("auto").annotate(listing(uris)).labels) == ["cat"]
    assert annotator("auto", "auto").annotate(listing(uris, split=["val"])).splits == ["val"]
    assert annotator("auto", "auto").annotate(listing(uris)).splits == ["train"]


def test_splits_follow_folders_and_columns():
    uris = ["/d/train/cat/1.jpg", "/d/val/cat/1.jpg"]
    assert annotator(splits="folder").annotate(listing(uris)).splits == ["train", "val"]
    with pytest.raises(BuildError, match=r"/d/misc/1.jpg: split 'misc'; it must be one of train,"):
        annotator(splits="folder").annotate(listing(["/d/misc/1.jpg"]))
    with pytest.raises(BuildError, match=r"/d/1.jpg: no split"):
        annotator(splits="folder").annotate(listing(["/d/1.jpg"]))
    with pytest.raises(BuildError, match="no split"):
        annotator(splits="column").annotate(listing(uris, split=["train", None]))


def test_a_group_is_never_torn_apart():
    uris = [f"/d/p{i // 10:03d}/{i}.jpg" for i in range(2000)]
    for rule in ("dirname", r"regex:(p\d+)/"):
        splits = annotator(splits="train=0.5,test=0.5", groups=rule).annotate(listing(uris)).splits
        assert all(len(set(splits[i : i + 10])) == 1 for i in range(0, 2000, 10))
        assert 600 < splits.count("test") < 1400
    column = annotator(splits="train=0.5,test=0.5", groups="column:patient")
    batch = column.annotate(listing(uris[:2], patient=["a", None]))
    assert batch.problems[1].error == "NoGroup"


def test_an_image_keeps_its_split_when_the_data_set_grows():
    rule = annotator(splits="train=0.8,test=0.2")
    today = [f"/d/{i}.jpg" for i in range(500)]
    before = rule.annotate(listing(today)).splits
    after = rule.annotate(listing([*today, *(f"/e/{i}.jpg" for i in range(500))])).splits
    assert after[:500] == before


def test_base_uri_makes_a_copy_elsewhere_the_same():
    here = annotator(base="/d/").annotate(listing(["/d/a/1.jpg", "/x/2.jpg"]))
    there = annotator(base="/e/f/").annotate(listing(["/e/f/a/1.jpg", "/x/2.jpg"]))
    assert here.keys.tolist() == there.keys.tolist()
    above = annotator(base="/").annotate(listing(["/d/a/1.jpg"]))
    assert above.keys[0] != here.keys[0]


def test_groups_by_folder_do_not_depend_on_where_the_input_is():
    names = ["a.jpg", "b.jpg", "p1/c.jpg", "p2/d.jpg"]
    rule = annotator(splits="train=0.5,test=0.5", groups="dirname")
    for seed in range(20):
        here, there = (
            replace(rule, seed=seed).annotate(listing([root + name for name in names], root)).splits
            for root in ("/d/photos/", "/e/copy/")
        )
        assert here == there
        assert here[0] == here[1], "the input itself is a group"


def test_groups_by_a_regular_expression_do_not_depend_on_where_the_input_is():
    names = [f"{patient}/{scan}.jpg" for patient in range(8) for scan in range(2)]
    rule = annotator(splits="train=0.5,test=0.5", groups=r"regex:(.*)/\d")
    for seed in range(5):
        here, there = (
            replace(rule, seed=seed).annotate(listing([root + name for name in names], root)).splits
            for root in ("/d/photos/", "/e/copy/")
        )
        assert here == there
        assert here[::2] == here[1::2]


def test_folders_that_are_inputs_are_groups_below_a_base():
    refs = RefBatch.listed(["/scans/p1/a.jpg", "/scans/p1/b.jpg", "/scans/p2/c.jpg"], [10] * 3)
    rule = annotator(splits="train=0.5,test=0.5", groups="dirname", base="/scans/")
    splits = [replace(rule, seed=seed).annotate(refs).splits for seed in range(20)]
    assert all(first == second for first, second, _ in splits)
    assert any(first != third for first, _, third in splits)


@given(st.lists(st.integers(0, 60)))
def test_partition_and_sort_lose_nothing(numbers: list[int]):
    batch = batch_of([f"/d/{n}.jpg" for n in numbers])
    parts = dict(partition(batch)) if numbers else {}
    found: list[str] = []
    duplicates = 0
    order = dict(zip(batch.uris, batch.keys.tolist(), strict=True))
    split_of = dict(zip(batch.uris, batch.splits, strict=True))
    last = {"train": -1, "test": -1}
    for bucket in sorted(parts):
        groups, twice = sort_group([parts[bucket]])
        duplicates += twice
        for split, refs in groups.items():
            keys = [order[uri] for uri in refs.uris]
            assert keys == sorted(keys)
            assert {split_of[uri] for uri in refs.uris} == {split}
            assert keys[0] > last[split]
            last[split] = keys[-1]
            found += refs.uris
    assert sorted(found) == sorted({f"/d/{n}.jpg" for n in numbers})
    assert duplicates == len(numbers) - len(found)


def test_problems_travel_with_their_rows():
    uris = [f"/d/{n}.jpg" for n in range(300)]
    problem = Problem("label", "NoLabel", "why")
    batch = batch_of(uris, problems={7: problem, 250: problem})
    halves = [batch[:100], batch[100:]]
    whole = RefBatch.concat(halves)
    assert whole.problems == batch.problems
    bad = [
        ref.uri
        for _, part in partition(whole)
        for refs in sort_group([part])[0].values()
        for ref in refs.refs()
        if ref.problem
    ]
    assert sorted(bad) == ["/d/250.jpg", "/d/7.jpg"]


def test_a_duplicate_that_contradicts_is_a_reject():
    uris = ["/d/x.jpg"] * 4
    batch = batch_of(uris, labels=["b", "a", "a", "c"], splits=["train"] * 4)
    groups, duplicates = sort_group([batch])
    refs = list(groups["train"].refs())
    assert duplicates == 1
    good = [ref for ref in refs if ref.problem is None]
    assert [ref.uri for ref in good] == ["/d/x.jpg"]
    assert {ref.problem.error for ref in refs if ref.problem} == {"ConflictingDuplicate"}
    assert len(refs) + duplicates == 4


def test_equal_keys_of_different_uris_are_no_duplicates():
    batch = batch_of(["/d/b.jpg", "/d/a.jpg"], keys=[5, 5], splits=["train"] * 2)
    groups, duplicates = sort_group([batch])
    assert list(groups["train"].uris) == ["/d/a.jpg", "/d/b.jpg"]
    assert duplicates == 0


def test_classes_are_sorted_and_offset():
    batch = annotator().annotate(listing([f"/d/{c}/1.jpg" for c in ("dog", "ant", "cat")]))
    assert planned(batch).classes == ("ant", "cat", "dog")
    plan = planned(batch, Planner(ShardCounts.parse("1"), label_offset=1))
    assert plan.classes == ("background", "ant", "cat", "dog")
    assert plan.class_of["cat"] == (2, b"cat")


def test_numbers_in_a_column_are_label_numbers():
    batch = annotator("column").annotate(
        listing([f"/d/{i}.jpg" for i in range(3)], label=["2", "10", "2"])
    )
    one = ShardCounts.parse("1")
    plan = Planner(one).plan(tally(batch, columns=True))
    assert len(plan.classes) == 11
    assert plan.labels == {"10": 10, "2": 2}
    names = tuple("abcdefghijk")
    plan = Planner(one, class_names=names).plan(tally(batch, columns=True))
    assert plan.class_of["10"] == (10, b"k")
    with pytest.raises(BuildError, match="does not hold 1 of the labels found: '10'"):
        Planner(one, class_names=names[:5]).plan(tally(batch, columns=True))
    # The same texts as names of folders are names.
    assert Planner(one).plan(tally(batch)).classes == ("10", "2")


def test_class_names_must_have_every_label():
    batch = annotator().annotate(listing(["/d/ant/1.jpg", "/d/owl/1.jpg"]))
    given_names = Planner(ShardCounts.parse("1"), class_names=("owl", "eel", "ant"))
    assert planned(batch, given_names).labels == {"ant": 2, "owl": 0}
    with pytest.raises(
        BuildError, match="--class_names does not hold 1 of the labels found: 'ant'"
    ):
        planned(batch, Planner(ShardCounts.parse("1"), class_names=("owl",)))


def test_a_class_name_must_fit_on_a_line():
    batch = annotator().annotate(listing(["/d/a\nb/1.jpg"]))
    with pytest.raises(BuildError, match="has a line break"):
        planned(batch)


def test_impossible_shards_and_splits_are_errors():
    batch = batch_of([f"/d/c/{i}.jpg" for i in range(10)])
    with pytest.raises(BuildError, match=r"has \d images for 16 shards: write --num_shards \d or"):
        planned(batch, Planner(ShardCounts.parse("16")))
    with pytest.raises(BuildError, match="split 'validation' gets none of 10 images"):
        planned(batch, Planner(ShardCounts.parse("1"), ("train", "test", "validation")))
    with pytest.raises(BuildError, match="names the split 'tset'"):
        planned(batch, Planner(ShardCounts.parse("tset=1")))
    with pytest.raises(BuildError, match="no image"):
        Planner(ShardCounts.parse("1")).plan(Tally())


def test_auto_aims_at_150_megabytes_and_says_so():
    found = Tally(
        images={("train", 0): 50_000},
        acceptable={"train": 50_000},
        num_bytes={"train": 400_000_000},
        sized={"train": 10_000},
        listed=50_000,
    )
    plan = Planner(ShardCounts.parse("auto")).plan(found)
    assert plan.splits["train"].num_shards == 13
    assert plan.splits["train"].bytes == 2_000_000_000
    assert (
        "train: 13 shards for 2.0 GB of images, estimated from 10,000 of 50,000 (" in plan.notes[0]
    )


def test_tallies_add_up_in_any_order():
    batch = batch_of([f"/d/c{i % 3}/{i}.jpg" for i in range(500)])
    parts = [Tally(listed=250), Tally(listed=250)]
    for bucket, part in partition(batch):
        groups, twice = sort_group([part])
        parts.append(Tally.of(bucket, groups, twice, {s: r.sizes for s, r in groups.items()}))
    forward = Tally.merge(parts)
    backward = Tally.merge([Tally.merge(reversed(parts[100:])), Tally.merge(parts[:100])])
    planner = Planner(ShardCounts.parse("4"))
    assert planner.plan(forward).digest == planner.plan(backward).digest


def test_large_references_of_a_small_split_are_stored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "MOST_SHARD_BYTES", 10_000)
    names = [f"/d/{number}.jpg" for number in range(100)]
    names += [f"/d/{number}{'x' * 5000}.jpg" for number in range(4)]
    found = planned(batch_of(names, splits=["train"] * 100 + ["test"] * 4))
    assert found.stores_references("test")
    assert not found.stores_references("train")


def test_a_uri_that_is_listed_too_often_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(order, "_MOST_HELD", 100)
    monkeypatch.setattr(order, "_MOST_OF_URI", 200)
    count, ends = 1000, range(0, 1000, 50)
    one = batch_of(["/d/x.jpg"] * count, splits=["train"] * count)
    groups, duplicates = sort_group(one[at : at + 50] for at in ends)
    assert (len(groups["train"]), duplicates) == (1, count - 1)
    labels: list[str | None] = [f"{number}" for number in range(count)]
    several = batch_of([f"/d/{n % 10}.jpg" for n in range(count)], labels=labels)
    listed = sum(len(refs) for refs in sort_group([several])[0].values())
    assert listed == count
    one = batch_of(["/d/x.jpg"] * count, labels=labels)
    parts = (one[at : at + 50] for at in ends)
    with pytest.raises(BuildError, match=r"'/d/x\.jpg' is listed more than 200 times") as error:
        sort_group(parts)
    assert "\n" not in f"{error.value}"
    assert sum(map(len, parts)) >= 700  # the others are not read


def test_which_duplicate_is_taken_does_not_depend_on_arrival():
    uris = ["/d/x.jpg"] * 3
    none = Problem("label", "NoLabel", "no value")
    rows = batch_of(uris, labels=["cat", None, "dog"], splits=["train"] * 3, problems={1: none})
    found = set()
    for arrival in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        groups, duplicates = sort_group([rows.take([row]) for row in arrival])
        assert duplicates == 0
        found.add(tuple((r.label, r.problem) for r in groups["train"].refs()))
    assert len(found) == 1
    taken, *rejects = next(iter(found))
    assert taken == ("cat", None)
    assert [problem.error for _, problem in rejects] == ["ConflictingDuplicate", "NoLabel"]


def test_copies_of_one_image_are_marked_in_parts(monkeypatch: pytest.MonkeyPatch):
    batch = batch_of([f"/d/{number}.jpg" for number in range(100)], splits=["train"] * 100)
    digests = [None if number == 7 else b"%d" % (number < 90) for number in range(100)]
    batch = batch.with_pixels(digests)
    parts = [RefBatch.unpack(*batch[at : at + 10].packed()) for at in range(0, 100, 10)]
    packed_bytes = [part.held_bytes for part in parts]

    def marked(batches: list[RefBatch]) -> dict[str, Problem | None]:
        found = [refs for _, refs in dedupe._mark((0, batches))]
        return {ref.uri: ref.problem for part in found for ref in part.refs()}

    whole = marked([batch])
    monkeypatch.setattr(dedupe, "_HELD_BYTES", 1)
    assert marked(parts) == marked(parts[::-1]) == whole
    assert [part.held_bytes for part in parts] == packed_bytes  # a large group is never unpacked
    keys = dict(zip(batch.uris, batch.keys.tolist(), strict=True))
    for group in (batch.uris[:7] + batch.uris[8:90], batch.uris[90:]):
        first = min(group, key=keys.__getitem__)
        reason = f"the same pixels as {first.rpartition('/')[2]}"
        problem = Problem("dedupe", "DuplicatePixels", reason)
        assert [whole[uri] for uri in group] == [None if u == first else problem for u in group]
    assert whole["/d/7.jpg"] is None


def test_a_runner_that_loses_references_is_detected():
    batch = batch_of([f"/d/{i}.jpg" for i in range(50)])
    lost = Tally.merge([tally(batch[:40]), Tally(listed=10)])
    with pytest.raises(BuildError, match="50 references were listed, but 40 and 0 duplicates"):
        Planner(ShardCounts.parse("1")).plan(lost)


def test_a_base_uri_above_no_image_is_an_error():
    batch = batch_of(["/d/1.jpg"])
    with pytest.raises(BuildError, match="--base_uri /e/: none of the images is below it"):
        planned(batch, Planner(ShardCounts.parse("1"), base="/e/"))


def test_a_split_that_is_not_named_is_an_error():
    batch = batch_of(["/d/1.jpg"], splits=["extra"])
    with pytest.raises(BuildError, match="split 'extra' was found, but the splits are train"):
        planned(batch, Planner(ShardCounts.parse("1"), ("train",)))
