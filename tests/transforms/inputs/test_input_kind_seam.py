"""A kind of input that is written here, and nowhere else, takes a whole build."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Build
from helpers import build_json, image_bytes, records

from imageshards.pipeline.job.failures import JobError
from imageshards.pipeline.operations.fingerprint import fingerprint
from imageshards.transforms import storage
from imageshards.transforms.inputs.kind import (
    KINDS,
    InputKind,
    ListingOptions,
    WorkUnit,
    register,
)
from imageshards.transforms.inputs.listed import Listed, ListedRows

BYTES_OF_A_UNIT = 200


class ListFile(InputKind):
    """A text file with a path and a label, separated by a blank, on each line.

    It is listed in units of work that are ranges of its bytes: each lists the lines that begin in
    its range.
    """

    noun = "a .lst file"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        return uri.endswith(".lst")

    def units(self, options: ListingOptions) -> Iterator[WorkUnit]:
        size, _ = storage.stat(self.uri)
        for begin in range(0, size, BYTES_OF_A_UNIT):
            yield WorkUnit(self, (begin, begin + BYTES_OF_A_UNIT))

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed]:
        begin, end = unit.part
        folder = os.path.dirname(self.uri)
        rows = ListedRows(columns=["label"])
        with storage.open_read(self.uri) as file:
            if begin:
                file.seek(begin - 1)
                file.readline()
            while file.tell() < end and (line := file.readline()):
                path, label = line.decode().split()
                rows.columns["label"].append(label)
                rows.add(f"{folder}/{path}", len(folder) + 1)
        yield rows.take()


@pytest.fixture
def lst(tmp_path: Path) -> Iterator[Path]:
    """50 images in a .lst file, and the kind that reads it."""
    register(ListFile)
    rows = []
    for number in range(50):
        (tmp_path / f"{number}.jpg").write_bytes(image_bytes(number))
        rows.append(f"{number}.jpg {'odd' if number % 2 else 'even'}\n")
    path = tmp_path / "images.lst"
    path.write_text("".join(rows))
    yield path
    KINDS.remove(ListFile)


def test_a_new_kind_of_input_takes_a_whole_build(build: Build, lst: Path, tmp_path: Path):
    summary = build(lst, num_shards="train=3,test=2", splits="train=0.7,test=0.3")
    assert (summary.records, summary.rejects, summary.duplicates) == (50, 0, 0)
    found = {
        int(Path(record.first("image/filename").decode()).stem): (
            record.first("image/encoded"),
            record.first("image/class/text"),
        )
        for record in records(tmp_path / "out")
    }
    assert found == {
        number: (image_bytes(number), b"odd" if number % 2 else b"even") for number in range(50)
    }
    assert build_json(tmp_path / "out")["classes"] == ["even", "odd"]


def test_a_new_kind_of_input_has_a_fingerprint(lst: Path):
    before = fingerprint([str(lst)])
    assert before.files == 1
    with lst.open("a") as file:
        file.write("0.jpg even\n")
    assert fingerprint([str(lst)]).digest != before.digest


def test_a_text_build_names_the_kind_that_it_refuses(build: Build, lst: Path):
    with pytest.raises(Exception, match=r"is a \.lst file, but --features text requires"):
        build(lst, features="text")


@pytest.mark.parametrize(
    "option", [{"labels": "column:breed"}, {"features_from": ("breed:bytes",)}]
)
def test_a_column_that_the_kind_does_not_list_is_refused(build: Build, lst: Path, option: dict):
    with pytest.raises(JobError, match=r"images\.lst: a \.lst file has no column 'breed'"):
        build(lst, **option)
