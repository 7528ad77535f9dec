"""reader.load: hosts, parts of splits, states, shapes and pixels."""

from __future__ import annotations

import inspect
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import fields
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import LOCAL
from helpers import image_bytes, names, shards, write_images
from PIL import Image

from imageshards import reader
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.run import run
from imageshards.reader.files import RecordFile, find
from imageshards.reader.options import ElementOptions, LoadOptions, ReadOptions
from imageshards.reader.ordering.blocks import make_blocks
from imageshards.reader.ordering.global_order import GlobalOrder
from imageshards.reader.ordering.host_records import HostRecords
from imageshards.reader.ordering.of_files import order_of
from imageshards.reader.splits import Span
from imageshards.reader.tensorflow import recipe
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records.tfrecord import CorruptRecord

NAME = {"image/filename": tf.io.FixedLenFeature([], tf.string)}


@pytest.fixture(scope="module")
def sets(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The 120 photos in 16, 12 and 7 shards."""
    folder = tmp_path_factory.mktemp("sets")
    for count in (16, 12, 7):
        config = BuildOptions.of(
            input=(str(photos),), output=str(folder / str(count)), num_shards=str(count),
            base_uri=str(photos),
        )  # fmt: skip
        run(config, LOCAL, show_progress=False)
    return {count: folder / str(count) for count in (16, 12, 7)}


def read_names(place: Path | str, split: str | None = "train", **options: object) -> list[str]:
    options.setdefault("repeat", False)
    data = reader.load(place, split, features=NAME, **options)  # type: ignore[arg-type]
    return [one["image/filename"].decode() for one in data.as_numpy_iterator()]


@pytest.mark.parametrize(
    "count", [pytest.param(16, marks=pytest.mark.slow), pytest.param(12, marks=pytest.mark.slow), 7]
)
def test_eight_hosts_read_each_record_once_an_epoch(sets, count: int):
    whole = Counter(names(sets[count]))
    assert whole.total() == len(whole) == 120
    epochs: list[Counter[str]] = [Counter(), Counter()]
    for host in range(8):
        share = reader.load(sets[count], "train", features=NAME, num_hosts=8, host=host, shuffle=10)
        assert share.records == share.steps_per_epoch == 15
        mine = [one["image/filename"].decode() for one in share.take(30).as_numpy_iterator()]
        epochs[0].update(mine[:15])
        epochs[1].update(mine[15:])
    assert epochs == [whole, whole]


@pytest.mark.parametrize("container", ["tfrecord", "gzip", "array_record"])
def test_any_number_of_hosts_reads_the_same_global_batches(
    sets, build, photos: Path, tmp_path: Path, container: str
):
    place = sets[7]
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


def test_a_state_of_some_hosts_is_restored_on_others(sets):
    def load(hosts: int, host: int):
        return reader.load(
            sets[7], "train", batch_size=24 // hosts, num_hosts=hosts, host=host, shuffle=32,
            image_size=6, augment=True, dtype="uint8",
        ).iterator()  # fmt: skip

    one = load(1, 0)
    four = [load(4, host) for host in range(4)]
    for _ in range(6):
        next(one)
        for iterator in four:
            next(iterator)
    states = {json.dumps(iterator.state()) for iterator in four}
    assert states == {json.dumps(one.state())}
    assert len(*states) < 200
    two = [load(2, host) for host in range(2)]
    for iterator in two:
        iterator.restore(json.loads(*states))
    images, labels = next(one)
    halves = [next(iterator) for iterator in two]
    np.testing.assert_array_equal(images, np.concatenate([half[0] for half in halves]))
    np.testing.assert_array_equal(labels, np.concatenate([half[1] for half in halves]))


def test_the_end_of_an_epoch_is_dropped_padded_or_kept(sets):
    def load(**options: object):
        return reader.load(sets[7], "train", features=NAME, batch_size=16, num_hosts=2, **options)

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
        sets[7], "train[:40]", batch_size=16, num_hosts=2, host=1, repeat=False, decode=False
    )
    assert [len(labels) for _, labels in few] == [16]
    assert few.steps_per_epoch == few.cardinality() == 1


def test_without_shuffling_the_order_is_that_of_the_files(sets):
    assert read_names(sets[7], shuffle=False) == names(sets[7])
    assert read_names(sets[7], "train[10:50]", shuffle=False) == names(sets[7])[10:50]


def test_parts_of_a_split_are_disjoint_and_complete(sets):
    parts = ["train[:33.3%]", "train[33.3%:70%]", "train[70%:]"]
    found = [name for part in parts for name in read_names(sets[7], part, num_hosts=1)]
    assert sorted(found) == sorted(names(sets[7]))
    assert sorted(read_names(sets[7], "+".join(parts))) == sorted(found)


def test_the_order_is_a_function_of_seed_and_epoch(sets):
    two = read_names(sets[16], shuffle=32)
    assert two == read_names(sets[16], shuffle=32)
    tf.random.set_seed(7)
    assert two == read_names(sets[16], shuffle=32)
    assert two != read_names(sets[16], shuffle=32, seed=1)
    twice = reader.load(sets[16], "train", features=NAME, shuffle=32).take(240)
    twice = [one["image/filename"].decode() for one in twice.as_numpy_iterator()]
    assert twice[:120] == two
    assert sorted(twice[120:]) == sorted(two) != twice[120:]
    assert twice[120:] != two


def test_shuffled_records_are_far_from_their_order_in_the_files(sets):
    order = {name: place for place, name in enumerate(names(sets[16]))}
    places = [order[name] for name in read_names(sets[16])]
    rising = sum(a < b for a, b in pairwise(places)) / 119
    assert 0.35 < rising < 0.65
    assert np.mean(np.abs(np.diff(places))) > 30  # 40 where it is uniform


@pytest.mark.parametrize("shuffle", [True, 32, 1, False])
@pytest.mark.slow
def test_reading_starts_at_any_record(sets, shuffle):
    def take(data, count):
        return [one["image/filename"] for one in data.take(count).as_numpy_iterator()]

    data = reader.load(sets[7], "train", features=NAME, shuffle=shuffle)
    whole = take(data, 400)
    for start in (1, 32, 33, 119, 120, 250):
        assert take(data.starting_at(start), 130) == whole[start : start + 130]
    ended = reader.load(sets[7], "train", features=NAME, shuffle=shuffle, repeat=False)
    for start in (0, 50, 120, 130):
        assert take(ended.starting_at(start), 999) == whole[start:120]


def test_a_state_counts_the_delivered_records(sets):
    def fresh():
        return reader.load(
            sets[12], "train", batch_size=8, image_size=12, augment=True, shuffle=32
        ).iterator()

    iterator = fresh()
    for _ in range(20):  # beyond the first epoch
        next(iterator)
    state = json.loads(json.dumps(iterator.state()))
    assert state["step"] == iterator.step == 20
    assert iterator.records == 160
    assert iterator.epoch == 1
    expected = [next(iterator) for _ in range(5)]
    again = fresh()
    again.restore(state)
    for images, labels in expected:
        theirs, their_labels = next(again)
        np.testing.assert_array_equal(images, theirs)
        np.testing.assert_array_equal(labels, their_labels)


def test_a_state_of_another_order_is_refused(sets):
    state = reader.load(sets[12], "train", batch_size=8, decode=False).iterator().state()
    changes = {"seed": 1, "num_hosts": 2, "shuffle": False, "batch_size": 3, "split": "train[:50%]"}
    for option, value in changes.items():
        options = {"split": "train", "batch_size": 8, option: value}
        other = reader.load(sets[12], **options, decode=False).iterator()
        with pytest.raises(UsageError, match="another order of records"):
            other.restore(state)
    with pytest.raises(UsageError, match="an earlier version of imageshards"):
        other.restore({"records": 8, "order": "0123456789abcdef"})
    for wrong in (json.dumps(state), {}, {"order": state["order"]}, None):
        with pytest.raises(UsageError, match="is not a state: pass the dict"):
            other.restore(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no state"):
        reader.load(sets[12], "train", deterministic=False).iterator().state()


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.slow
def test_a_state_of_other_records_of_the_same_sizes_is_refused(
    build, photos: Path, tmp_path: Path, compression: str
):
    for seed in (1, 2):
        build(
            photos, features="pixels", resize="12x8", num_shards="2", seed=seed, name="set",
            compression=compression, output=tmp_path / str(seed),
        )  # fmt: skip
    shutil.copytree(tmp_path / "1", tmp_path / "copy", copy_function=shutil.copyfile)
    features = {"label": tf.io.FixedLenFeature([], tf.int64)}
    for pattern in ("", "/train-*"):

        def fresh(name: str):
            place = f"{tmp_path}/{name}{pattern}"  # noqa: B023
            return reader.load(place, features=features, batch_size=4).iterator()

        iterator = fresh("1")
        next(iterator)
        state = iterator.state()
        expected = next(iterator)["label"].numpy().tolist()
        with pytest.raises(UsageError, match="another order of records"):
            fresh("2").restore(state)
        copy = fresh("copy")
        copy.restore(state)
        assert next(copy)["label"].numpy().tolist() == expected


@pytest.mark.parametrize(
    ("record_bytes", "records"),
    [(1_000, 65_536), (100_000, 1_342), (1_000_000, 134), (8_000_000, 16), (20_000_000, 16)],
)
def test_windows_are_bounded_by_bytes(monkeypatch, record_bytes: int, records: int):
    index = np.arange(100_000)[:, None] * [record_bytes, 0] + [0, record_bytes]
    file = RecordFile("/nowhere/a.tfrecord")
    monkeypatch.setitem(file.__dict__, "_index", index)
    blocks = make_blocks([file], [Span(0, 0, 100_000)])
    assert 0.9 * records <= blocks.per_window * blocks.largest <= records
    assert sum(span.records for span in blocks.spans) == 100_000
    told = make_blocks([file], [Span(0, 0, 100_000)], 32)
    assert told.per_window * told.largest == 32


def test_compressed_shards_are_shuffled_whole(build, photos: Path, tmp_path: Path):
    build(
        photos, features="pixels", resize="12x8", num_shards="3", compression="gzip",
        base_uri=str(photos),
    )  # fmt: skip
    source = find(tmp_path / "out")
    shares = source.spans("train")
    for window, shards_together in ((10, 1), (100, 2)):
        blocks = make_blocks(source.files, shares, window)
        assert [span.records for span in blocks.spans] == [file.records for file in source.files]
        assert blocks.per_window == shards_together


@pytest.mark.parametrize("light", [True, False])
def test_checkpoints_of_tensorflow_resume_at_the_same_record(sets, tmp_path: Path, light: bool):
    def fresh():
        data = reader.load(sets[7], "train", batch_size=4, image_size=8, shuffle=32)
        return data.iterator() if light else iter(data)

    iterator = fresh()
    for _ in range(35):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "state"))
    expected = [next(iterator)[0] for _ in range(5)]
    again = fresh()
    tf.train.Checkpoint(iterator=again).read(path).assert_consumed()
    for images in expected:
        np.testing.assert_array_equal(images, next(again)[0])


def test_mixtures_have_their_proportions_on_any_number_of_hosts(sets):
    weights = {sets[7]: 0.75, f"{sets[12]}": [(0, 0.25), (10, 0)]}

    def batches(hosts: int, start: int = 0) -> list[list[str]]:
        parts = [
            reader.load(
                weights, "train", features=NAME, batch_size=16 // hosts, num_hosts=hosts, host=host,
                start=start * 16 // hosts,
            )
            for host in range(hosts)
        ]  # fmt: skip
        rounds = zip(*(part.take(20).as_numpy_iterator() for part in parts), strict=True)
        return [
            [name.decode() for part in one for name in part["image/filename"].tolist()]
            for one in rounds
        ]

    whole = batches(1)
    assert batches(4) == whole
    assert batches(2, start=5)[:15] == whole[5:]
    # 75 % of 10 steps, and all of 10 more, are more than two epochs of the first.
    counts = Counter(name for one in whole for name in one)
    assert counts.total() == 320
    assert len(counts) == 120
    data = reader.load(weights, "train", batch_size=16, image_size=8)
    assert len(next(iter(data))[1]) == 16
    assert (data.records, data.steps_per_epoch) == (240, 15)


def test_classes_are_balanced_or_weighted(sets):
    source = find(sets[7])

    def counted(balance: object, steps: int = 40) -> Counter[str]:
        data = reader.load(sets[7], "train", batch_size=12, decode=False, balance=balance)
        labels = [int(label) for _, labels in data.take(steps) for label in labels]
        return Counter(source.classes[label] for label in labels)

    of_each = counted("class")
    assert set(of_each) == set(source.classes)
    assert max(of_each.values()) - min(of_each.values()) <= 2
    first, second = source.classes[:2]
    assert counted({first: 3, second: [(0, 0), (20, 1)]}) == {
        first: 240 + 180, second: 60,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ({}, {}, "a mixture without data sets"),
        (None, {"balance": "label"}, "invalid balance 'label': must be \"class\""),
        (None, {"balance": {"nothing": 1}}, "no class 'nothing': imageshards inspect lists"),
        (None, {"balance": "class", "repeat": False}, "balance requires repeat=True and shuffle"),
        (None, {"balance": "class", "label_key": ""}, "balance requires class labels"),
        ({7: 1}, {"balance": "class"}, "balance is for one data set"),
        ({7: 1}, {"shuffle": False}, "a mixture requires repeat=True and shuffle"),
        ({7: -1}, {}, "invalid weight -1 of .*7: must be a number"),
    ],
)
def test_wrong_weights_are_one_line(sets, weights, options: dict, message: str):
    place = sets[7] if weights is None else {sets[key]: value for key, value in weights.items()}
    with pytest.raises(UsageError, match=message):
        reader.load(place, "train", **options)


def test_data_sets_of_other_classes_are_not_mixed(sets, build, tmp_path: Path):
    (tmp_path / "in/other").mkdir(parents=True)
    (tmp_path / "in/other/a.png").write_bytes(image_bytes(1, "PNG"))
    build(tmp_path / "in", num_shards="1", splits="train=1")
    with pytest.raises(UsageError, match="differ in their classes: build them with the same"):
        reader.load({sets[7]: 1, tmp_path / "out": 1}, "train")


TRAINING = """
import json, os, sys
from imageshards import reader

folder, state_file = sys.argv[1:]
iterator = reader.load(
    folder, "train", batch_size=4, image_size=8, dtype="uint8", shuffle=32, augment=True
).iterator()
if os.path.exists(state_file):
    iterator.restore(json.load(open(state_file)))
for step in range(10**9):
    images, labels = next(iterator)
    print(iterator.records, images.numpy().tobytes().hex(), flush=True)
    if step % 7 == 6:
        with open(state_file + ".tmp", "w") as file:
            json.dump(iterator.state(), file)
        os.replace(state_file + ".tmp", state_file)
"""


@pytest.mark.slow
def test_a_killed_process_resumes_where_it_saved(sets, tmp_path: Path):
    state = tmp_path / "state.json"

    def train(lines: int) -> list[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(sets[12]), str(state)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout
        found = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return found

    before = train(40)
    saved = json.loads(state.read_text())["step"]
    assert saved >= 35
    state.write_text(json.dumps({**json.loads(state.read_text()), "step": 14}))
    after = train(20)
    assert after == before[14:34]


@pytest.mark.parametrize(
    ("dtype", "expected"), [("uint8", tf.uint8), ("float32", tf.float32), ("bfloat16", tf.bfloat16)]
)
def test_shapes_are_static(sets, dtype: str, expected: tf.DType):
    data = reader.load(sets[7], "train", batch_size=32, image_size=(8, 12), dtype=dtype)
    images, labels = data.element_spec
    assert images == tf.TensorSpec((32, 8, 12, 3), expected)
    assert labels == tf.TensorSpec((32,), tf.int32)
    images, labels = next(iter(data))
    assert images.dtype == expected
    top = float(tf.reduce_max(tf.cast(images, tf.float32)))
    assert (0.5 < top <= 1.0) if dtype != "uint8" else top > 128
    assert data.cardinality() == tf.data.INFINITE_CARDINALITY


def test_an_evaluation_sees_every_record_and_ends(sets):
    data = reader.load(sets[7], "train", batch_size=32, image_size=8, repeat=False, shuffle=False)
    assert [len(labels) for _, labels in data] == [32, 32, 32, 24]
    assert data.cardinality() == data.steps_per_epoch == 4
    data = reader.load(sets[7], batch_size=32, image_size=8, repeat=False, drop_remainder=True)
    assert [len(labels) for _, labels in data] == [32, 32, 32]
    assert data.steps_per_epoch == 3


def test_an_epoch_smaller_than_a_batch_is_a_step(sets):
    data = reader.load(sets[7], "train[:8]", batch_size=32, image_size=8)
    assert data.steps_per_epoch == 1
    assert len(next(iter(data))[1]) == 32


def test_images_of_several_sizes_cannot_be_batched(tmp_path: Path, build):
    for number, size in enumerate(((8, 8), (9, 8))):
        (tmp_path / "in/a").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"in/a/{number}.png").write_bytes(image_bytes(number, "PNG", size=size))
    build(tmp_path / "in", num_shards="1")
    with pytest.raises(UsageError, match=r"from 8x8 to 9x8 pixels.* set image_size"):
        reader.load(tmp_path / "out", batch_size=2)
    assert next(iter(reader.load(tmp_path / "out", batch_size=2, image_size=4)))[0].shape[0] == 2
    assert next(iter(reader.load(tmp_path / "out")))[0].shape[2] == 3


def test_pixels_and_labels_are_those_of_the_files(tmp_path: Path, build):
    folder = tmp_path / "in"
    write_images(folder, 3, 4)
    for number, kind in enumerate(("PNG", "BMP", "GIF")):
        (folder / "class01" / f"x{number}.png").write_bytes(image_bytes(number, kind, (31, 17)))
    build(folder, num_shards="2", base_uri=str(folder))
    order = read_names(tmp_path / "out", shuffle=False)
    data = reader.load(tmp_path / "out", shuffle=False, repeat=False, dtype="uint8")
    for name, (image, label) in zip(order, data, strict=True):
        decoded = tf.io.decode_image(
            (folder / name).read_bytes(), channels=3, expand_animations=False
        )
        if not name.endswith("x2.png"):  # the GIF is a PNG now
            np.testing.assert_array_equal(image, decoded)
        assert int(label) == int(name.split("/")[0][-2:])
    data = reader.load(tmp_path / "out", shuffle=False, repeat=False, image_size=9)
    for name, (image, _) in zip(order, data, strict=True):
        decoded = tf.io.decode_image(
            (folder / name).read_bytes(), channels=3, expand_animations=False
        )
        height, width = decoded.shape[:2]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        cut = decoded[top : top + side, left : left + side]
        expected = tf.image.resize(cut, (9, 9)) / 255.0
        # The colours of a JPEG's border come from pixels that are cut off.
        np.testing.assert_allclose(image[:, 1:-1], expected[:, 1:-1], atol=1e-6)
        np.testing.assert_allclose(image, expected, atol=0.1)
    grey = reader.load(tmp_path / "out", image_size=9, channels=1, batch_size=5)
    assert next(iter(grey))[0].shape == (5, 9, 9, 1)


@pytest.mark.parametrize("side", [16, 40, 75, 100, 200])
def test_a_large_jpeg_is_decoded_at_a_reduced_size(tmp_path: Path, build, side: int):
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    rough = Image.fromarray(rng.integers(0, 255, (5, 7, 3), dtype=np.uint8))
    whole = rough.resize((420, 300), Image.Resampling.BICUBIC)
    whole.save(tmp_path / "in" / "a.jpg", quality=95)
    build(tmp_path / "in", num_shards="1", labels="none")
    image = next(iter(reader.load(tmp_path / "out", image_size=side, dtype="uint8")))
    middle = whole.crop((60, 0, 360, 300))
    expected = np.asarray(middle.resize((side, side), Image.Resampling.BOX), np.float64)
    from_all = tf.image.resize(np.asarray(middle), (side, side)).numpy()
    assert image.shape == (side, side, 3)
    assert np.abs(image.numpy() - expected).mean() < np.abs(from_all - expected).mean() + 1


def test_augmentation_differs_between_epochs_and_not_between_runs(sets):
    def take(seed: int = 0) -> list[np.ndarray]:
        data = reader.load(sets[7], "train", image_size=8, augment=True, shuffle=False, seed=seed)
        return [image for image, _ in data.take(121).as_numpy_iterator()]

    first = take()
    np.testing.assert_array_equal(first, take())
    assert not np.array_equal(first[0], first[120])
    assert not np.array_equal(first[0], take(seed=1)[0])


def test_tfrecords_of_other_writers_are_read_by_a_pattern(tmp_path: Path):
    for shard in range(3):
        with tf.io.TFRecordWriter(str(tmp_path / f"old-{shard}")) as writer:
            for number in range(shard * 10, shard * 10 + 10):
                feature = {
                    "png": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[image_bytes(number, "PNG")])
                    ),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    place = str(tmp_path / "old-*")
    data = reader.load(
        place, image_key="png", label_key="y", batch_size=5, image_size=8, repeat=False
    )
    assert sorted(int(label) for _, labels in data for label in labels) == list(range(30))
    spec = {"y": tf.io.FixedLenFeature([], tf.int64)}
    data = reader.load(place, "[50%:]", features=spec, shuffle=False, repeat=False, batch_size=4)
    assert [y for one in data.as_numpy_iterator() for y in one["y"]] == list(range(15, 30))
    images = reader.load(place, image_key="png", label_key="", image_size=8, repeat=False)
    assert len(list(images)) == 30
    assert images.element_spec.shape == (8, 8, 3)


def test_records_that_follow_each_other_in_a_remote_file_are_one_read(
    sets, monkeypatch: pytest.MonkeyPatch
):
    source = find(sets[7])
    spans = source.spans("train")
    order = GlobalOrder(120, 4, seed=1, block=5, run=10)
    local = HostRecords(source.files, spans, order, 0, 1)
    expected = [local.read(step, step + 1) for step in range(40)]
    reads: list[tuple[int, int]] = []
    stored = RecordFile.stored

    def counted(self: RecordFile, begin: int, end: int) -> bytes:
        reads.append((begin, end))
        return stored(self, begin, end)

    monkeypatch.setattr(RecordFile, "stored", counted)
    monkeypatch.setattr(storage, "is_local", lambda _: False)
    remote = HostRecords(source.files, spans, order, 0, 1)
    for step, (samples, records) in enumerate(expected[:30]):
        found, data = remote.read(step, step + 1)
        assert (found.tolist(), data) == (samples.tolist(), records)
    assert remote._executor
    remote._executor.shutdown()  # waits for what is read ahead
    # Four chunks of 10 steps, of which the last one is read ahead, in blocks that may be cut.
    deadline = time.monotonic() + 60
    while sum(end - begin for begin, end in reads) < 160:
        assert time.monotonic() < deadline, reads
        time.sleep(0.01)
    sizes = [end - begin for begin, end in reads]
    assert sum(sizes) == 160
    assert len(sizes) <= 70
    reads.clear()
    remote = HostRecords(source.files, spans, order, 0, 1, repeat=False)
    for step in range(30):
        remote.read(step, step + 1)
    assert sum(end - begin for begin, end in reads) == 120  # nothing of another epoch
    remote = HostRecords(source.files, spans, order, 1, 2)
    assert remote.read(37, 38)[1] == expected[37][1][2:]


@pytest.mark.parametrize("records", [1, 7, 64])
def test_batches_do_not_depend_on_how_many_records_are_read_at_once(
    sets, monkeypatch: pytest.MonkeyPatch, records: int
):
    source = find(sets[7])
    order = GlobalOrder(120, 100, seed=3, block=1, run=4, remainder="keep")
    expected = HostRecords(source.files, source.spans("train"), order, 0, 1)
    spec = {"image/filename": tf.io.FixedLenFeature([], tf.string)}
    monkeypatch.setattr(recipe, "_BYTES_PER_CALL", 1 << 30)
    monkeypatch.setattr(recipe, "_RECORDS_PER_CALL", records)
    options = {"batch_size": 100, "seed": 3, "repeat": False, "shuffle": 4}
    data = reader.load(sets[7], "train", features=spec, **options)  # type: ignore[arg-type]
    found = [one["image/filename"] for one in data.as_numpy_iterator()]
    assert int(data.cardinality()) == 2
    assert [len(batch) for batch in found] == [100, 20]
    lists = {"image/filename": tf.io.RaggedFeature(tf.string)}
    ragged = reader.load(sets[7], "train", features=lists, **options)  # type: ignore[arg-type]
    for step, (batch, values) in enumerate(zip(found, ragged, strict=True)):
        parsed = tf.io.parse_example(expected.read(step, step + 1)[1], spec)
        assert batch.tolist() == parsed["image/filename"].numpy().tolist()
        assert values["image/filename"].flat_values.numpy().tolist() == batch.tolist()


def test_a_record_is_the_same_alone_and_among_others(sets):
    file = find(sets[7]).files[2]
    together = list(file.data(0, file.records))
    assert [file.record(row) for row in range(file.records)] == together


def test_a_compressed_shard_is_decompressed_once_for_a_window(
    build, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    build(photos, features="pixels", resize="12x8", num_shards="6", compression="gzip")
    source = find(tmp_path / "out")
    spans = source.spans("train")
    order = order_of(source.files, spans, ReadOptions(batch_size=5, num_hosts=4))
    reads: list[str] = []
    stored = RecordFile.stored

    def counted(self: RecordFile, begin: int, end: int) -> bytes:
        reads.append(self.uri)
        return stored(self, begin, end)

    monkeypatch.setattr(RecordFile, "stored", counted)
    found = []
    for host in range(4):
        records = HostRecords(source.files, spans, order, host, 4, repeat=False)
        found += [data for step in range(order.steps) for data in records.read(step, step + 1)[1]]
    assert len(set(found)) == order.steps * 20
    assert Counter(reads) == {file.uri: 4 for file in source.files}


def test_a_corrupt_shard_is_one_error_with_file_and_offset(sets, tmp_path: Path):
    folder = tmp_path / "copy"
    shutil.copytree(sets[7], folder)
    path = shards(folder)[4]
    index = (folder / "metadata/index" / f"{path.stem}.idx").read_text().splitlines()
    offset = int(index[5].split()[0])
    data = bytearray(path.read_bytes())
    data[offset + 200] ^= 1
    path.write_bytes(data)
    iterator = reader.load(folder, batch_size=8, image_size=8).iterator()
    with pytest.raises(CorruptRecord) as caught:
        list(islice(iterator, 30))
    with pytest.raises(CorruptRecord) as in_a_loop:
        list(reader.load(folder, batch_size=8, image_size=8, repeat=False))
    text = str(caught.value)
    assert text == str(in_a_loop.value)
    assert text.startswith(f"{path}: record at byte {offset}: the CRC of its data is wrong")
    assert "\n" not in text


def test_a_file_that_is_shorter_than_its_index_is_an_error(sets, tmp_path: Path):
    folder = tmp_path / "copy"
    shutil.copytree(sets[7], folder)
    path = shards(folder)[2]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BuildError, match=f"{path.name}.*bytes"):
        list(reader.load(folder, batch_size=8, image_size=8, repeat=False))


def test_keras_trains_on_the_data_set(sets):
    import keras

    data = reader.load(sets[16], batch_size=24, image_size=8)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(6)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    history = model.fit(data, epochs=2, steps_per_epoch=data.steps_per_epoch, verbose=0)
    assert len(history.history["loss"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "dtype 'float16'"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"augment": True}, "image_size"),
        ({"num_hosts": 2, "host": 2}, "host 2 of 2"),
        ({"num_hosts": 121}, "use fewer hosts"),
        ({"batch_size": 8, "start": 12}, "start 12 is within a batch: use a multiple of 8"),
        ({"num_hosts": 2.0}, "num_hosts 2.0: must be an integer"),
        ({"num_hosts": "2"}, "num_hosts '2': must be an integer"),
        ({"num_hosts": 0}, "num_hosts 0: must be an integer, at least 1"),
        ({"num_hosts": 2, "host": 0.5}, "host 0.5: must be an integer"),
        ({"num_hosts": 2, "host": -1}, "host -1: must be an integer"),
        ({"shuffle": 2.5}, "shuffle 2.5: must be True, False or a number"),
        ({"shuffle": "yes"}, "shuffle 'yes': must be True"),
        ({"shuffle": None}, "shuffle None: must be True"),
        ({"shuffle": -1}, "shuffle -1: must be True"),
        ({"parallel_reads": 2.5}, "parallel_reads 2.5: must be an integer"),
        ({"parallel_reads": -1}, "parallel_reads -1: must be an integer, at least 1"),
        ({"split": 5}, "split 5: write a split such as train"),
        ({"crop_fraction": "x"}, "crop_fraction 'x': must be above 0"),
        ({"crop_fraction": 0}, "crop_fraction 0"),
        ({"crop_fraction": 0.5}, "image_size"),
        ({"start": -1}, "start -1"),
        ({"start": 1000, "deterministic": False}, "start 1000 requires deterministic=True"),
        ({"channels": 7}, "channels 7: must be 3 or 1"),
        ({"channels": 4}, "channels 4: must be 3 or 1"),
        ({"image_size": 0}, "image_size 0"),
        ({"image_size": -1}, "image_size -1"),
        ({"image_size": 8.0}, "image_size 8.0: must be an integer"),
        ({"image_size": (8, 0)}, "image_size 0"),
        ({"image_size": (8, 8, 3)}, "height, width"),
        ({"seed": 2**63}, "seed 9223372036854775808: .* at most"),
        ({"seed": 2**62}, "seed"),
        ({"seed": -1}, "seed -1: must be an integer, at least 0"),
        ({"split": "train[_:]"}, r"at 'train\[_:\]'"),
        ({"split": "test"}, "there is no 'test'"),
        ({"bach_size": 8}, "load has no option 'bach_size': did you mean batch_size"),
        ({"zzz": 8}, "load has no option 'zzz': the options are batch_size, "),
    ],
)
def test_wrong_arguments_are_one_line(sets, options: dict, message: str):
    with pytest.raises(UsageError, match=message):
        reader.load(sets[7], **options)


def test_the_largest_seed_and_integers_of_numpy_are_accepted(sets):
    data = reader.load(
        sets[7], seed=2**62 - 1, image_size=np.int64(8), batch_size=np.int32(4), augment=True,
        num_hosts=np.int64(2), host=np.int32(1), shuffle=np.int64(32), parallel_reads=np.int64(2),
        crop_fraction=np.float32(0.5),
    )  # fmt: skip
    assert next(iter(data))[0].shape == (4, 8, 8, 3)
    assert json.dumps(data.iterator().state())


def test_every_option_is_in_one_group_and_in_the_help():
    names = [field.name for field in (*fields(ElementOptions), *fields(ReadOptions))]
    assert sorted(names) == sorted(LoadOptions.__annotations__)
    # Python 3.13 removes the indentation of docstrings.
    described = inspect.cleandoc(reader.load.__doc__)
    assert all(f"\n  {name}: " in described for name in names)


def test_without_an_order_reading_cannot_start_later(sets):
    state = reader.load(sets[7], decode=False).iterator().state()
    data = reader.load(sets[7], decode=False, deterministic=False)
    assert len(list(data.starting_at(0).take(3))) == 3
    with pytest.raises(UsageError, match="requires deterministic=True"):
        data.starting_at(5)
    with pytest.raises(UsageError, match="requires deterministic=True"):
        data.iterator().restore({**state, "step": 5})


@pytest.mark.parametrize("schema", ["imagenet", "raw", "pixels", "shape"])
def test_images_of_every_schema_are_read(build, photos: Path, tmp_path: Path, schema: str):
    resize = {"resize": "12x8"} if schema in ("raw", "pixels") else {}
    build(photos, num_shards="3", features=schema, **resize)
    out = tmp_path / "out"
    opened = list(reader.open(out))
    one_by_one = reader.load(out, shuffle=False, repeat=False, dtype="float32")
    for (image, label), (expected, its_label) in zip(one_by_one, opened, strict=True):
        if expected.dtype == np.uint8:
            expected = expected / np.float32(255)
        np.testing.assert_allclose(image, expected, atol=1e-6)
        assert int(label) == its_label
    batches = reader.load(out, batch_size=40, image_size=(4, 6), augment=True, dtype="bfloat16")
    assert batches.element_spec[0] == tf.TensorSpec((40, 4, 6, 3), tf.bfloat16)
    assert next(iter(batches))[0].shape == (40, 4, 6, 3)
    if resize:
        whole = reader.load(out, batch_size=40, shuffle=False, repeat=False)
        assert whole.element_spec[0] == tf.TensorSpec((None, 8, 12, 3), tf.float32)
        images = np.concatenate([batch for batch, _ in whole.as_numpy_iterator()])
        expected = np.stack([image for image, _ in opened])
        scale = 255 if expected.dtype == np.uint8 else 1
        np.testing.assert_allclose(images, expected / np.float32(scale), atol=1e-6)
    if schema == "raw":
        with pytest.raises(UsageError, match="float32"):
            reader.load(out, dtype="uint8")


def grey_and_coloured(folder: Path) -> Path:
    """Twelve images of 24 x 16: every third is grey, and some are BMPs and GIFs."""
    folder.mkdir()
    for number in range(12):
        kind = ("JPEG", "PNG", "BMP", "GIF")[number % 4]
        image = Image.open(io.BytesIO(image_bytes(number, "PNG")))
        if number % 3 == 0 and kind in ("JPEG", "PNG"):
            image = image.convert("L")
        image.save(folder / f"{number}.{kind.lower()}", kind)
    return folder


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("schema", ["slim", "shape", "pixels", "raw"])
def test_images_have_the_requested_channels(build, tmp_path: Path, schema: str, channels: int):
    folder = grey_and_coloured(tmp_path / "in")
    resize = {"resize": "24x16"} if schema in ("raw", "pixels") else {}
    build(folder, num_shards="1", features=schema, labels="none", **resize)
    opened = list(reader.open(tmp_path / "out", channels=channels))
    assert {image.shape for image in opened} == {(16, 24, channels)}
    levels = 1 if schema == "raw" else 255
    for size in (None, (16, 24), (8, 8)):
        data = reader.load(
            tmp_path / "out", batch_size=12, image_size=size, channels=channels,
            shuffle=False, repeat=False,
        )  # fmt: skip
        assert data.element_spec.shape[-1] == channels
        (images,) = data
        assert images.shape == (12, *(size or (16, 24)), channels)
        if size != (8, 8):
            expected = np.stack(opened).astype(np.float32) / levels
            np.testing.assert_allclose(images, expected, atol=1.01 / 255)


@pytest.mark.parametrize("wanted", [1, 3])
def test_greyscale_pixels_get_the_requested_channels(build, tmp_path: Path, wanted: int):
    folder = grey_and_coloured(tmp_path / "in")
    same = {"features": "pixels", "channels": 1, "resize": "24x16"}
    build(folder, num_shards="1", labels="none", **same)
    grey = np.stack(list(reader.open(tmp_path / "out", channels=0)))
    assert grey.shape == (12, 16, 24, 1)
    expected = np.repeat(grey, wanted, axis=3)
    np.testing.assert_array_equal(
        np.stack(list(reader.open(tmp_path / "out", channels=wanted))), expected
    )
    data = reader.load(
        tmp_path / "out", batch_size=12, channels=wanted, dtype="uint8", shuffle=False
    )
    np.testing.assert_array_equal(next(iter(data)), expected)


def test_pixels_of_the_requested_size_are_cropped_too(build, tmp_path: Path):
    folder = grey_and_coloured(tmp_path / "in")
    build(folder, num_shards="1", features="pixels", resize="24x16", labels="none")
    options = {"batch_size": 12, "image_size": (16, 24), "shuffle": False, "dtype": "uint8"}
    whole = next(iter(reader.load(tmp_path / "out", **options)))
    cut = next(iter(reader.load(tmp_path / "out", **options, crop_fraction=0.5)))
    expected = tf.image.resize(whole[:, 4:12, 6:18], (16, 24))
    np.testing.assert_allclose(tf.cast(cut, tf.float32), expected, atol=0.51)


def test_texts_are_read(build, tmp_path: Path):
    lines = [f"line {number}" for number in range(50)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    build(tmp_path / "a.txt", num_shards="3", features="text", labels="none")
    data = reader.load(tmp_path / "out", batch_size=8, repeat=False)
    found = [text.decode() for batch in data.as_numpy_iterator() for text in batch]
    assert sorted(found) == sorted(lines)
    assert sorted(text.decode() for text in reader.open(tmp_path / "out")) == sorted(lines)
