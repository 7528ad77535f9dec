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
from imageshards.launch.commands import COMMANDS, parser_of
from imageshards.launch.terminal import complain, interrupted, say
from imageshards.pipeline.options.parser import Parser, closest, refuse, wants_help


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
        command = COMMANDS.get("".join(arguments[:1]))
        return interrupted(resumes=bool(command and command.resumes))
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


def _dispatch(arguments: list[str], own_process: bool) -> int:
    if not arguments:
        print(_START, file=sys.stderr)
        return 2
    first = _WITHOUT_DASHES.get(arguments[0], arguments[0])
    if first.startswith("-"):
        refuse(f"{first} comes after a command, as in imageshards build {first} ({_LIST})")
    if first not in COMMANDS:
        name = closest(first, COMMANDS)
        hint = f"; did you mean {name}?" if name else ""
        refuse(f"unknown command {first!r}{hint} ({_LIST})")
    command, parser, arguments = COMMANDS[first], parser_of(first), arguments[1:]
    if help := wants_help(arguments):
        text = parser.format_help(complete=help == "all")
        if help == "all" and command.results:
            from imageshards.launch.results import described

            text += described(command)
        say(text.rstrip("\n"))
        return 0
    args, rest = parser.parse_known_args(arguments)
    if problem := process.folder_problem():
        refuse(problem)
    args.own_process, args.beam_arguments, args.arguments = own_process, rest, arguments
    args.parser, args.resumes = parser, command.resumes
    args.takes_options_of_build = command.takes_beam_arguments
    if rest and not (command.takes_beam_arguments or command.runs_on_beam):
        _refuse(rest[0], parser, ": specify one data set or file at a time" * command.uses_data)
    if not command.uses_data:
        return command.run(args)
    if own_process:
        from imageshards.transforms.images.silence import silence_pillow

        silence_pillow()
    if command.takes_beam_arguments:
        from imageshards.pipeline.options.config_file import apply_config

        apply_config(args)
    from imageshards.transforms import storage

    # `build` and `fingerprint` accept an option several times; its last value counts.
    project = getattr(args, "billing_project", "")
    storage.bill(project if isinstance(project, str) else "".join(project[-1:]))
    return command.run(args)


def _refuse(argument: str, parser: Parser, advice: str) -> NoReturn:
    problem = f"unexpected argument {argument!r}{advice}"
    if argument.startswith("-"):
        problem = f"unknown option {argument}{parser.similar(argument)}"
    refuse(f"{problem} ({parser.prog} --help lists the options)")


_WITHOUT_DASHES = {
    "-h": "help", "--help": "help", "--help-all": "help", "--help_all": "help",
    "-V": "version", "--version": "version",
}  # fmt: skip
_LIST = "imageshards help lists the commands"
_START = """\
imageshards builds shuffled, evenly sharded TFRecord data sets of images.

  imageshards demo                                    build a small one, to see how
  imageshards build --input FOLDER --output DATASET   build one from a folder
  imageshards help                                    list all commands"""


if __name__ == "__main__":
    entry()
