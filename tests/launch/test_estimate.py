"""The time and the cost that `--dry_run` shows: those of `imageshards advise`."""

from __future__ import annotations

import pytest

from imageshards.launch.fleet.estimate import estimate
from imageshards.launch.fleet.stages import Fleet
from imageshards.pipeline.job.forecast import Forecast, SplitForecast
from imageshards.pipeline.job.sample import ReadSample
from imageshards.transforms.shards.cores import cores

IMAGES, BYTES, SHARDS = 1_000_000, 108_000_000_000, 720


def planned(cpu_seconds: float = 0.0) -> Forecast:
    split = SplitForecast(
        images=IMAGES, bytes=BYTES, shards=SHARDS, records_per_shard=(1388, 1389), classes={}
    )
    sample = ReadSample(images=9, rejected=0, rejects=(), cpu_seconds=cpu_seconds)
    return Forecast(
        output="/o", found="", inputs=IMAGES, duplicates=0, passed_over=0, rejects=0, errors={},
        splits={"train": split}, notes=(), sample=sample if cpu_seconds else None,
    )  # fmt: skip


def test_dataflow_has_the_time_and_cost_of_its_workers():
    arguments = ["--runner=DataflowRunner", "--max_num_workers=10", "--machine_type=e2-standard-8"]
    found = estimate(planned(), arguments, "full")
    fleet = Fleet(IMAGES, BYTES, 10, 8, "full", shards=SHARDS)
    assert found
    assert (found.seconds, found.usd) == (fleet.seconds, fleet.total_usd)
    assert str(found).endswith(f"${fleet.total_usd:,.2f}, on 10 workers of Dataflow with 8 vCPUs")
    alone = estimate(planned(), ["--runner=DataflowRunner"], "full")
    assert alone
    assert "on 23 workers of Dataflow with 4 vCPUs" in str(alone)  # 720 shards, 4 for each thread


def test_this_machine_has_the_time_of_the_sample():
    found = estimate(planned(cpu_seconds=0.002), ["--runner=FnApiRunner"], "full")
    assert found
    assert found.usd is None
    assert found.seconds == pytest.approx(IMAGES * 0.002 / cores(), rel=0.01)


def test_slots_of_flink_are_workers():
    found = estimate(planned(), ["--runner=FlinkRunner", "--parallelism=16"], "header")
    assert found
    assert (found.usd, found.workers) == (None, "with 16 slots of Flink")
    assert estimate(planned(), ["--runner=FlinkRunner"], "header") is None
