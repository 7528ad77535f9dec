"""The records of a host: what is read together, ahead and once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imageshards.reader.files import RecordFile, find
from imageshards.reader.options import ReadOptions
from imageshards.reader.ordering import host_records
from imageshards.reader.ordering.global_order import GlobalOrder
from imageshards.reader.ordering.host_records import HostRecords
from imageshards.reader.ordering.of_files import order_of
from imageshards.reader.splits import Span
from imageshards.transforms import storage


def records_of(files: Sequence[RecordFile], spans: Sequence[Span]) -> Iterator[bytes]:
    """All records, read one by one."""
    for span in spans:
        for row in range(span.begin, span.end):
            yield files[span.file].record(row)


def test_records_that_follow_each_other_in_a_remote_file_are_one_read(
    dataset, monkeypatch: pytest.MonkeyPatch
):
    source = find(dataset)
    spans = source.spans("train")
    order = GlobalOrder(120, 4, seed=1, block=5, run=10)
    everything = list(records_of(source.files, spans))
    expected = [
        (4 * step + np.arange(4), [everything[i] for i in order.batch(step)]) for step in range(40)
    ]
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


@pytest.mark.parametrize(
    ("large", "order", "reads"),
    [
        (1 << 20, GlobalOrder(120, 4, seed=1, block=12, run=30), "ranges"),
        (1 << 20, GlobalOrder(120, 4, seed=1, block=5, run=10), "records"),
        (1 << 20, GlobalOrder(120, 4, shuffle=False, run=10), "ranges"),
        (1 << 20, GlobalOrder(120, 4, seed=1, run=10), "records"),  # neighbours are rare
        (1, GlobalOrder(120, 4, seed=1, block=12, run=30), "records"),
    ],
)
def test_small_records_of_local_files_are_read_in_ranges(
    dataset, monkeypatch: pytest.MonkeyPatch, large: int, order: GlobalOrder, reads: str
):
    source = find(dataset)
    spans = source.spans("train")
    everything = list(records_of(source.files, spans))
    found: Counter[str] = Counter()
    for name, method in (("ranges", RecordFile.stored), ("records", RecordFile.record)):

        def counted(self: RecordFile, *args: int, _name: str = name, _method: Any = method) -> Any:
            found[_name] += 1
            return _method(self, *args)

        monkeypatch.setattr(RecordFile, method.__name__, counted)
    monkeypatch.setattr(host_records, "_LARGE_BYTES", large)
    records = HostRecords(source.files, spans, order, 0, 1, repeat=False)
    for step in range(30):
        _, data = records.read(step, step + 1)
        assert data == [everything[number] for number in order.batch(step)]
    assert set(found) == {reads}
    assert found[reads] == 120 if reads == "records" else found[reads] <= 60


def test_a_record_is_the_same_alone_and_among_others(dataset):
    file = find(dataset).files[2]
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
