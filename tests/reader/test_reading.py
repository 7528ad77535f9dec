"""reader.open: records by number, beside what others read of the same files."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import grain
import numpy as np
import pytest
import tensorflow as tf
from conftest import Build
from helpers import names, records, shards
from PIL import Image

from imageshards import reader
from imageshards.reader import files
from imageshards.reader.options import OpenSettings
from imageshards.reader.random_access import Records
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records import index as records_index
from imageshards.transforms.records.container import CorruptRecord, parse_index
from imageshards.transforms.records.containers import CONTAINERS
from imageshards.transforms.records.schemas import SLIM


@pytest.fixture
def dataset(build: Build, photos: Path, tmp_path: Path) -> Path:
    build(photos, num_shards="train=5,test=2", splits="train=0.8,test=0.2", base_uri=str(photos))
    return tmp_path / "out"


def labels(found) -> list[int]:
    return [label for _, label in found]


def test_records_are_read_by_number(dataset: Path, photos: Path):
    found = reader.open(dataset, "train")
    order = names(dataset, "train")
    assert len(found) == len(order) > 80
    for number in (0, 1, len(order) // 2, len(order) - 1, -1, -len(order), np.int64(3)):
        image, label = found[number]
        path = photos / order[number]
        np.testing.assert_array_equal(image, tf.io.decode_image(path.read_bytes()))
        assert found.classes[label] == path.parent.name
        assert found.features(number)["image/filename"].decode() == order[number]
    for number in (len(order), -len(order) - 1):
        with pytest.raises(IndexError):
            found[number]
    first = records(dataset, "train")[0]
    assert reader.open(dataset, "train", decode=False)[0] == (
        first.first("image/encoded"), first.first("image/class/label"),
    )  # fmt: skip


def test_iteration_slices_and_sub_splits_give_the_same_records(dataset: Path):
    found = reader.open(dataset, "train")
    whole = [record.first("image/class/label") for record in records(dataset, "train")]
    assert labels(found) == whole
    assert labels(found[10:-7]) == whole[10:-7]
    assert labels(found[10:50][5:9]) == whole[15:19]
    assert len(found[7:3]) == 0
    assert list(found[7:3]) == []
    assert (
        labels(reader.open(dataset, "train[25%:75%]"))
        == whole[round(len(whole) / 4) : round(3 * len(whole) / 4)]
    )
    both = reader.open(dataset, "train+test")
    assert len(both) == 120
    with pytest.raises(UsageError, match="consecutive"):
        found[::2]
    with pytest.raises(UsageError, match="which split"):
        reader.open(dataset)


def test_shares_of_workers_are_disjoint_and_complete(dataset: Path):
    found = reader.open(dataset, "train", decode=False)
    images = sorted(image for image, _ in found)
    shared = [image for host in range(3) for image, _ in found.share(3, host)]
    assert sorted(shared) == images


def test_shuffled_is_a_function_of_seed_and_epoch(dataset: Path):
    found = reader.open(dataset, "train", decode=False)
    first = list(found.shuffled(seed=1, window=16))
    assert first == list(found.shuffled(seed=1, window=16))
    assert first != list(found.shuffled(seed=1, epoch=1, window=16))
    assert sorted(first) == sorted(found)
    assert first != list(found)
    assert list(found[3:3].shuffled()) == []


def test_invalid_arguments_are_one_line(dataset: Path):
    found = reader.open(dataset, "train")
    for options in ({"seed": -1}, {"epoch": -1}, {"seed": 0.5}, {"window": 0}):
        with pytest.raises(UsageError, match="must be an integer"):
            found.shuffled(**options)
    for channels in (2, 4, 7):
        with pytest.raises(UsageError, match="must be 3, 1 or 0"):
            reader.open(dataset, "train", channels=channels)
    for num_hosts, host in ((2.0, 0), ("2", 0), (2, 0.5), (0, 0)):
        with pytest.raises(UsageError, match="must be an integer"):
            found.share(num_hosts, host)
    with pytest.raises(UsageError, match="0 records for 2 hosts"):
        found[5:5].share(2, 0)


def test_a_folder_name_can_contain_the_letters_of_a_pattern(dataset: Path, tmp_path: Path):
    whole = labels(reader.open(dataset, "train"))
    dataset.rename(tmp_path / "a[1]*.tfrecord")
    assert labels(reader.open(tmp_path / "a[1]*.tfrecord", "train")) == whole


def test_records_can_be_pickled(dataset: Path):
    found = reader.open(dataset, "train")
    again = pickle.loads(pickle.dumps(found))
    assert labels(again) == labels(found)
    assert repr(again) == repr(found) != repr(found[1:])


def test_an_index_out_of_range_says_which_are_valid(dataset: Path):
    found = reader.open(dataset, "train")
    with pytest.raises(
        IndexError, match=rf"out of range: .* from -{len(found)} to {len(found) - 1}"
    ):
        found[len(found)]


def test_grain_takes_it_for_a_data_source(dataset: Path):
    found = reader.open(dataset, "train")
    assert isinstance(found, grain.sources.RandomAccessDataSource)
    data = grain.MapDataset.source(found).shuffle(seed=3).to_iter_dataset().batch(8)
    iterator = iter(data)
    images, batch_labels = next(iterator)
    assert images.shape == (8, 16, 24, 3)
    assert images.dtype == np.uint8
    state = iterator.get_state()
    expected = [list(batch[1]) for batch in iterator]
    again = iter(data)
    again.set_state(state)
    assert [list(batch[1]) for batch in again] == expected
    seen = [*batch_labels, *(label for batch in expected for label in batch)]
    assert len(seen) == len(found)
    assert sorted(seen) == sorted(labels(found))
    loader = grain.DataLoader(
        data_source=found,
        sampler=grain.samplers.IndexSampler(len(found), num_epochs=1, shuffle=True, seed=0),
        worker_count=0,
    )
    assert sorted(labels(loader)) == sorted(labels(found))


# Its protocol buffers and TensorFlow's do not live in one process.
OF_TFRECORD = """
import pickle, sys
from pathlib import Path
from tfrecord import tfrecord_loader
from tfrecord.tools.tfrecord2idx import create_index

folder, scratch = map(Path, sys.argv[1:])
found = []
for path in sorted(folder.glob("train-*.tfrecord")):
    index = folder / "metadata" / "index" / f"{path.stem}.idx"
    create_index(str(path), str(scratch / index.name))
    for part in range(3):  # it seeks by the index
        for record in tfrecord_loader(
            str(path), str(index), {"image/encoded": "byte", "image/class/label": "int"},
            shard=(part, 3),
        ):
            found.append((bytes(record["image/encoded"]), int(record["image/class/label"][0])))
(scratch / "found.pickle").write_bytes(pickle.dumps(found))
"""


def test_the_tfrecord_package_reads_our_files_by_our_index(dataset: Path, tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    subprocess.run([sys.executable, "-c", OF_TFRECORD, dataset, scratch], check=True)
    found = pickle.loads((scratch / "found.pickle").read_bytes())
    assert found == list(reader.open(dataset, "train", decode=False))
    # Its tfrecord2idx is NVIDIA's: a line "offset size" a record, of the record and its frame.
    for path in shards(dataset, "train"):
        index = dataset / "metadata" / "index" / f"{path.stem}.idx"
        assert index.read_text() == (scratch / index.name).read_text()
        assert index.read_text().count("\n") == len(records(dataset, path.stem[:11]))


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_of_a_large_index_only_the_lines_of_the_records_are_parsed(
    tmp_path: Path, file_format: str, monkeypatch: pytest.MonkeyPatch
):
    data = [b"%d" % number * (number % 5) for number in range(20_000)]
    shard = str(tmp_path / f"train-00000-of-00001.{file_format}")
    index = tmp_path / "train-00000-of-00001.idx"
    with storage.open_sink(shard, str(tmp_path)) as sink:
        writer = CONTAINERS[file_format].writer(sink)
        for record in data:
            writer.write([record])
        index.write_bytes(writer.close() or b"")
    parsed, read = [], []

    def parse(content: bytes):
        parsed.append(len(content))
        return parse_index(content)

    def read_range(uri: str, offset: int, size: int, stamp: int = 0) -> bytes:
        read.extend([size] if uri == str(index) else [])
        return whole_read_range(uri, offset, size, stamp)

    whole_read_range = storage.read_range
    monkeypatch.setattr(storage, "read_range", read_range)
    for module in (files, records_index):
        monkeypatch.setattr(module, "parse_index", parse)

    def opened() -> Records:
        file = files.RecordFile(shard, str(index), len(data))
        source = files.Source(str(tmp_path), [file], {"": [0]}, SLIM)
        return Records(source, source.spans(None), SLIM, OpenSettings())

    found = opened()
    numbers = np.random.default_rng(0).integers(0, len(data), 1000).tolist()
    for number in [*numbers[:30], 0, 63, 64, len(data) - 1]:
        assert found.serialized(number) == data[number]
    # A block of 64 lines for each record, one for the end of the file, and one for the record
    # before the first of a block, which might be of the same group.
    assert parsed == []
    assert len(read) <= 34 + 3
    assert max(read) <= 64 * 24
    for number in numbers:
        assert found.serialized(number) == data[number]
    assert parsed == [index.stat().st_size]  # when the lookups have taken as long
    assert [found.serialized(number) for number in range(100)] == data[:100]
    assert len(parsed) == 1

    content = index.read_bytes()
    refused = "open the data set again"
    found = opened()
    assert found.serialized(7) == data[7]
    index.write_bytes(content)
    os.utime(index, ns=(0, 1))
    with pytest.raises(BuildError, match=f"{index}: .* changed after it was opened: {refused}"):
        found.serialized(9_000)
    *lines, last = content.splitlines()
    too_far = b" ".join([b"999999999", *last.split()[1:]])
    for damaged, says in (
        (content.replace(b"\n", b" ", 1), f"{index}: 19,999 records, but 20,000 in build.json"),
        (content[:-1], f"{index}: missing or damaged: breaks off in its last line"),
        (b"\n".join([*lines, too_far, b""]), r"bytes, but 1,000,000,\d{3} bytes in its index"),
    ):
        index.write_bytes(damaged)
        with pytest.raises(BuildError, match=says):
            opened().serialized(7)


def test_files_without_an_index_are_read(dataset: Path, tmp_path: Path):
    folder = tmp_path / "bare"
    folder.mkdir()
    for path in shards(dataset, "train"):
        (folder / path.name).write_bytes(path.read_bytes())
    found = reader.open(folder / "*.tfrecord")
    assert labels(found) == labels(reader.open(dataset, "train"))
    assert labels(reader.open(folder / "*.tfrecord", "[:50%]")) == labels(found[: len(found) // 2])


def test_errors_of_files_without_an_index_name_the_file(dataset: Path, tmp_path: Path):
    folder = tmp_path / "bare"
    folder.mkdir()
    shard = shards(dataset, "train")[0].read_bytes()
    (folder / "full").write_bytes(shard)
    with pytest.raises(UsageError, match=r"'train': the files of a pattern .* \[:80%\]"):
        reader.open(folder / "*", "train")
    (folder / "packed").write_bytes(gzip.compress(shard))
    with pytest.raises(BuildError, match=r"bare/packed: .*the file is gzip.* \.gz"):
        reader.open(folder / "packed")
    (folder / "empty.tfrecord").touch()
    with pytest.raises(UsageError, match=r"bare/empty.tfrecord: no records"):
        reader.open(folder / "empty.tfrecord")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_rewritten_shards_are_read_again(
    build: Build, photos: Path, tmp_path: Path, compression: str
):
    for seed in (1, 2):
        build(
            photos, num_shards="1", features="pixels", resize="12x8", seed=seed, name="out",
            compression=compression, output=tmp_path / str(seed),
        )  # fmt: skip

    def opened(seed: int) -> list[bytes]:
        # As another process writes it.
        if (tmp_path / "out").exists():
            (tmp_path / "out").rename(tmp_path / "old")
        (tmp_path / str(seed)).rename(tmp_path / "out")
        return [image.tobytes() for image, _ in reader.open(tmp_path / "out")]

    def by_tensorflow() -> list[bytes]:
        (path,) = map(str, (tmp_path / "out").glob("train-*"))
        found = tf.data.TFRecordDataset(path, "GZIP" if path.endswith(".gz") else "")
        examples = map(tf.train.Example.FromString, found.as_numpy_iterator())
        return [one.features.feature["image"].bytes_list.value[0] for one in examples]

    before = opened(1)
    assert before == by_tensorflow()
    after = opened(2)
    assert after == by_tensorflow()
    assert sorted(after) == sorted(before)
    assert after != before


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_shard_that_changes_after_it_was_opened_is_an_error(
    build: Build, photos: Path, tmp_path: Path, compression: str
):
    same = {"num_shards": "1", "features": "pixels", "resize": "12x8", "compression": compression}
    build(photos, **same, seed=1)
    found = reader.open(tmp_path / "out", decode=False)
    assert len(list(found)) == 120
    build(photos, **same, seed=2, overwrite=True)
    files._decompressed.cache_clear()
    with pytest.raises(CorruptRecord, match="changed"):
        found[0]
    assert len(list(reader.open(tmp_path / "out"))) == 120


def test_a_corrupt_record_is_one_error_with_file_and_offset(dataset: Path):
    path = shards(dataset, "train")[1]
    data = bytearray(path.read_bytes())
    index = (dataset / "metadata/index" / f"{path.stem}.idx").read_text().splitlines()
    offset = int(index[3].split()[0])
    data[offset + 400] ^= 1
    path.write_bytes(data)
    found = reader.open(dataset, "train")
    with pytest.raises(CorruptRecord) as caught:
        list(found)
    message = f"{path}: record at byte {offset}: the CRC of its data is wrong"
    assert str(caught.value) == message
    bad = []
    for number in range(len(found)):
        try:
            found[number]
        except CorruptRecord as error:
            bad.append(str(error))
    assert bad == [message]
    unchecked = reader.open(dataset, "train", check=False, decode=False)
    assert len(list(unchecked)) == len(found)


def test_files_of_a_data_set_are_described_by_its_metadata(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos, num_shards="3", features="pixels", resize="8x8")
    whole = reader.open(tmp_path / "out")
    some = reader.open(tmp_path / "out/train-*")
    assert labels(some) == labels(whole)
    assert some[0][0].shape == (8, 8, 3)
    assert some.classes == whole.classes
    one = reader.open(shards(tmp_path / "out", "train")[1])
    assert 0 < len(one) < len(whole)
    images, _ = next(iter(reader.load(tmp_path / "out/train-*", batch_size=4, dtype="uint8")))
    assert images.shape == (4, 8, 8, 3)


def test_all_features_of_other_records_are_returned(tmp_path: Path):
    path = tmp_path / "x.tfrecord"
    text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"owl"]))
    sizes = tf.train.Feature(int64_list=tf.train.Int64List(value=[3, 4]))
    features = tf.train.Features(feature={"name": text, "sizes": sizes})
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(tf.train.Example(features=features).SerializeToString())
    assert reader.open(path).features(0) == {"name": b"owl", "sizes": [3, 4]}


def broken_png() -> bytes:
    """Its second chunk of pixels has another name, of which Pillow says SyntaxError."""
    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(out, "PNG")
    first, second = out.getvalue().split(b"IDAT", 2)[:2]
    rest = out.getvalue()[len(first) + len(second) + 8 :]
    return first + b"IDAT" + second + b"\xe1s\xe2\x0b" + rest


def test_an_image_that_does_not_decode_is_an_error(tmp_path: Path):
    path = tmp_path / "x.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for data in (b"\xff\xd8nothing", b"nothing", broken_png()):
            feature = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    found = reader.open(path, label_key="")
    for number in (0, 1, 2):
        with pytest.raises(CorruptRecord, match=r"x.tfrecord: record at byte \d+: "):
            found[number]


def test_an_index_that_does_not_fit_is_an_error(dataset: Path):
    path = shards(dataset, "train")[0]
    index = dataset / "metadata/index" / f"{path.stem}.idx"
    lines = index.read_text().splitlines()
    offset, size = lines[2].split()
    lines[2] = f"{int(offset) + 1} {size}"
    index.write_text("\n".join(lines) + "\n")
    with pytest.raises(CorruptRecord, match="the CRC of its length"):
        reader.open(dataset, "train")[2]
