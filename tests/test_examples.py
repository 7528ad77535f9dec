"""The `>>>` examples of docstrings run, in a folder with `photos` and a data set of them."""

import doctest
import importlib
from pathlib import Path

import pytest
from helpers import write_images

from imageshards.launch.cli import main

ROOT = Path(__file__).parents[1]
FOLDERS = ("api", "launch", "pipeline", "reader", "transforms")
WITH_EXAMPLES = [
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in path.read_text() and (path.parent / "__init__.py").exists()
]


def module_name(path: Path) -> str:
    parts = [part for part in path.with_suffix("").parts if part not in ("api", "__init__")]
    return ".".join(("imageshards", *parts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 40 photos of two classes, and their data set with train and test."""
    folder = tmp_path_factory.mktemp("examples")
    write_images(folder / "photos", 2, 20)
    options = ["--splits=train=0.8,test=0.2", "--num_shards=train=2,test=1"]
    output = folder / "dataset"
    assert main(["build", f"--input={folder / 'photos'}", f"--output={output}", *options]) == 0
    return folder


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_the_public_modules_have_examples():
    assert {"reader/load.py", "reader/random_access.py"} <= {*map(str, WITH_EXAMPLES)}


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_examples_run(path: Path, inside: None):
    module = importlib.import_module(module_name(path))
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(module, optionflags=flags)
    assert result.attempted
    assert not result.failed
