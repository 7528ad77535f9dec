"""The package as users and workers install it: the sdist that Beam stages, and its wheel."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_NETWORK = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, built as Beam does for --setup_file, from a copy of the files in git."""
    source = tmp_path_factory.mktemp("source")
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, files):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", "dist"],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    return next((source / "dist").glob("*.tar.gz"))


def test_the_sdist_contains_the_package_and_no_tests(sdist: Path):
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert any(name.endswith("/transforms/elements.py") for name in names)
    assert any(name.endswith("/api/py.typed") for name in names)
    assert not any("/tests/" in name or "/benchmarks/" in name for name in names)


def test_the_installed_sdist_builds_a_data_set_without_the_checkout(
    sdist: Path, tmp_path: Path, photos: Path
):
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *NO_NETWORK, "--target", site, sdist], check=True
    )
    installed = {path.name for path in (site / "imageshards").iterdir()} - {"__pycache__"}
    assert installed == {
        "__init__.py", "__main__.py", "py.typed", "pipeline", "transforms", "reader", "launch",
    }  # fmt: skip
    # PYTHONPATH takes precedence over the editable install of this checkout.
    done = subprocess.run(
        [
            sys.executable, "-c",
            "import sys, imageshards.launch.cli as cli; assert cli.__file__.startswith(sys.argv[1])"
            "\nsys.exit(cli.main(sys.argv[2:]))",
            site, "build", "--input", photos, "--output", tmp_path / "out",
            "--direct_running_mode=multi_processing", "--direct_num_workers=2",
        ],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "120 images" in done.stdout
