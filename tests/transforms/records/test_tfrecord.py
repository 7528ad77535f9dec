import io
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from imageshards.transforms.elements import ShardId
from imageshards.transforms.records import tfrecord


def framed(records: list[list[bytes]]) -> bytes:
    out = b""
    for parts in records:
        head, tail = tfrecord.frame(parts)
        out += head + b"".join(parts) + tail
    return out


@given(st.lists(st.lists(st.binary(max_size=50), max_size=3), max_size=5))
def test_what_is_framed_is_read(records: list[list[bytes]]):
    file = io.BytesIO(framed(records))
    found = list(tfrecord.read_records(file))
    assert [data for _, data in found] == [b"".join(parts) for parts in records]
    sizes = [len(data) + tfrecord.FRAME_BYTES for _, data in found]
    assert [offset for offset, _ in found] == [sum(sizes[:i]) for i in range(len(sizes))]


def test_tensorflow_reads_and_writes_the_same(tmp_path: Path):
    records = [b"", b"one", b"x" * 5000]
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    assert Path(path).read_bytes() == framed([[record] for record in records])
    assert [r.numpy() for r in tf.data.TFRecordDataset(path)] == records


def test_every_flipped_bit_and_every_cut_is_found():
    whole = framed([[b"hello"], [b"world!"]])
    good = [data for _, data in tfrecord.read_records(io.BytesIO(whole))]
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        with pytest.raises(tfrecord.CorruptRecord, match="record at byte"):
            list(tfrecord.read_records(io.BytesIO(bytes(broken))))
    boundary = tfrecord.FRAME_BYTES + 5
    for cut in range(1, len(whole)):
        read = tfrecord.read_records(io.BytesIO(whole[:cut]))
        if cut == boundary:
            assert [data for _, data in read] == good[:1]
        else:
            with pytest.raises(tfrecord.CorruptRecord):
                list(read)


def test_names():
    shard = ShardId("train", 3, 16)
    assert tfrecord.shard_name(shard) == "train-00003-of-00016.tfrecord"
    assert tfrecord.index_name(shard) == "train-00003-of-00016.idx"
    assert tfrecord.parse_shard_name("train-00003-of-00016.tfrecord") == shard
    assert tfrecord.parse_shard_name("train-3-of-16.tfrecord") is None
    assert tfrecord.SHARD_LIKE.fullmatch("train-00003-of-00016")
    assert not tfrecord.SHARD_LIKE.fullmatch("train.tfrecord")


def test_index_is_a_line_a_record():
    text = tfrecord.index_line(0, 21) + tfrecord.index_line(21, 40)
    assert text == "0 21\n21 40\n"
    assert tfrecord.parse_index(text) == [(0, 21), (21, 40)]
