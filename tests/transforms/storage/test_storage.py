import os
from contextlib import suppress
from importlib.util import find_spec
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
    assert storage.read(path) == (b"data", os.stat(path).st_mtime_ns)
    assert storage.size(path) == 4
    storage.delete([path])
    assert not storage.exists(path)


def test_errors_of_reading_have_kinds(tmp_path: Path):
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


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path):
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


def test_a_file_that_is_not_kept_is_deleted(tmp_path: Path):
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with storage.open_sink(str(target), str(tmp_path)) as sink:
        sink.keep = False
    assert os.listdir(tmp_path) == []


def test_sweep_deletes_files_of_killed_runs(tmp_path: Path):
    (tmp_path / f"a.0123456789ab{storage.TEMP_SUFFIX}").touch()
    (tmp_path / "notes.tmp").touch()
    storage.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == ["notes.tmp"]


def test_sweep_keeps_files_that_are_being_written(tmp_path: Path):
    with storage.open_sink(str(tmp_path / "a"), str(tmp_path)) as sink:
        sink.write([b"data"])
        storage.sweep(str(tmp_path))
    storage.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == ["a"]


def test_the_second_create_of_a_file_does_nothing(tmp_path: Path):
    path = str(tmp_path / "a")
    assert storage.create(path, b"one", str(tmp_path))
    assert not storage.create(path, b"two", str(tmp_path))
    assert Path(path).read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_is_replaced_only_if_it_is_unchanged(tmp_path: Path):
    path = str(tmp_path / "a")
    assert storage.replace(path, b"one", str(tmp_path), 0)
    assert not storage.replace(path, b"two", str(tmp_path), 0)
    _, stamp = storage.read(path)
    os.utime(path, ns=(stamp, stamp + 1))  # a clock may tick too slowly
    assert not storage.replace(path, b"two", str(tmp_path), stamp)
    assert storage.replace(path, b"two", str(tmp_path), storage.read(path)[1])
    assert Path(path).read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]


class Failure(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"{code} GET https://host/b/IMG_4041.jpg?x=404")
        self.code = code


@pytest.mark.parametrize(("code", "kind"), [(404, FileNotFoundError), (503, Failure)])
def test_a_missing_file_is_recognised_by_the_code_of_the_error(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
):
    def fail(*_: object, **__: object) -> None:
        raise Failure(code)

    monkeypatch.setattr("apache_beam.io.filesystems.FileSystems.open", fail)
    with pytest.raises(kind):
        storage.open_read("other://b/IMG_4041.jpg")


def test_the_error_names_the_client_to_install():
    if find_spec("hdfs"):
        pytest.skip("the client of hdfs:// is installed")
    place = "hdfs://bucket/photos"
    for attempt in (
        lambda: list(storage.match(f"{place}/**")),
        lambda: storage.open_read(f"{place}/a.jpg"),
        lambda: storage.exists(f"{place}/a.jpg"),
    ):
        with pytest.raises(storage.NoFilesystem, match=r"hdfs://.*apache-beam\[hadoop\]"):
            attempt()
    assert storage.stat(f"{place}/a.jpg") == (-1, 0)  # reading raises the error


def test_an_unknown_scheme_is_unreadable():
    with pytest.raises(storage.ReadError, match="no filesystem") as caught:
        storage.read("foo://x/a.jpg")
    assert caught.value.kind == "Unreadable"
    assert storage.size("foo://x/a.jpg") == -1


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("/a/../b//c", "/b/c"), ("file:///a%20b", "/a b"), ("gs://b/x", "gs://b/x"),
        ("/a/b#?%20[1]", "/a/b#?%20[1]"),
    ],
)  # fmt: skip
def test_normalize_gives_one_spelling(uri: str, normal: str):
    assert storage.normalize(uri) == normal


def test_folder_problem_explains_why_a_folder_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    assert "is a file" in storage.folder_problem(str(tmp_path / "file"))
    assert "is a file" in storage.folder_problem(str(tmp_path / "file/below"))
    assert storage.folder_problem(str(tmp_path / "new/folder")) == ""
