"""The command `imageshards`; `python -m imageshards.launch.cli` is the same.

Logs and progress go to stderr, the result alone to stdout. Exit codes: 0 done, 1 the job failed,
2 the command line was wrong.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from imageshards.launch.commands import COMMANDS
from imageshards.launch.terminal import complain
from imageshards.pipeline.options.parser import Parser
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.images.silence import silence_pillow

_DESCRIPTION = (
    "Builds shuffled, evenly sharded TFRecord data sets of images. "
    "imageshards COMMAND --help describes a command."
)


def entry() -> NoReturn:
    """Runs the console command and ends the process."""
    code = main(own_process=True)
    sys.stdout.flush()
    sys.stderr.flush()
    if "apache_beam.runners.portability.portable_runner" in sys.modules:
        sys.exit(code)  # Beam may have started servers, which end with this process
    # Unloading Beam's modules would take 0.3 s, and nothing is left that needs it.
    os._exit(code)


def main(arguments: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Runs a command line and returns the exit code.

    Args:
      arguments: of the command; None: those of the process.
      own_process: whether this process runs the command and nothing else. Only then are Beam's
        optional clients left out, and logging and the libraries configured.
    """
    if own_process:
        silence_pillow()
    # File names need not be UTF-8, and a message about one must not fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's stream is not
            stream.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments, own_process)
    except UsageError as error:
        return complain(str(error), 2)
    except BuildError as error:
        from imageshards.transforms.storage import StoreError  # not for --help

        return complain(str(error), 1 if isinstance(error, StoreError) else 2)
    except KeyboardInterrupt:
        return complain("interrupted; run the same command again to resume", 130)
    except BrokenPipeError:  # the reader of stdout has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "--verbose" in arguments:
            raise
        return complain(f"{type(error).__name__}: {error} (--verbose shows the traceback)", 1)


def _parser() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(prog="imageshards", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    added = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    parsers = {}
    for name, command in COMMANDS.items():
        parsers[name] = added.add_parser(
            name,
            help=command.help,
            description=command.description or f"{command.help.capitalize()}.",
            allow_abbrev=False,
        )
        command.declare(parsers[name])
    return parser, parsers


def _dispatch(arguments: list[str], own_process: bool) -> int:
    parser, parsers = _parser()
    args, rest = parser.parse_known_args(arguments)
    args.own_process = own_process
    if args.version:
        from imageshards.pipeline.metadata import version

        print(f"imageshards {version()}")
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    command = COMMANDS[args.command]
    args.beam_arguments = rest
    if rest and not command.takes_beam_arguments:
        _refuse(rest[0], parsers[args.command])
    return command.run(args)


def _refuse(argument: str, parser: Parser) -> NoReturn:
    problem = f"unexpected argument {argument!r}: specify one data set or file at a time"
    if argument.startswith("-"):
        problem = f"unknown option {argument}{parser.similar(argument)}"
    raise UsageError(f"{problem} ({parser.prog} --help lists the options)")


if __name__ == "__main__":
    entry()
