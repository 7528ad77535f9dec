"""The commands of `imageshards`: one table of their arguments and functions.

Each command imports its modules when it runs, so that `imageshards --help` is fast.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import NamedTuple

from imageshards.launch import demo, schedule
from imageshards.launch.doctor import command as doctor
from imageshards.launch.terminal import add_common, complain, count, say, show


class Command(NamedTuple):
    """One command.

    Attributes:
      help: what it does, in a few words.
      declare: adds its arguments to a parser.
      run: runs it and returns the exit code.
      description: for its own `--help`; empty: `help`.
      takes_beam_arguments: whether undeclared arguments are passed to Beam. Otherwise they are
        errors.
    """

    help: str
    declare: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    description: str = ""
    takes_beam_arguments: bool = False


def _declare_build(parser: ArgumentParser) -> None:
    from imageshards.pipeline.options.command_line import add_options

    add_options(parser)


def _build(args: Namespace) -> int:
    begin = time.perf_counter()
    from imageshards.launch.build import run

    return run(args, begin)


def _declare_verify(parser: ArgumentParser) -> None:
    parser.add_argument("output", metavar="DIR", help="the folder of the data set")
    parser.add_argument(
        "--sample", type=count, default=0, metavar="N",
        help="check N records, spread evenly over all shards (default: 0, all records)",
    )  # fmt: skip
    parser.add_argument(
        "--decoder", choices=("build", "tensorflow"), default="build",
        help="decode images as the build did, or with TensorFlow (default: build)",
    )  # fmt: skip
    add_common(parser)


def _verify(args: Namespace) -> int:
    from imageshards.reader.verify import verify

    if args.own_process:
        # TensorFlow logs how it was compiled when it is imported.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    verdict = verify(args.output, sample=args.sample, decoder=args.decoder)
    for problem in verdict.problems:
        complain(problem, 1)
    show(verdict, json=args.json)
    return 1 if verdict.problems else 0


def _declare_inspect(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="DIR|SHARD", help="a data set, or one of its files")
    parser.add_argument(
        "--records", type=count, default=3, metavar="N", help="records to show (default: 3)"
    )
    parser.add_argument(
        "--contact_sheet", default="", metavar="FILE", help="write images: FILE.png or FILE.html"
    )
    parser.add_argument(
        "--images", type=count, default=24, metavar="N",
        help="images of each split on the contact sheet (default: 24)",
    )  # fmt: skip
    add_common(parser, json=False)


def _inspect(args: Namespace) -> int:
    from imageshards.reader.inspect import inspect

    in_terminal = sys.stdout.isatty() and not args.contact_sheet
    if args.contact_sheet:
        from imageshards.reader.sheet import check_path

        check_path(args.contact_sheet)
    say(inspect(args.path, args.records))
    if (args.contact_sheet or in_terminal) and args.images:
        _show_images(args)
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


def _declare_reshard(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR", help="a data set")
    parser.add_argument("output", metavar="NEW", help="the folder of the new data set")
    parser.add_argument(
        "--num_shards", required=True, metavar="N", help="16, or for each split train=8,test=2"
    )
    add_common(parser)


def _reshard(args: Namespace) -> int:
    from imageshards.pipeline.reshard import reshard

    return show(reshard(args.source, args.output, args.num_shards), json=args.json)


def _declare_advise(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR", help="a data set")
    parser.add_argument(
        "--hosts", type=count, required=True, metavar="N", help="hosts that read it together"
    )
    add_common(parser)


def _advise(args: Namespace) -> int:
    from imageshards.reader.advise import advise

    return show(advise(args.source, args.hosts), json=args.json)


def _declare_features(parser: ArgumentParser) -> None:
    parser.add_argument(
        "schema", nargs="?", default="", metavar="NAME|DIR",
        help="a schema or a data set: prints its features, and Python code that parses them",
    )  # fmt: skip
    add_common(parser, json=False)


def _features(args: Namespace) -> int:
    from imageshards.reader.snippets import describe, list_schemas

    say(describe(args.schema) if args.schema else list_schemas())
    return 0


COMMANDS = {
    "demo": Command(
        "build a small data set, to see how it works",
        demo.declare,
        demo.run,
        "Writes 1,797 images of handwritten digits to a new folder, and builds and verifies their "
        "data set.",
    ),
    "build": Command(
        "build a data set of images",
        _declare_build,
        _build,
        "Builds a data set. Options of Beam are accepted too: --runner, --project, "
        "--temp_location, --direct_num_workers, ...",
        takes_beam_arguments=True,
    ),
    "verify": Command("check every record of a data set", _declare_verify, _verify),
    "inspect": Command("show the contents of a data set or a shard", _declare_inspect, _inspect),
    "reshard": Command(
        "copy a data set with another number of shards",
        _declare_reshard,
        _reshard,
        "Copies records unchanged, in the same order, without decoding them.",
    ),
    "advise": Command(
        "recommend a number of shards for a number of hosts", _declare_advise, _advise
    ),
    "features": Command(
        "list the schemas of records, or describe one", _declare_features, _features
    ),
    "fingerprint": Command(
        "report whether inputs changed since the last version",
        schedule.declare_fingerprint,
        schedule.fingerprint,
        "Takes the options of build, lists the inputs, and reports whether there is anything to "
        "build: new, unchanged, done, changed, or empty. Of a manifest it compares the file "
        "itself, not the images that it names.",
        takes_beam_arguments=True,
    ),
    "publish": Command(
        "make a data set the latest version of its folder",
        schedule.declare_publish,
        schedule.publish,
        "Writes the path of a complete data set to a pointer file, and deletes old versions next "
        "to it. If the pointer names a later version (by name), it is not changed.",
    ),
    "doctor": Command(
        "check this installation and machine, and whether URIs can be read",
        doctor.declare,
        doctor.run,
        "Checks versions, extras, decoders, cores, memory, free space and credentials, and lists "
        "the URIs. The exit code is 1 if there is a problem.",
    ),
}
"""Name -> command."""
