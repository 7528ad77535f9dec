"""The command `imageshards`; `python -m imageshards.launch.cli` is the same.

Logs and progress go to stderr, the result alone to stdout. Exit 0: done; 1: the job failed;
2: the command line was wrong.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from imageshards.launch import logs, schedule
from imageshards.launch.load import WORKER_SETTINGS, hidden, load_beam
from imageshards.pipeline.options import (
    Parser,
    add_build_options,
    beam_labels,
    check_beam_arguments,
    config_from,
    count,
    in_one_process,
    is_dataflow,
    is_local_runner,
    waits,
    with_runner,
    without_effect,
    workers_from,
)
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.images.silence import silence_pillow
from imageshards.transforms.storage.protocol import StoreError

if TYPE_CHECKING:
    from imageshards.pipeline.config import Config

_DESCRIPTION = (
    "Turns images into shuffled, evenly sharded TFRecord data sets. "
    "imageshards COMMAND --help tells more."
)


def entry() -> NoReturn:
    """The console command."""
    code = main(own_process=True)
    sys.stdout.flush()
    sys.stderr.flush()
    if "apache_beam.runners.portability.portable_runner" in sys.modules:
        sys.exit(code)  # it may have started servers, which end with this process
    # Taking Beam's modules apart would cost 0.3 s; nothing is left that needs it.
    os._exit(code)


def main(arguments: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Runs a command line; returns the exit code.

    Args:
      arguments: of the command; None: those of the process.
      own_process: whether this process runs the command and nothing else. Only then are Beam's
        optional clients left out, and logging and the libraries configured.
    """
    if own_process:
        silence_pillow()
    # File names need not be UTF-8, and a message about one must not fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's is none
            stream.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments, own_process)
    except StoreError as error:
        return _complain(str(error), 1)
    except (UsageError, BuildError) as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("interrupted; the same command again does the rest", 130)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "--verbose" in arguments:
            raise
        return _complain(f"{type(error).__name__}: {error} (--verbose shows where)", 1)


_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def _complain(message: str, code: int) -> int:
    """Prints one line, whatever characters a file's name brings into it."""
    print(f"imageshards: {message.translate(_CONTROL)}", file=sys.stderr)
    return code


def _dispatch(arguments: list[str], own_process: bool) -> int:
    parser = Parser(prog="imageshards", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    build = commands.add_parser(
        "build",
        help="images in, a data set out",
        description="Builds a data set. Options of Beam are taken too: --runner, --project, "
        "--temp_location, --direct_num_workers, ...",
        allow_abbrev=False,
    )
    add_build_options(build)
    verify = commands.add_parser(
        "verify", help="check every record of a data set", allow_abbrev=False
    )
    verify.add_argument("output", metavar="DIR", help="the folder of the data set")
    verify.add_argument(
        "--sample", type=count, default=0, metavar="N",
        help="check N records, evenly from all shards (default 0: every record)",
    )  # fmt: skip
    verify.add_argument("--verbose", action="store_true", help="show tracebacks")
    verify.add_argument("--json", action="store_true", help="print the result as JSON")
    inspect = commands.add_parser(
        "inspect", help="show what is in a data set or a shard", allow_abbrev=False
    )
    inspect.add_argument("place", metavar="DIR|SHARD", help="a data set, or one of its files")
    inspect.add_argument("--verbose", action="store_true", help="show tracebacks")
    inspect.add_argument(
        "--records", type=count, default=3, metavar="N", help="records to show (default 3)"
    )
    inspect.add_argument(
        "--contact_sheet", default="", metavar="FILE", help="write images: FILE.png or FILE.html"
    )
    inspect.add_argument(
        "--images", type=count, default=24, metavar="N",
        help="images of each split on a contact sheet (default 24)",
    )  # fmt: skip
    reshard = commands.add_parser(
        "reshard",
        help="write a data set anew with another number of shards",
        description="Moves records as they are: nothing is decoded, order and bytes stay.",
        allow_abbrev=False,
    )
    reshard.add_argument("source", metavar="DIR", help="a data set")
    reshard.add_argument("output", metavar="NEW", help="the folder of the new one")
    reshard.add_argument(
        "--num_shards", required=True, metavar="N", help="16, or for each split train=8,test=2"
    )
    reshard.add_argument("--verbose", action="store_true", help="show tracebacks")
    reshard.add_argument("--json", action="store_true", help="print the result as JSON")
    advise = commands.add_parser(
        "advise", help="how many shards are best for some hosts", allow_abbrev=False
    )
    advise.add_argument("source", metavar="DIR", help="a data set")
    advise.add_argument(
        "--hosts", type=count, required=True, metavar="N", help="that read it together"
    )
    advise.add_argument("--verbose", action="store_true", help="show tracebacks")
    advise.add_argument("--json", action="store_true", help="print the result as JSON")
    features = commands.add_parser(
        "features", help="list the schemas of records, or print one", allow_abbrev=False
    )
    features.add_argument(
        "place", nargs="?", default="", metavar="NAME|DIR",
        help="a schema, or a data set: prints its features, and Python that parses them",
    )  # fmt: skip
    features.add_argument("--verbose", action="store_true", help="show tracebacks")
    schedule.add_schedule_commands(commands)
    args, rest = parser.parse_known_args(arguments)
    args.own_process = own_process
    if args.version:
        from imageshards.pipeline.metadata import version

        print(f"imageshards {version()}")
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    if args.command == "build":
        return _build(args, rest)
    if args.command == "fingerprint":
        return schedule.fingerprint(args, rest)
    if rest:
        what = f"one place at a time, not also {rest[0]}"
        if rest[0].startswith("-"):
            what = f"unknown option {rest[0]}{commands.choices[args.command].meant(rest[0])}"
        raise UsageError(f"{what} (imageshards {args.command} --help lists the options)")
    commands_of = {
        "advise": _advise, "features": _features, "inspect": _inspect,
        "publish": schedule.publish, "reshard": _reshard, "verify": _verify,
    }  # fmt: skip
    return commands_of[args.command](args)


def _build(args: argparse.Namespace, rest: list[str]) -> int:
    if rest and not rest[0].startswith("-") and not args.input:
        raise UsageError(f"what is {rest[0]!r}? Inputs are told as --input {rest[0]}")
    begin = time.perf_counter()
    config = config_from(args)
    beam_options = with_runner([*rest, *beam_labels(args)])
    workers = workers_from(args, beam_options)
    wait = waits(args, beam_options)
    if not is_dataflow(beam_options):
        return _run(args, config, beam_options, workers, wait, begin)
    from imageshards.launch.dataflow.arguments import check_access, completed

    with completed(beam_options, config) as complete:
        check_access(complete)
        return _run(args, config, complete, workers, wait, begin)


def _run(
    args: argparse.Namespace,
    config: Config,
    beam_options: list[str],
    workers: int | None,
    wait: bool,
    begin: float,
) -> int:
    if workers != 1 and config.writer == "shard":
        from imageshards.transforms.shards.workers import start_server

        start_server()  # it loads beside Beam
    if args.own_process:
        load_beam(lean=in_one_process(beam_options))
        logs.set_up(verbose=args.verbose)
    from imageshards.pipeline.run import JobError, run, submit
    from imageshards.pipeline.submission import Submission

    check_beam_arguments(beam_options)
    if config.writer == "beam" and is_local_runner(beam_options):
        print(
            "imageshards: --writer beam on the local runner holds some 6.5 times the data set in "
            "memory; --writer shard does not",
            file=sys.stderr,
        )
    if ignored := without_effect(beam_options):
        print(f"imageshards: {ignored}", file=sys.stderr)
    if not in_one_process(beam_options):
        beam_options = [*beam_options, WORKER_SETTINGS]
    submitted: list[Submission] = []

    def announce(job: Submission) -> None:
        submitted.append(job)
        print(f"imageshards: waiting for job {job.job}; {job.link}", file=sys.stderr, flush=True)

    try:
        # Beam would import IPython to find out whether this is a notebook.
        with hidden(("IPython",) if args.own_process else ()):
            result = (
                run(
                    config,
                    beam_options,
                    workers=workers,
                    begin=begin,
                    announce=announce if is_dataflow(beam_options) else None,
                )
                if wait
                else submit(config, beam_options)
            )
    except JobError as error:
        if args.verbose:
            print(error.details, file=sys.stderr)
        return _complain(str(error), 1)
    except KeyboardInterrupt:
        if not submitted:
            raise
        return _complain(f"interrupted; the job goes on: {submitted[0].link}", 130)
    print(result.to_json() if args.json else result)
    return 0


def _verify(args: argparse.Namespace) -> int:
    from imageshards.reader.verify import verify

    verdict = verify(args.output, sample=args.sample)
    for problem in verdict.problems:
        _complain(problem, 1)
    print(verdict.to_json() if args.json else verdict)
    return 1 if verdict.problems else 0


def _inspect(args: argparse.Namespace) -> int:
    from imageshards.reader.inspect import inspect

    in_terminal = sys.stdout.isatty() and not args.contact_sheet
    if args.contact_sheet:
        from imageshards.reader.sheet import check_path

        check_path(args.contact_sheet)
    print(inspect(args.place, args.records))
    if (args.contact_sheet or in_terminal) and args.images:
        _show_images(args)
    return 0


def _show_images(args: argparse.Namespace) -> None:
    from imageshards.reader.sheet import make_sheet, shows_colours
    from imageshards.transforms.records.tfrecord import CorruptRecord

    if not args.contact_sheet and not shows_colours(sys.stdout, os.environ):
        return
    try:
        sheet = make_sheet(args.place, args.images)
    except CorruptRecord as error:
        if args.contact_sheet:
            raise
        print(f"\n  no images to show: {error}")
        return
    if sheet is None:
        if args.contact_sheet:
            raise UsageError(f"--contact_sheet: {args.place} holds texts, and no images")
    elif args.contact_sheet:
        sheet.save(args.contact_sheet)
        print(f"\n  contact sheet: {args.contact_sheet}")
    else:
        print()
        for line in sheet.blocks(shutil.get_terminal_size().columns):
            print(line)


def _reshard(args: argparse.Namespace) -> int:
    from imageshards.pipeline.report import report_html
    from imageshards.pipeline.reshard import reshard

    done = reshard(args.source, args.output, args.num_shards, report_html)
    print(done.to_json() if args.json else done)
    return 0


def _advise(args: argparse.Namespace) -> int:
    from imageshards.reader.advise import advise

    advice = advise(args.source, args.hosts)
    print(advice.to_json() if args.json else advice)
    return 0


def _features(args: argparse.Namespace) -> int:
    from imageshards.reader.snippets import describe, list_schemas

    print(describe(args.place) if args.place else list_schemas())
    return 0


if __name__ == "__main__":
    entry()
