"""Messages quote at most 80 characters of data, whatever the data are."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import Command
from helpers import image_bytes, write_images
from pyarrow import parquet

LONGEST = 500
"""Characters of a whole message, with its path and advice."""
IMAGE = image_bytes(1, size=(900, 900))
TEXT = base64.b64encode(IMAGE).decode()


def table(path: Path, **columns: list[Any]) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def uris(tmp_path: Path) -> list[str]:
    return list(map(str, write_images(tmp_path / "in", 1, 2)))


Case = Callable[[Path, list[str]], tuple[Path, list[str]]]
CASES: dict[str, Case] = {
    "images as URIs": lambda tmp, uris: (
        table(tmp / "m.parquet", jpg=[IMAGE, IMAGE]), ["--uri_column=jpg"]
    ),
    "texts of images as URIs": lambda tmp, uris: (
        table(tmp / "m.parquet", jpg=[TEXT, TEXT]), ["--uri_column=jpg"]
    ),
    "a URI with a NUL": lambda tmp, uris: (
        table(tmp / "m.parquet", uri=["\0" + TEXT[:8000]] * 2), []
    ),
    "images as labels": lambda tmp, uris: (
        table(tmp / "m.parquet", uri=uris, label=[IMAGE, IMAGE]), []
    ),
    "texts as splits": lambda tmp, uris: (
        table(tmp / "m.parquet", uri=uris, split=[TEXT, TEXT]), []
    ),
    "labels that are not in --class_names": lambda tmp, uris: (
        table(tmp / "m.parquet", uri=uris, label=[TEXT, "b"]), [f"--class_names={__file__}"]
    ),
    "labels with line breaks": lambda tmp, uris: (
        table(tmp / "m.parquet", uri=uris, label=[TEXT + "\n", "b"]), []
    ),
    "images as features": lambda tmp, uris: (
        table(tmp / "m.parquet", uri=uris, size=[IMAGE, IMAGE]), ["--features_from=size:int"]
    ),
    "a header of many columns": lambda tmp, uris: (
        table(tmp / "m.parquet", **{f"{n}": uris for n in range(2000)}), []
    ),
    "a header of one long column": lambda tmp, uris: (
        table(tmp / "m.parquet", **{TEXT: uris}), []
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_messages_quote_little_of_the_data(
    case: str, tmp_path: Path, uris: list[str], command: Command
):
    manifest, options = CASES[case](tmp_path, uris)
    code, out, err = command("build", "--input", manifest, "--output", tmp_path / "out", *options)
    assert code in (1, 2)
    assert not out
    (line,) = err.splitlines()
    assert len(line.replace(str(tmp_path), "")) < LONGEST


def test_a_column_of_prices_is_no_label(tmp_path: Path, uris: list[str], command: Command):
    manifest = table(tmp_path / "m.parquet", uri=uris, price=[1.37, 2.0])
    build = ["build", "--input", manifest, "--output", tmp_path / "out", "--num_shards=1"]
    code, _, err = command(*build, "--labels=column:price")
    assert code == 1
    assert err.count("\n") == 1
    advice = ["--labels", "column:price:float"]
    assert f"write {' '.join(advice)}" in err
    assert command(*build, *advice)[0] == 0
