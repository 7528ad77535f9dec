"""Command line <-> Config: the only argparse of the build."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from imageshards.transforms.elements import UsageError

if TYPE_CHECKING:
    from imageshards.pipeline.config import Config


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line, raised."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError instead of printing the usage of fifty options."""
        raise UsageError(f"{message} ({self.prog} --help lists the options)")

    def meant(self, option: str, others: Parser | None = None) -> str:
        """A question whether another option was meant; empty if none is like it."""
        parsers = [self, *([others] if others else [])]
        known = [name for parser in parsers for name in parser._option_string_actions]
        like = difflib.get_close_matches(option.partition("=")[0], known, 1)
        return f", did you mean {like[0]}?" if like else ""


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `imageshards build`."""
    data = parser.add_argument_group("what goes in")
    data.add_argument(
        "--input", action="append", default=[], metavar="PLACE",
        help="a folder, a glob pattern, an image, an archive (.tar .tar.gz .zip ...), TFRecord "
        "files, or a manifest (.csv .tsv .jsonl .parquet with a uri column, .txt with a URI a "
        "line), whose URIs may be http:// and https:// too; local or gs://; repeatable",
    )  # fmt: skip
    data.add_argument(
        "--include_all", action="store_true",
        help="take every file, and not only those that are images by their name",
    )  # fmt: skip
    data.add_argument(
        "--uri_column", default="uri", metavar="NAME", help="the manifests' column of URIs"
    )
    data.add_argument(
        "--base_uri", default=None, metavar="URI",
        help="shuffle, split and record URIs relative to this one, so that a copy of the images "
        "elsewhere gives the same bytes (default: whole URIs)",
    )  # fmt: skip

    data.add_argument(
        "--image_key", default="image/encoded", metavar="KEY",
        help="of TFRecord files: the feature that is the image (default image/encoded)",
    )  # fmt: skip
    data.add_argument(
        "--label_key", default=None, metavar="KEY",
        help="of TFRecord files: the feature that is the label (default: image/class/text, else "
        "image/class/label)",
    )  # fmt: skip
    data.add_argument(
        "--name_key", default=None, metavar="KEY",
        help="of TFRecord files: the feature that is the image's URI, such as image/filename "
        "(default: none, it is FILE/NUMBER)",
    )  # fmt: skip

    out = parser.add_argument_group("what comes out")
    out.add_argument("--output", default="", metavar="DIR", help="the folder of the data set")
    out.add_argument(
        "--num_shards", default="auto", metavar="N",
        help="16, or train=1024,test=16, or auto: 100 to 200 MB a shard (default)",
    )  # fmt: skip
    out.add_argument(
        "--seed", type=int, default=0, help="fixes the order and the splits (default 0)"
    )
    out.add_argument("--name", default=None, help="of the data set (default: the output's name)")
    out.add_argument(
        "--features", default="slim", metavar="NAME",
        help="the schema of a record: slim (default) or imagenet, with the image file; raw "
        "(float32), pixels (uint8) or shape (uint8 of any size), with its pixels; text. "
        "imageshards features NAME tells more",
    )  # fmt: skip
    out.add_argument(
        "--channels", type=int, default=0, metavar="1|3",
        help="of raw pixels: 1 makes all grey, 3 all RGB (default: 3 for raw and pixels, for shape "
        "what each image has)",
    )  # fmt: skip
    out.add_argument(
        "--pixel_range", default="0..1", metavar="RANGE",
        help="of raw's floats: 0..1 (default) or 0..255",
    )  # fmt: skip
    out.add_argument(
        "--text_unit", default="line", metavar="UNIT",
        help="what of a text file is a record: line (default) or paragraph, the lines between "
        "empty ones",
    )  # fmt: skip
    out.add_argument(
        "--compression", default="none", metavar="none|gzip",
        help="of the shards, for raw pixels and texts: gzip makes them smaller, but TensorFlow "
        "Datasets does not read them, and there is no random access (default none)",
    )  # fmt: skip
    out.add_argument(
        "--features_from", action="append", default=[], metavar="COLUMN:TYPE",
        help="a manifest column that becomes a feature, or KEY=COLUMN:TYPE; TYPE is int, float, "
        "bytes (default), int_list, float_list or bytes_list; repeatable, or with commas between; "
        "none. Default auto: the other features of TFRecord inputs",
    )  # fmt: skip
    out.add_argument(
        "--overwrite", action="store_true", help="replace what another build left in the output"
    )

    labels = parser.add_argument_group("labels and splits")
    labels.add_argument(
        # Launchers such as Airflow's operators keep the name --labels for the labels of the job.
        "--labels", "--labels_from", action="append", default=["auto"], metavar="RULE",
        help=r"dirname, column, column:NAME, regex:RE such as regex:([a-z]+)\d+\.jpg, none; or "
        "auto: the manifest's label column where there is one, else dirname (default)",
    )  # fmt: skip
    labels.add_argument(
        "--class_names", default=None, metavar="FILE",
        help="class names in label order, one a line (default: the labels found, sorted); with "
        "--features imagenet a tab and a text may follow",
    )  # fmt: skip
    labels.add_argument(
        "--label_offset", type=int, default=0, metavar="0|1",
        help="1 leaves label 0 to a background class, as TF-slim does",
    )  # fmt: skip
    labels.add_argument(
        "--splits", default="auto", metavar="RULE",
        help="train=0.8,test=0.2 by a seeded hash; column, column:NAME; folder: the top folder; or "
        "auto: the manifest's split column where there is one, else all is train (default)",
    )  # fmt: skip
    labels.add_argument(
        "--split_names", default=None, metavar="A,B",
        help="the splits that a column or folder may name",
    )  # fmt: skip
    labels.add_argument(
        "--group_by", default="uri", metavar="RULE",
        help="keep a group in one split: dirname, column:NAME or regex:RE",
    )  # fmt: skip

    images = parser.add_argument_group("images")
    images.add_argument(
        "--convert", default="auto",
        help="auto: what TensorFlow does not decode becomes PNG or JPEG (default); jpeg or png: "
        "everything becomes that; never: nothing is rewritten",
    )  # fmt: skip
    images.add_argument(
        "--exif", default="bake",
        help="bake turns pixels as EXIF says (default); keep leaves them, and counts them",
    )  # fmt: skip
    images.add_argument(
        "--multi_frame", default="first",
        help="of animations and pages: first writes the first (default), all writes animated GIFs "
        "whole and rejects the rest, reject rejects them",
    )  # fmt: skip
    images.add_argument(
        "--resize", default=None, metavar="RULE",
        help="short:256, long:512, 320x240, crop:224x224 or pad:224x224; never enlarges by itself",
    )  # fmt: skip
    images.add_argument("--enlarge", action="store_true", help="let --resize enlarge, too")
    images.add_argument(
        "--quality", type=int, default=95, metavar="N",
        help="of JPEGs that are written anew, 1 to 100 (default 95)",
    )  # fmt: skip
    images.add_argument(
        "--min_size", type=int, default=1, metavar="N",
        help="reject images with a side of fewer pixels (default 1)",
    )  # fmt: skip
    images.add_argument(
        "--max_pixels", type=int, default=178_956_970, metavar="N",
        help="reject images of more pixels (default and most 178956970)",
    )  # fmt: skip
    images.add_argument(
        "--max_bytes", type=int, default=1 << 28, metavar="N",
        help="reject files of more bytes (default and most 268435456)",
    )  # fmt: skip

    work = parser.add_argument_group("how it is done")
    work.add_argument(
        "--check", default="full",
        help="full decodes every image (default); header looks at its header and its end",
    )  # fmt: skip
    work.add_argument(
        "--max_reject_fraction", type=float, default=0.01, metavar="F",
        help="more rejects than this fail the build (default 0.01)",
    )  # fmt: skip
    work.add_argument(
        "--dedupe", default="none",
        help="pixels: of images with the same pixels take one, and list the others; decodes every "
        "image once more (default none: a URI is taken once, whatever is in it)",
    )  # fmt: skip
    work.add_argument(
        "--writer", default="shard",
        help="shard: a worker owns a shard (default); beam: WriteToTFRecord, for heavy work per "
        "image on few shards",
    )  # fmt: skip
    work.add_argument(
        "--workers", type=_workers, default="auto", metavar="N",
        help="processes that write shards on this machine; auto: as many as it has cores, where "
        "the images pay for their start (default). Other runners have workers of their own",
    )  # fmt: skip
    work.add_argument(
        "--user_agent", default=None, metavar="TEXT",
        help="what web servers are told (default: imageshards); say how you can be reached",
    )  # fmt: skip
    work.add_argument(
        "--web_timeout", type=float, default=60, metavar="SECONDS",
        help="that one image from the web may take, retries included (default 60)",
    )  # fmt: skip
    work.add_argument(
        "--web_retries", type=int, default=3, metavar="N",
        help="further attempts where a web server is busy or breaks off (default 3)",
    )  # fmt: skip
    work.add_argument(
        "--requests_per_host", type=int, default=16, metavar="N",
        help="requests at a time to one web server, from one machine (default 16)",
    )  # fmt: skip
    work.add_argument(
        "--wait", action="store_true",
        help="wait for the end of a job that runs at a service, such as Dataflow; without this, "
        "its id and a link are printed when it is submitted",
    )  # fmt: skip
    work.add_argument("--json", action="store_true", help="print the result as JSON")
    work.add_argument("--verbose", action="store_true", help="show Beam's log and tracebacks")


def build_actions() -> list[argparse.Action]:
    """The options of `imageshards build`, as argparse has them."""
    parser = Parser(add_help=False)
    add_build_options(parser)
    return parser._actions


def flags() -> frozenset[str]:
    """The names of those that are there or not, and take no value."""
    return frozenset(action.dest for action in build_actions() if action.nargs == 0)


def count(text: str) -> int:
    """The value of an option that counts something.

    Raises:
      ArgumentTypeError: it is no number from 0.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"write a number from 0, not {text!r}")
    return int(text)


def _workers(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"write auto or a number from 1, not {text!r}")
    return int(text)


def workers_from(args: argparse.Namespace, beam_options: Sequence[str]) -> int | None:
    """How many processes are to write beside the runner's; None: as many as pay.

    Raises:
      UsageError: the runner has workers of its own.
    """
    if args.writer == "beam" and args.workers is not None:
        raise UsageError("--workers is for --writer shard; with beam the runner's workers write")
    if args.writer == "beam" and _runner(beam_options) == "PrismRunner":
        raise UsageError("Prism halts in the middle of --writer beam; --writer shard works there")
    if in_one_process(beam_options):
        return args.workers  # type: ignore[no-any-return]
    if args.workers is not None:
        raise UsageError(
            "--workers is for the local runner in one process; others have workers of their own "
            "(--direct_num_workers, --num_workers, ...)"
        )
    return 1


def _features_from(values: Sequence[str]) -> tuple[str, ...]:
    if not values:
        return ("auto",)
    columns = tuple(column for value in values for column in value.split(","))
    if "none" in columns and len(columns) > 1:
        raise UsageError("--features_from: auto and none stand alone")
    return () if columns == ("none",) else columns


def config_from(args: argparse.Namespace) -> Config:
    """The Config that the parsed options mean.

    Raises:
      UsageError: an option has a bad value.
    """
    from imageshards.pipeline.config import Config  # numpy and Pillow: not for --help
    from imageshards.transforms.storage.web import USER_AGENT

    for option in (
        "base_uri",
        "class_names",
        "name",
        "resize",
        "split_names",
        "uri_column",
        "image_key",
        "label_key",
        "name_key",
        "user_agent",
    ):
        if getattr(args, option) == "":  # an unset variable of a script, most likely
            raise UsageError(f"--{option} is empty: give it a value, or leave it out")
    return Config(
        input=tuple(args.input),
        output=args.output,
        num_shards=args.num_shards,
        seed=args.seed,
        labels=[value for value in args.labels if not _BEAM_LABEL.match(value)][-1],
        class_names=args.class_names or "",
        label_offset=args.label_offset,
        splits=args.splits,
        split_names=tuple((args.split_names or "").split(",")) if args.split_names else (),
        group_by=args.group_by,
        uri_column=args.uri_column,
        image_key=args.image_key,
        label_key=args.label_key or "",
        name_key=args.name_key or "",
        user_agent=args.user_agent or USER_AGENT,
        web_timeout=args.web_timeout,
        web_retries=args.web_retries,
        requests_per_host=args.requests_per_host,
        base_uri=args.base_uri or "",
        include_all=args.include_all,
        features=args.features,
        channels=args.channels,
        pixel_range=args.pixel_range,
        text_unit=args.text_unit,
        compression=args.compression,
        features_from=_features_from(args.features_from),
        check=args.check,
        convert=args.convert,
        exif=args.exif,
        multi_frame=args.multi_frame,
        resize=args.resize or "",
        enlarge=args.enlarge,
        quality=args.quality,
        min_size=args.min_size,
        max_pixels=args.max_pixels,
        max_bytes=args.max_bytes,
        dedupe=args.dedupe,
        writer=args.writer,
        name=args.name or "",
        max_reject_fraction=args.max_reject_fraction,
        overwrite=args.overwrite,
    )


# Beam has an option --labels too, with values such as airflow-version=v3-3-2, which Airflow adds.
# Flex Templates give them as {"key": "value"}.
_BEAM_LABEL = re.compile(r"[a-z][a-z0-9_-]*=|\{")


def beam_labels(args: argparse.Namespace) -> list[str]:
    """Those --labels that are Beam's: labels of the job, not of images."""
    return [f"--labels={value}" for value in args.labels if _BEAM_LABEL.match(value)]


def with_runner(arguments: Sequence[str]) -> list[str]:
    """Beam's arguments, the local runner among them where they name none."""
    if any(argument.split("=")[0] == "--runner" for argument in arguments):
        return list(arguments)
    # DirectRunner would first look for Prism on the network.
    return [*arguments, f"--runner={_IN_PROCESS}"]


def check_beam_arguments(arguments: Sequence[str]) -> None:
    """Checks that Beam knows all of them: it would ignore a misspelt one in silence.

    Raises:
      UsageError: neither imageshards nor Beam has such an option.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    known = Parser(prog="imageshards build", add_help=False, allow_abbrev=False)
    for options in (PipelineOptions, *PipelineOptions.__subclasses__()):
        if adder := getattr(options, "_add_argparse_args", None):
            try:
                adder(known)
            except argparse.ArgumentError:
                continue  # two of Beam's classes declare the same option
    _, unknown = known.parse_known_args(list(arguments))
    if unknown and not unknown[0].startswith("-"):
        raise UsageError(f"what is {unknown[0]!r}? Inputs are told as --input {unknown[0]}")
    if unknown:
        ours = Parser(add_help=False)
        add_build_options(ours)
        meant = known.meant(unknown[0], ours)
        raise UsageError(
            f"unknown option {unknown[0]}{meant} (imageshards build --help lists the options; "
            "those of Beam are taken too)"
        )


_IN_PROCESS = "FnApiRunner"
_LOCAL = (_IN_PROCESS, "DirectRunner")
_FLINK = ("FlinkRunner", "PortableRunner")
_DATAFLOW = ("DataflowRunner",)
_ONLY_FOR = {
    "--direct_running_mode": _LOCAL,
    "--direct_num_workers": _LOCAL,
    "--parallelism": _FLINK,
    "--environment_cache_millis": _FLINK,
    "--num_workers": _DATAFLOW,
    "--max_num_workers": _DATAFLOW,
}


_RUNNERS = (*_LOCAL, *_FLINK, *_DATAFLOW, "PrismRunner")


def _runner(arguments: Sequence[str]) -> str:
    """The name of the runner, in whichever of the ways that Beam knows; the last counts."""
    words = " ".join(arguments).replace("=", " ").split()
    named = [name for word, name in pairwise(words) if word == "--runner"]
    name = named[-1].rpartition(".")[2] if named else ""
    known = (r for r in _RUNNERS if name.lower() in (r.lower(), r.lower().removesuffix("runner")))
    return next(known, name)


def without_effect(arguments: Sequence[str]) -> str:
    """Tells of Beam's options that the runner does not look at; empty if there are none."""
    words = " ".join(arguments).replace("=", " ").split()
    runner = _runner(arguments)
    ignored = [n for n, runners in _ONLY_FOR.items() if n in words and runner not in runners]
    return f"{runner} ignores {', '.join(ignored)}" if ignored else ""


def is_local_runner(arguments: Sequence[str]) -> bool:
    """Whether Beam's arguments name a runner of this machine, in this process or beside it."""
    return _runner(arguments) in _LOCAL


def is_dataflow(arguments: Sequence[str]) -> bool:
    """Whether Beam's arguments name Dataflow's runner."""
    return _runner(arguments) in _DATAFLOW


def waits(args: argparse.Namespace, arguments: Sequence[str]) -> bool:
    """Whether to wait for the job: where it runs at a service, only if that was asked for.

    Raises:
      UsageError: there would be nothing to wait for.
    """
    if not is_dataflow(arguments):
        return True
    template = any(argument.startswith("--template_location") for argument in arguments)
    if args.wait and template:
        raise UsageError("--wait does not go with --template_location, which starts no job")
    return args.wait  # type: ignore[no-any-return]


def in_one_process(arguments: Sequence[str]) -> bool:
    """Whether the whole graph runs in this process."""
    joined = " ".join(arguments).replace("=", " ")
    return _runner(arguments) == _IN_PROCESS and "--direct_running_mode multi" not in joined
