"""The commands that a scheduler runs around `build`: `fingerprint` and `publish`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from imageshards.pipeline.options import (
    add_build_options,
    check_beam_arguments,
    config_from,
    count,
)

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from imageshards.pipeline.options import Parser


def add_schedule_commands(commands: _SubParsersAction[Parser]) -> None:
    """Declares them."""
    fingerprint = commands.add_parser(
        "fingerprint",
        help="tell whether inputs changed since the last version",
        description="Takes the options of build, lists the inputs, and tells whether there is "
        "anything to build: new, unchanged, done, changed, or empty.",
        allow_abbrev=False,
    )
    fingerprint.add_argument(
        "--skip_missing", action="store_true", help="leave out inputs that hold no image"
    )
    add_build_options(fingerprint)
    publish = commands.add_parser(
        "publish",
        help="make a data set the latest version of its folder",
        description="Names a complete data set in a pointer file, and deletes old versions beside "
        "it. A version that is earlier by its name than the latest is published, and the pointer "
        "stays.",
        allow_abbrev=False,
    )
    publish.add_argument("output", metavar="DIR", help="the folder of the data set")
    publish.add_argument(
        "--pointer", default="", metavar="FILE", help="(default: latest, beside the folder)"
    )
    publish.add_argument(
        "--keep_versions", type=count, default=0, metavar="N",
        help="delete its published versions but the N latest and this one (default 0: keep all)",
    )  # fmt: skip
    publish.add_argument(
        "--fingerprint", default="", metavar="HEX", help="what the command fingerprint printed"
    )
    publish.add_argument(
        "--rollback", action="store_true", help="switch although the pointer names a later version"
    )
    publish.add_argument("--json", action="store_true", help="print the result as JSON")
    publish.add_argument("--verbose", action="store_true", help="show tracebacks")


def fingerprint(args: argparse.Namespace, rest: list[str]) -> int:
    """`imageshards fingerprint`."""
    from imageshards.pipeline.fingerprint import fingerprint
    from imageshards.pipeline.publish import state_of

    config = config_from(args)
    if rest:
        check_beam_arguments(rest)
    found = fingerprint(
        config.input,
        config.settings,
        include_all=config.include_all,
        exclude=config.layout.root,
        skip_missing=args.skip_missing,
    )
    state, version = ("empty", "")
    if found.files:
        state, version = state_of(config.output, found.digest, config.dataset_name)
    if args.json:
        result = {**asdict(found), "output": config.layout.root, "state": state, "version": version}
        print(json.dumps(result))
    else:
        files = "1 file" if found.files == 1 else f"{found.files:,} files"
        print(f"{found.digest}  {files}, {found.bytes / 1e6:,.1f} MB: {_TELLS[state]} {version}")
    return 0


_TELLS = {
    "new": "to be built:",
    "unchanged": "nothing new since",
    "done": "already published:",
    "changed": "published of other inputs:",
    "empty": "no image there",
}


def publish(args: argparse.Namespace) -> int:
    """`imageshards publish`."""
    from imageshards.pipeline.publish import publish

    published = publish(
        args.output,
        pointer=args.pointer,
        keep_versions=args.keep_versions,
        fingerprint=args.fingerprint,
        rollback=args.rollback,
    )
    print(published.to_json() if args.json else published)
    return 0
