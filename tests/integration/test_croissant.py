"""croissant.json is valid for mlcroissant, the library of the format.

mlcroissant has an environment of its own: it requires pandas, which Beam imports where it is.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Build
from helpers import image_bytes

ABOUT = {
    "description": "Small pictures.", "license": "CC-BY-4.0", "creator": "A. Nonymous",
    "citation": "@misc{pictures}", "homepage": "https://example.org/pictures",
    "date_published": "2026-11-22",
}  # fmt: skip
READ = """
import json, sys
import mlcroissant
dataset = mlcroissant.Dataset(sys.argv[1])
issues = dataset.metadata.ctx.issues
splits = [row["splits/name"] for row in dataset.records("splits")]
classes = []
if "classes" in {record_set.id for record_set in dataset.metadata.record_sets}:
    classes = [[row["classes/label"], row["classes/name"].decode()]
               for row in dataset.records("classes")]
print(json.dumps({
    "errors": list(issues.errors), "warnings": list(issues.warnings),
    "metadata": dataset.metadata.to_json(), "splits": splits, "classes": classes,
}, default=str))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with mlcroissant."""
    venv = tmp_path_factory.mktemp("croissant") / "venv"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    python = venv / "bin/python"
    install = [uv, "pip", "install", "--quiet", "--python", python, "mlcroissant>=1.1"]
    subprocess.run(install, check=True)
    return python


def read(python: Path, folder: Path) -> dict[str, Any]:
    """What mlcroissant finds in the croissant.json of a data set."""
    done = subprocess.run(
        [python, "-c", READ, folder / "croissant.json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_it_is_valid_and_describes_every_file(
    build: Build, photos: Path, tmp_path: Path, python: Path
):
    build(photos, splits="train=0.7,test=0.3", num_shards="2", **ABOUT)
    result = read(python, tmp_path / "out")
    assert (result["errors"], result["warnings"]) == ([], [])
    found = result["metadata"]
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    assert found["license"] == "https://spdx.org/licenses/CC-BY-4.0.html"
    assert (found["url"], found["citeAs"]) == (ABOUT["homepage"], ABOUT["citation"])
    assert found["description"] == ABOUT["description"]
    assert result["splits"] == ["train", "test"]
    assert result["classes"][:2] == [[0, "class00"], [1, "class01"]]
    listed = {item["contentUrl"]: item["sha256"] for item in found["distribution"]
              if "contentUrl" in item}  # fmt: skip
    shards = {path.name for path in (tmp_path / "out").glob("*.tfrecord")}
    assert {*listed} == {*shards, "image.class.label.labels.txt"}
    for name, digest in listed.items():
        content = (tmp_path / "out" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest


@pytest.mark.parametrize("features", ["slim", "shape", "raw", "imagenet", "text"])
def test_it_is_valid_for_every_schema(features: str, build: Build, tmp_path: Path, python: Path):
    options: dict[str, Any] = {"resize": "8x8", "enlarge": True} if features == "raw" else {}
    folder = tmp_path / "in/n01440764"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(image_bytes(number))
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    inputs = tmp_path / ("lines.txt" if features == "text" else "in")
    build(inputs, features=features, num_shards="1", **options)
    assert read(python, tmp_path / "out")["errors"] == []
