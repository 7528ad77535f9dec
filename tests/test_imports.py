"""Imports run one way, and workers import no TensorFlow."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("transforms", "pipeline", "reader", "launch")
PTRANSFORMS = {
    "choose",
    "exclude",
    "read",
    "join_annotations",
    "dedupe",
    "merge_facts",
    "shuffle",
    "write_beam",
    "write_shards",
}
OF_BEAM = {*PTRANSFORMS, "metrics", "runner", "grouping"}
# Top to bottom. A package imports itself and those below it.
ORDER = (
    "launch",
    "pipeline",
    "reader",
    *(f"transforms.{name}" for name in sorted(PTRANSFORMS)),
    "transforms.grouping",
    "transforms.runner",
    "transforms.metrics",
    "transforms.failure",
    "transforms.shards",
    "transforms.inputs",
    "transforms.annotations",
    "transforms.references",
    "transforms.pairs",
    "transforms.records",
    "transforms.storage",
    "transforms.images",
    "transforms.extras",
    "transforms.elements",
)
MOST_MODULES = 15


def level(name: str) -> int:
    """The place in ORDER of a module, which is named without `imageshards.`."""
    return next(
        number
        for number, package in enumerate(ORDER)
        if name == package or name.startswith(package + ".")
    )


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def at_import(path: Path) -> set[str]:
    """Imports outside functions: what importing the module costs."""
    tree = ast.parse(path.read_text())
    top = ast.Module([n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))], [])
    return {
        name
        for node in ast.walk(top)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip


HEAVY = {"tensorflow", "torch", "grain", "jax"}
# These import it at their top, and are imported where they are asked for.
OF_THE_TRAINING_SIDE = {
    "reader/grain/batches.py",
    "reader/tensorflow/dataset.py",
    "reader/tensorflow/elements.py",
    "reader/tensorflow/features.py",
    "reader/tensorflow/images.py",
    "reader/tensorflow/recipe.py",
    "reader/torch.py",
    "launch/training/loop_jax.py",
    "launch/training/loop_keras.py",
}

MODULES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if (path.parent / "__init__.py").exists()
]


def test_there_is_something_to_check():
    assert len(MODULES) > 25


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downwards(path: Path):
    names = imported(path)
    ours = {name.removeprefix("imageshards.") for name in names if name.startswith("imageshards.")}
    mine = str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    if mine != "transforms.__init__":
        above = {name for name in ours if level(name) < level(mine)}
        assert not above, f"{mine} imports what is above it"
    # No module is imported by a name that only works at the repository's root.
    assert not {name.split(".")[0] for name in names} & {*FOLDERS}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_packages_are_imported_where_they_are_used(path: Path):
    folder = path.relative_to(ROOT).parts[0]
    lazy = folder == "reader" or path.name == "training.py"
    if str(path.relative_to(ROOT)) not in OF_THE_TRAINING_SIDE:
        names = at_import(path) if lazy else imported(path)
        assert not {name.split(".")[0] for name in names} & HEAVY
    if folder == "reader" or (folder == "transforms" and path.stem not in OF_BEAM):
        assert not any(name.split(".")[0] == "apache_beam" for name in at_import(path))


@pytest.mark.parametrize("name", sorted(PTRANSFORMS))
def test_ptransforms_do_not_import_each_other(name: str):
    names = {module.split(".")[2] for module in imported(ROOT / "transforms" / f"{name}.py")
             if module.startswith("imageshards.transforms.")}  # fmt: skip
    assert not names & (PTRANSFORMS - {name})


def test_a_folder_is_one_subject():
    folders = {path.parent for path in MODULES}
    for folder in folders:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MOST_MODULES, folder
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def modules_after(code: str) -> set[str]:
    code = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_a_build_imports_no_tensorflow(photos: Path, tmp_path: Path):
    arguments = ["build", f"--input={photos}", f"--output={tmp_path / 'out'}"]
    loaded = modules_after(
        f"from imageshards.launch.cli import main\nassert not main({arguments}, own_process=True)"
    )
    assert "imageshards.transforms.shards.write" in loaded
    assert not {"tensorflow", "tensorflow_datasets", "google.cloud.storage"} & loaded
    assert not {name for name in loaded if name.startswith("IPython.")}
    assert not set(FOLDERS) & loaded


def test_a_worker_process_imports_no_beam():
    loaded = modules_after("import imageshards.transforms.shards.workers")
    assert not {"apache_beam", "tensorflow", "google.cloud.storage"} & loaded


def test_the_reader_imports_nothing_heavy():
    loaded = modules_after("import imageshards.reader")
    assert "imageshards.reader.load" in loaded
    assert not {"apache_beam", "google.cloud.storage", *HEAVY} & loaded


@pytest.mark.slow
def test_clients_are_found_when_a_gs_uri_comes_late():
    code = """
from imageshards.launch.load import load_beam
load_beam(lean=True)
assert "google.cloud.storage" not in sys.modules
import os
os.environ["STORAGE_EMULATOR_HOST"] = "http://127.0.0.1:1"
from imageshards.transforms.storage import gcs_json
assert gcs_json._session()
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp import gcsfilesystem
assert type(FileSystems.get_filesystem("gs://bucket/x")).__name__ == "GCSFileSystem"
import apache_beam.internal.gcp.auth
assert apache_beam.internal.gcp.auth._GOOGLE_AUTH_AVAILABLE
import apache_beam.runners.dataflow.internal.apiclient
"""
    assert "google.cloud.storage" in modules_after(code)


def test_a_local_build_needs_no_client_of_the_cloud():
    loaded = modules_after("from imageshards.launch.load import load_beam\nload_beam(lean=True)")
    assert "imageshards.transforms.storage.gcs_json" in loaded
    assert not {"google.auth", "google.cloud.storage"} & loaded
    assert not {"apache_beam.io.gcp.bigquery", "apitools", "pymongo", "requests"} & loaded


def test_help_imports_nothing_heavy():
    loaded = modules_after(
        "from imageshards.launch.cli import main\ntry: main(['build', '--help'])\n"
        "except SystemExit: pass"
    )
    assert "imageshards.pipeline.options" in loaded
    assert not {"apache_beam", "numpy", "PIL", "pyarrow", "rich"} & loaded


MOST_PARAMETERS = 8


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_takes_more_than_eight_parameters(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            names = [argument.arg for argument in every if argument.arg not in ("self", "cls")]
            assert len(names) <= MOST_PARAMETERS, f"{node.name}: {names}"
