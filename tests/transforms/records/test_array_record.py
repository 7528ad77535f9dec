"""ArrayRecord: the bytes of the array_record package, without a file on a disk."""

import contextlib
import hashlib
import io
import itertools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import google_crc32c
import grain
import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from conftest import Build, Command
from helpers import build_json, contents

from imageshards import reader
from imageshards.pipeline.operations.reshard import reshard
from imageshards.reader.inspect import inspect
from imageshards.reader.verify import verify
from imageshards.transforms import storage
from imageshards.transforms.records.array_record import ArrayRecord
from imageshards.transforms.records.container import CorruptRecord, parse_index
from imageshards.transforms.storage.protocol import Sink
from imageshards.transforms.storage.sink import BatchSink

SPLITS = "train=0.7,test=0.3"
EDGE = (1 << 16) - 24
# Sizes around the block headers, which come every 64 KiB and may interrupt a chunk's header.
SIZES = [0, 1, 9000, EDGE - 64 - 9130, 1, EDGE - 200, 70, *range(EDGE - 130, EDGE - 10, 7), 300_000]


def data_of_size(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def theirs(path: Path, records: Sequence[bytes], options: str) -> bytes:
    """A file that the package writes itself."""
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path.read_bytes()


@contextlib.contextmanager
def collecting_sink() -> Iterator[tuple[BatchSink, bytearray]]:
    """A sink without a local file, such as that of an object store, and what it has got."""
    content = bytearray()
    sink = BatchSink(lambda parts: content.extend(b"".join(parts)))
    try:
        yield sink, content
        sink.finish()
    finally:
        sink.close()


@pytest.mark.parametrize("count", [1, 2, 30])
def test_a_file_that_breaks_off_in_its_footer_has_all_its_records(tmp_path: Path, count: int):
    records = [data_of_size(50 + number) for number in range(count)]
    content = theirs(tmp_path / "a.array_record", records, "group_size:1,uncompressed")
    *_, last = ArrayRecord().locate(io.BytesIO(content), len(content))
    for size in (len(content) - 1, sum(last) + 90, sum(last) + 10, sum(last)):
        found: list[bytes] = []
        read = ArrayRecord().read(io.BytesIO(content[:size]))
        with pytest.raises(CorruptRecord, match=r"breaks off"):
            found += (record.data for record in read)
        assert found == records
        with pytest.raises(CorruptRecord, match=r"truncated in its footer: copy or write it again"):
            next(ArrayRecord().locate(io.BytesIO(content[:size]), size))


def write_records(sink: Sink, records: Sequence[bytes]) -> bytes:
    """Writes records, and returns the index."""
    sink.compute_sha256()
    writer = ArrayRecord().writer(sink)
    for record in records:
        writer.write([record[:7], record[7:]])
    index = writer.close()
    assert index is not None
    return index


def ours(path: Path, records: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The same file through a local sink, and its index. Another sink gets the same bytes."""
    with storage.open_sink(str(path), str(path.parent)) as sink:
        index = write_records(sink, records)
    with collecting_sink() as (other, content):
        assert write_records(other, records) == index
    found = path.read_bytes()
    assert bytes(content) == found
    for one in (sink, other):
        assert (one.size, one.crc32c) == (len(found), google_crc32c.value(found))
        assert one.sha256 == hashlib.sha256(found).hexdigest()
    return found, index


@pytest.mark.parametrize("count", [0, 1, len(SIZES)])
def test_the_package_would_write_the_same_bytes(tmp_path: Path, count: int):
    records = [data_of_size(size) for size in SIZES[:count]]
    found, index = ours(tmp_path / "ours", records)
    assert found == theirs(tmp_path / "theirs", records, "group_size:1,uncompressed")
    rows = parse_index(index).tolist()
    assert [tuple(row[:2]) for row in rows] == list(
        ArrayRecord().locate(io.BytesIO(found), len(found))
    )
    read = list(ArrayRecord().read(io.BytesIO(found)))
    assert [record.data for record in read] == records
    assert [[*ArrayRecord().index_row(record)] for record in read] == rows
    for (offset, size, _), record in zip(rows, records, strict=True):
        stored = memoryview(found)[offset : offset + size]
        assert ArrayRecord().data_of(stored, offset) == record


def test_a_large_remote_file_passes_through_memory_in_pieces(tmp_path: Path):
    records = [data_of_size(900_001 + number) for number in range(60)]
    before = bytes_written()
    with collecting_sink() as (sink, content):
        writer = ArrayRecord().writer(sink)
        for record in records:
            writer.write([record])
            # Between the pieces, the file in memory has no pages.
            assert os.fstat(writer._file).st_blocks == 0
        writer.close()
        assert bytes_written() - before >= sink.size  # into the file in memory
    assert content == theirs(tmp_path / "theirs", records, "group_size:1,uncompressed")


def test_a_local_file_is_written_once(tmp_path: Path):
    records = [data_of_size(300_000) for _ in range(40)]
    with storage.open_sink(str(tmp_path / "a"), str(tmp_path)) as sink:
        writer = ArrayRecord().writer(sink)
        before = bytes_written()
        for record in records:
            writer.write([record])
        writer.close()
        written = bytes_written() - before
    assert sink.size <= written < 1.01 * sink.size


def bytes_written() -> int:
    """Bytes that this process has passed to `write` and the like."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def test_a_file_that_cannot_grow_is_one_error(tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "out"

    def write() -> None:
        with storage.open_sink(str(path), str(tmp_path)) as sink:
            write_records(sink, [data_of_size(300_000)] * 10)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(storage.StoreError) as found:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    reason = "cannot be written: File too large; correct that, then run the same command again"
    assert str(found.value).startswith(f"{path}: {reason}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", ["group_size:1", "group_size:3,snappy", "group_size:4,brotli"])
def test_files_of_other_programs_are_read(tmp_path: Path, options: str):
    records = [bytes([65 + number]) * 20_000 * number for number in range(9)]
    content = theirs(tmp_path / "theirs.array_record", records, options)
    assert [record.data for record in ArrayRecord().read(io.BytesIO(content))] == records
    found = reader.open(tmp_path / "theirs.array_record")
    assert [found.serialized(number) for number in range(9)] == records
    assert [found.serialized(number) for number in (7, 2, 8, 0)] == [
        records[n] for n in (7, 2, 8, 0)
    ]


def test_a_truncated_file_and_one_of_another_format_are_reported(tmp_path: Path):
    records = [data_of_size(size) for size in (5, 70_000, 9)]
    content = theirs(tmp_path / "theirs", records, "group_size:1,uncompressed")
    for cut in (0, 63, 64, 80, 70_000, 71_000, len(content) - (1 << 16)):
        with pytest.raises(CorruptRecord):
            list(ArrayRecord().read(io.BytesIO(content[:cut])))
        with pytest.raises(CorruptRecord):
            list(ArrayRecord().locate(io.BytesIO(content[:cut]), cut))
    for at in itertools.chain(range(64, 120), range(len(content) - (1 << 16), len(content), 97)):
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        for read in (
            lambda file: [record.data for record in ArrayRecord().read(file)],
            lambda file: list(ArrayRecord().locate(file, len(content))),
        ):
            # Hashes are not compared; no other error may be raised.
            with contextlib.suppress(CorruptRecord):
                read(io.BytesIO(bytes(damaged)))


@pytest.fixture(scope="module")
def built(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `array_record` and `tfrecord` with the same data set."""
    from imageshards.pipeline.options.build_options import BuildOptions
    from imageshards.pipeline.run import run

    folder = tmp_path_factory.mktemp("built")
    for file_format in ("array_record", "tfrecord"):
        options = BuildOptions.of(
            input=(str(photos),), output=str(folder / file_format), file_format=file_format,
            splits=SPLITS, num_shards="2", name="photos",
        )  # fmt: skip
        run(options, ["--runner=FnApiRunner"], show_progress=False)
    return folder


def serialized(folder: Path, split: str) -> list[bytes]:
    records = reader.open(folder, split)
    return [records.serialized(number) for number in range(len(records))]


def test_its_records_are_those_of_a_tfrecord_data_set(built: Path):
    for split in ("train", "test"):
        expected = serialized(built / "tfrecord", split)
        assert serialized(built / "array_record", split) == expected
        files = sorted(map(str, (built / "array_record").glob(f"{split}-*.array_record")))
        source = grain.sources.ArrayRecordDataSource(files)
        assert [source[number] for number in range(len(source))] == expected
    for path in sorted((built / "array_record").glob("*.array_record")):
        read = [record.data for record in ArrayRecord().read(io.BytesIO(path.read_bytes()))]
        assert path.read_bytes() == theirs(built / "theirs", read, "group_size:1,uncompressed")


def test_tensorflow_datasets_reads_it(built: Path):
    of_tfds = tfds.builder_from_directory(built / "array_record")
    assert of_tfds.info.splits["train"].num_examples == len(
        reader.open(built / "tfrecord", "train")
    )
    source = of_tfds.as_data_source("train")
    records = reader.open(built / "array_record", "train", decode=False)
    for number in (0, 5, len(source) - 1):
        assert source[number]["image/class/label"] == records[number][1]


def test_it_is_described_verified_and_inspected(built: Path):
    folder = built / "array_record"
    assert json.loads((folder / "dataset_info.json").read_text())["fileFormat"] == "array_record"
    croissant = (folder / "croissant.json").read_text()
    assert "application/x-array-record" in croissant
    assert "x-tfrecord" not in croissant
    assert build_json(folder)["versions"]["array_record"] == version("array_record")
    assert "array_record" not in build_json(built / "tfrecord")["versions"]
    assert verify(str(folder)).problems == ()
    assert verify(str(folder), sample=10).records == 10
    assert "image/encoded" in inspect(str(folder))
    bare = inspect(str(folder / "train-00000-of-00002.array_record"))
    assert f"{build_json(folder)['shards'][0]['records']} records" in bare


def test_damage_is_found(built: Path, tmp_path: Path):
    for path, content in contents(built / "array_record").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    path = tmp_path / "train-00000-of-00002.array_record"
    records = reader.open(tmp_path, "train")
    content = bytearray(path.read_bytes())
    at = content.index(b"\xff\xd8\xff") + 300  # a bit of the first image
    content[at] ^= 4
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match="record at byte 64: its CRC32C is not the one"):
        records[0]
    assert any("CRC32C" in problem for problem in verify(str(tmp_path)).problems)
    assert any("CRC32C" in problem for problem in verify(str(tmp_path), sample=10**6).problems)


def test_it_is_resumed(build: Build, photos: Path, tmp_path: Path):
    same = {"splits": SPLITS, "num_shards": "2", "file_format": "array_record"}
    build(photos, **same)
    before = contents(tmp_path / "out")
    (tmp_path / "out/train-00001-of-00002.array_record").unlink()
    (tmp_path / "out/metadata/index/test-00000-of-00002.idx").unlink()
    assert build(photos, **same).resumed == 2
    assert contents(tmp_path / "out") == before


def test_reshard_converts_it_both_ways(built: Path, tmp_path: Path, command: Command):
    for new in ("array_record", "tfrecord"):
        old = {"array_record": "tfrecord", "tfrecord": "array_record"}[new]
        folder = tmp_path / new
        code, _, err = command("reshard", built / old, folder, f"--file_format={new}")
        assert code == 0, err
        # The whole data set is that of a build, except for what tells its origin.
        expected = contents(built / new)
        for path, content in contents(folder).items():
            if path.endswith((f".{new}", ".idx", "dataset_info.json", "croissant.json")):
                assert content == expected[path], path
        assert len(list(folder.glob(f"*.{new}"))) == 4
        assert build_json(folder)["resharded"]["file_format"] == old
        assert build_json(folder)["options"]["file_format"] == new
        assert verify(str(folder)).problems == ()
        again = json.loads(
            command("reshard", built / old, folder, f"--file_format={new}", "--json")[1]
        )
        assert again["seconds"] == 0
        assert f"file_format: {new}" in (folder / "metadata/build.yaml").read_text()
    code, _, err = command("reshard", built / "tfrecord", tmp_path / "none")
    assert (code, "requires --num_shards, --file_format" in err) == (2, True)
    (tmp_path / "a.jpg").write_bytes(bytes(100))
    code, _, err = command("reshard", tmp_path / "*.jpg", tmp_path / "x", "--file_format=tfrecord")
    assert (code, "is it a record file?" in err) == (1, True), err


def test_it_is_resharded_and_damage_stops_it(built: Path, tmp_path: Path, command: Command):
    reshard(str(built / "array_record"), str(tmp_path / "new"), "train=5")
    for split in ("train", "test"):
        assert serialized(tmp_path / "new", split) == serialized(built / "tfrecord", split)
    assert verify(str(tmp_path / "new")).problems == ()
    path = tmp_path / "new/train-00002-of-00005.array_record"
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    code, _, err = command("reshard", tmp_path / "new", tmp_path / "third", "--num_shards=1")
    assert (code, "its CRC32C is not the one in the index" in err) == (1, True)


def test_load_yields_the_batches_of_a_tfrecord_data_set(built: Path):
    options = {"batch_size": 7, "image_size": 16, "seed": 3, "repeat": False}
    expected, found = (
        list(reader.load(built / name, "train", **options).as_numpy_iterator())
        for name in ("tfrecord", "array_record")
    )
    for (images, labels), (same_images, same_labels) in zip(expected, found, strict=True):
        assert np.array_equal(images, same_images)
        assert labels.tolist() == same_labels.tolist()


def test_bare_files_are_read_at_random(built: Path, tmp_path: Path):
    for path in (built / "array_record").glob("train-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    records = reader.open(tmp_path / "*.array_record", decode=False)
    expected = serialized(built / "tfrecord", "train")
    assert [records.serialized(number) for number in range(len(records))] == expected


@pytest.mark.slow
def test_it_is_written_without_tensorflow_and_named_where_the_package_is_missing(
    photos: Path, tmp_path: Path
):
    program = """
import sys
if sys.argv[1] == "without": sys.modules["array_record"] = None
from imageshards.launch.cli import main
code = main(["build", *sys.argv[2:]])
assert "tensorflow" not in sys.modules
sys.exit(code)
"""
    options = ["--num_shards=1", "--file_format=array_record", "--workers=1"]
    for how, code in (("with", 0), ("without", 2)):
        arguments = [f"--input={photos}", f"--output={tmp_path / how}", *options]
        done = subprocess.run(
            [sys.executable, "-c", program, how, *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
    assert "--file_format array_record: array_record is not installed" in done.stderr
    assert "pip install 'imageshards[array_record]' (for Linux" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "without").exists()


@pytest.mark.slow
def test_records_in_groups_are_smaller_and_read_as_others(
    build: Build, tmp_path: Path, command: Command
):
    text = "".join(f"the line with the number {number}\n" * 3 for number in range(100))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text(text)
    same = {"features": "text", "num_shards": "2", "labels": "none", "name": "x"}
    build(tmp_path / "texts", output=tmp_path / "plain", **same)
    groups = {"file_format": "array_record", "compression": "zstd", "group_size": 8}
    build(tmp_path / "texts", output=tmp_path / "groups", **same, **groups)
    expected = serialized(tmp_path / "plain", "train")
    assert serialized(tmp_path / "groups", "train") == expected
    for path in sorted((tmp_path / "groups").glob("train-*")):
        source = ArrayRecordReader(str(path))
        assert "group_size:8,transpose:false" in source.writer_options_string()
        assert "zstd" in source.writer_options_string()
        rows = parse_index((tmp_path / f"groups/metadata/index/{path.stem}.idx").read_bytes())
        assert len({offset for offset, _, _ in rows.tolist()}) == -(-len(rows) // 8)
    assert verify(str(tmp_path / "groups")).problems == ()
    assert verify(str(tmp_path / "groups"), sample=50).records == 50
    loaded = [
        sorted(reader.load(tmp_path / name, "train", repeat=False).as_numpy_iterator())
        for name in ("plain", "groups")
    ]
    assert loaded[0] == loaded[1]
    before = contents(tmp_path / "groups")
    (tmp_path / "groups/train-00000-of-00002.array_record").unlink()
    build(tmp_path / "texts", output=tmp_path / "groups", **same, **groups)
    assert contents(tmp_path / "groups") == before
    # The options stay those of the data set until its format changes.
    reshard(str(tmp_path / "groups"), str(tmp_path / "three"), "3")
    assert serialized(tmp_path / "three", "train") == expected
    path = tmp_path / "three/train-00002-of-00003.array_record"
    assert "group_size:8" in ArrayRecordReader(str(path)).writer_options_string()
    reshard(str(tmp_path / "groups"), str(tmp_path / "records"), file_format="tfrecord")
    assert build_json(tmp_path / "records")["options"]["group_size"] == 1
    assert verify(str(tmp_path / "records")).problems == ()
    for options, problem in (
        (
            ["--features=text", "--compression=gzip"],
            "has no --compression gzip: expected none",
        ),
        (["--writer=beam"], "does not write --file_format array_record: set --writer shard"),
        (["--compression=zstd"], "the images of --features slim are compressed already"),
        (
            ["--file_format=tfrecord", "--group_size=2"],
            "has no --group_size: set --file_format",
        ),
    ):
        arguments = ["--file_format=array_record", "--num_shards=1", *options]
        place = [f"--input={tmp_path / 'texts'}", f"--output={tmp_path / 'no'}"]
        code, _, err = command("build", *place, *arguments)
        assert (code, problem in err) == (2, True), err
