"""Generates metadata.json of the Flex Template from the options of `imageshards build`.

    python -m imageshards.launch.dataflow.template > metadata.json

The service shows a form generated from this file, and rejects invalid values before it starts a
launcher.

Format: https://cloud.google.com/dataflow/docs/guides/templates/using-flex-templates
"""

from __future__ import annotations

import json
import sys
from argparse import Action, ArgumentParser
from typing import Any

from apache_beam.options.pipeline_options import DebugOptions, WorkerOptions

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import Option, options_of

_OF_BEAM = ("number_of_worker_harness_threads", "sdk_container_image")
"""Options of Beam that the service's own form does not have."""
_BUCKET = r"gs://[^\n\r]+"
_URI = r"(?:gs|https?)://[^\n\r]+"
_OF_TYPE = {int: r"[0-9]+", float: r"[0-9]*\.?[0-9]+"}
_ANYTHING = r"[^\n\r]+"


def template(options: type[BuildOptions] = BuildOptions) -> dict[str, Any]:
    """Returns the content of metadata.json."""
    declared = [option for group in options.command_line() for option in options_of(group)]
    return {
        "name": "imageshards build",
        "description": "Builds shuffled, evenly sharded TFRecord data sets of images.",
        "parameters": [
            *(parameter(option) for option in declared if option.in_template),
            *(_text_parameter(action.dest, str(action.help)) for action in _beam_actions()),
        ],
    }


def parameter(option: Option) -> dict[str, Any]:
    """Returns the parameter for an option; the value of a parameter is a single text."""
    several = "; here, separate several with commas" if option.name == "input" else ""
    found = _text_parameter(option.name, option.description + several)
    found["isOptional"] = not option.required
    if option.is_switch:
        return {**found, "paramType": "BOOLEAN", "regexes": ["^(?:true|false)$"]}
    if allowed := [str(choice) for choice in option.allowed]:
        found["paramType"] = "ENUM"
        found["enumOptions"] = [{"value": choice, "label": choice} for choice in allowed]
    found["regexes"] = [f"^(?:{'|'.join(allowed) or _regex(option)})$"]
    return found


def _regex(option: Option) -> str:
    if option.is_uri:
        return _URI if option.name == "input" else _BUCKET
    given = option.form_pattern or option.pattern
    return given or _OF_TYPE.get(type(option.default), _ANYTHING)


def _text_parameter(name: str, help: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "helpText": " ".join(help.split()),
        "isOptional": True,
        "paramType": "TEXT",
        "regexes": [f"^(?:{_ANYTHING})$"],
    }


def _beam_actions() -> list[Action]:
    parser = ArgumentParser(add_help=False)
    for options in (DebugOptions, WorkerOptions):
        options._add_argparse_args(parser)
    return [action for action in parser._actions if action.dest in _OF_BEAM]


if __name__ == "__main__":
    json.dump(template(), sys.stdout, indent=1)
    sys.stdout.write("\n")
