"""A metadata file is one entry of a table: this module adds one, and everything handles it."""

from pathlib import Path

import pytest
from conftest import Build

from imageshards.pipeline.operations.reshard import reshard
from imageshards.pipeline.publish import publish
from imageshards.reader.verify import verify
from imageshards.transforms.shards.layout import METADATA_FILES, DatasetFacts, MetadataFile

PATH = "metadata/summary.txt"


def summary(facts: DatasetFacts) -> bytes:
    shards = len(facts.build["shards"])
    return f"{facts.schema.name}: {facts.build['counts']['records']} in {shards}\n".encode()


@pytest.fixture(autouse=True)
def entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METADATA_FILES, "summary", MetadataFile(PATH, make=summary))


def test_it_is_written_verified_and_resharded(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="4")
    file = tmp_path / "out" / PATH
    assert file.read_text() == "slim: 120 in 4\n"
    assert verify(str(tmp_path / "out")).problems == ()
    reshard(str(tmp_path / "out"), str(tmp_path / "new"), "3")
    assert (tmp_path / "new" / PATH).read_text() == "slim: 120 in 3\n"
    file.write_text("slim: 121 in 4\n")
    assert [problem.split(": ")[0] for problem in verify(str(tmp_path / "out")).problems] == [
        str(file)
    ]
    file.unlink()
    assert verify(str(tmp_path / "out")).problems == (f"{file}: missing",)


def test_it_is_deleted_with_its_data_set(
    build: Build, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for version in ("v1", "v2"):
        build(photos, num_shards="4", output=tmp_path / version)
        publish(str(tmp_path / version), keep_versions=1)
    assert sorted(path.name for path in tmp_path.glob("v*")) == ["v2"]
    # The version that replaces the data set does not write the file, but knows it.
    writes_nothing = MetadataFile(PATH)
    monkeypatch.setitem(METADATA_FILES, "summary", writes_nothing)
    assert (tmp_path / "v2" / PATH).exists()
    build(photos, num_shards="3", output=tmp_path / "v2", overwrite=True)
    assert not (tmp_path / "v2" / PATH).exists()
