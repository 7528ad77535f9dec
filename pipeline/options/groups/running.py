"""Options of how a build runs, and of what the command prints."""

from __future__ import annotations

from dataclasses import dataclass

from imageshards.pipeline.options.declare import AUTO, Group, option


@dataclass(frozen=True, kw_only=True)
class Execution(Group):
    """How the work is distributed."""

    title = "execution"

    writer: str = option(
        "shard",
        "Unit of parallel work: shard, each shard is written by one worker; beam, images are "
        "encoded in parallel and WriteToTFRecord writes them, for costly images and few shards",
        choices=("shard", "beam"),
    )


@dataclass(frozen=True, kw_only=True)
class CommandOptions(Group):
    """How the command runs and what it prints: no part of the build itself."""

    title = "command"

    config: str = option(
        "",
        "YAML file of options, one `NAME: VALUE` per line, and a section `beam` for those of Beam; "
        "the file metadata/build.yaml of a data set builds it again. The command line replaces "
        "values of the file, and --no_NAME replaces `NAME: true`",
        brief="Read options from a YAML file",
        metavar="FILE",
        default_text="none",
        is_uri=True,
        affects_shards=False,
        in_template=False,
    )
    workers: str = option(
        AUTO,
        "Processes that write shards on this machine; auto starts one per core, if there are "
        "enough images to justify it. Only for the local runner",
        brief="Processes on this machine (default: auto)",
        metavar="N",
        pattern="auto|0*[1-9][0-9]*",
        expected="auto or a number from 1",
        affects_shards=False,
        in_template=False,
    )
    wait: bool = option(
        False,
        "Wait for the end of a job on a service such as Dataflow; otherwise the command prints the "
        "job's id and a link, and returns",
        affects_shards=False,
        in_template=False,
    )
    dry_run: bool = option(
        False,
        "List the inputs on this machine, read a sample of the images, print the images, classes, "
        "shards and rejects that the build would have, its time and cost, and write nothing",
        brief="Print what the build would do, and write nothing",
        affects_shards=False,
        in_template=False,
    )
    json: bool = option(
        False,
        "Print the result as JSON",
        brief="Print the result as JSON",
        affects_shards=False,
        in_template=False,
    )
    quiet: bool = option(
        False,
        "Print only errors and warnings: no progress and, without --json, no result",
        brief="Print only errors and warnings",
        affects_shards=False,
        in_template=False,
    )
    verbose: bool = option(
        False,
        "Show Beam's log and tracebacks",
        brief="Show Beam's log and tracebacks",
        affects_shards=False,
    )
