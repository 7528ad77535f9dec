"""Every kind of archive is listed, and its members are read."""

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from archive_files import ANNOTATOR, KINDS, MEMBERS, chunks, found, passed_over, tar_of, zip_of

from imageshards.transforms import storage
from imageshards.transforms.elements import ByteRange
from imageshards.transforms.inputs import ranges
from imageshards.transforms.inputs.archives import archive
from imageshards.transforms.inputs.archives.members import View
from imageshards.transforms.inputs.archives.tars import Headers
from imageshards.transforms.references.rules import parent_name, top_folder


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_archive_is_listed_and_read(tmp_path: Path, kind: str):
    others = {"notes.txt": b"", ".hidden/3.jpg": b"", "__MACOSX/a/._1.jpg": b"", "a/.x.jpg": b""}
    long_name = "n" * 90 + "/" + "m" * 200 + ".jpg"
    path = tmp_path / kind
    path.write_bytes(KINDS[kind]({**MEMBERS, **others, long_name: b"long"}))
    assert found(path, scratch=str(tmp_path)) == {**MEMBERS, long_name: b"long"}
    assert sum(chunk.passed_over for chunk in chunks(path, scratch=str(tmp_path))) == 4
    every = found(path, scratch=str(tmp_path), include_all=True)
    assert len(every) == 8


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_headers_are_what_tarfile_makes_of_them(format: int):
    names = [
        "a.jpg",
        "ü b.jpg",
        "x" * 100,
        f"{'p' * 60}/{'q' * 60}/r.jpg",
        f"{'d' * 90}/{'e' * 90}",
    ]
    data = tar_of({name: b"x" * (7 * len(name)) for name in names}, format)
    view = View(lambda size, offset: data[offset : offset + size], 0, len(data))
    ours = list(Headers(view, 0))
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8") as tar:
        theirs = tar.getmembers()
    assert [(i.name, i.size, i.type, i.offset, i.offset_data) for i in ours] == [
        (i.name, i.size, i.type, i.offset, i.offset_data) for i in theirs
    ]
    assert [info.name for info in ours] == names


def test_a_tar_of_tars_is_ranges_of_the_outer(tmp_path: Path):
    deepest = tar_of({"./x/9.jpg": b"nine"})
    inner = {f"n{i}.tar": tar_of({f"n{i}_{j}.JPEG": b"%d" % (10 * i + j) for j in range(3)})
             for i in range(3)}  # fmt: skip
    inner["deep/er.TAR"] = tar_of({"deepest.tar": deepest})
    inner["plain.jpg"] = b"plain"
    path = tmp_path / "outer.tar"
    path.write_bytes(tar_of(inner))
    assert found(path) == {
        **{f"n{i}.tar/n{i}_{j}.JPEG": b"%d" % (10 * i + j) for i in range(3) for j in range(3)},
        "deep/er.TAR/deepest.tar/x/9.jpg": b"nine", "plain.jpg": b"plain",
    }  # fmt: skip
    assert {span.uri for chunk in chunks(path) for span in chunk.refs.ranges if span} == {str(path)}


def test_an_archive_is_a_folder_without_its_ending():
    assert parent_name("/d/train.tar/n01.tar/1.JPEG") == "n01"
    assert parent_name("/d/cats.tar.gz/1.JPEG") == "cats"
    assert parent_name("/d/v1.5/1.JPEG") == "v1.5"
    assert top_folder("train.zip/a/1.jpg") == "train"


def test_a_folder_passes_archives_over_and_a_pattern_names_them(tmp_path: Path):
    for name in ("one.tar", "two.tar"):
        (tmp_path / name).write_bytes(tar_of(MEMBERS))
    (tmp_path / "own.jpg").write_bytes(b"own")
    (tmp_path / "._one.tar").write_bytes(b"of macOS")
    assert [uri for chunk in chunks(tmp_path) for uri in chunk.refs.uris] == [f"{tmp_path}/own.jpg"]
    assert passed_over(tmp_path) == 3
    everything = chunks(f"{tmp_path}/*")
    assert [uri for chunk in everything for uri in chunk.refs.uris] == [f"{tmp_path}/own.jpg"]
    named = [path for c in chunks(f"{tmp_path}/*.tar") for path in c.refs.names]
    assert len(named) == 6
    assert {path.split("/")[0] for path in named} == {"one.tar", "two.tar"}


def test_the_last_of_two_members_with_one_name_is_kept(tmp_path: Path):
    from imageshards.transforms.references.order import partition, sort_group

    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for data in (b"old old", b"new"):
            info = tarfile.TarInfo("1.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    for again in (1, -1):
        batch = ANNOTATOR.annotate(chunks(path)[0].refs).take([0, 1][::again])
        ((_, part),) = partition(batch)
        groups, duplicates = sort_group([part])
        (ref,) = groups["train"].refs()
        assert ref.range
        assert (ranges.read(ref.range, ref.stamp), duplicates) == (b"new", 1)


def test_tars_that_were_joined_are_read_to_the_end(tmp_path: Path):
    (tmp_path / "a.tar").write_bytes(tar_of({"1.jpg": b"1"}) + tar_of({"2.jpg": b"2"}))
    assert found(tmp_path / "a.tar") == {"1.jpg": b"1", "2.jpg": b"2"}
    (tmp_path / "a.tar").write_bytes(tar_of({"1.jpg": b"1"}) + b"junk" * 200)
    assert list(found(tmp_path / "a.tar").values()) == [b"1", "Lost"]


def test_a_compressed_tar_is_unpacked_once(tmp_path: Path):
    path, scratch = tmp_path / "a.tgz", str(tmp_path / "scratch")
    path.write_bytes(gzip.compress(tar_of(MEMBERS)))
    assert found(path, scratch=scratch) == MEMBERS
    (unpacked,) = os.listdir(scratch)
    inode = os.stat(f"{scratch}/{unpacked}").st_ino
    assert {chunk.unpacked for chunk in chunks(path, scratch=scratch)} == {f"{scratch}/{unpacked}"}
    assert os.stat(f"{scratch}/{unpacked}").st_ino == inode
    path.write_bytes(gzip.compress(tar_of({"new.jpg": b"new"})))
    assert found(path, scratch=scratch) == {"new.jpg": b"new"}
    assert len(os.listdir(scratch)) == 2


def test_a_limited_number_of_archives_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    real = os.open

    def count(path: str, *arguments: int) -> int:
        opened.append(path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", count)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(200):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(b"0123456789")
        for offset in range(5):
            place = ByteRange(str(path), offset, 2, "stored")
            assert ranges.read(place, 0) == b"0123456789"[offset : offset + 2]
    assert len([path for path in opened if path.endswith(".bin")]) == 200
    assert len(os.listdir("/proc/self/fd")) - before <= 128
    storage.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_members_of_a_zip64_are_read(tmp_path: Path):
    path = tmp_path / "a.zip"
    with (
        zipfile.ZipFile(path, "w") as archive,
        archive.open("1.jpg", "w", force_zip64=True) as file,
    ):
        file.write(b"data")
    assert found(path) == {"1.jpg": b"data"}


def test_utf8_names_of_a_zip_are_read_without_their_flag(tmp_path: Path):
    data = zip_of({"ab.jpg": b"1"}).replace(b"ab.jpg", "ü.jpg".encode())
    (tmp_path / "a.zip").write_bytes(data)
    assert found(tmp_path / "a.zip") == {"ü.jpg": b"1"}


def test_archives_are_recognized_by_their_suffix():
    assert archive.Archive.recognizes("gs://b/A.TAR.GZ")
    assert not archive.Archive.recognizes("/d/tar")
