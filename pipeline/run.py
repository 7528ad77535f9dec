"""Runs a build and waits for its end (`run`), or submits it to a service (`submit`)."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.runner import PipelineState

from imageshards.pipeline import graph
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.job.execution import CachedOptions, new_pipeline, wait_for
from imageshards.pipeline.job.failures import JobEnded, JobError, job_error
from imageshards.pipeline.job.preflight import prepare
from imageshards.pipeline.job.progress import Progress
from imageshards.pipeline.job.submission import Submission, submission_of
from imageshards.pipeline.job.summary import Summary
from imageshards.pipeline.options.beam_arguments import is_dataflow, is_local_runner
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError
from imageshards.transforms.inputs.kind import InputKind
from imageshards.transforms.records.containers import parse_shard_name
from imageshards.transforms.shards.layout import Layout


def run(
    options: BuildOptions,
    beam_arguments: Sequence[str],
    *,
    workers: int | None = 1,
    show_progress: bool = True,
    begin: float | None = None,
    announce: Callable[[Submission], None] | None = None,
) -> Summary:
    """Builds a data set and waits for the end.

    Args:
      options: the options of the build.
      beam_arguments: Beam's own options, including `--runner`.
      workers: processes that write shards besides the runner's; None: chosen by the number of
        images. A script that uses more than one needs `if __name__ == "__main__"`.
      show_progress: whether to show progress on stderr.
      begin: `time.perf_counter()` at the start of the measured time; None: now.
      announce: for runners that submit jobs to a service: called when it has accepted the job.

    Raises:
      UsageError: the options are wrong.
      BuildError: the build cannot start.
      JobError: the build started and failed.
    """
    begin = time.perf_counter() if begin is None else begin
    spec, sources = prepare(options, reads_local_files=not is_dataflow(beam_arguments))
    beam_options = CachedOptions(list(beam_arguments))
    spec = replace(spec, job=_job(beam_arguments, beam_options))
    finished = _finished_shards(spec.layout)
    job = None
    started = time.perf_counter()
    progress = Progress(
        spec.layout,
        enabled=show_progress,
        noun=spec.schema.noun,
        begin=begin,
        grows=options.execution.writer == "shard",
    )
    try:
        if announce:
            result = _start(spec, sources, beam_options, workers)
            job = submission_of(result, beam_options, spec.layout.root)
            if job:
                announce(job)
            with progress:
                state = result.wait_until_finish()
            if state != PipelineState.DONE:
                raise JobEnded(state)
        else:
            with progress:
                wait_for(_start(spec, sources, beam_options, workers))
    except UsageError:
        raise
    except Exception as error:
        raise job_error(error, job.link if job else "") from error
    now = _finished_shards(spec.layout) if finished else {}
    with storage.open_read(spec.layout.build) as file:
        build = json.load(file)
    return Summary.of(
        build,
        output=spec.layout.root,
        noun=spec.schema.noun,
        resumed={name.removesuffix(".json") for name, _ in finished.items() & now.items()},
        seconds=time.perf_counter() - begin,
        startup_seconds=started - begin if is_local_runner(beam_arguments) else None,
    )


def submit(options: BuildOptions, beam_arguments: Sequence[str]) -> Submission:
    """Submits the build of a data set to a service, and does not wait for its end.

    Args:
      options: the options of the build.
      beam_arguments: Beam's own options, including a `--runner` that does not block.

    Raises:
      UsageError: the options are wrong.
      BuildError: the build cannot start.
      JobError: the service did not accept the job.
    """
    spec, sources = prepare(options, reads_local_files=not is_dataflow(beam_arguments))
    beam_options = CachedOptions(list(beam_arguments))
    spec = replace(spec, job=_job(beam_arguments, beam_options))
    try:
        job = submission_of(_start(spec, sources, beam_options, 1), beam_options, spec.layout.root)
    except UsageError:
        raise
    except Exception as error:
        raise job_error(error) from error
    if not job:
        raise JobError("the runner reports no id of the job: use --wait")
    return job


def _job(beam_arguments: Sequence[str], options: PipelineOptions) -> str:
    """Returns the identity of the job; empty for local runners, which do not retry what fails."""
    # All jobs of a template would have the same one.
    is_template = options.view_as(GoogleCloudOptions).template_location
    return "" if is_template or is_local_runner(beam_arguments) else uuid.uuid4().hex


def _start(
    spec: BuildSpec, sources: Sequence[InputKind], options: PipelineOptions, workers: int | None
) -> Any:
    """Builds the graph and runs it; returns at its end, or when a service has accepted the job."""
    pipeline = new_pipeline(options, spec.options.inputs.billing_project)
    graph.build(pipeline, spec, workers, sources)
    return pipeline.run()


def _finished_shards(layout: Layout) -> dict[str, int]:
    """Returns the names of the states of finished shards, and when each was written."""
    return {
        entry.name: entry.changed
        for entry in storage.entries_in(layout.state)
        if entry.name.endswith(".json") and parse_shard_name(entry.name.removesuffix(".json"))
    }
