"""Indexes in memory: the same numbers in fewer bytes."""

import numpy as np
import pytest

from imageshards.transforms.records.index import Index


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
