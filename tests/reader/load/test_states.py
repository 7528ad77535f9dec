"""reader.load: states, and resuming at the next record."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from imageshards import reader
from imageshards.transforms.elements import UsageError


def test_a_state_of_some_hosts_is_restored_on_others(dataset):
    def load(hosts: int, host: int):
        return reader.load(
            dataset, "train", batch_size=24 // hosts, num_hosts=hosts, host=host, shuffle=32,
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


def test_a_state_counts_the_delivered_records(dataset):
    def fresh():
        return reader.load(
            dataset, "train", batch_size=8, image_size=12, augment=True, shuffle=32
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


def test_a_state_of_another_order_is_refused(dataset):
    state = reader.load(dataset, "train", batch_size=8, decode=False).iterator().state()
    changes = {"seed": 1, "num_hosts": 2, "shuffle": False, "batch_size": 3, "split": "train[:50%]"}
    for option, value in changes.items():
        options = {"split": "train", "batch_size": 8, option: value}
        other = reader.load(dataset, **options, decode=False).iterator()
        with pytest.raises(UsageError, match="another order of records"):
            other.restore(state)
    with pytest.raises(UsageError, match="an earlier version of imageshards"):
        other.restore({"records": 8, "order": "0123456789abcdef"})
    for wrong in (json.dumps(state), {}, {"order": state["order"]}, None):
        with pytest.raises(UsageError, match="is not a state: pass the dict"):
            other.restore(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no state"):
        reader.load(dataset, "train", deterministic=False).iterator().state()


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


@pytest.mark.parametrize("light", [True, False])
def test_checkpoints_of_tensorflow_resume_at_the_same_record(dataset, tmp_path: Path, light: bool):
    def fresh():
        data = reader.load(dataset, "train", batch_size=4, image_size=8, shuffle=32)
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
def test_a_killed_process_resumes_where_it_saved(dataset, tmp_path: Path):
    state = tmp_path / "state.json"

    def train(lines: int) -> list[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(dataset), str(state)],
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


def test_without_an_order_reading_cannot_start_later(dataset):
    state = reader.load(dataset, decode=False).iterator().state()
    data = reader.load(dataset, decode=False, deterministic=False)
    assert len(list(data.starting_at(0).take(3))) == 3
    with pytest.raises(UsageError, match="requires deterministic=True"):
        data.starting_at(5)
    with pytest.raises(UsageError, match="requires deterministic=True"):
        data.iterator().restore({**state, "step": 5})
