"""Digests of whole data sets: the bytes must not change unnoticed.

A change of bytes needs a new FORMAT_VERSION and a line in CHANGELOG.md. Then
`python tests/pipeline/test_golden.py FOLDER 3>digests.json` writes the new digests. begun.tar.xz
holds builds that version 0.1.0 did not finish.
"""

import hashlib
import json
import os
import re
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from imageshards.launch.cli import main

GOLDEN = Path(__file__).parent / "golden"
# Only what no codec writes: other versions of Pillow may write other bytes.
BUILDS = {
    "folder": ["photos", "--convert=never", "--splits=train=0.8,test=0.2"],
    "one_shard": ["photos", "--convert=never", "--num_shards=1", "--seed=5", "--check=header"],
    "groups": ["photos", "--convert=never", "--group_by=regex:photos/([^.]+)",
                "--splits=train=0.6,validation=0.2,test=0.2", "--label_offset=1"],
    "manifest": ["list.csv", "--features_from=weight:float,tags:bytes",
                 "--max_reject_fraction=0.2"],
    "imagenet": ["photos/cat/0?.jpg", "--features=imagenet", "--num_shards=2"],
    "tar": ["photos.tar"],
    "zip": ["photos.zip", "--num_shards=3"],
    "records": ["theirs.tfrecord"],
    "text": ["texts", "--features=text"],
    "text_gzip": ["texts", "--features=text", "--text_unit=paragraph", "--compression=gzip"],
    "pixels": ["small", "--features=pixels", "--resize=8x8", "--dedupe=pixels"],
    "raw": ["small", "--features=raw", "--resize=8x8", "--pixel_range=0..255"],
    "shape": ["small", "--features=shape", "--channels=1"],
    "beam": ["photos", "--convert=never", "--writer=beam", "--num_shards=2"],
}  # fmt: skip


def unpack(folder: Path) -> None:
    """Writes the inputs of all builds, with the times of their change."""
    with tarfile.open(GOLDEN / "inputs.tar.xz") as archive:
        archive.extractall(folder, filter="fully_trusted")


def build(inputs: Path, output: Path, name: str, *more: str) -> None:
    first, *arguments = (*BUILDS[name], *more)
    common = [f"--base_uri={inputs}", "--name=golden", "--workers=1"]
    if "--max_reject_fraction" not in " ".join(arguments):
        common.append("--max_reject_fraction=0.2")
    if not any(argument.startswith("--num_shards") for argument in arguments):
        common.append("--num_shards=2" if first in ("photos", "list.csv") else "--num_shards=1")
    if "--writer=beam" in arguments:
        common.remove("--workers=1")
    code = main(["build", f"--input={inputs / first}", f"--output={output}", *common, *arguments])
    assert code == 0, name


def records(path: Path) -> list[bytes]:
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack_from("<Q", data)
        found.append(data[12 : 12 + length])
        data = data[16 + length :]
    return found


def comparable(path: Path, inputs: Path) -> bytes:
    """The content of a file without what may differ: versions, paths, and prose."""
    if path.name == "build.json":
        content = json.loads(path.read_text())
        for key in ("versions", "notes", "imageshards"):
            del content[key]
        return json.dumps(content, indent=1).replace(str(inputs), "IN").encode()
    if path.name == "rejects.jsonl":
        rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            del row["reason"]
        return json.dumps(rows).replace(str(inputs), "IN").encode()
    if path.name in ("dataset_info.json", "croissant.json"):
        return re.sub(rb"by imageshards [0-9.]+", b"", path.read_bytes())
    return path.read_bytes()


def digests(output: Path, inputs: Path) -> dict[str, str]:
    """File -> digest, of the files that do not depend on where the data set is."""
    is_beam = '"writer": "beam"' in (output / "metadata/build.json").read_text()
    wanted = ["*.json", "*.txt", "metadata/leaks.jsonl", "metadata/rejects.jsonl"]
    if is_beam:  # which record is in which shard is Beam's choice
        every = sorted(record for path in output.glob("train-*") for record in records(path))
        return {"records": hashlib.sha256(b"".join(every)).hexdigest()[:20]}
    wanted += ["train-*", "test-*", "validation-*", "metadata/index/*", "metadata/build.json",
               "metadata/shards/*.digests"]  # fmt: skip
    return {
        str(path.relative_to(output)): hashlib.sha256(comparable(path, inputs)).hexdigest()[:20]
        for pattern in wanted
        for path in sorted(output.glob(pattern))
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    unpack(folder)
    return folder


@pytest.mark.parametrize("name", BUILDS)
def test_a_build_has_the_bytes_of_earlier_versions(name: str, inputs: Path, tmp_path: Path):
    build(inputs, tmp_path / "out", name)
    expected = json.loads((GOLDEN / "digests.json").read_text())[name]
    assert digests(tmp_path / "out", inputs) == expected


@pytest.mark.parametrize("name", ["folder", "manifest"])
def test_a_build_begun_by_version_0_1_0_is_refused_and_replaced_on_request(
    name: str, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Version 0.1.0 ordered images by other names: its shards do not fit to those of today."""
    with tarfile.open(GOLDEN / "begun.tar.xz") as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    output = tmp_path / "out" / name
    before = {path: path.read_bytes() for path in output.rglob("*.*")}
    with pytest.raises(AssertionError):
        build(inputs, output, name)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{output} holds an incomplete build of another version of imageshards" in error
    assert "(--overwrite replaces it; another --output keeps it)" in error
    assert {path: path.read_bytes() for path in output.rglob("*.*")} == before
    build(inputs, output, name, "--overwrite")
    assert digests(output, inputs) == json.loads((GOLDEN / "digests.json").read_text())[name]


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    unpack(folder)
    for name in BUILDS:
        build(folder, folder / "out" / name, name)
    found = {name: digests(folder / "out" / name, folder) for name in BUILDS}
    print(json.dumps(found, indent=1), file=os.fdopen(3, "w"))
