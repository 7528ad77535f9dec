"""metadata.json of the Flex Template, made from the options of `imageshards build`.

    python -m imageshards.launch.dataflow.template > metadata.json

The service shows it as a form and refuses what does not match, before it starts a launcher.

Format: https://cloud.google.com/dataflow/docs/guides/templates/using-flex-templates
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from apache_beam.options.pipeline_options import DebugOptions, WorkerOptions

from imageshards.pipeline.config import CHOICES
from imageshards.pipeline.options import build_actions
from imageshards.transforms.images.resize import RULE

NOT_IN_TEMPLATE = frozenset({"json", "wait", "workers"})
"""Options that do nothing in a launcher, or that Dataflow's runner refuses."""

_OF_BEAM = ("number_of_worker_harness_threads", "sdk_container_image")
"""Options of Beam that the form of the service does not have by itself."""

_NEEDED = ("input", "output")
_MORE_HELP = {"input": "; here several with commas between"}
_BUCKET = r"gs://[^\n\r]+"
_PLACE = r"(?:gs|https?)://[^\n\r]+"
_SPLIT = "[A-Za-z][A-Za-z0-9_]*"
_RULE_WITH_GROUP = r"regex:[^\n\r]*\([^\n\r]+\)[^\n\r]*"
_REGEXES = {
    "input": _PLACE,
    "output": _BUCKET,
    "class_names": _BUCKET,
    "num_shards": rf"auto|[0-9]{{1,5}}|{_SPLIT}=[0-9]{{1,5}}(?:,{_SPLIT}=[0-9]{{1,5}})*",
    "labels": rf"auto|dirname|none|column|column:.+|{_RULE_WITH_GROUP}",
    "splits": rf"auto|folder|column|column:.+|{_SPLIT}=[0-9.]+(?:,{_SPLIT}=[0-9.]+)*",
    "group_by": rf"uri|dirname|column:.+|{_RULE_WITH_GROUP}",
    "resize": RULE.pattern,
}
_OF_TYPE: dict[Any, str] = {int: r"[0-9]+", float: r"[0-9]*\.?[0-9]+"}
_ANYTHING = r"[^\n\r]+"


def template() -> dict[str, Any]:
    """The metadata, as JSON has it."""
    actions = [action for action in build_actions() if action.dest not in NOT_IN_TEMPLATE]
    return {
        "name": "imageshards build",
        "description": "Turns images into shuffled, evenly sharded TFRecord files.",
        "parameters": [parameter(action) for action in (*actions, *_beam_actions())],
    }


def parameter(action: argparse.Action) -> dict[str, Any]:
    """One option as a parameter: a single text."""
    name = action.dest
    found: dict[str, Any] = {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "helpText": " ".join(str(action.help).split()) + _MORE_HELP.get(name, ""),
        "isOptional": name not in _NEEDED,
        "paramType": "TEXT",
    }
    choices = ("true", "false") if action.nargs == 0 else CHOICES.get(name)
    if choices:
        found["paramType"] = "BOOLEAN" if action.nargs == 0 else "ENUM"
        if action.nargs != 0:
            found["enumOptions"] = [{"value": choice, "label": choice} for choice in choices]
        regex = "|".join(choices)
    else:
        regex = _REGEXES.get(name) or _OF_TYPE.get(action.type, _ANYTHING)
    return {**found, "regexes": [f"^(?:{regex})$"]}


def _beam_actions() -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    for options in (DebugOptions, WorkerOptions):
        options._add_argparse_args(parser)
    return [action for action in parser._actions if action.dest in _OF_BEAM]


if __name__ == "__main__":
    json.dump(template(), sys.stdout, indent=1)
    sys.stdout.write("\n")
