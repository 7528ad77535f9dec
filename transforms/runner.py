"""What the steps of a graph need to know about the runner."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def has_one_worker(pipeline: beam.Pipeline) -> bool:
    """Returns whether the runner runs one bundle at a time, in this process."""
    mode = pipeline.options.view_as(DirectOptions).direct_running_mode
    return isinstance(pipeline.runner, FnApiRunner) and mode == "in_memory"
