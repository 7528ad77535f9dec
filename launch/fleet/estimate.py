"""The time and the cost of a planned build (`--dry_run`), on the runner that it names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions, WorkerOptions

from imageshards.launch.fleet.rates import rate
from imageshards.launch.fleet.stages import SHARDS_PER_THREAD, Fleet
from imageshards.pipeline.job.forecast import Estimate, Forecast
from imageshards.pipeline.options.beam_arguments import is_dataflow, is_local_runner, runner_of
from imageshards.transforms.elements import counted
from imageshards.transforms.shards.cores import cores

_VCPUS = 4
_MACHINE = re.compile(r"-(\d+)$")


def estimate(found: Forecast, beam_arguments: Sequence[str], check: str) -> Estimate | None:
    """Returns the time and cost of a build; None if nothing is known of the runner's workers.

    Args:
      found: the plan of the build.
      beam_arguments: Beam's options, including `--runner`.
      check: `full` or `header`.
    """
    images = sum(split.images for split in found.splits.values())
    size = sum(split.bytes for split in found.splits.values())
    shards = sum(split.shards for split in found.splits.values())
    fleet = Fleet(images, max(size, 1), 1, check=check, shards=shards)  # type: ignore[arg-type]
    if is_local_runner(beam_arguments):
        used = min(cores(), shards)
        sampled = found.sample.cpu_seconds if found.sample else 0
        each = sampled or fleet.image_seconds
        seconds = images * (each / used + rate("reference"))
        return Estimate(seconds, None, f"on {counted(used, 'core')} of this machine")
    options = PipelineOptions(list(beam_arguments))
    if is_dataflow(beam_arguments):
        given = options.view_as(WorkerOptions)
        machine = _MACHINE.search(given.machine_type or "")
        vcpus = int(machine[1]) if machine else _VCPUS
        threads = int(rate("threads")) * vcpus
        useful = max(1, math.ceil(shards / (SHARDS_PER_THREAD * threads)))
        workers = given.max_num_workers or given.num_workers or useful
        fleet = Fleet(images, max(size, 1), workers, vcpus, check, shards=shards)  # type: ignore[arg-type]
        what = f"on {counted(workers, 'worker')} of Dataflow with {counted(vcpus, 'vCPU')}"
        return Estimate(fleet.seconds, fleet.total_usd, what)
    slots = options.view_as(FlinkRunnerOptions).parallelism
    if "flink" in runner_of(beam_arguments).lower() and slots > 0:
        fleet = Fleet(
            images, max(size, 1), 1, slots, check, engine="flink", shards=shards  # type: ignore[arg-type]
        )  # fmt: skip
        return Estimate(fleet.seconds, None, f"with {counted(slots, 'slot')} of Flink")
    return None
