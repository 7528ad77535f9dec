import io
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from imageshards.transforms.elements import ShardId
from imageshards.transforms.records import containers, tfrecord
from imageshards.transforms.records.container import CorruptRecord, index_line, parse_index
from imageshards.transforms.records.tfrecord import TFRecord


def framed(records: list[list[bytes]]) -> bytes:
    return b"".join(b"".join(tfrecord.frame(parts)) for parts in records)


@given(st.lists(st.lists(st.binary(max_size=50), max_size=3), max_size=5))
def test_framed_records_are_read_back(records: list[list[bytes]]):
    file = io.BytesIO(framed(records))
    found = list(TFRecord().read(file))
    assert [record.data for record in found] == [b"".join(parts) for parts in records]
    sizes = [len(record.data) + tfrecord.FRAME_BYTES for record in found]
    assert [record.size for record in found] == sizes
    assert [record.offset for record in found] == [sum(sizes[:i]) for i in range(len(sizes))]
    whole = file.getvalue()
    located = list(TFRecord().locate(io.BytesIO(whole), len(whole)))
    assert located == [(record.offset, record.size) for record in found]
    for record in found:
        stored = memoryview(whole)[record.offset : record.offset + record.size]
        assert TFRecord().data_of(stored, record.offset) == record.data


def test_tensorflow_reads_and_writes_the_same_bytes(tmp_path: Path):
    records = [b"", b"one", b"x" * 5000]
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    assert Path(path).read_bytes() == framed([[record] for record in records])
    assert [r.numpy() for r in tf.data.TFRecordDataset(path)] == records


def test_every_flipped_bit_and_every_cut_is_found():
    whole = framed([[b"hello"], [b"world!"]])
    good = [record.data for record in TFRecord().read(io.BytesIO(whole))]
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        with pytest.raises(CorruptRecord, match="record at byte"):
            list(TFRecord().read(io.BytesIO(bytes(broken))))
    boundary = tfrecord.FRAME_BYTES + 5
    for cut in range(1, len(whole)):
        read = TFRecord().read(io.BytesIO(whole[:cut]))
        if cut == boundary:
            assert [record.data for record in read] == good[:1]
        else:
            with pytest.raises(CorruptRecord):
                list(read)


def test_shard_names_are_parsed_back():
    for compression, suffix in (("", ".tfrecord"), ("gzip", ".tfrecord.gz")):
        shard = ShardId("train", 3, 16, compression)
        assert containers.shard_name(shard) == f"train-00003-of-00016{suffix}"
        assert containers.index_name(shard) == "train-00003-of-00016.idx"
        assert containers.parse_shard_name(f"train-00003-of-00016{suffix}") == shard
    for name in ("train-3-of-16.tfrecord", "train-00003-of-00016", "train.tfrecord"):
        assert containers.parse_shard_name(name) is None


def test_files_that_other_readers_would_match_are_recognized():
    for suffix in ("", ".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecord.zlib"):
        assert containers.is_shard_like(f"train-00003-of-00016{suffix}")
    for name in ("train.tfrecord", "train-00003-of-00016.txt", "train-00003-of-00016.tfrecordx"):
        assert not containers.is_shard_like(name)


def test_the_index_has_one_line_per_record():
    text = index_line(0, 21) + index_line(21, 40)
    assert text == "0 21\n21 40\n"
    assert parse_index(text.encode()).tolist() == [[0, 21], [21, 40]]
    assert parse_index(b"64 21 9\r\n85 40 4294967295").tolist() == [
        [64, 21, 9],
        [85, 40, 2**32 - 1],
    ]
    assert parse_index(b"").shape == parse_index(b"\n").shape == (0, 2)
    with pytest.raises(ValueError, match="reshape"):
        parse_index(b"0 21\n3")
    with pytest.raises(ValueError, match="digits"):
        parse_index(b"0 21\n21 4O\n")
