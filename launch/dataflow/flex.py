"""The program of the Flex Template's launcher: runs `imageshards build` with its parameters.

The service passes each parameter as --NAME=VALUE, so switches have values (--overwrite=true), and
several inputs are separated by commas (gs://BUCKET/A,gs://BUCKET/B).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from imageshards.launch import cli
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import options_of

IMAGE_VARIABLE = "IMAGESHARDS_IMAGE"
"""Environment variable that the image sets to its own name."""

_BETWEEN_URIS = re.compile(r",(?=(?:gs|https?)://)")
_IMAGE_OPTIONS = ("--sdk_container_image", "--worker_harness_container_image")


def arguments_of(parameters: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Returns the arguments of the command for the launcher's parameters.

    Args:
      parameters: --NAME=VALUE each, including those of Beam.
      environment: the environment variables; `IMAGE_VARIABLE` is the name of the image.
    """
    arguments = ["build", *_translated(parameters)]
    image = environment.get(IMAGE_VARIABLE, "")
    if image and not any(argument.split("=")[0] in _IMAGE_OPTIONS for argument in arguments):
        arguments.append(f"{_IMAGE_OPTIONS[0]}={image}")
    return arguments


def _translated(parameters: Sequence[str]) -> Iterator[str]:
    groups = BuildOptions.command_line()
    switches = {option.flag for group in groups for option in options_of(group) if option.is_switch}
    for parameter in parameters:
        name, equals, value = parameter.partition("=")
        if name == "--input":
            yield from (f"{name}={uri}" for uri in _BETWEEN_URIS.split(value))
        elif equals and name in switches and value.lower() in ("true", "false"):
            yield from [name] if value.lower() == "true" else []
        else:
            yield parameter


if __name__ == "__main__":
    sys.argv[1:] = arguments_of(sys.argv[1:], os.environ)
    cli.entry()
