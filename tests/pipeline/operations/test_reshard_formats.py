"""reshard changes how the shards of a data set store their records."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

from conftest import Build, Command
from helpers import build_json, contents, every_file

from imageshards import reader
from imageshards.pipeline.claim import clear
from imageshards.reader.verify import verify
from imageshards.transforms.shards.layout import Layout

FORMATS = (
    {"file_format": "tfrecord", "compression": "none"},
    {"file_format": "tfrecord", "compression": "gzip"},
    {"file_format": "array_record", "compression": "none", "group_size": 1},
    {"file_format": "array_record", "compression": "zstd", "group_size": 8},
)


def test_every_format_becomes_every_other_as_if_it_was_built(
    build: Build, tmp_path: Path, command: Command
):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of a text\n" for number in range(300)))
    built = []
    for number, options in enumerate(FORMATS):
        built.append(tmp_path / f"built{number}")
        build(text, features="text", num_shards="3", output=built[-1], **options)
    for before, after in permutations(range(len(FORMATS)), 2):
        new = tmp_path / f"{before}{after}"
        options = [f"--{name}={value}" for name, value in FORMATS[after].items()]
        code, _, err = command("reshard", built[before], new, *options)
        assert (code, err) == (0, "")
        written, expected_files = contents(new), contents(built[after])
        copied = {n: d for n, d in expected_files.items() if n.startswith(("train", "metadata/in"))}
        assert written.items() >= copied.items()
        assert len(copied) in (3, 6)
        assert verify(str(new)).problems == ()
        found, expected = build_json(new), build_json(built[after])
        for name in ("notes", "shards", "splits", "counts", "versions"):
            assert found[name] == expected[name]
        for name, value in FORMATS[after].items():
            assert found["options"].get(name, value) == value
        assert len(reader.open(new, "train")) == 300
    assert command("reshard", built[before], new, *options)[1].endswith("complete already\n")
    other = "--file_format=tfrecord", "--compression=none", "--num_shards=2"
    assert "holds another data set" in command("reshard", built[before], new, *other)[2]
    # What is not set stays as it is.
    assert command("reshard", built[3], tmp_path / "kept", "--num_shards=2")[0] == 0
    kept = build_json(tmp_path / "kept")
    options = kept["options"]
    assert (options["compression"], options["group_size"]) == ("zstd", 8)
    assert kept["versions"] == build_json(built[3])["versions"]
    clear(Layout(str(tmp_path / "01")))
    assert not every_file(tmp_path / "01")


def test_options_that_do_not_fit_are_one_line(
    build: Build, photos: Path, tmp_path: Path, command: Command
):
    build(photos / "class00", num_shards="2")
    new = tmp_path / "out/new"
    for options, message in (
        ([], "requires --num_shards, --file_format, --compression or --group_size"),
        (["--compression=zstd"], "tfrecord has no --compression zstd: expected none or gzip"),
        (["--group_size=4"], "tfrecord has no --group_size: set --file_format array_record"),
        (["--compression=gzip"], "are compressed already"),
        (["--file_format=array_record", "--compression=gzip"], "none, zstd, brotli or snappy"),
        (["--compression=lzma"], "lzma"),
        (["--num_shards=3"], f"{new} is inside of the data set to reshard"),
    ):
        code, _, err = command("reshard", tmp_path / "out", new, *options)
        assert (code, err.count("\n")) == (2, 1), err
        assert message in err
        assert not new.exists()
