"""Blocks and windows of Records.shuffled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from imageshards.reader.files import RecordFile, find
from imageshards.reader.ordering.blocks import make_blocks
from imageshards.reader.splits import Span
from imageshards.transforms.records.index import Index


@pytest.mark.parametrize(
    ("record_bytes", "records"),
    [(1_000, 65_536), (100_000, 1_342), (1_000_000, 134), (8_000_000, 16), (20_000_000, 16)],
)
def test_windows_are_bounded_by_bytes(monkeypatch, record_bytes: int, records: int):
    index = np.arange(100_000)[:, None] * [record_bytes, 0] + [0, record_bytes]
    file = RecordFile("/nowhere/a.tfrecord")
    monkeypatch.setitem(file.__dict__, "index", Index(index))
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
