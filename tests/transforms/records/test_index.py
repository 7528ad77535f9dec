"""Indexes in memory: the same numbers in fewer bytes."""

import pickle
import re
from functools import partial

import numpy as np
import pytest

from imageshards.transforms.elements import BuildError
from imageshards.transforms.records.container import index_line
from imageshards.transforms.records.index import Index, LazyIndex


def rows_of(sizes: list[int], gaps: bool, crcs: bool) -> np.ndarray:
    sizes_ = np.array(sizes, np.int64)
    offsets = 64 + np.cumsum(sizes_) - sizes_ + (np.arange(len(sizes)) * 24 if gaps else 0)
    columns = [offsets, sizes_, *([np.arange(len(sizes)) * 7919 % 2**32] if crcs else [])]
    return np.stack(columns, -1)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("crcs", [False, True])
@pytest.mark.parametrize("largest", [900, 5 << 32])
def test_rows_are_those_of_the_file(gaps: bool, crcs: bool, largest: int):
    sizes = [0, largest, *np.random.default_rng(0).integers(0, 900, 50).tolist()]
    rows = rows_of(sizes, gaps, crcs)
    index = Index(rows)
    expected = [tuple(row) for row in rows.tolist()]
    assert [index.row(row) for row in range(len(index))] == expected
    assert [index.offset(row) for row in range(len(index))] == [row[0] for row in expected]
    assert [index.end(row) for row in range(len(index))] == [row[0] + row[1] for row in expected]
    for begin, end in ((0, 52), (0, 0), (15, 16), (16, 33), (51, 52), (52, 52)):
        assert index.rows(begin, end) == expected[begin:end]
    assert index.sizes.tolist() == sizes
    assert int(index.sizes.sum()) == sum(sizes)


def test_a_file_without_records_has_an_empty_index():
    for columns in (2, 3):
        index = Index(np.zeros((0, columns), np.int64))
        assert (len(index), index.rows(0, 0), index.sizes.tolist()) == (0, [], [])


@pytest.mark.parametrize(("crcs", "most"), [(False, 4.6), (True, 8.6)])
def test_a_record_takes_few_bytes(crcs: bool, most: float):
    index = Index(rows_of([110_000] * 10_000, gaps=False, crcs=crcs))
    arrays = [value for value in vars(index).values() if isinstance(value, np.ndarray)]
    assert all(array.base is None for array in arrays)
    assert sum(array.nbytes for array in arrays) / 10_000 < most


@pytest.mark.parametrize("row", [[-1, 5, 0], [0, -5, 0], [0, 5, -1], [0, 5, 1 << 32]])
def test_impossible_numbers_are_refused(row: list[int]):
    with pytest.raises(ValueError, match=r"negative|32 bits"):
        Index(np.array([[0, 0, 0], row]))


def part(content: bytes, begin: int, end: int) -> bytes:
    return content[begin:end]


class Reads:
    """Reads parts of the content of an index file, and counts them."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.sizes: list[int] = []

    def __call__(self, begin: int, end: int) -> bytes:
        self.sizes.append(end - begin)
        return self.content[begin:end]


def lines_of(rows: np.ndarray) -> bytes:
    return "".join(index_line(*row) for row in rows.tolist()).encode()


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("crcs", [False, True])
@pytest.mark.parametrize("records", [1, 63, 64, 65, 1000])
def test_lines_that_are_read_when_needed_have_the_same_rows(gaps: bool, crcs: bool, records: int):
    sizes = np.random.default_rng(0).integers(0, 20_000, records).tolist()
    rows = rows_of(sizes, gaps, crcs)
    content = lines_of(rows)
    expected = [tuple(row) for row in rows.tolist()]
    for row in {0, 1, 62, 63, 64, 65, 500, records - 1} & set(range(records)):
        index = LazyIndex("1.idx", content, partial(part, content))
        assert len(index) == records
        assert index.row(row) == expected[row]
        assert (index.offset(row), index.end(row)) == (expected[row][0], sum(expected[row][:2]))
        assert index.rows(max(row - 2, 0), row + 1) == expected[max(row - 2, 0) : row + 1]
        assert index.rows(row, row) == []
        copy = pickle.loads(pickle.dumps(index))
        assert copy.rows(0, records) == expected
        assert copy.sizes.tolist() == sizes
        assert copy.row(row) == expected[row]


def test_few_lookups_read_few_lines_and_many_the_whole_file_once():
    rows = rows_of([21_000] * 100_000, gaps=False, crcs=True)
    read = Reads(lines_of(rows))
    index = LazyIndex("1.idx", read.content, read)
    held = [value.nbytes for value in vars(index).values() if isinstance(value, np.ndarray)]
    assert 0 < sum(held) / len(index) < 0.15
    wanted = np.random.default_rng(1).integers(0, 100_000, 2000).tolist()
    for row in wanted[:300]:
        assert [index.row(row), index.row(row)] == [tuple(rows[row].tolist())] * 2
    assert len(read.sizes) <= 300  # not 600: the block of the last lookup is kept
    assert max(read.sizes) <= 64 * len(b"2099979000 21000 4294967295\n")
    for row in wanted:
        assert index.row(row) == tuple(rows[row].tolist())
    assert len(read.sizes) <= 100_000 // 256 + 1
    assert read.sizes.count(len(read.content)) == 1


@pytest.mark.parametrize(
    ("line", "damaged"),
    [(b"1200 24 9", b"1200 2x 9"), (b"1200 24 9", b"1200 24"), (b"1200 24 9", b"12 0 24 9"),
     (b"1200 24 9", b"")],
)  # fmt: skip
def test_damaged_lines_are_refused_when_they_are_read(line: bytes, damaged: bytes):
    lines = [b"%d 24 9" % (24 * row) for row in range(1000)]
    lines[lines.index(line)] = damaged
    content = b"\n".join([*lines, b""])
    index = LazyIndex("1.idx", content, partial(part, content))
    assert index.row(49) == (1176, 24, 9)
    says = rf"^1\.idx: damaged: {re.escape(repr(damaged))} is not the line of a record$"
    with pytest.raises(BuildError, match=says):
        index.row(50)
    with pytest.raises(BuildError, match=r"^1\.idx: damaged: "):
        _ = index.sizes
    with pytest.raises(ValueError, match="breaks off in its last line"):
        LazyIndex("1.idx", content[:-1], partial(part, content))
