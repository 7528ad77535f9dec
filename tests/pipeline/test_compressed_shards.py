"""Shards of compressed records (`--compression gzip`)."""

import json
import re
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build
from helpers import contents
from schema_builds import options_of, raw_records, write_folder

from imageshards.reader.verify import verify


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "in")


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_compressed_shards_are_read_by_tensorflow(
    build: Build, folder: Path, tmp_path: Path, writer: str
):
    same = {
        **options_of("pixels"), "writer": writer, "splits": "train=0.6,test=0.4",
        "base_uri": str(folder),
    }  # fmt: skip
    for path in (folder / "class01").glob("*.jpg"):
        (folder / f"class00/twin{path.name}").write_bytes(path.read_bytes())
    plain = build(folder, **same, output=tmp_path / "plain")
    summary = build(folder, **same, compression="gzip")
    out = tmp_path / "out"
    assert sorted(path.name for path in out.glob("*-of-*")) == [
        f"{split}-0000{n}-of-00002.tfrecord.gz" for split in ("test", "train") for n in (0, 1)
    ]
    assert sorted(raw_records(out)) == sorted(raw_records(tmp_path / "plain"))
    assert summary.bytes < plain.bytes
    assert summary.leaks == plain.leaks > 0
    leak = json.loads((out / "metadata/leaks.jsonl").read_text().splitlines()[0])
    for image in leak["images"]:
        assert re.fullmatch(rf"record \d+ of {image['split']}-\d+-of-00002.tfrecord.gz",
                            image["filename"])  # fmt: skip
    assert any("compression_type=" in note for note in summary.notes)
    assert not list(out.glob("metadata/index/*"))
    assert not verify(str(out)).problems
    builder = tfds.builder_from_directory(str(out))
    with pytest.raises(tf.errors.DataLossError):
        list(builder.as_dataset(split="train"))
    shard = out / "train-00000-of-00002.tfrecord.gz"
    assert shard.read_bytes()[4:8] == bytes(4), "no time in the header"
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    shard.write_bytes(damaged)
    assert "train-00000-of-00002" in verify(str(out)).problems[0]
    shard.write_bytes(bytes(damaged[:50]))
    assert "gzip: " in verify(str(out)).problems[0]


@pytest.mark.slow
def test_compressed_shards_are_reproducible_and_resumed(build: Build, folder: Path, tmp_path: Path):
    same = {**options_of("raw"), "compression": "gzip", "name": "x", "base_uri": str(folder)}
    build(folder, **same)
    build(folder, **same, output=tmp_path / "b", beam=["--runner=FnApiRunner",
          "--direct_running_mode=multi_processing", "--direct_num_workers=2"])  # fmt: skip
    before = contents(tmp_path / "out")
    assert contents(tmp_path / "b") == before
    (tmp_path / "out/train-00001-of-00002.tfrecord.gz").unlink()
    assert build(folder, **same).resumed == 1
    assert contents(tmp_path / "out") == before
    build(folder, **{**same, "compression": "none"}, overwrite=True)
    assert not list((tmp_path / "out").glob("*.gz"))
