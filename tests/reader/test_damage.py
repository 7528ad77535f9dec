"""Damaged and missing files at reading: one error, which names the file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import gcs_server
import numpy as np
import pytest
from gcs_faults import denied
from gcs_server import Fault, GcsServer
from helpers import shards

from imageshards import reader
from imageshards.reader.files import find
from imageshards.reader.ordering.global_order import GlobalOrder
from imageshards.reader.ordering.host_records import HostRecords
from imageshards.transforms.elements import BuildError
from imageshards.transforms.records.tfrecord import CorruptRecord


def test_a_corrupt_shard_is_one_error_with_file_and_offset(dataset, tmp_path: Path):
    folder = tmp_path / "copy"
    shutil.copytree(dataset, folder)
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


def test_a_file_that_is_shorter_than_its_index_is_an_error(dataset, tmp_path: Path):
    folder = tmp_path / "copy"
    shutil.copytree(dataset, folder)
    path = shards(folder)[2]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BuildError, match=f"{path.name}.*bytes"):
        list(reader.load(folder, batch_size=8, image_size=8, repeat=False))


@pytest.fixture
def remote(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server with the data set."""
    with gcs_server.running() as server:
        server.put_folder(dataset, "photos")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("read", [reader.load, reader.grain])
def test_an_iterator_reads_again_after_an_error_of_the_network(dataset, remote, read):
    options = {"batch_size": 8, "decode": False, "shuffle": False}
    local = read(dataset, **options)
    expected = [np.asarray(images).tolist() for images, _ in islice(iter(local), 15)]
    data = read("gs://bucket/photos", **options)
    iterator = data.iterator() if read is reader.load else iter(data)
    found: list[list[bytes]] = []

    def take(count: int) -> None:
        while len(found) < count:
            found.append(np.asarray(next(iterator)[0]).tolist())

    path = shards(dataset)[4]
    with remote.failing(Fault(denied("storage.objects.get"), f"GET .*{path.name}")):
        for _ in range(2):
            with pytest.raises(BuildError, match=r"denied|permission") as caught:
                take(15)
            assert "\n" not in str(caught.value)
    take(15)
    assert found == expected


def test_the_records_of_a_host_are_read_again_after_an_error(dataset, remote):
    source = find("gs://bucket/photos")
    order = GlobalOrder(120, 8, shuffle=False)
    records = HostRecords(source.files, source.spans("train"), order, 0, 1)
    with (
        remote.failing(Fault(denied("storage.objects.get"), "GET .*train-00000")),
        pytest.raises(BuildError),
    ):
        records.read(0, 1)
    assert len(records.read(0, 1)[1]) == 8
