"""Mixtures of data sets, and weights of classes, of reader.load and reader.grain."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import image_bytes

from imageshards import reader
from imageshards.reader.files import find
from imageshards.transforms.elements import UsageError

NAME = "image/filename"
READERS = [reader.load, reader.grain]


def mixed(read, place: Any, hosts: int, batch: int, steps: int, **options: Any) -> list[list[str]]:
    """The names of the images in the first global batches."""
    parts = [
        iter(read(place, "train", keys=[NAME], decode=False, batch_size=batch // hosts,
                  num_hosts=hosts, host=host, **options))
        for host in range(hosts)
    ]  # fmt: skip
    return [
        [name.decode() for part in parts for name in np.asarray(next(part)[NAME])]
        for _ in range(steps)
    ]


def test_mixtures_have_their_proportions_on_any_number_of_hosts(dataset):
    weights = {dataset: 0.75, str(dataset): [(0, 0.25), (10, 0)]}
    whole = mixed(reader.load, weights, 1, 16, 20)
    assert mixed(reader.load, weights, 4, 16, 20) == whole
    assert mixed(reader.grain, weights, 2, 16, 20) == whole
    assert mixed(reader.load, weights, 2, 16, 15, start=5 * 8) == whole[5:]
    # 75 % of 10 steps, and all of 10 more, are more than two epochs of the first.
    counts = Counter(name for one in whole for name in one)
    assert counts.total() == 320
    assert len(counts) == 120
    for read in READERS:
        data = read(weights, "train", batch_size=16, image_size=8)
        assert len(next(iter(data))[1]) == 16
        assert (data.records, data.steps_per_epoch, data.dropped, data.padded) == (240, 15, 0, 0)


def test_a_curriculum_is_a_function_of_the_step(dataset):
    def later(step: int) -> float:
        return min(step / 300, 1)

    weights = {dataset: 1, str(dataset): later}
    options = {"batch_size": 24, "decode": False}
    loaded = reader.load(weights, "train", **options).starting_at(24 * 400).iterator()
    state = loaded.state()
    expected = next(loaded)[0].numpy().tolist()
    for hosts in (1, 3):
        data = [
            iter(reader.grain(weights, "train", **{**options, "batch_size": 24 // hosts},
                              num_hosts=hosts, host=host))
            for host in range(hosts)
        ]  # fmt: skip
        for one in data:
            one.set_state(state)
            assert one.get_state() == state
        assert [image for one in data for image in next(one)[0].tolist()] == expected
    for weight in (lambda step: step / 300, lambda _: 1):
        changed = reader.load({dataset: 1, str(dataset): weight}, "train", **options)
        with pytest.raises(UsageError, match="its shuffling differs"):
            changed.iterator().restore(json.loads(json.dumps(state)))


@pytest.mark.parametrize("read", READERS)
def test_an_invalid_weight_of_a_later_step_is_one_line(dataset, read):
    weights = {dataset: 1, str(dataset): lambda step: -1 if step else 1}
    data = iter(read(weights, "train", batch_size=40, decode=False))
    with pytest.raises(UsageError, match=r"invalid weight -1 of .*out at step \d+: must be"):
        list(islice(data, 200))


@pytest.mark.parametrize("read", READERS)
def test_classes_are_balanced_or_weighted(dataset, read):
    source = find(dataset)

    def counted(balance: object, steps: int = 40) -> Counter[str]:
        data = read(dataset, "train", batch_size=12, decode=False, balance=balance)
        labels = [int(label) for _, labels in islice(data, steps) for label in labels]
        return Counter(source.classes[label] for label in labels)

    of_each = counted("class")
    assert set(of_each) == set(source.classes)
    assert max(of_each.values()) - min(of_each.values()) <= 2
    first, second = source.classes[:2]
    assert counted({first: 3, second: [(0, 0), (20, 1)]}) == {
        first: 240 + 180, second: 60,
    }  # fmt: skip


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        (None, {"balance": "label"}, "invalid balance 'label': must be \"class\""),
        (None, {"balance": ["class"]}, r"invalid balance \['class'\]: must be \"class\""),
        (None, {"balance": {"nothing": 1}}, "no class 'nothing': imageshards inspect lists"),
        (None, {"balance": {"clas01": 1}}, "no class 'clas01': did you mean 'class01'"),
        (None, {"balance": "class", "repeat": False}, "balance requires repeat=True and shuffle"),
        (None, {"balance": "class", "label_key": ""}, "balance requires class labels"),
        (1, {"balance": "class"}, "balance is for one data set"),
        (1, {"shuffle": False}, "a mixture requires repeat=True and shuffle"),
        (-1, {}, "invalid weight -1 of .*out: must be a number"),
        (lambda step: 1 / step, {}, "weight of .*out failed at step 0: ZeroDivisionError: div"),
        (lambda _: "x", {}, "invalid weight 'x' of .*out at step 0: must be a number"),
        (lambda _: 0, {}, "the weights of step 0 are all 0"),
    ],
)
def test_wrong_weights_are_one_line(dataset, read, weight, options: dict, message: str):
    place = dataset if weight is None else {dataset: weight}
    with pytest.raises(UsageError, match=message) as caught:
        read(place, "train", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", READERS)
def test_a_mixture_has_a_data_set(read):
    with pytest.raises(UsageError, match="a mixture without data sets"):
        read({}, "train")


def test_data_sets_of_other_classes_are_not_mixed(dataset, build, tmp_path: Path):
    (tmp_path / "in/other").mkdir(parents=True)
    (tmp_path / "in/other/a.png").write_bytes(image_bytes(1, "PNG"))
    build(tmp_path / "in", num_shards="1", splits="train=1")
    with pytest.raises(UsageError, match="differ in their classes: build them with the same"):
        reader.load({dataset: 1, tmp_path / "out": 1}, "train")
