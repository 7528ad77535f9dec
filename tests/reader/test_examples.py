"""The examples in the docstrings of the reader run."""

from __future__ import annotations

import doctest
import io
from pathlib import Path

import pytest
from conftest import LOCAL

from imageshards import reader
from imageshards.pipeline.config import Config
from imageshards.pipeline.run import run
from imageshards.reader import parse, stream


@pytest.fixture(scope="module")
def folder(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data set of which the examples speak."""
    folder = tmp_path_factory.mktemp("examples")
    config = Config(
        input=(str(photos),), output=str(folder / "dataset"), num_shards="4", base_uri=str(photos)
    )
    run(config, LOCAL, show_progress=False)
    return folder


@pytest.mark.parametrize(
    "documented",
    [
        reader.load, reader.open, reader.Records, reader.folds, stream.StatefulIterator,
        parse.schema_of, parse.decode_numpy,
    ],
    ids=lambda documented: documented.__name__,
)  # fmt: skip
def test_the_example_of_the_docstring_runs(
    documented: object, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    names = {**vars(parse), **vars(reader), "reader": reader}
    found = doctest.DocTestFinder(recurse=False).find(documented, "example", globs=names)
    report = io.StringIO()
    runner = doctest.DocTestRunner()
    for example in found:
        runner.run(example, out=report.write)
    assert runner.tries, "there is no example"
    assert not runner.failures, report.getvalue()
