"""Archives with many members: tars in tars as units, stored members, few reads."""

from pathlib import Path

import pytest
from archive_files import Members, chunks, count_reads, found, tar_of

from imageshards.transforms.inputs import listed
from imageshards.transforms.inputs.archives import archive, tars
from imageshards.transforms.inputs.kind import ListingOptions, WorkUnit, list_references, list_unit
from imageshards.transforms.inputs.listed import Listed
from imageshards.transforms.inputs.sources import identify


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_reads(monkeypatch)


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
