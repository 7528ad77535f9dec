"""A further store is one class and one line in `STORES`; a build reads from it and writes to it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers import image_bytes

from imageshards import reader
from imageshards.launch.cli import main
from imageshards.transforms import storage
from imageshards.transforms.storage import globs
from imageshards.transforms.storage.protocol import UNKNOWN, Entry, Store
from imageshards.transforms.storage.sink import BatchSink
from imageshards.transforms.storage.web import WebOptions


class MemoryStore(Store):
    """Files of this process, in a dict: mem://FOLDER/NAME. A stamp is the number of the write."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}
        self.writes = 0

    def write(self, uri: str, data: bytes) -> None:
        self.writes += 1
        self.files[uri] = data, self.writes

    def read(self, uri: str, limit: int, stamp: int, web: WebOptions, /) -> tuple[bytes, int]:
        if uri not in self.files:
            raise storage.ReadError("Missing", "no such file")
        data, found = self.files[uri]
        if stamp and stamp != found:
            raise storage.ReadError("Changed", "it was replaced after it had been listed")
        return data, found

    def read_range(self, uri: str, offset: int, size: int, stamp: int, /) -> bytes:
        return self.read(uri, 0, stamp, WebOptions())[0][offset : offset + size]

    def open_read(self, uri: str, /) -> io.BytesIO:
        if uri not in self.files:
            raise FileNotFoundError(2, "no such file", uri)
        return io.BytesIO(self.files[uri][0])

    def stat(self, uri: str, /) -> tuple[int, int]:
        data, stamp = self.files.get(uri, (None, 0))
        return UNKNOWN if data is None else (len(data), stamp)

    def match(self, pattern: str, /) -> Iterator[tuple[str, int, int]]:
        matches = globs.regex(pattern).fullmatch
        return ((uri, *self.stat(uri)) for uri in list(self.files) if matches(uri))

    def entries_in(self, folder: str, /) -> Iterator[Entry]:
        prefix = folder.rstrip("/") + "/"
        for uri, size, stamp in self.match(prefix + "*"):
            yield Entry(uri.removeprefix(prefix), stamp, size)

    def delete(self, uri: str, /) -> None:
        self.files.pop(uri, None)

    @contextmanager
    def open_sink(self, uri: str, scratch: str, /) -> Iterator[BatchSink]:
        data = bytearray()
        sink = BatchSink(lambda parts: data.extend(b"".join(parts)))
        yield sink
        sink.finish()
        sink.close()
        self.delete(uri)
        if sink.keep:
            self.write(uri, bytes(data))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The store of mem:// URIs, with 20 images in two folders."""
    found = MemoryStore()
    for number in range(20):
        uri = f"mem://photos/class{number % 2}/{number}.jpg"
        found.write(uri, image_bytes(number))
    monkeypatch.setitem(storage.STORES, "mem", found)
    return found


BUILD = ["build", "--input=mem://photos", "--output=mem://out", "--num_shards=3", "--workers=1"]


def test_a_build_reads_from_a_store_and_writes_to_it(store: MemoryStore):
    assert main(BUILD) == 0
    assert len([uri for uri in store.files if uri.endswith(".tfrecord")]) == 3
    assert main(["verify", "mem://out"]) == 0
    records = reader.open("mem://out", "train")
    assert len(records) == 20
    in_order = list(records)
    assert sorted(label for _, label in in_order) == [0] * 10 + [1] * 10
    for number in range(20):
        image, label = records[number]
        assert label == in_order[number][1]
        assert np.array_equal(image, in_order[number][0])


def test_parts_of_a_file_are_cut_where_it_ends(store: MemoryStore, tmp_path: Path):
    (tmp_path / "a").write_bytes(b"0123456789")
    store.write("mem://a", b"0123456789")
    for uri in ("mem://a", str(tmp_path / "a")):
        assert storage.read_parts(uri, 1, (2, 3, 1)) == [b"12", b"345", b"6"]
        assert storage.read_parts(uri, 6, (2, 3, 1)) == [b"67", b"89", b""]
    stamp = storage.stat(str(tmp_path / "a"))[1]
    with pytest.raises(storage.ReadError, match="changed"):
        storage.read_parts(str(tmp_path / "a"), 0, (1,), stamp + 1)


def test_a_build_resumes_in_a_store(store: MemoryStore):
    assert main(BUILD) == 0
    before = {uri: data for uri, (data, _) in store.files.items()}
    for lost in ("dataset_info.json", "train-00001-of-00003.tfrecord"):
        store.delete(f"mem://out/{lost}")
    untouched = store.stat("mem://out/train-00000-of-00003.tfrecord")
    assert main(BUILD) == 0
    assert {uri: data for uri, (data, _) in store.files.items()} == before
    assert store.stat("mem://out/train-00000-of-00003.tfrecord") == untouched


def test_a_store_without_preconditions_still_creates_and_replaces(store: MemoryStore):
    assert storage.create("mem://a", b"one", "")
    assert not storage.create("mem://a", b"two", "")
    assert storage.replace("mem://a", b"three", "", storage.read("mem://a")[1])
    assert storage.read("mem://a")[0] == b"three"


def test_a_scheme_is_recognised_in_any_case_of_letters():
    assert storage.can_list("gs://bucket/a")
    assert not storage.can_list("HTTP://host/a")
    assert storage.is_local("/a")
    assert not storage.is_local("other://a")
