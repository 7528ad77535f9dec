"""Archives that are damaged, hostile, or change while they are read."""

import gzip
import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
from archive_files import ANNOTATOR, KINDS, MEMBERS, chunks, count_reads, found, tar_of, zip_of
from helpers import image_bytes

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.inputs import ranges, unpack
from imageshards.transforms.storage import ReadError


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_reads(monkeypatch)


def test_names_that_lead_out_are_rejects_and_touch_nothing(tmp_path: Path):
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    names = ["../secret.jpg", "a/../../secret.jpg", str(tmp_path / "secret.jpg"), "../../notes.txt"]
    good = {"./a/./1.jpg": b"1", "a/b/../2.jpg": b"2"}
    for kind in ("pax.tar", "stored.zip"):
        path = tmp_path / kind
        path.write_bytes(KINDS[kind]({**dict.fromkeys(names, b"evil"), **good}))
        result = found(path)
        assert [result.pop(name) for name in names[:3]] == ["UnsafeName"] * 3
        assert result == {"a/1.jpg": b"1", "a/2.jpg": b"2"}
    assert (tmp_path / "secret.jpg").read_bytes() == b"secret"


def test_links_lead_to_members_and_devices_are_rejects(tmp_path: Path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind, target in [
            ("early.jpg", tarfile.SYMTYPE, "d/1.jpg"), ("d/1.jpg", tarfile.REGTYPE, ""),
            ("d/hard.jpg", tarfile.LNKTYPE, "d/1.jpg"),
            ("d/up.jpg", tarfile.SYMTYPE, "../early.jpg"),
            ("d/out.jpg", tarfile.SYMTYPE, "../../etc/passwd"),
            ("d/o.jpg", tarfile.SYMTYPE, "o.jpg"),
            ("fifo.jpg", tarfile.FIFOTYPE, ""), ("null.jpg", tarfile.CHRTYPE, ""),
            ("folder.jpg", tarfile.DIRTYPE, ""), ("notes.txt", tarfile.SYMTYPE, "d/1.jpg"),
        ]:  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, 4 * (kind == tarfile.REGTYPE)
            tar.addfile(info, io.BytesIO(b"data"))
    assert found(path) == {
        "early.jpg": b"data", "d/1.jpg": b"data", "d/hard.jpg": b"data", "d/up.jpg": b"data",
        "d/out.jpg": "Missing", "d/o.jpg": "Missing",
        "fifo.jpg": "NotAFile", "null.jpg": "NotAFile",
    }  # fmt: skip


def test_a_tar_that_is_cut_loses_only_what_is_behind_the_cut(tmp_path: Path):
    whole = tar_of({f"{i}.jpg": b"x" * 600 for i in range(4)}, tarfile.USTAR_FORMAT)
    path = tmp_path / "cut.tar"
    for size in [*range(512, 4 * 1536, 128), 4 * 1536 + 100]:
        path.write_bytes(whole[:size])
        result = found(path)
        good = sum(value == b"x" * 600 for value in result.values())
        assert good == (size + 424) // 1536, size  # the padding of the last may be missing
        assert size % 1536 > 1536 - 424 or "Lost" in result.values(), size
    path.write_bytes(whole[:300])
    with pytest.raises(BuildError, match=r"cut.tar: not a tar: "):
        found(path)


def test_a_garbled_header_ends_a_tar_loudly(tmp_path: Path):
    whole = bytearray(tar_of({f"{i}.jpg": b"x" * 600 for i in range(4)}, tarfile.USTAR_FORMAT))
    whole[2 * 1536 + 10] ^= 1
    (tmp_path / "a.tar").write_bytes(whole)
    result = found(tmp_path / "a.tar")
    assert list(result.values()) == [b"x" * 600] * 2 + ["Lost"]
    assert list(result)[2] == "(from byte 3072)"


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    block = bytearray(512)
    block[0:100] = name.encode().ljust(100, b"\0")
    block[100:108], block[124:136], block[156:157] = b"0000644\0", size, kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


HUGE = b"\x80" + (1 << 60).to_bytes(11, "big")
NEGATIVE = b"\xff" * 10 + b"\xfc\x00"  # -1,024


@pytest.mark.parametrize(
    ("name", "evil"),
    [
        ("a header of 1 EB", header("x", HUGE, b"x")),
        ("a long name of 1 EB", header("x", HUGE, b"L")),
        ("a negative size", header("2.jpg", NEGATIVE)),
        ("a negative header", header("2.jpg", NEGATIVE, b"x")),
        ("headers without end", header("x", b"00000000000\0", b"L") * 3000),
    ],
)
def test_forged_headers_cause_few_reads(
    tmp_path: Path, name: str, evil: bytes, read_sizes: list[int]
):
    good = header("1.jpg", b"00000000003\0") + b"one".ljust(512, b"\0")
    path = tmp_path / "a.tar"
    path.write_bytes(good + evil + good + bytes(1024))
    result = found(path)
    assert result["1.jpg"] == b"one"
    assert "Lost" in result.values()
    # Some versions of tarfile read one byte before the end of a member to find out if it is there.
    assert sum(read_sizes) <= path.stat().st_size + 1
    assert len(read_sizes) < 1000


def test_sparse_files_are_rejects(tmp_path: Path):
    path = tmp_path / "a.tar"
    path.write_bytes(header("1.jpg", b"00000000000\0", b"S") + bytes(1024))
    assert found(path) == {"1.jpg": "Unreadable"}


def test_a_member_that_is_too_large_is_not_read(tmp_path: Path):
    path = tmp_path / "a.tar"
    size = storage.MAX_BYTES + 1
    with open(path, "wb") as file:
        file.write(header("1.jpg", b"%011o\0" % size))
        file.truncate(512 + (size + 511) // 512 * 512 + 1024)
    assert found(path) == {"1.jpg": "TooLarge"}


def test_the_depth_of_tars_in_tars_is_limited(tmp_path: Path):
    data = tar_of({"1.jpg": b"1"})
    for _ in range(20):
        data = tar_of({"t.tar": data}, tarfile.USTAR_FORMAT)
    (tmp_path / "a.tar").write_bytes(data)
    assert list(found(tmp_path / "a.tar").values()) == ["Lost"]


@pytest.mark.parametrize("name", ["a.tar", "a.zip", "a.tar.gz"])
def test_a_file_that_is_not_an_archive_is_an_error(tmp_path: Path, name: str):
    for data in (b"", b"junk" * 1000, bytes(10)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BuildError, match=name) as caught:
            found(tmp_path / name, scratch=str(tmp_path))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pax.tar", "stored.zip", "x.tar.gz"])
def test_an_empty_archive_is_an_error_like_an_empty_folder(tmp_path: Path, kind: str):
    (tmp_path / kind).write_bytes(KINDS[kind]({}))
    with pytest.raises(BuildError, match="no image found"):
        found(tmp_path / kind, scratch=str(tmp_path))


def patched(data: bytes, magic: bytes, at: int, kind: str, value: int) -> bytes:
    """A zip in whose first directory entry or local header a field is another."""
    out = bytearray(data)
    struct.pack_into(kind, out, data.index(magic) + at, value)
    return bytes(out)


DIRECTORY, LOCAL = b"PK\1\2", b"PK\3\4"


@pytest.mark.parametrize(
    ("magic", "at", "kind", "value", "error"),
    [
        (DIRECTORY, 20, "<I", 1 << 30, "Unreadable"),  # more than the file holds
        (DIRECTORY, 20, "<I", 2, "Unreadable"),  # less than its local header says
        (DIRECTORY, 42, "<I", 1 << 30, "Unreadable"),  # behind the end
        (DIRECTORY, 42, "<I", 5, "Unreadable"),  # within a member
        (DIRECTORY, 8, "<H", 1, "Unreadable"),  # encrypted
        (DIRECTORY, 10, "<H", 14, "Unreadable"),  # LZMA
        (LOCAL, 0, "<I", 0, "Unreadable"),
        (LOCAL, 8, "<H", 99, "Unreadable"),
        (LOCAL, 28, "<H", 65535, "Changed"),  # an extra field that leads out of the file
    ],
)
def test_members_that_a_zip_describes_wrongly_are_rejects(
    tmp_path: Path, magic: bytes, at: int, kind: str, value: int, error: str
):
    data = zip_of({"1.jpg": b"x" * 300, "2.jpg": b"y" * 300})
    path = tmp_path / "a.zip"
    path.write_bytes(patched(data, magic, at, kind, value))
    assert found(path)["1.jpg"] == error


def test_members_on_top_of_one_another_are_rejects(tmp_path: Path):
    data = zip_of({f"{i}.jpg": b"x" * 300 for i in range(5)})
    places = [i for i in range(len(data)) if data[i : i + 4] == DIRECTORY]
    out = bytearray(data)
    for place in places[:3]:  # all at the place of the first
        struct.pack_into("<I", out, place + 42, 0)
    (tmp_path / "a.zip").write_bytes(out)
    result = found(tmp_path / "a.zip")
    assert [result[f"{i}.jpg"] for i in range(3)] == ["Unreadable"] * 3
    assert result["4.jpg"] == b"x" * 300


def test_zip_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.zip").write_bytes(zip_of({"1.jpg": bytes(1 << 24)}, zipfile.ZIP_DEFLATED))
    monkeypatch.setattr(ranges, "_PIECE_BYTES", 1 << 16)
    assert found(tmp_path / "a.zip", limit=1 << 20) == {"1.jpg": "TooLarge"}


def test_deflated_data_that_is_damaged_is_a_reject(tmp_path: Path):
    data = zip_of({"1.jpg": image_bytes(1, size=(90, 90))}, zipfile.ZIP_DEFLATED)
    start = data.index(b"1.jpg") + 5
    path = tmp_path / "a.zip"
    path.write_bytes(data[:start] + b"\xff" * 50 + data[start + 50 :])
    assert found(path) == {"1.jpg": "Unreadable"}


@pytest.mark.parametrize("kind", ["x.tar.gz", "x.tar.xz", "x.tar.zst"])
def test_a_compressed_tar_that_is_cut_off_is_an_error(tmp_path: Path, kind: str):
    data = KINDS[kind]({f"{i}.jpg": os.urandom(3000) for i in range(9)})
    (tmp_path / kind).write_bytes(data[: len(data) // 2])
    (tmp_path / "scratch").mkdir()
    with pytest.raises(BuildError, match=f"{kind}: cannot be unpacked beyond byte"):
        found(tmp_path / kind, scratch=str(tmp_path / "scratch"))
    assert os.listdir(tmp_path / "scratch") == []


def test_a_compressed_tar_that_fills_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(unpack, "_ALWAYS_ALLOWED_BYTES", 1 << 20)
    (tmp_path / "a.tgz").write_bytes(gzip.compress(bytes(1 << 24)))
    (tmp_path / "scratch").mkdir()
    with pytest.raises(BuildError, match="expands to more than 100 times its size"):
        found(tmp_path / "a.tgz", scratch=str(tmp_path / "scratch"))
    assert os.listdir(tmp_path / "scratch") == []


def test_a_change_of_an_archive_while_it_is_read_is_detected(tmp_path: Path):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(MEMBERS))
    refs = list(ANNOTATOR.annotate(chunks(path)[0].refs).refs())

    def outcomes() -> set[bytes | str]:
        values: set[bytes | str] = set()
        for ref in refs:
            assert ref.range
            try:
                values.add(ranges.read(ref.range, ref.stamp))
            except ReadError as error:
                values.add(error.kind)
        return values

    assert outcomes() == set(MEMBERS.values())
    with open(path, "r+b") as file:  # in place: what is open sees it
        file.truncate(100)
    assert outcomes() == {"Changed"}
    with open(path, "ab") as file:
        file.write(bytes(10_000))
    assert outcomes() == {"Changed"}
    path.unlink()
    storage.close()
    assert outcomes() == {"Missing"}
