"""What the Flex Template's launcher runs: `imageshards build` with the template's parameters.

A parameter has one value, and is always written --NAME=VALUE. So flags come as --overwrite=true,
and several inputs as gs://BUCKET/A,gs://BUCKET/B.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from imageshards.launch import cli
from imageshards.pipeline.options import flags

IMAGE_VARIABLE = "IMAGESHARDS_IMAGE"
"""Set in the image: its own name."""

_BETWEEN_PLACES = re.compile(r",(?=(?:gs|https?)://)")
_IMAGE_OPTIONS = ("--sdk_container_image", "--worker_harness_container_image")


def arguments_of(parameters: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The launcher's parameters as arguments of the command.

    Args:
      parameters: --NAME=VALUE each; those of Beam are among them.
      environment: the image says its name there.
    """
    arguments = ["build", *_translated(parameters)]
    image = environment.get(IMAGE_VARIABLE, "")
    if image and not any(argument.split("=")[0] in _IMAGE_OPTIONS for argument in arguments):
        arguments.append(f"{_IMAGE_OPTIONS[0]}={image}")
    return arguments


def _translated(parameters: Sequence[str]) -> Iterator[str]:
    switches = flags()
    for parameter in parameters:
        name, equals, value = parameter.partition("=")
        if name == "--input":
            yield from (f"{name}={place}" for place in _BETWEEN_PLACES.split(value))
        elif equals and name.removeprefix("--") in switches and value.lower() in ("true", "false"):
            yield from [name] if value.lower() == "true" else []
        else:
            yield parameter


if __name__ == "__main__":
    sys.argv[1:] = arguments_of(sys.argv[1:], os.environ)
    cli.entry()
