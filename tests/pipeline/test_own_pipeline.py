"""The PTransforms in pipelines that are not `imageshards build`."""

import json
from pathlib import Path

import apache_beam as beam
import pytest
from code_blocks import blocks
from helpers import write_images

from imageshards import BuildOptions, BuildSpec, ReadReferences, WriteDataset, reader
from imageshards.reader.verify import verify
from imageshards.transforms.shards.read_back import read_shard


@pytest.fixture
def rated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with list.csv, in which 12 of 30 images have a rating of 3 or more."""
    write_images(tmp_path / "photos", 3, 10)
    paths = sorted(tmp_path.glob("photos/*/*.*"))
    rows = [f"{path.relative_to(tmp_path)},{number % 5}\n" for number, path in enumerate(paths)]
    (tmp_path / "list.csv").write_text("uri,rating\n" + "".join(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_pipeline_of_the_documentation_writes_what_its_own_dofn_keeps(
    rated: Path, caplog: pytest.LogCaptureFixture
):
    document = Path("docs/guide/own_pipeline.md")
    code = next(block.code for block in blocks(document) if block.language == "python")
    exec(code, {"__name__": "example"})
    shards = sorted(map(str, Path("rated").glob("train-*")))
    ratings = [record.first("rating") for shard in shards for record in read_shard(shard)]
    assert sorted(ratings) == [3] * 6 + [4] * 6
    assert len(reader.open("rated", "train")) == 12
    counts = json.loads((rated / "rated/metadata/build.json").read_text())["counts"]
    assert (counts["inputs"], counts["records"]) == (12, 12)
    assert not verify("rated").problems
    assert "fallback deterministic coder" not in caplog.text


class DropAll(beam.DoFn):
    def process(self, element):
        bucket, references = element
        yield bucket, references.take([])


def test_a_build_of_which_everything_is_dropped_says_so(rated: Path):
    spec = BuildSpec(BuildOptions.of(input=("list.csv",), output="none"))
    pipeline = beam.Pipeline(runner="FnApiRunner")
    references = pipeline | ReadReferences(spec.options.inputs.input, spec.annotator, spec.listing)
    _ = references.apply(DropAll()) | WriteDataset(spec)
    with pytest.raises(Exception, match="no image in any --input"):
        pipeline.run()
    assert not (rated / "none/dataset_info.json").exists()


def test_an_unchanged_pipeline_has_the_bytes_of_the_command(rated: Path, command):
    assert command("build", "--input=list.csv", "--output=told", "--num_shards=2")[0] == 0
    spec = BuildSpec(BuildOptions.of(input=("list.csv",), output="own", num_shards="2"))
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        inputs = spec.options.inputs.input
        _ = pipeline | ReadReferences(inputs, spec.annotator, spec.listing) | WriteDataset(spec)
    shards = sorted(Path("told").glob("train-*"))
    assert len(shards) == 2
    for shard in shards:
        assert Path("own", shard.name).read_bytes() == shard.read_bytes()
