"""A record container is one class: this module adds one, and everything works with it."""

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest
from conftest import Build, Command
from helpers import build_json, contents

from imageshards import reader
from imageshards.pipeline.operations.reshard import reshard
from imageshards.reader.inspect import inspect
from imageshards.reader.verify import verify
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.container import (
    Container,
    CorruptRecord,
    IndexedWriter,
    RecordWriter,
    StoredRecord,
)
from imageshards.transforms.records.containers import CONTAINERS
from imageshards.transforms.storage import Sink

SPLITS = "train=0.7,test=0.3"


def line_of(parts: Sequence[bytes]) -> list[bytes]:
    return [b'"', base64.b64encode(b"".join(parts)), b'"\n']


class JsonLines(Container):
    """One JSON string per line: the record in base64."""

    name = "jsonl"
    suffix = ".jsonl"
    tfds_format = "jsonl"

    def writer(self, sink: Sink) -> RecordWriter:
        return IndexedWriter(sink, line_of)

    def read(self, file: BinaryIO, *, check: bool = True) -> Iterator[StoredRecord]:
        content = file.read()
        offset = 0
        for line in content.splitlines(keepends=True):
            yield StoredRecord(offset, len(line), self.data_of(memoryview(line), offset))
            offset += len(line)

    def data_of(self, stored: memoryview, offset: int, *, check: bool = True) -> bytes:
        try:
            return base64.b64decode(json.loads(bytes(stored)), validate=True)
        except ValueError as error:
            raise CorruptRecord(f"not a line of base64: {error}") from error


@pytest.fixture(autouse=True)
def json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONTAINERS, "jsonl", JsonLines())


@pytest.fixture
def dataset(build: Build, photos: Path, tmp_path: Path) -> Path:
    build(photos, num_shards="2", splits=SPLITS, base_uri=str(photos), file_format="jsonl")
    return tmp_path / "out"


def images(folder: Path | str) -> list[tuple[bytes, int]]:
    return list(reader.open(folder, "train", decode=False))


def test_it_is_built_with_the_records_of_a_tfrecord_data_set(
    build: Build, photos: Path, dataset: Path, tmp_path: Path
):
    paths = sorted(path.name for path in dataset.glob("*-of-*"))
    assert paths[0] == "test-00000-of-00002.jsonl"
    assert len(paths) == 4
    build(photos, num_shards="2", splits=SPLITS, base_uri=str(photos), output=tmp_path / "tfrecord")
    assert images(dataset) == images(tmp_path / "tfrecord")
    info = json.loads((dataset / "dataset_info.json").read_text())
    assert info["fileFormat"] == "jsonl"
    assert build_json(dataset)["options"]["file_format"] == "jsonl"


def test_it_is_verified_and_inspected(dataset: Path):
    assert verify(str(dataset)).problems == ()
    assert verify(str(dataset), sample=10).records == 10
    path = dataset / "train-00001-of-00002.jsonl"
    assert "image/encoded" in inspect(str(path))
    path.write_bytes(path.read_bytes().replace(b'"', b"'", 1))
    assert "not a line of base64" in verify(str(dataset)).problems[0]


def test_it_is_read_by_number_with_and_without_its_data_set(dataset: Path, tmp_path: Path):
    found = images(dataset)
    records = reader.open(dataset, "train", decode=False)
    assert [records[number] for number in range(len(records))] == found
    assert sorted(records.shuffled(seed=3)) == sorted(found)
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in dataset.glob("train-*"):
        (bare / path.name).write_bytes(path.read_bytes())
    assert [image for image, _ in reader.open(bare / "*.jsonl", decode=False)] == [
        image for image, _ in found
    ]


def test_it_is_resumed_and_replaced(build: Build, photos: Path, dataset: Path):
    same = {"splits": SPLITS, "base_uri": str(photos), "file_format": "jsonl"}
    before = contents(dataset)
    (dataset / "train-00001-of-00002.jsonl").unlink()
    assert build(photos, num_shards="2", **same).resumed == 3
    assert contents(dataset) == before
    build(photos, num_shards="3", overwrite=True, **same)
    assert len(list(dataset.glob("*.jsonl"))) == 6
    assert len(list(dataset.glob("metadata/index/*.idx"))) == 6


def test_it_is_resharded(dataset: Path, tmp_path: Path):
    reshard(str(dataset), str(tmp_path / "new"), "train=5")
    assert images(tmp_path / "new") == images(dataset)
    assert verify(str(tmp_path / "new")).problems == ()


def test_beam_does_not_write_it_and_it_has_no_compression(
    build: Build, command: Command, photos: Path
):
    for options in ({"writer": "beam"}, {"features": "text", "compression": "gzip"}):
        with pytest.raises(UsageError, match="--file_format jsonl"):
            build(photos, num_shards="2", file_format="jsonl", **options)
