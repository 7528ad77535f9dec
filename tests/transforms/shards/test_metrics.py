"""The writers count what they do as Beam metrics, under names that dashboards can rely on."""

import re
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from imageshards.pipeline import graph
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.transforms import metrics as declared


def metrics(built: BuildSpec) -> dict[str, object]:
    """Name -> value of the metrics that a build of 120 images and one reject commits."""
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    graph.build(pipeline, built)
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query()
    return {
        metric.key.metric.name: metric.committed
        for metric in [*found["counters"], *found["distributions"]]
        if metric.key.metric.namespace == "imageshards"
    }


@pytest.fixture
def inputs(photos: Path, tmp_path: Path) -> tuple[str, ...]:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    return str(photos), str(bad)


def spec(inputs: tuple[str, ...], tmp_path: Path, writer: str) -> BuildSpec:
    options = BuildOptions.of(
        input=inputs, output=str(tmp_path / "out"), num_shards="3", writer=writer,
        max_reject_fraction=0.1,
    )  # fmt: skip
    return BuildSpec(options)


def test_the_shard_writer_counts_images_bytes_rejects_and_resumed_shards(
    inputs: tuple[str, ...], tmp_path: Path
):
    mine = spec(inputs, tmp_path, "shard")
    first = metrics(mine)
    assert first["images_written"] == 120
    sizes = sum(path.stat().st_size for path in (tmp_path / "out").glob("train-*"))
    assert first["bytes_written"] == sizes
    assert first["rejects/NotAnImage"] == 1
    assert "shards_resumed" not in first
    assert (first["shards_written"], first["images_listed"]) == (3, 121)
    assert (first["units_listed"], "retries" in first) == (2, False)
    assert 0 < first["groups_sorted"] <= 121
    # Each image is read once.
    assert first["bytes_read"] == sum(
        path.stat().st_size for text in inputs for path in [Path(text), *Path(text).rglob("*")]
        if path.is_file()
    )  # fmt: skip
    again = metrics(mine)
    assert again["shards_resumed"] == 3
    assert "images_written" not in again


def test_the_beam_writer_measures_each_record(inputs: tuple[str, ...], tmp_path: Path):
    found = metrics(spec(inputs, tmp_path, "beam"))
    assert found["encode_ms"].count == 120  # type: ignore[attr-defined]
    records = found["image_bytes"]
    frames = sum(path.stat().st_size for path in (tmp_path / "out").glob("train-*")) - 120 * 16
    assert (records.count, records.sum) == (120, frames)  # type: ignore[attr-defined]


def test_the_documented_metrics_are_those_of_the_code():
    """docs/production/metrics.md is made from this docstring."""
    documented = dict(re.findall(r"(?m)^\| `([\w/]+)` \| (\w+) \|", declared.__doc__ or ""))
    kinds = {Metrics.DelegatingCounter: "counter", Metrics.DelegatingDistribution: "distribution"}
    found = {
        value.metric_name.name: kinds[type(value)]
        for value in vars(declared).values()
        if type(value) in kinds
    }
    assert documented == {**found, "rejects/ERROR": "counter"}
    source = Path(declared.__file__).read_text()
    assert source.count("Metrics.counter(") + source.count("Metrics.distribution(") == len(
        documented
    )
    # All are declared here, so that none is undocumented.
    for path in Path(declared.__file__).parents[1].rglob("*.py"):
        if path.name != "metrics.py":
            assert not re.search(r"Metrics\.(counter|distribution|gauge)\(", path.read_text()), path
