"""Manifests whose columns are parts of URIs, as in tables of competitions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import Build, Command
from helpers import names, records, write_images
from pyarrow import parquet

from imageshards.pipeline.job.failures import JobError
from imageshards.transforms.elements import BuildError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """FOLDER/train/class0[01]/000[0-9].jpg, FOLDER/train.csv and FOLDER/train.parquet."""
    folder = tmp_path / "competition"
    paths = write_images(folder / "train", 2, 10)
    rows = [(path.stem, path.parent.name, number) for number, path in enumerate(paths)]
    lines = ["id,class,age", *(f"{key},{label},{age}" for key, label, age in rows)]
    (folder / "train.csv").write_text("\n".join(lines))
    ids, labels, ages = zip(*rows, strict=True)
    numbers = [int(key) for key in ids]
    parquet.write_table(
        pa.table({"id": numbers, "class": labels, "age": ages}), folder / "train.parquet"
    )
    return folder


def test_columns_make_uris(build: Build, folder: Path, tmp_path: Path):
    options: dict[str, Any] = {"labels": "column:class", "features_from": ("age:int",)}
    template = "train/{class}/{id}.jpg"
    assert build(folder / "train.csv", uri_template=template, **options).records == 20
    for record in records(tmp_path / "out"):
        age = record.first("age")
        assert record.first("image/filename") == b"train/class%02d/%04d.jpg" % (age // 10, age % 10)
    absolute = f"file://{folder}/train/{{class}}/000{{id}}.jpg"
    build(folder / "train.parquet", uri_template=absolute, output=tmp_path / "p", **options)
    assert names(tmp_path / "p") == names(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uri_template": "train/{name}.jpg"}, r"no column 'name' of --uri_template; .*id, class"),
        ({}, "no column 'uri' .*--uri_template 'train/{id}.jpg'"),
        ({"uri_template": "{id}/{class}", "labels": "column:breed"}, "no column 'breed'; its"),
    ],
)
def test_a_column_that_is_missing_is_named(
    build: Build, folder: Path, options: dict[str, Any], message: str
):
    with pytest.raises(BuildError, match=message):
        build(folder / "train.csv", **options)


def test_a_row_without_a_value_is_named(build: Build, folder: Path):
    (folder / "train.csv").write_text("id,class\n1,a\n2,\n")
    with pytest.raises(BuildError, match=r"train\.csv:3: no value in the column 'class'"):
        build(folder / "train.csv", uri_template="{class}/{id}.jpg")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("train/id.jpg", "names no column: write one in braces"),
        ("train/{id.jpg", "such as train/{id}.jpg"),
        ("train/{}.jpg", "such as train/{id}.jpg"),
    ],
)
def test_a_malformed_template_is_refused(
    command: Command, folder: Path, template: str, message: str
):
    code, _, errors = command(
        "build", "--input", folder / "train.csv", "--uri_template", template, "--output", "out"
    )
    assert (code, errors.count("\n")) == (2, 1)
    assert message in errors


def test_a_template_and_a_column_of_uris_exclude_each_other(build: Build, folder: Path):
    with pytest.raises(UsageError, match=r"write \{id\} in the template"):
        build(folder / "train.csv", uri_template="{id}.jpg", uri_column="id")


def test_ids_in_a_list_suggest_a_template(build: Build, folder: Path, tmp_path: Path):
    (folder / "train/list.txt").write_text("".join(f"000{number}\n" for number in range(10)))
    with pytest.raises(JobError, match=r"in class00/ with \.jpg at the end") as caught:
        build(folder / "train/list.txt")
    found = re.search(r"set --uri_template '([^']+)'", str(caught.value))
    assert found
    again = build(folder / "train/list.txt", uri_template=found[1], output=tmp_path / "again")
    assert again.records == 10
