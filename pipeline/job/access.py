"""Carries the project that pays for requests to the worker processes of a runner.

Runners pass Beam's options to their workers, which import this module, a plugin of Beam.
"""

from __future__ import annotations

import argparse

from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.options.value_provider import RuntimeValueProvider

from imageshards.transforms import storage

_OPTION = "imageshards_billing_project"


class AccessOptions(PipelineOptions):  # type: ignore[misc]
    """Beam's option of that name; users set `--billing_project`."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(f"--{_OPTION}", default="", help=argparse.SUPPRESS)


def carry(project: str, options: PipelineOptions) -> None:
    """Adds the project to the options of a pipeline, unless it is empty."""
    if project:
        setattr(options.view_as(AccessOptions), _OPTION, project)
        setup = options.view_as(SetupOptions)
        setup.beam_plugins = [*(setup.beam_plugins or ()), __name__]


# A worker knows the options of its job when it imports plugins; other processes have none.
if _project := RuntimeValueProvider.get_value(_OPTION, str, ""):
    storage.bill(_project)
