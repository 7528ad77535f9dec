"""`import imageshards`: what it offers, and what it does not load."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import imageshards


def after_import(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after running the code."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_the_import_loads_none_of_the_libraries():
    loaded = after_import("import imageshards")
    ours = {name for name in loaded if name.startswith("imageshards.")}
    assert not ours
    heavy = {"apache_beam", "tensorflow", "PIL", "numpy", "pyarrow", "importlib.metadata", "typing"}
    assert not (loaded - after_import("")) & heavy


def test_the_version_is_that_of_the_distribution():
    assert imageshards.__version__ == version("imageshards")


def test_every_public_name_is_there():
    for name in imageshards.__all__:
        assert getattr(imageshards, name) is not None
    assert {*imageshards.__all__, "__version__"} <= {*dir(imageshards)}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'imageshards' has no attribute 'nothing'"):
        _ = imageshards.nothing


def test_python_m_imageshards_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "imageshards", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"imageshards {version('imageshards')}\n"
