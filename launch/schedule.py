"""The commands that a scheduler runs before and after `build`: `fingerprint` and `publish`."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from typing import NamedTuple

from imageshards.launch.terminal import add_common, count, say, show
from imageshards.pipeline.options.parser import Parser


class Version(NamedTuple):
    """The version of a data set that inputs belong to.

    Attributes:
      output: the folder of the data set.
      state: "new", "unchanged", "done", "changed" or "empty".
      version: the name of the version that `state` is about.
    """

    output: str
    state: str
    version: str


def declare_fingerprint(parser: Parser) -> None:
    """Adds the arguments of `imageshards fingerprint`."""
    from imageshards.pipeline.options.command_line import add_options

    parser.add_argument(
        "--skip_missing", action="store_true", help="Skip inputs without any image or text"
    )
    add_options(parser)


def declare_publish(parser: Parser) -> None:
    """Adds the arguments of `imageshards publish`."""
    parser.add_argument("output", metavar="DIR", help="Folder of the data set")
    parser.add_argument(
        "--pointer", default="", metavar="FILE",
        help="Pointer file (default: latest, next to the folder)",
    )  # fmt: skip
    parser.add_argument(
        "--keep_versions", type=count, default=0, metavar="N",
        help="Delete all published versions but the N latest and this one (default: 0, keep all)",
    )  # fmt: skip
    parser.add_argument(
        "--fingerprint", type=_digest, default="", metavar="HEX",
        help="Digest that imageshards fingerprint printed, 64 hexadecimal digits",
    )  # fmt: skip
    parser.add_argument(
        "--rollback", action="store_true",
        help="Change the pointer even if it names a later version",
    )  # fmt: skip
    add_common(parser)


def _digest(text: str) -> str:
    if text and (len(text) != 64 or set(text) - set("0123456789abcdef")):
        raise ArgumentTypeError(
            f"expected the 64 hexadecimal digits that imageshards fingerprint prints, not {text!r}"
        )
    return text


def fingerprint(args: Namespace) -> int:
    """Runs `imageshards fingerprint`."""
    import json
    from dataclasses import asdict

    from imageshards.launch.operations import runs
    from imageshards.pipeline.assembly import BuildSpec
    from imageshards.pipeline.operations.fingerprint import fingerprint
    from imageshards.pipeline.options.command_line import options_from
    from imageshards.pipeline.publish import state_of
    from imageshards.transforms import storage
    from imageshards.transforms.elements import counted, human_bytes

    spec = BuildSpec(options_from(args))
    inputs, output = spec.options.inputs, spec.options.output.output
    with runs(args, [("--input", uri) for uri in inputs.input]) as run:
        found = fingerprint(
            inputs.input,
            spec.settings,
            include_all=inputs.include_all,
            skip_missing=args.skip_missing,
            text_unit=spec.text_unit,
            side=spec.listing.side,
            others=spec.other_files(),
            run=run,
        )
    state, version = "empty", ""
    if found.files:
        state, version = state_of(output, found.digest, spec.dataset_name)
    if args.json:
        where = Version(spec.layout.root, state, version)
        say(json.dumps({**asdict(found), **where._asdict()}))
    elif not args.quiet:
        files = counted(found.files, "file")
        text = _DESCRIPTIONS[state].format(version=version, noun=spec.schema.noun)
        if state == "new" and storage.exists(spec.layout.dataset_info):
            text = f"version {version} is built, but not published: imageshards publish {output}"
        say(f"{found.digest}  {files}, {human_bytes(found.bytes)}: {state}: {text}")
    return 0


_DESCRIPTIONS = {
    "new": "version {version} is to be built",
    "unchanged": "nothing changed since version {version}",
    "done": "version {version} is published",
    "changed": "version {version} was published from other inputs",
    "empty": "no {noun} found",
}


def publish(args: Namespace) -> int:
    """Runs `imageshards publish`."""
    from imageshards.pipeline.publish import publish

    published = publish(
        args.output,
        pointer=args.pointer,
        keep_versions=args.keep_versions,
        fingerprint=args.fingerprint,
        rollback=args.rollback,
    )
    return show(published, json=args.json, quiet=args.quiet)
