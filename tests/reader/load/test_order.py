"""reader.load: hosts, parts of splits, and the order of the records."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers import loaded_names, names

from imageshards import reader
from imageshards.reader.files import find
from imageshards.reader.ordering.global_order import GlobalOrder
from imageshards.reader.ordering.host_records import HostRecords
from imageshards.reader.tensorflow import recipe
from imageshards.transforms.elements import UsageError

NAME = {"image/filename": tf.io.FixedLenFeature([], tf.string)}


def test_eight_hosts_read_each_record_once_an_epoch(dataset):
    whole = Counter(names(dataset))
    assert whole.total() == len(whole) == 120
    epochs: list[Counter[str]] = [Counter(), Counter()]
    for host in range(8):
        share = reader.load(dataset, "train", features=NAME, num_hosts=8, host=host, shuffle=10)
        assert share.records == share.steps_per_epoch == 15
        mine = [one["image/filename"].decode() for one in share.take(30).as_numpy_iterator()]
        epochs[0].update(mine[:15])
        epochs[1].update(mine[15:])
    assert epochs == [whole, whole]


@pytest.mark.parametrize("container", ["tfrecord", "gzip", "array_record"])
def test_any_number_of_hosts_reads_the_same_global_batches(
    dataset, build, photos: Path, tmp_path: Path, container: str
):
    place = dataset
    if container == "gzip":
        build(photos, num_shards="7", compression="gzip", features="pixels", resize="12x8")
        place = tmp_path / "out"
    elif container == "array_record":
        build(photos, num_shards="7", file_format=container)
        place = tmp_path / "out"

    def batches(hosts: int, begin: int = 0) -> list[list[bytes]]:
        parts = [
            reader.load(
                place, "train", decode=False, batch_size=24 // hosts, num_hosts=hosts, host=host,
                shuffle=32,
            ).starting_at(begin * 24 // hosts)
            for host in range(hosts)
        ]  # fmt: skip
        rounds = zip(*(part.take(8).as_numpy_iterator() for part in parts), strict=True)
        return [[image for images, _ in one for image in images.tolist()] for one in rounds]

    whole = batches(1)
    stored = reader.load(place, "train", decode=False, shuffle=False, repeat=False)
    assert sorted(image for one in whole[:5] for image in one) == sorted(
        image for image, _ in stored.as_numpy_iterator()
    )
    assert batches(3) == batches(8) == whole
    assert batches(6, 4)[:4] == whole[4:]


def test_the_end_of_an_epoch_is_dropped_padded_or_kept(dataset):
    def load(**options: object):
        return reader.load(dataset, "train", features=NAME, batch_size=16, num_hosts=2, **options)

    dropping = load()
    assert (dropping.steps_per_epoch, dropping.dropped, dropping.padded) == (3, 24, 0)
    padding = load(drop_remainder=False)
    assert (padding.steps_per_epoch, padding.dropped, padding.padded) == (4, 0, 8)
    assert {len(one["image/filename"]) for one in padding.take(4)} == {16}
    ended = [load(repeat=False, host=host) for host in range(2)]
    sizes = [[len(one["image/filename"]) for one in part] for part in ended]
    assert sizes == [[16, 16, 16, 16], [16, 16, 16, 8]]
    assert [part.records for part in ended] == [64, 56]
    assert [part.least_records for part in ended] == [56, 56]
    few = reader.load(
        dataset, "train[:40]", batch_size=16, num_hosts=2, host=1, repeat=False, decode=False
    )
    assert [len(labels) for _, labels in few] == [16]
    assert few.steps_per_epoch == few.cardinality() == 1


def test_without_shuffling_the_order_is_that_of_the_files(dataset):
    assert loaded_names(dataset, shuffle=False) == names(dataset)
    assert loaded_names(dataset, "train[10:50]", shuffle=False) == names(dataset)[10:50]


def test_parts_of_a_split_are_disjoint_and_complete(dataset):
    parts = ["train[:33.3%]", "train[33.3%:70%]", "train[70%:]"]
    found = [name for part in parts for name in loaded_names(dataset, part, num_hosts=1)]
    assert sorted(found) == sorted(names(dataset))
    assert sorted(loaded_names(dataset, "+".join(parts))) == sorted(found)


def test_the_order_is_a_function_of_seed_and_epoch(dataset):
    two = loaded_names(dataset, shuffle=32)
    assert two == loaded_names(dataset, shuffle=32)
    tf.random.set_seed(7)
    assert two == loaded_names(dataset, shuffle=32)
    assert two != loaded_names(dataset, shuffle=32, seed=1)
    twice = reader.load(dataset, "train", features=NAME, shuffle=32).take(240)
    twice = [one["image/filename"].decode() for one in twice.as_numpy_iterator()]
    assert twice[:120] == two
    assert sorted(twice[120:]) == sorted(two) != twice[120:]
    assert twice[120:] != two


def test_shuffled_records_are_far_from_their_order_in_the_files(dataset):
    order = {name: place for place, name in enumerate(names(dataset))}
    places = [order[name] for name in loaded_names(dataset)]
    rising = sum(a < b for a, b in pairwise(places)) / 119
    assert 0.35 < rising < 0.65
    assert np.mean(np.abs(np.diff(places))) > 30  # 40 where it is uniform


@pytest.mark.parametrize("shuffle", [True, 32, 1, False])
@pytest.mark.slow
def test_reading_starts_at_any_record(dataset, shuffle):
    def take(data, count):
        return [one["image/filename"] for one in data.take(count).as_numpy_iterator()]

    data = reader.load(dataset, "train", features=NAME, shuffle=shuffle)
    whole = take(data, 400)
    for start in (1, 32, 33, 119, 120, 250):
        assert take(data.starting_at(start), 130) == whole[start : start + 130]
    ended = reader.load(dataset, "train", features=NAME, shuffle=shuffle, repeat=False)
    for start in (0, 50, 120, 130):
        assert take(ended.starting_at(start), 999) == whole[start:120]


def test_an_evaluation_sees_every_record_and_ends(dataset):
    data = reader.load(dataset, "train", batch_size=32, image_size=8, repeat=False, shuffle=False)
    assert [len(labels) for _, labels in data] == [32, 32, 32, 24]
    assert data.cardinality() == data.steps_per_epoch == 4
    data = reader.load(dataset, batch_size=32, image_size=8, repeat=False, drop_remainder=True)
    assert [len(labels) for _, labels in data] == [32, 32, 32]
    assert data.steps_per_epoch == 3


@pytest.mark.parametrize("read", [reader.load, reader.grain])
def test_an_epoch_smaller_than_a_batch_is_refused_or_padded(dataset, read):
    options = {"batch_size": 32, "image_size": 8}
    with pytest.raises(UsageError, match="8 records do not fill a global batch of 32: use a small"):
        read(dataset, "train[:8]", **options)
    with pytest.raises(UsageError, match="8 records do not fill a global batch of 32"):
        read(dataset, "train[:8]", **options, repeat=False, drop_remainder=True)
    data = read(dataset, "train[:8]", **options, drop_remainder=False)
    assert (data.steps_per_epoch, data.dropped, data.padded) == (1, 0, 24)
    assert len(next(iter(data))[1]) == 32
    ending = read(dataset, "train[:8]", **options, repeat=False)
    assert [len(labels) for _, labels in ending] == [8]


@pytest.mark.parametrize("read", [reader.load, reader.grain])
def test_the_records_of_an_epoch_are_counted(dataset, read):
    def epoch(**options: object) -> tuple[int, int, Counter[bytes]]:
        found = Counter()
        for host in range(2):
            data = read(
                dataset, batch_size=16, num_hosts=2, host=host, decode=False,
                keys=["image/filename"], **options,
            )  # fmt: skip
            batches = islice(iter(data), data.steps_per_epoch)
            found.update(name for one in batches for name in np.asarray(one["image/filename"]))
        return data.dropped, data.padded, found

    for options, dropped, padded in (
        ({}, 24, 0),
        ({"drop_remainder": False}, 0, 8),
        ({"repeat": False}, 0, 0),
        ({"repeat": False, "drop_remainder": True}, 24, 0),
    ):
        found = epoch(**options)
        assert found[:2] == (dropped, padded)
        assert len(found[2]) == 120 - dropped
        assert found[2].total() == 120 - dropped + padded


@pytest.mark.parametrize("records", [1, 7, 64])
def test_batches_do_not_depend_on_how_many_records_are_read_at_once(
    dataset, monkeypatch: pytest.MonkeyPatch, records: int
):
    source = find(dataset)
    order = GlobalOrder(120, 100, seed=3, block=1, run=4, remainder="keep")
    expected = HostRecords(source.files, source.spans("train"), order, 0, 1)
    spec = {"image/filename": tf.io.FixedLenFeature([], tf.string)}
    monkeypatch.setattr(recipe, "_BYTES_PER_CALL", 1 << 30)
    monkeypatch.setattr(recipe, "_RECORDS_PER_CALL", records)
    options = {"batch_size": 100, "seed": 3, "repeat": False, "shuffle": 4}
    data = reader.load(dataset, "train", features=spec, **options)  # type: ignore[arg-type]
    found = [one["image/filename"] for one in data.as_numpy_iterator()]
    assert int(data.cardinality()) == 2
    assert [len(batch) for batch in found] == [100, 20]
    lists = {"image/filename": tf.io.RaggedFeature(tf.string)}
    ragged = reader.load(dataset, "train", features=lists, **options)  # type: ignore[arg-type]
    for step, (batch, values) in enumerate(zip(found, ragged, strict=True)):
        parsed = tf.io.parse_example(expected.read(step, step + 1)[1], spec)
        assert batch.tolist() == parsed["image/filename"].numpy().tolist()
        assert values["image/filename"].flat_values.numpy().tolist() == batch.tolist()
