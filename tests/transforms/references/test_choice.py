"""The draw of references, against a simple model: sort everything, and take the first."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references import batch_of

from imageshards.transforms.elements import BuildError, Problem
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.order import divide
from imageshards.transforms.references.selection.choice import (
    Census,
    Choice,
    Cuts,
    Totals,
    draw_keys,
    draw_order,
)

TOO_LARGE = Problem("read", "TooLarge", "too many bytes")


def draw(choice: Choice, batch: RefBatch, bits: int = 3) -> list[RefBatch]:
    """The references that are taken, as the graph takes them: by group, and by group of classes."""
    groups = {
        group: draw_order([part])[0] for group, part in divide(batch, draw_keys(batch.keys), bits)
    }
    parts: dict[int, list[Census]] = defaultdict(list)
    for group, refs in groups.items():
        for number, part in choice.census(group, refs).divided(2):
            parts[number].append(part)
    cuts = []
    if parts:
        every = Totals.concat(map(Totals.of, parts.values()))
        bounds = choice.bounds(every.counts)
        for part in parts.values():
            rows = np.searchsorted(every.classes, Totals.of(part).classes)
            cuts.append(Cuts.of(part, bounds[rows]))
    return [choice.take(group, refs, Cuts.concat(cuts)) for group, refs in groups.items()]


def uris(batches: list[RefBatch]) -> set[str]:
    return {uri for batch in batches for uri in batch.uris}


@st.composite
def datasets(draw: st.DrawFn) -> RefBatch:
    """References with some duplicates, and some that cannot become records."""
    labels = draw(st.lists(st.sampled_from("aaabbc"), min_size=1, max_size=60))
    twice = draw(st.lists(st.integers(0, len(labels) - 1), max_size=5))
    numbers = [*range(len(labels)), *twice]
    bad = draw(st.sets(st.integers(0, len(labels) - 1), max_size=3))
    return batch_of(
        [f"/d/{labels[number]}/{number}.jpg" for number in numbers],
        problems={row: TOO_LARGE for row, number in enumerate(numbers) if number in bad},
    )


def model(batch: RefBatch, by_class: bool) -> dict[str | None, list[str]]:
    """Class -> URIs of its good references in the order of the draw."""
    found: dict[str | None, dict[str, None]] = defaultdict(dict)
    for row in np.argsort(draw_keys(batch.keys), kind="stable").tolist():
        if row not in batch.problems:
            found[batch.labels[row] if by_class else None][batch.uris[row]] = None
    return {label: list(uris) for label, uris in found.items()}


def good(batches: list[RefBatch]) -> set[str]:
    return {
        uri for batch in batches for row, uri in enumerate(batch.uris) if row not in batch.problems
    }


def in_split(batch: RefBatch, split: str) -> list[int]:
    return [row for row, name in enumerate(batch.splits) if name == split]


@settings(max_examples=30)
@given(datasets(), st.integers(1, 30), st.integers(0, 5))
def test_so_many_of_each_class_are_taken(batch: RefBatch, number: int, bits: int):
    taken = draw(Choice(per_class=number), batch, bits + 1)
    expected = model(batch, by_class=True).values()
    if expected:
        assert good(taken) == {uri for uris in expected for uri in uris[:number]}
    assert len(uris(taken)) == sum(map(len, taken))  # a duplicate is dropped, and takes no place


@settings(max_examples=30)
@given(datasets(), st.integers(1, 30))
def test_so_many_of_all_are_taken(batch: RefBatch, number: int):
    expected = model(batch, by_class=False).get(None)
    if expected:
        assert good(draw(Choice(limit=number), batch)) == set(expected[:number])


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 60), st.integers(1, 200))
def test_a_limit_takes_the_same_fraction_of_each_class(
    totals: list[int], per_class: int, limit: int
):
    available = [min(total, per_class) for total in totals]
    choice = Choice(per_class=per_class, limit=limit)
    taken = choice.bounds(np.array(totals))[:, 0].tolist()
    assert sum(taken) == min(limit, sum(available))
    fraction = sum(taken) / sum(available)
    for got, most in zip(taken, available, strict=True):
        assert abs(got - fraction * most) < 1


def test_counts_of_billions_are_exact():
    totals = np.array([3, 4_000_000_000, 5_000_000_000])
    taken = Choice(per_class=5_000_000_000, limit=4_500_000_001).bounds(totals)[:, 0]
    assert taken.sum() == 4_500_000_001
    assert abs(int(taken[2]) - 2_500_000_000) < 2


@settings(max_examples=30)
@given(datasets(), st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_splits_by_count_are_exact(batch: RefBatch, train: int, test: int, stratify: bool):
    splits = ("train", "test")
    choice = Choice(splits=splits, counts=(train, test), stratify=stratify)
    expected = model(batch, by_class=stratify)
    if not expected:
        return
    available = sum(map(len, expected.values()))
    if available < train + test:
        with pytest.raises(BuildError, match=f"there are {available} images for {train + test}:"):
            draw(choice, batch)
        return
    taken = draw(choice, batch)
    found = {name: good([part.take(in_split(part, name)) for part in taken]) for name in splits}
    assert (len(found["train"]), len(found["test"])) == (train, test)
    assert not found["train"] & found["test"]
    if not stratify:
        (order,) = expected.values()
        assert found == {"train": {*order[:train]}, "test": {*order[train : train + test]}}


@settings(max_examples=30)
@given(datasets(), st.floats(0.1, 0.9), st.integers(0, 4))
def test_each_class_is_within_one_image_of_its_share(batch: RefBatch, ratio: float, number: int):
    ratios = (ratio, 1 - ratio)
    choice = Choice(per_class=number, splits=("test", "train"), ratios=ratios, stratify=True)
    taken = draw(choice, batch)
    for order in model(batch, by_class=True).values():
        order = order[:number] if number else order
        for name, share in zip(choice.splits, ratios, strict=True):
            found = good([part.take(in_split(part, name)) for part in taken])
            assert abs(len(found & {*order}) - share * len(order)) < 1 + 1e-6
            assert name == "test" or found & {*order}


@settings(max_examples=30)
@given(datasets(), st.integers(1, 20))
def test_when_a_data_set_grows_new_images_only_displace_others(batch: RefBatch, number: int):
    expected = model(batch, by_class=True)
    if not expected:
        return
    before = good(draw(Choice(per_class=number), batch))
    grown = RefBatch.concat([batch, batch_of([f"/d/a/new{at}.jpg" for at in range(5)])])
    after = good(draw(Choice(per_class=number), grown))
    assert not {uri for uri in after - before if "new" not in uri}


def test_the_order_of_the_drawn_is_that_of_all():
    """The draw does not favour the beginning of the data set's order, nor its end."""
    keys = np.sort(np.random.default_rng(0).integers(0, 1 << 64, 100_000, np.uint64))
    drawn = np.argsort(draw_keys(keys))[:1000]  # ranks in the order of the data set
    mean = drawn.mean() / len(keys)
    assert abs(mean - 0.5) < 4 * (1 / 12 / len(drawn)) ** 0.5
    later = np.argsort(draw_keys(keys))[1000:]
    assert np.intersect1d(drawn, later).size == 0


@pytest.mark.parametrize("limit", [0, 4])
def test_images_that_cannot_be_records_take_no_place(limit: int):
    names = [f"/d/a/{number}.jpg" for number in range(40)]
    problems = dict.fromkeys(range(0, 40, 2), TOO_LARGE)
    batch = batch_of(names, problems=problems)
    choice = Choice(limit=limit, per_class=0 if limit else 4)
    taken = draw(choice, batch)
    assert len(good(taken)) == 4
    # Rejects are in the sample as often as among all.
    assert len(uris(taken)) < 20


def test_images_without_a_class_are_one():
    batch = batch_of([f"/d/a/{number}.jpg" for number in range(30)], labels=["a", None] * 15)
    taken = draw(Choice(per_class=4), batch)
    assert sorted(f"{label}" for part in taken for label in part.labels) == ["None"] * 4 + ["a"] * 4
