import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from helpers import image_bytes

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ByteRange
from imageshards.transforms.inputs import listed, ranges, unpack
from imageshards.transforms.inputs.archives import archive, tars
from imageshards.transforms.inputs.archives.members import View
from imageshards.transforms.inputs.archives.tars import Headers
from imageshards.transforms.inputs.kind import ListingOptions, WorkUnit, list_references, list_unit
from imageshards.transforms.inputs.listed import Listed
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.references.annotate import Annotator
from imageshards.transforms.references.rules import (
    GroupRule,
    LabelRule,
    SplitRule,
    parent_name,
    top_folder,
)
from imageshards.transforms.storage import ReadError

ANNOTATOR = Annotator(0, LabelRule("none"), SplitRule.parse("train=1"), GroupRule.parse("uri"))


def chunks(place: Path | str, **options: object) -> list[Listed]:
    unit = WorkUnit(identify(str(place)))
    return list(list_references(unit, ListingOptions(**options)))  # type: ignore[arg-type]


def found(
    place: Path | str, limit: int = ranges.MAX_BYTES, **options: object
) -> dict[str, bytes | str]:
    """Path below the archive -> its bytes, or the error type of its reject."""
    result: dict[str, bytes | str] = {}
    for chunk in chunks(place, **options):
        for ref in ANNOTATOR.annotate(chunk.refs).refs():
            name = ref.uri.removeprefix(f"{place}/")
            assert name not in result
            if ref.problem:
                result[name] = ref.problem.error
            else:
                assert ref.range
                try:
                    result[name] = ranges.read(ref.range, ref.stamp, limit)
                    if ref.size >= 0:
                        assert len(result[name]) == ref.size
                except ReadError as error:
                    result[name] = error.kind
    return result


def passed_over(place: Path) -> int:
    return sum(chunk.passed_over for chunk in chunks(place))


Members = dict[str, bytes]
MEMBERS: Members = {"a/1.jpg": b"one", "a/2.PNG": b"two" * 400, "b/ü #?%20[1]*.jpg": b"three"}


def tar_of(members: Members, format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zip_of(members: Members, method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


KINDS: dict[str, Callable[[Members], bytes]] = {
    "pax.tar": tar_of,
    "gnu.tar": lambda members: tar_of(members, tarfile.GNU_FORMAT),
    "stored.zip": zip_of,
    "deflated.ZIP": lambda members: zip_of(members, zipfile.ZIP_DEFLATED),
    "x.tar.gz": lambda members: gzip.compress(tar_of(members)),
    "x.tgz": lambda members: gzip.compress(tar_of(members)),
    "x.tar.xz": lambda members: lzma.compress(tar_of(members)),
    "x.tar.zst": lambda members: zstandard.compress(tar_of(members)),
}


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


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tars are treated as large ones."""
    monkeypatch.setattr(archive, "LARGE_BYTES", 1)
    monkeypatch.setattr(tars, "LARGE_INNER_BYTES", 1)


def test_the_tars_in_a_large_tar_are_units(tmp_path: Path, large: None):
    inner: Members = {
        f"n{i}.tar": tar_of({f"{j}.JPEG": b"%d" % (10 * i + j) for j in range(3)}) for i in range(5)
    }
    inner |= {"plain.jpg": b"plain", "damaged.tar": b"not a tar" * 99}
    inner["x/y.tar"] = tar_of({"z.tar": tar_of({"1.jpg": b"deep"})})
    path = tmp_path / "outer.tar"
    path.write_bytes(tar_of(inner))
    for scratch in ("", str(tmp_path / "scratch")):
        for _ in range(2):
            options = ListingOptions(divide=True, scratch=scratch)
            (*parts,) = list_unit(WorkUnit(identify(str(path))), options)
            units = [part for part in parts if isinstance(part, WorkUnit)]
            assert len(units) == 7
            assert identify(str(path)).divisions(options) == 1
            rows = [part for part in parts if isinstance(part, Listed)]
            for unit in reversed(units):
                rows += list_references(unit, ListingOptions(scratch=scratch))
            expected = chunks(path, scratch=scratch)
            assert listed_rows(rows) == listed_rows(expected)
            assert len(listed_rows(rows)) == 5 * 3 + 1 + 1 + 1


def listed_rows(found: list[Listed]) -> list[object]:
    return sorted(
        row
        for chunk in found
        for row in zip(chunk.refs.uris, chunk.refs.names, map(repr, chunk.refs.ranges), strict=True)
    )


def test_the_members_of_a_large_tar_are_found_once(
    tmp_path: Path, large: None, read_sizes: list[int]
):
    path = tmp_path / "many.tar"
    names = {f"c/{i:04d}.jpg": b"x" * 700 for i in range(1000)}
    path.write_bytes(tar_of({**names, "/etc/passwd.jpg": b"1", "ü\udcff.png": b"2"})[:-3000])
    first = chunks(path, scratch=str(tmp_path / "scratch"))
    assert len(read_sizes) > 1000
    read_sizes.clear()
    second = chunks(path, scratch=str(tmp_path / "scratch"))
    assert not read_sizes
    assert listed_rows(first) == listed_rows(second)
    assert [chunk.refs.problems for chunk in first] == [chunk.refs.problems for chunk in second]
    (stored,) = {chunk.unpacked for chunk in first + second}
    assert [str(file) for file in (tmp_path / "scratch").iterdir()] == [stored]
    path.touch()  # another stamp
    chunks(path, scratch=str(tmp_path / "scratch"))
    assert len(read_sizes) > 1000


def test_members_are_not_stored_if_listing_ends_early(tmp_path: Path, large: None):
    path = tmp_path / "many.tar"
    path.write_bytes(tar_of({f"{i}.jpg": b"1" for i in range(3)}))
    options = ListingOptions(scratch=str(tmp_path / "scratch"))
    found = list_references(WorkUnit(identify(str(path))), options)
    listed.CHUNK_ROWS, rows = 1, listed.CHUNK_ROWS
    try:
        assert len(next(found).refs) == 1
        found.close()  # type: ignore[attr-defined]
    finally:
        listed.CHUNK_ROWS = rows
    assert not list((tmp_path / "scratch").iterdir())


def test_an_archive_is_a_folder_without_its_ending():
    assert parent_name("/d/train.tar/n01.tar/1.JPEG") == "n01"
    assert parent_name("/d/cats.tar.gz/1.JPEG") == "cats"
    assert parent_name("/d/v1.5/1.JPEG") == "v1.5"
    assert top_folder("train.zip/a/1.jpg") == "train"


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the bytes of each read of an archive that is listed."""
    sizes: list[int] = []
    reads_at = archive.reads_at

    def counting(file, uri: str):
        read_at = reads_at(file, uri)

        def read(size: int, offset: int) -> bytes:
            data = read_at(size, offset)
            sizes.append(len(data))
            return data

        return read

    monkeypatch.setattr(archive, "reads_at", counting)
    return sizes


def test_of_ten_thousand_members_the_headers_alone_are_read(tmp_path: Path, read_sizes: list[int]):
    path = tmp_path / "many.tar"
    path.write_bytes(tar_of({f"c{i % 50}/{i:05d}.jpg": b"x" * 700 for i in range(10_000)}))
    assert sum(len(chunk.refs) for chunk in chunks(path)) == 10_000
    assert sum(read_sizes) < 1.01 * 10_000 * 512
    assert len(read_sizes) < 2.1 * 10_000


def test_long_archives_come_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listed, "CHUNK_ROWS", 10)
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of({f"{i}.jpg": b"%d" % i for i in range(25)}))
    assert [len(chunk.refs) for chunk in chunks(path) if len(chunk.refs)] == [10, 10, 5]
    assert len(found(path)) == 25


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


# Each truncated or garbled archive: what is listed of it, and that nothing is lost in silence.


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


def test_tars_that_were_joined_are_read_to_the_end(tmp_path: Path):
    (tmp_path / "a.tar").write_bytes(tar_of({"1.jpg": b"1"}) + tar_of({"2.jpg": b"2"}))
    assert found(tmp_path / "a.tar") == {"1.jpg": b"1", "2.jpg": b"2"}
    (tmp_path / "a.tar").write_bytes(tar_of({"1.jpg": b"1"}) + b"junk" * 200)
    assert list(found(tmp_path / "a.tar").values()) == [b"1", "Lost"]


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
