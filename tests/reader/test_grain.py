"""reader.grain: the same global batches on any number of hosts, states, pixels."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import grain
import numpy as np
import orbax.checkpoint as ocp
import pytest
from helpers import names

from imageshards import reader
from imageshards.pipeline.operations.reshard import reshard
from imageshards.reader.options import GrainOptions
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.container import CorruptRecord, parse_index

NAME = "image/filename"
RAW = {"keys": [NAME], "decode": False}


def batches_of(iterators: list, steps: int) -> list[list[str]]:
    """The names of the images in the next global batches of all hosts."""
    return [
        [name.decode() for iterator in iterators for name in next(iterator)[NAME].tolist()]
        for _ in range(steps)
    ]


def test_indexes_of_remote_files_are_read_at_a_time_and_when_they_are_needed(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reshard(str(dataset), str(tmp_path / "new"), "train=12")
    reading = Counter[str]()

    def parse(content: bytes):
        reading["now"] += 1
        reading["all"] += 1
        reading["most"] = max(reading["most"], reading["now"])
        time.sleep(0.1)
        reading["now"] -= 1
        return parse_index(content)

    monkeypatch.setattr(storage, "is_local", lambda _: False)
    monkeypatch.setattr("imageshards.reader.files.parse_index", parse)
    data = reader.grain(tmp_path / "new", "train", batch_size=32, threads=1, **RAW)
    assert reading["all"] == 1  # for the mean size of a record
    iterator = iter(data)
    assert len(next(iterator)[NAME]) == 32
    iterator.close()
    assert reading["all"] == 12
    assert reading["most"] > 4


def hosts_of(dataset: Path, hosts: int, batch: int, **options: object) -> list:
    return [
        iter(reader.grain(dataset, batch_size=batch // hosts, num_hosts=hosts, host=host,
                          **RAW, **options))
        for host in range(hosts)
    ]  # fmt: skip


def test_global_batches_do_not_depend_on_the_hosts(dataset: Path):
    expected = batches_of(hosts_of(dataset, 1, 24), 10)
    epochs = [
        Counter(name for batch in expected[begin : begin + 5] for name in batch) for begin in (0, 5)
    ]
    assert epochs == [Counter(names(dataset))] * 2
    assert expected[:5] != expected[5:]
    four = hosts_of(dataset, 4, 24)
    assert batches_of(four, 3) == expected[:3]
    states = [iterator.get_state() for iterator in four]
    assert states == states[:1] * 4
    text = json.dumps(states[0])
    assert len(text) < 200
    for hosts in (1, 3, 8):
        again = hosts_of(dataset, hosts, 24)
        for iterator in again:
            iterator.set_state(json.loads(text))
        assert batches_of(again, 4) == expected[3:7]
    other = iter(reader.grain(dataset, batch_size=24, seed=1, **RAW))
    with pytest.raises(UsageError, match="another order of records: its seed is 0, not 1"):
        other.set_state(states[0])
    assert batches_of([other], 5) != expected[:5]


def test_both_containers_give_the_same_batches(dataset: Path, build, photos: Path, tmp_path: Path):
    build(photos, num_shards="7", base_uri=str(photos), file_format="array_record")
    other = tmp_path / "out"
    assert sorted(other.glob("*.array_record*"))
    expected = batches_of(hosts_of(dataset, 1, 24), 6)
    assert batches_of(hosts_of(other, 2, 24), 6) == expected


def test_an_evaluation_sees_every_record_in_order_and_ends(dataset: Path):
    data = reader.grain(dataset, batch_size=50, repeat=False, shuffle=False, **RAW)
    found = [batch[NAME].tolist() for batch in data]
    assert [len(batch) for batch in found] == [50, 50, 20]
    assert data.steps_per_epoch == 3
    assert [name.decode() for batch in found for name in batch] == names(dataset)
    for size, sizes in ((25, [[25, 25, 20], [25, 25, 0]]), (None, [[60], [60]])):
        options = {"batch_size": size, "repeat": False, "shuffle": False, "num_hosts": 2, **RAW}
        for host in range(2):
            found = [batch[NAME] for batch in reader.grain(dataset, host=host, **options)]
            assert ([len(names) for names in found] if size else [len(found)]) == sizes[host]
    third = [len(list(reader.grain(dataset, "train[:100]", repeat=False, num_hosts=3, host=host,
                                   **RAW))) for host in range(3)]  # fmt: skip
    assert third == [34, 33, 33]
    dropped = reader.grain(dataset, batch_size=50, repeat=False, drop_remainder=True)
    assert dropped.steps_per_epoch == 2


def test_pixels_and_labels_are_those_of_load(dataset: Path):
    options = {"batch_size": 120, "image_size": (12, 20), "shuffle": False, "dtype": "uint8"}
    for more in ({}, {"channels": 1, "crop_fraction": 0.5}):
        data = reader.grain(dataset, **options, **more)
        images, labels = next(iter(data))
        loaded, expected = next(reader.load(dataset, **options, **more).as_numpy_iterator())
        assert labels.tolist() == expected.tolist()
        assert (images.dtype, images.shape) == (loaded.dtype, loaded.shape)
        # Where an image is made smaller, TensorFlow leaves out pixels, and Pillow averages.
        assert np.abs(images.astype(int) - loaded).mean() < 3
    assert data.class_names == [f"class{number:02d}" for number in range(6)]
    assert data.element_spec[0] == ((120, 12, 20, 1), np.uint8)
    floats, _ = next(iter(reader.grain(dataset, image_size=12)))
    assert (floats.shape, floats.dtype) == ((12, 12, 3), np.float32)
    assert 0.2 < floats.mean() < 0.8


def test_every_dtype_is_a_conversion_of_the_pixels(dataset: Path):
    options = {"batch_size": 7, "image_size": 8}
    levels, labels = next(iter(reader.grain(dataset, dtype="uint8", **options)))
    floats = np.multiply(levels, np.float32(1 / 255), dtype=np.float32)
    for dtype in ("float32", "bfloat16"):
        data = reader.grain(dataset, dtype=dtype, **options)
        images, its_labels = next(iter(data))
        assert images.dtype.name == dtype
        assert data.element_spec[0] == ((7, 8, 8, 3), images.dtype)
        np.testing.assert_array_equal(images, floats.astype(images.dtype))
        assert its_labels.tolist() == labels.tolist()
        single, label = next(iter(reader.grain(dataset, dtype=dtype, image_size=8)))
        assert (single.shape, single.dtype, label) == ((8, 8, 3), images.dtype, labels[0])
    keyed = next(iter(reader.grain(dataset, keys=[NAME], **options)))
    np.testing.assert_array_equal(keyed["image"], floats)


def test_only_the_batch_is_allocated_in_the_wanted_dtype(dataset: Path):
    source = reader.grain(dataset, batch_size=7, image_size=8)._source
    elements = replace(source, assembled=False)[0]
    assert [image.dtype for image, _ in elements] == [np.dtype(np.uint8)] * 7
    allocated = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        allocated.append((shape, dtype))
        return np.empty(shape, dtype)

    images, _ = source.assemble(elements, allocate)
    assert allocated == [((7, 8, 8, 3), np.float32)]
    np.testing.assert_array_equal(images, source[0][0])
    shared, _ = source.assemble_shared(elements)
    assert type(shared) is grain.multiprocessing.SharedMemoryArray
    shared.unlink_on_del()
    odd = [*elements[:-1], (elements[0][0][:, :1], elements[0][1])]
    with pytest.raises(ValueError, match="the images of a batch differ in size"):
        source.assemble(odd)


def test_augmentation_differs_between_epochs_and_not_between_hosts(dataset: Path):
    options = {"image_size": 8, "augment": True, "shuffle": False, "dtype": "uint8"}
    one = iter(reader.grain(dataset, batch_size=120, **options))
    (first, _), (second, _) = next(one), next(one)
    assert (first != second).any(axis=(1, 2, 3)).mean() > 0.9
    hosts = [
        reader.grain(dataset, batch_size=60, num_hosts=2, host=host, **options) for host in range(2)
    ]
    np.testing.assert_array_equal(np.concatenate([next(iter(host))[0] for host in hosts]), first)


def test_checkpoints_of_orbax_hold_the_position(dataset: Path, tmp_path: Path):
    iterator = iter(reader.grain(dataset, batch_size=8, **RAW))
    for _ in range(3):
        next(iterator)
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(3, args=ocp.args.Composite(input=grain.checkpoint.CheckpointSave(iterator)))
        expected = batches_of([iterator], 3)
        again = iter(reader.grain(dataset, batch_size=8, **RAW))
        manager.wait_until_finished()
        manager.restore(3, args=ocp.args.Composite(input=grain.checkpoint.CheckpointRestore(again)))
    assert batches_of([again], 3) == expected


def test_transformations_of_grain_are_added(dataset: Path):
    data = reader.grain(dataset, image_size=8).map(lambda element: element[0].mean()).batch(4)
    iterator = iter(data)
    first, state, second = next(iterator), iterator.get_state(), next(iterator)
    assert first.shape == (4,)
    iterator.set_state(state)
    np.testing.assert_array_equal(next(iterator), second)
    iterator.close()


IN_PROCESSES = """
import json, sys
from itertools import islice
from imageshards import reader

def main():
    found = []
    for workers in (0, 2):
        data = reader.grain(sys.argv[1], batch_size=24, image_size=8, workers=workers)
        iterator = iter(data)
        batches = [next(iterator) for _ in range(7)]
        state = iterator.get_state()
        expected, _ = next(iterator)
        iterator.set_state(state)
        assert (next(iterator)[0] == expected).all()
        iterator.close()
        found.append([(images.tobytes().hex(), labels.tolist()) for images, labels in batches])
    assert found[0] == found[1]
    print(json.dumps([name for name in sys.modules if name == "tensorflow"]))

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_processes_give_the_same_batches_without_tensorflow(dataset: Path, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(IN_PROCESSES)
    done = subprocess.run(
        [sys.executable, program, dataset], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_a_corrupt_record_is_one_error_with_file_and_offset(dataset: Path, tmp_path: Path):
    shard = sorted(dataset.glob("train-*"))[0]
    copy = tmp_path / "copy.tfrecord"
    data = bytearray(shard.read_bytes())
    data[100] ^= 255
    copy.write_bytes(data)
    iterator = iter(reader.grain(str(copy), batch_size=4, shuffle=False, **{**RAW, "keys": None}))
    with pytest.raises(CorruptRecord, match=r"copy\.tfrecord: record at byte 0: "):
        next(iterator)


def test_compressed_files_are_refused(build, photos: Path, tmp_path: Path):
    build(photos, num_shards="2", compression="gzip", features="pixels", resize="8x8")
    with pytest.raises(UsageError, match="reshard DIR NEW --file_format array_record"):
        reader.grain(tmp_path / "out")
    reshard(str(tmp_path / "out"), str(tmp_path / "arrays"), file_format="array_record")
    assert reader.grain(tmp_path / "arrays", batch_size=4).records == 120


def test_every_option_is_in_the_help():
    described = inspect.cleandoc(reader.grain.__doc__)
    assert all(name in described for name in GrainOptions.__annotations__)


def test_opened_images_have_one_size_and_are_transformed(dataset: Path):
    images = [image for image, _ in islice(reader.open(dataset, image_size=(8, 12)), 10)]
    assert {image.shape for image in images} == {(8, 12, 3)}
    assert {image.dtype for image in images} == {np.dtype(np.uint8)}
    transformed = reader.open(dataset, image_size=8, transform=lambda image: image / 255.0)
    image, label = transformed[3]
    assert (image.shape, image.dtype, label in range(6)) == ((8, 8, 3), np.float64, True)
    source = grain.MapDataset.source(reader.open(dataset, image_size=8))
    assert next(iter(source.batch(4)))[0].shape == (4, 8, 8, 3)
    with pytest.raises(UsageError, match="requires decode=True"):
        reader.open(dataset, image_size=8, decode=False)
