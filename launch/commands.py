"""The commands of `imageshards`: one table of their arguments and functions.

Each command imports its modules when it runs, so that `imageshards --help` is fast.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import NamedTuple

from imageshards.launch import demo, schedule
from imageshards.launch.doctor import command as doctor
from imageshards.launch.terminal import add_common, complain, count, large_count, say, show
from imageshards.pipeline.options.parser import Parser, closest, refuse


class Command(NamedTuple):
    """One command.

    Attributes:
      help: what it does, in a few words.
      declare: adds its arguments to a parser.
      run: runs it and returns the exit code.
      description: for its own `--help`; empty: `help`.
      group: the heading in the list of commands.
      usage: its arguments, for `--help`; empty: derived from the declared ones.
      takes_beam_arguments: whether it takes the options of a build, also from `--config`, and
        passes undeclared arguments to Beam. Otherwise they are errors.
      runs_on_beam: whether it passes undeclared arguments to Beam, without the options of a build.
      uses_data: whether it reads or writes data sets; doctor works without the packages for that.
      resumes: whether the same command resumes an interrupted one.
      results: for each kind of result, a title and the classes whose attributes `--json` prints.
    """

    help: str
    declare: Callable[[Parser], None]
    run: Callable[[Namespace], int]
    description: str = ""
    group: str = "other commands"
    usage: str = ""
    takes_beam_arguments: bool = False
    runs_on_beam: bool = False
    uses_data: bool = True
    resumes: bool = False
    results: tuple[tuple[str, tuple[str, ...]], ...] = ()


_OF_BEAM = "Options of Beam are accepted too: --runner, --project, --temp_location, ..."


def parser_of(name: str) -> Parser:
    """Returns the parser of a command. Declaring those of all commands would take twice as long."""
    command = COMMANDS[name]
    prog = f"imageshards {name}"
    parser = Parser(
        prog=prog,
        usage=f"{prog} {command.usage}" if command.usage else None,
        description=command.description or f"{command.help}.",
        epilog=_OF_BEAM if command.takes_beam_arguments or command.runs_on_beam else "",
        allow_abbrev=False,
    )
    command.declare(parser)
    if hidden := sum(not brief for brief in parser.briefs.values()):
        parser.more = f"{prog} --help-all describes these and {hidden} further options."
    elif command.results:
        parser.more = f"{prog} --help-all also lists the names in the JSON."
    return parser


def _declare_build(parser: Parser) -> None:
    from imageshards.pipeline.options.command_line import add_options

    add_options(parser)


def _build(args: Namespace) -> int:
    begin = time.perf_counter()
    from imageshards.launch.build import run

    return run(args, begin)


def _declare_verify(parser: Parser) -> None:
    parser.add_argument("output", metavar="DIR", help="Folder of the data set")
    parser.add_argument(
        "--sample", type=count, default=0, metavar="N",
        help="Check N records, spread evenly over all shards (default: 0, all records)",
    )  # fmt: skip
    parser.add_argument(
        "--decoder", choices=("build", "tensorflow"), default="build",
        help="Decode images as the build did, or with TensorFlow (default: build)",
    )  # fmt: skip
    add_common(parser)


def _verify(args: Namespace) -> int:
    from imageshards.launch.operations import runs
    from imageshards.pipeline.operations.verify import verify

    if args.own_process:
        # TensorFlow logs how it was compiled when it is imported.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with runs(args, [("DIR", args.output)]) as run:
        verdict = verify(args.output, sample=args.sample, decoder=args.decoder, run=run)
    for problem in verdict.problems:
        complain(problem, 1)
    show(verdict, json=args.json, quiet=args.quiet)
    return 1 if verdict.problems else 0


def _declare_inspect(parser: Parser) -> None:
    parser.add_argument("path", metavar="DIR|SHARD", help="A data set, or one of its files")
    parser.add_argument(
        "--records", type=count, default=3, metavar="N", help="Records to show (default: 3)"
    )
    parser.add_argument(
        "--contact_sheet", default="", metavar="FILE", help="Write images: FILE.png or FILE.html"
    )
    parser.add_argument(
        "--images", type=count, default=24, metavar="N",
        help="Images of each split on the contact sheet (default: 24)",
    )  # fmt: skip
    parser.add_argument(
        "--coco", default="", metavar="FILE",
        help="Write the boxes of the records as a JSON file of COCO",
    )  # fmt: skip
    parser.add_argument(
        "--serve", action="store_true",
        help="Serve the report on this machine, with all records behind it, until Ctrl-C",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=count, default=0, metavar="N",
        help="Port of --serve (default: 0, a free one)",
    )  # fmt: skip
    add_common(parser, json=False)


def _serve(args: Namespace) -> int:
    from imageshards.pipeline.report import command_of
    from imageshards.reader.dataset import open_dataset
    from imageshards.reader.report.server import Pages, ReportServer

    command = command_of(open_dataset(args.path).layout.read("build_yaml"))
    with ReportServer(Pages(args.path, command), args.port) as server:
        say(f"{server.url} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
    return 0


def _inspect(args: Namespace) -> int:
    chosen = [f"--{name}" for name in ("serve", "coco", "contact_sheet") if getattr(args, name)]
    if len(chosen) > 1:
        from imageshards.transforms.elements import UsageError

        raise UsageError(f"{' and '.join(chosen)} cannot be combined: run one command for each")
    if args.serve:
        return _serve(args)
    if args.coco:
        return _write_coco(args)
    from imageshards.reader.inspect import inspect

    in_terminal = sys.stdout.isatty() and not args.contact_sheet
    if args.contact_sheet:
        from imageshards.reader.sheet import check_path

        check_path(args.contact_sheet)
    say(inspect(args.path, args.records))
    if (args.contact_sheet or in_terminal) and args.images:
        _show_images(args)
    return 0


def _write_coco(args: Namespace) -> int:
    from imageshards.reader.export.coco import write_coco

    images, objects = write_coco(args.path, args.coco)
    say(f"{args.coco}: {objects:,} objects of {images:,} images")
    return 0


def _show_images(args: Namespace) -> None:
    from imageshards.reader.sheet import make_sheet, shows_colors
    from imageshards.transforms.records.container import CorruptRecord

    if not args.contact_sheet and not shows_colors(sys.stdout, os.environ):
        return
    try:
        sheet = make_sheet(args.path, args.images)
    except CorruptRecord as error:
        if args.contact_sheet:
            raise
        say(f"\n  no images to show: {error}")
        return
    if sheet is None:
        from imageshards.transforms.elements import UsageError

        if args.contact_sheet:
            raise UsageError(f"--contact_sheet: {args.path} contains texts, not images")
    elif args.contact_sheet:
        sheet.save(args.contact_sheet)
        say(f"\n  contact sheet: {args.contact_sheet}")
    else:
        say("")
        for line in sheet.blocks(shutil.get_terminal_size().columns):
            say(line)


def _declare_reshard(parser: Parser) -> None:
    parser.add_argument(
        "source",
        metavar="DIR",
        help="A data set; with --file_format, also a pattern of record files",
    )
    parser.add_argument("output", metavar="NEW", help="Folder of the new data set")
    parser.add_argument(
        "--num_shards", default="", metavar="N", help="16, or for each split train=8,test=2"
    )
    parser.add_argument(
        "--file_format",
        default="",
        choices=("tfrecord", "array_record"),
        help="Format of the new shards (default: that of the data set)",
    )
    parser.add_argument(
        "--compression",
        default="",
        choices=("none", "gzip", "zstd", "brotli", "snappy"),
        help="Compression of the new shards: gzip for tfrecord, the others for array_record "
        "(default: that of the data set; none if the format changes)",
    )
    parser.add_argument(
        "--group_size",
        type=count,
        default=0,
        metavar="N",
        help="Records that array_record stores together (default: as in the data set; 1 if the "
        "format changes)",
    )
    add_common(parser)


def _reshard(args: Namespace) -> int:
    from imageshards.launch.operations import runs
    from imageshards.pipeline.operations.reshard import reshard

    with runs(args, [("DIR", args.source), ("NEW", args.output)]) as run:
        resharded = reshard(
            args.source, args.output, args.num_shards, args.file_format, args.compression,
            args.group_size, run,
        )  # fmt: skip
    return show(resharded, json=args.json, quiet=args.quiet)


def _declare_advise(parser: Parser) -> None:
    parser.add_argument("source", nargs="?", default="", metavar="DIR", help="A data set")
    parser.add_argument(
        "--hosts", type=count, default=None, metavar="N", help="Hosts that read DIR together"
    )
    fleet = parser.add_argument_group("before a build, for a fleet of workers")
    fleet.add_argument(
        "--images", type=large_count, metavar="N", help="Images to read, such as 100M"
    )
    fleet.add_argument(
        "--bytes", type=_size, metavar="SIZE", help="Size of all images, such as 10.8TB"
    )
    fleet.add_argument("--workers", type=count, metavar="N", help="Workers (machines)")
    fleet.add_argument(
        "--vcpus", type=count, metavar="N", help="Cores (vCPUs) of each worker (default: 4)"
    )
    fleet.add_argument(
        "--engine", choices=("dataflow", "flink"),
        help="Runner: dataflow or flink; prices are those of Dataflow (default: dataflow)",
    )  # fmt: skip
    fleet.add_argument(
        "--check", choices=("full", "header"),
        help="As the option of build: full or header (default: full)",
    )  # fmt: skip
    fleet.add_argument(
        "--archives",
        action="store_const",
        const=True,
        help="The images are in tars, not single objects",
    )
    fleet.add_argument(
        "--num_shards", type=large_count, metavar="N",
        help="Shards of the data set (default: the recommended number)",
    )  # fmt: skip
    add_common(parser)


def _size(text: str) -> int:
    from imageshards.launch.fleet.advise import parse_bytes

    try:
        return parse_bytes(text)
    except (ValueError, OverflowError) as error:
        raise ArgumentTypeError(f"expected a size such as 10.8TB, not {text!r}") from error


def _advise(args: Namespace) -> int:
    fleet = (args.images, args.bytes, args.workers)
    names = {"vcpus": "vcpus", "check": "check", "archives": "archives", "engine": "engine",
             "num_shards": "shards"}  # fmt: skip
    given = {ours: value for name, ours in names.items()
             if (value := getattr(args, name)) is not None}  # fmt: skip
    if args.source and args.hosts is not None and fleet == (None, None, None) and not given:
        from imageshards.reader.advise import advise

        return show(advise(args.source, args.hosts), json=args.json, quiet=args.quiet)
    if args.source or args.hosts is not None or None in fleet:
        refuse(
            "advise requires either DIR and --hosts, for readers of a data set, or --images, "
            "--bytes and --workers, and their options, for a build"
        )
    from imageshards.launch.fleet.advise import advise_fleet
    from imageshards.launch.fleet.stages import Fleet

    if args.num_shards == 0:
        refuse("invalid --num_shards 0: must be at least 1")
    return show(advise_fleet(Fleet(*fleet, **given)), json=args.json, quiet=args.quiet)


def _declare_features(parser: Parser) -> None:
    parser.add_argument(
        "schema", nargs="?", default="", metavar="NAME|DIR",
        help="A schema or a data set: prints its features, and Python code that parses them",
    )  # fmt: skip
    add_common(parser, json=False)


def _features(args: Namespace) -> int:
    from imageshards.reader.snippets import describe, list_schemas

    say(describe(args.schema) if args.schema else list_schemas())
    return 0


def _declare_help(parser: Parser) -> None:
    parser.add_argument("topic", nargs="?", default="", metavar="COMMAND", help="A command")


def _help(args: Namespace) -> int:
    if not args.topic:
        say(_overview())
        return 0
    if args.topic not in COMMANDS:
        name = closest(args.topic, COMMANDS)
        hint = f"; did you mean {name}?" if name else ""
        refuse(f"unknown command {args.topic!r}{hint} (imageshards help lists the commands)")
    say(parser_of(args.topic).format_help(complete=False).rstrip("\n"))
    return 0


def _overview() -> str:
    groups: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        groups.setdefault(command.group, []).append(f"  {name:<{_NAME_COLUMN}}{command.help}")
    blocks = [f"{title}:\n" + "\n".join(lines) for title, lines in groups.items()]
    return "\n\n".join([_ABOUT, *blocks, _NOTES])


_NAME_COLUMN = 14
_ABOUT = """\
usage: imageshards COMMAND [OPTION ...]

Builds shuffled, evenly sharded TFRecord data sets of images."""
_NOTES = """\
imageshards COMMAND --help describes a command, --help-all all of its options.
Results go to stdout, progress and errors to stderr. NO_COLOR=1 prints no color.
Exit codes: 0 done, 1 failed, 2 wrong command line, 130 interrupted."""


def _version(args: Namespace) -> int:
    from importlib.metadata import version

    say(f"imageshards {version('imageshards')}")
    return 0


def _declare_completion(parser: Parser) -> None:
    parser.add_argument(
        "shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="Shell: bash, zsh or fish"
    )


def _completion(args: Namespace) -> int:
    from imageshards.launch.completion import script

    say(script(args.shell))
    return 0


_MAKING, _READING = "make data sets", "look into data sets"
_SCHEDULING, _HELPING = "build on a schedule", "help"

_ON_A_RUNNER = "It uses all cores of this machine; with --runner, the workers of that runner."
COMMANDS = {
    "demo": Command(
        "Build a small data set, to see how it works",
        demo.declare,
        demo.run,
        "Writes 1,797 images of handwritten digits to a new folder, and builds and verifies their "
        "data set.",
        _MAKING,
    ),
    "build": Command(
        "Build a data set of images",
        _declare_build,
        _build,
        "Builds a data set of images. The same command resumes an interrupted build.",
        _MAKING,
        usage="--input URI --output DIR [OPTION ...]",
        takes_beam_arguments=True,
        resumes=True,
        results=(
            ("a build", ("pipeline.job.summary.Summary",)),
            ("--dry_run", ("pipeline.job.forecast.Forecast",)),
            ("a job that was submitted", ("pipeline.job.submission.Submission",)),
        ),
    ),
    "reshard": Command(
        "Copy a data set with another number or format of shards",
        _declare_reshard,
        _reshard,
        "Copies records unchanged, in the same order, without decoding them. The same command "
        f"resumes an interrupted one. {_ON_A_RUNNER}",
        _MAKING,
        runs_on_beam=True,
        resumes=True,
        results=(("", ("pipeline.operations.reshard.Resharded",)),),
    ),
    "inspect": Command(
        "Show the contents of a data set or a shard", _declare_inspect, _inspect, group=_READING
    ),
    "verify": Command(
        "Check every record of a data set",
        _declare_verify,
        _verify,
        "Reads, parses and decodes the records, and compares all files with the metadata. "
        f"{_ON_A_RUNNER}",
        _READING,
        runs_on_beam=True,
        results=(("", ("reader.verification.verdict.Verdict",)),),
    ),
    "features": Command(
        "List the schemas of records, or describe one",
        _declare_features,
        _features,
        group=_READING,
    ),
    "advise": Command(
        "Recommend shards, or estimate time and cost of a build",
        _declare_advise,
        _advise,
        "With DIR and --hosts: recommends a number of shards for hosts that read a data set. With "
        "--images, --bytes and --workers: recommends a number of shards for a build on a fleet, "
        "and estimates the time of each stage, what limits it, and the cost.",
        _READING,
        usage="DIR --hosts N | --images N --bytes SIZE --workers N",
        results=(
            ("a data set", ("reader.advise.Advice",)),
            ("a fleet", ("launch.fleet.stages.Fleet", "launch.fleet.advise.FleetAdvice")),
        ),
    ),
    "fingerprint": Command(
        "Report whether inputs changed since the last version",
        schedule.declare_fingerprint,
        schedule.fingerprint,
        "Lists the inputs of a build, and reports whether there is anything to build: new, "
        "unchanged, done, changed, or empty. Of a manifest it compares the file itself, not the "
        "images that it names. With --runner, its workers list.",
        _SCHEDULING,
        usage="--input URI --output DIR [OPTION ...]",
        takes_beam_arguments=True,
        results=(("", ("pipeline.operations.fingerprint.Fingerprint", "launch.schedule.Version")),),
    ),
    "publish": Command(
        "Make a data set the latest version of its folder",
        schedule.declare_publish,
        schedule.publish,
        "Writes the path of a complete data set to a pointer file, and deletes old versions next "
        "to it. If the pointer names a later version (by name), it is not changed.",
        _SCHEDULING,
        results=(("", ("pipeline.publish.Published",)),),
    ),
    "doctor": Command(
        "Check this installation and machine, and URIs",
        doctor.declare,
        doctor.run,
        "Checks versions, extras, decoders, cores, memory, free space and credentials, and lists "
        "the URIs. The exit code is 1 if there is a problem.",
        _HELPING,
        uses_data=False,
        results=(("", ("launch.doctor.command.Report",)),),
    ),
    "help": Command(
        "List the commands, or describe one",
        _declare_help,
        _help,
        group=_HELPING,
        uses_data=False,
    ),
    "version": Command(
        "Print the version", lambda parser: None, _version, group=_HELPING, uses_data=False
    ),
    "completion": Command(
        "Print a script that completes commands and options in a shell",
        _declare_completion,
        _completion,
        "Prints a script that completes commands, options, their values and files. bash: "
        "imageshards completion bash > ~/.local/share/bash-completion/completions/imageshards; "
        "zsh: write it to a file _imageshards in a folder of $fpath; fish: "
        "~/.config/fish/completions/imageshards.fish.",
        _HELPING,
        uses_data=False,
    ),
}
"""Name -> command."""
