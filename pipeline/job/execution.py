"""Makes pipelines for runners, and waits for their end."""

from __future__ import annotations

from contextlib import suppress

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.runner import PipelineResult

from imageshards.pipeline.job import access
from imageshards.transforms.elements import UsageError

_JOB_SECONDS = 366 * 24 * 3600
_INVALID = "Pipeline has validations errors: "


class CachedOptions(PipelineOptions):  # type: ignore[misc]
    """Caches the views of options. Beam makes a hundred, and builds a parser for each: 40 ms."""

    def view_as(self, cls: type[PipelineOptions]) -> PipelineOptions:
        """Returns the options of a class; all views share the values."""
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


def new_pipeline(options: PipelineOptions, billing_project: str) -> beam.Pipeline:
    """Returns an empty pipeline.

    Args:
      options: Beam's options.
      billing_project: the project that pays for the workers' requests, or empty.

    Raises:
      UsageError: Beam refuses the options.
    """
    access.carry(billing_project, options)
    _let_prism_run(options)
    _flush_whole_elements()
    try:
        return beam.Pipeline(options=options)
    except ValueError as error:
        if str(error).startswith(_INVALID):
            problems = str(error).removeprefix(_INVALID).split("\n")
            raise UsageError("; ".join(filter(None, problems))) from error
        raise


def _flush_whole_elements() -> None:
    """Makes the local runner flush its streams by size alone.

    With several workers, a thread of Beam (2.77) flushes a stream every second, also while another
    thread is writing an element: the element is split, or what is written meanwhile is lost.
    """
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0


def _let_prism_run(options: PipelineOptions) -> None:
    """Raises the time after which Beam gives up a job on Prism, unless it is set.

    Beam intends the option for single requests, but requests the states of a job with it, too, if
    the service knows the job before it runs, as only Prism does (2.77, `JobServiceHandle.run`).
    """
    runner = (options.view_as(StandardOptions).runner or "").lower().removesuffix("runner")
    if runner not in ("prism", "direct"):  # Beam's DirectRunner may select Prism.
        return
    portable = options.view_as(PortableOptions)
    if portable.job_server_timeout == _request_seconds():
        portable.job_server_timeout = _JOB_SECONDS


def _request_seconds() -> int:
    """Returns Beam's default of the option. Making options configures the host's logging."""
    return int(PortableOptions([]).job_server_timeout)


def wait_for(result: PipelineResult) -> None:
    """Waits for the end of a job; an interrupt of this process cancels the job."""
    try:
        result.wait_until_finish()
    except KeyboardInterrupt:
        # A cluster would continue the job. Cancelling fails if the job server was interrupted too.
        with suppress(Exception):
            result.cancel()
        raise
