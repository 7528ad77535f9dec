import os
from contextlib import suppress
from pathlib import Path

import google_crc32c
import pytest

from imageshards.transforms import storage


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "with space",
        "a#b?c%20",
        "[1]*",
        "ünï",
        os.fsdecode(b"caf\xe9"),
    ],
)
def test_names_are_never_patterns(tmp_path: Path, name: str):
    path = f"{tmp_path}/{name}.jpg"
    with open(path, "wb") as file:
        file.write(b"data")
    assert storage.read(path) == b"data"
    assert storage.size(path) == 4
    storage.delete([path])
    assert not storage.exists(path)


def test_why_bytes_cannot_be_had(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    cases = {
        tmp_path / "none": "Missing",
        tmp_path / "pipe": "NotAFile",
        tmp_path: "NotAFile",
        tmp_path / "loop": "Unreadable",
        tmp_path / ("x" * 300): "Unreadable",
        "/a\0b": "Unreadable",
    }
    for path, kind in cases.items():
        with pytest.raises(storage.ReadError) as caught:
            storage.read(str(path))
        assert caught.value.kind == kind, path


def test_a_huge_file_is_not_read(tmp_path: Path):
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(storage.MAX_BYTES + 1)
    with pytest.raises(storage.ReadError, match="more than") as caught:
        storage.read(str(path))
    assert caught.value.kind == "TooLarge"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path):
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with suppress(RuntimeError), storage.open_sink(str(target), str(tmp_path)) as sink:
        sink.write([b"half"])
        raise RuntimeError
    assert target.read_bytes() == b"old"
    with storage.open_sink(str(target), str(tmp_path)) as sink:
        sink.write([b"ne", b"w"])
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert (sink.size, sink.crc32c) == (3, google_crc32c.value(b"new"))
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_that_is_not_kept_is_gone(tmp_path: Path):
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with storage.open_sink(str(target), str(tmp_path)) as sink:
        sink.keep = False
    assert os.listdir(tmp_path) == []


def test_sweep_takes_what_killed_runs_left(tmp_path: Path):
    (tmp_path / f"a{storage.TEMP_SUFFIX}").touch()
    (tmp_path / "b").touch()
    assert storage.sweep(str(tmp_path)) == 1
    assert os.listdir(tmp_path) == ["b"]


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("/a/../b//c", "/b/c"), ("file:///a%20b", "/a b"), ("gs://b/x", "gs://b/x"),
        ("/a/b#?%20[1]", "/a/b#?%20[1]"),
    ],
)  # fmt: skip
def test_one_spelling_for_one_place(uri: str, normal: str):
    assert storage.normalize(uri) == normal


def test_where_nothing_can_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    assert "is a file" in storage.folder_problem(str(tmp_path / "file"))
    assert "is a file" in storage.folder_problem(str(tmp_path / "file/below"))
    assert storage.folder_problem(str(tmp_path / "new/folder")) == ""
