"""The command `imageshards`; `python -m imageshards.launch.cli` runs it too.

It writes the result to stdout, and logs and progress to stderr. Exit codes: 0, success; 1, the job
failed; 2, the command line is wrong; 130, interrupted.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from imageshards.launch import process
from imageshards.launch.commands import COMMANDS
from imageshards.launch.terminal import complain, say
from imageshards.pipeline.options.parser import Parser, refuse

_DESCRIPTION = (
    "Builds shuffled, evenly sharded TFRecord data sets of images. "
    "imageshards COMMAND --help describes a command."
)


def entry() -> NoReturn:
    """Runs the console command and ends the process."""
    process.use_utf8()
    process.open_streams()
    code = main(own_process=True)
    process.flush_streams()
    if "apache_beam.runners.portability.portable_runner" in sys.modules:
        sys.exit(code)  # Beam may have started servers, which end with this process
    # Unloading Beam's modules would take 0.3 s and has no use.
    os._exit(code)


def main(arguments: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Runs a command line and returns the exit code.

    Args:
      arguments: the command and its arguments; None: `sys.argv[1:]`.
      own_process: whether this process runs the command and nothing else. Only then does the
        command hide Beam's optional clients, and configure logging and libraries.
    """
    # File names need not be UTF-8, and a message about one must not fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's stream is not
            stream.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments, own_process)
    except KeyboardInterrupt:
        return complain("interrupted; run the same command again to resume", 130)
    except BrokenPipeError:  # the reader of stdout has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _report(error, verbose="--verbose" in arguments)


def _report(error: Exception, *, verbose: bool) -> int:
    """Prints an error as one line and returns the exit code; raises it if it is unexpected."""
    from imageshards.transforms.elements import BuildError, UsageError, shortened

    if isinstance(error, UsageError):
        return complain(str(error), 2)
    if isinstance(error, BuildError):
        from imageshards.transforms.storage import StoreError

        return complain(str(error), 1 if isinstance(error, StoreError) else 2)
    from imageshards.pipeline.job.failures import JobError

    if isinstance(error, JobError):
        if verbose:
            print(error.details, file=sys.stderr)
        return complain(f"{error}{process.advice(str(error))}", 1)
    if verbose:
        raise error
    from imageshards.transforms.records.container import CorruptRecord

    if isinstance(error, CorruptRecord):
        return complain(f"{error}; run imageshards verify on the data set", 1)
    message = f"{type(error).__name__}: {error}"
    if limit := process.advice(message):
        return complain(f"{shortened(message)}{limit}", 1)
    return complain(f"{message} (--verbose shows the traceback)", 1)


def _parser(arguments: list[str]) -> tuple[Parser, dict[str, Parser]]:
    """Returns a parser for the arguments, and the parsers of the commands that it accepts.

    Declaring the arguments of all commands would take twice as long.
    """
    chosen = next((argument for argument in arguments if argument in COMMANDS), None)
    parser = Parser(prog="imageshards", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    added = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    parsers = {}
    for name in [chosen] if chosen and arguments[0] == chosen else COMMANDS:
        command = COMMANDS[name]
        parsers[name] = added.add_parser(
            name,
            help=command.help,
            description=command.description or f"{command.help.capitalize()}.",
            allow_abbrev=False,
        )
        if name == chosen:
            command.declare(parsers[name])
    return parser, parsers


def _dispatch(arguments: list[str], own_process: bool) -> int:
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        from difflib import get_close_matches

        similar = get_close_matches(arguments[0], COMMANDS, 1)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        refuse(f"unknown command {arguments[0]!r}{hint} (imageshards --help lists the commands)")
    parser, parsers = _parser(arguments)
    args, rest = parser.parse_known_args(arguments)
    if args.version:
        from imageshards.pipeline.metadata import version

        say(f"imageshards {version()}")
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    if problem := process.folder_problem():
        refuse(problem)
    command = COMMANDS[args.command]
    args.own_process, args.beam_arguments = own_process, rest
    args.parser = parsers[args.command]
    if rest and not command.takes_beam_arguments:
        _refuse(rest[0], parsers[args.command])
    if own_process:
        from imageshards.transforms.images.silence import silence_pillow

        silence_pillow()
    from imageshards.transforms import storage

    # `build` and `fingerprint` accept an option several times; its last value counts.
    project = getattr(args, "billing_project", "")
    storage.bill(project if isinstance(project, str) else "".join(project[-1:]))
    return command.run(args)


def _refuse(argument: str, parser: Parser) -> NoReturn:
    problem = f"unexpected argument {argument!r}: specify one data set or file at a time"
    if argument.startswith("-"):
        problem = f"unknown option {argument}{parser.similar(argument)}"
    refuse(f"{problem} ({parser.prog} --help lists the options)")


if __name__ == "__main__":
    entry()
