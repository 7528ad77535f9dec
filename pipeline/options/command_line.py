"""The command line of `imageshards build`, made from the declarations of the options."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeVar

from imageshards.pipeline.options.beam_arguments import (
    DOCUMENTED,
    given_runner,
    is_dataflow,
    is_in_process,
)
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import Option, options_of
from imageshards.pipeline.options.groups.running import CommandOptions
from imageshards.pipeline.options.parser import Parser, refuse, with_underscores

Options = TypeVar("Options", bound=BuildOptions)


def add_options(
    parser: argparse.ArgumentParser, options: type[BuildOptions] = BuildOptions
) -> None:
    """Adds the options of a build and of its command to a parser."""
    for group in options.command_line():
        added = parser.add_argument_group(group.title)
        for option in options_of(group):
            _add(added, option)
            if isinstance(parser, Parser):
                parser.briefs[option.name] = option.brief


def _add(parser: argparse._ArgumentGroup, option: Option) -> None:
    details: dict[str, Any] = {"help": option.description.replace("%", "%%")}
    if option.is_switch:
        details["action"] = "store_true"
        parser.add_argument(
            f"--no_{option.name}", action="store_true", help=argparse.SUPPRESS
        )  # replaces `true` in the file of --config
    else:
        details.update(action="append", default=[], metavar=option.shown_metavar)
    parser.add_argument(option.flag, *option.aliases, dest=option.name, **details)


def options_from(
    args: argparse.Namespace,
    options: type[Options] = BuildOptions,  # type: ignore[assignment]
) -> Options:
    """Returns the options of the build from the parsed command line.

    Raises:
      UsageError: a value is missing or not allowed.
    """
    return options.of(**_given(args, options.declared().values()))


def command_options_from(args: argparse.Namespace) -> CommandOptions:
    """Returns the options of the command from the parsed command line.

    Raises:
      UsageError: a value is not allowed.
    """
    return CommandOptions(**_given(args, options_of(CommandOptions)))


def _given(args: argparse.Namespace, declared: Iterable[Option]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for option in declared:
        value = getattr(args, option.name)
        if value:
            given[option.name] = value if option.is_switch else option.parsed(value)
    return given


def check_beam_arguments(
    arguments: Sequence[str], given: Sequence[str] = (), command: Parser | None = None
) -> None:
    """Checks that Beam knows all of its arguments: it ignores a misspelt one silently.

    Args:
      arguments: the arguments that are not options of imageshards.
      given: the whole command line.
      command: the parser of the command; None: that of `build`.

    Raises:
      UsageError: neither imageshards nor Beam has such an option, or Beam has no such runner.
    """
    if "--runner=" in arguments or ("--runner", "") in pairwise(arguments):
        refuse("--runner is empty: name one, such as DataflowRunner, or omit the option")
    from apache_beam.options.pipeline_options import PipelineOptions

    beam = Parser(prog="imageshards build", add_help=False, allow_abbrev=False)
    for options in (PipelineOptions, *PipelineOptions.__subclasses__()):
        if adder := getattr(options, "_add_argparse_args", None):
            with suppress(argparse.ArgumentError):  # two of Beam's classes declare the same option
                adder(beam)
    unknown = beam.parse_known_args(list(arguments))[1]
    if not unknown:
        _check_runner(given_runner(arguments))
        return
    if command is None:
        check_stray(unknown, given)
        command = Parser(prog="imageshards build", add_help=False)
        add_options(command)
    if not unknown[0].startswith("-"):
        refuse(
            f"unexpected argument {unknown[0]!r}: specify one data set at a time "
            f"({command.prog} --help lists the options)"
        )
    refuse(
        f"unknown option {unknown[0]}{command.similar(unknown[0], DOCUMENTED)} ({command.prog} "
        "--help-all lists the options; those of Beam are accepted too)"
    )


def _check_runner(name: str) -> None:
    """Raises a UsageError if Beam has no runner of this name; it also accepts package.Class."""
    from difflib import get_close_matches

    from apache_beam.options.pipeline_options import StandardOptions

    from imageshards.transforms.elements import enumerated

    runners = StandardOptions.KNOWN_RUNNER_NAMES
    known = {runner.lower().removesuffix("runner"): runner for runner in runners}
    short = name.lower().removesuffix("runner")
    if not name or "." in name or short in known:
        return
    similar = get_close_matches(short, known, 1)
    hint = f"did you mean {known[similar[0]]}?" if similar else f"Beam has {enumerated(runners)}"
    refuse(f"unknown runner --runner={name}: {hint}")


def check_stray(arguments: Sequence[str], given: Sequence[str] = ()) -> None:
    """Checks that the first argument is an option.

    Args:
      arguments: arguments that are not declared.
      given: the whole command line.

    Raises:
      UsageError: it is a value without an option, such as an input without `--input`.
    """
    if not arguments or arguments[0].startswith("-"):
        return
    stray = [argument for argument in arguments if not argument.startswith("-")]
    first = stray[0]
    refuse(f"unexpected argument {first!r}{_stray_problem(first, stray, given)}")


def _stray_problem(first: str, stray: Sequence[str], given: Sequence[str]) -> str:
    """Returns what to write instead of arguments that belong to no option."""
    before = list(given[: given.index(first)]) if first in given else []
    option = next((with_underscores(a) for a in reversed(before) if a.startswith("-")), "")
    name, _, value = option.partition("=")
    taken = value or (before[-1] if before and not before[-1].startswith("-") else "")
    expanded = _as_pattern([taken, *stray] if name == "--input" else stray)
    if expanded:
        return (
            f" after {taken!r}: the shell has expanded a pattern; quote it: --input '{expanded}'"
            if name == "--input"
            else f": the shell has expanded a pattern; write --input and quote it: '{expanded}'"
        )
    if name == "--input":
        return (
            f": quote a pattern, and write --input before each input: --input {taken} --input "
            f"{first}"
        )
    declared = {o.flag: o for group in BuildOptions.command_line() for o in options_of(group)}
    if name in declared and declared[name].is_switch:
        return f": {name} takes no value"
    if name in declared:
        joined = f"{name} {taken}{declared[name].separator or ','}{first}"
        several = declared[name].separator or isinstance(declared[name].default, tuple)
        return f": {name} takes one value" + (f"; write {joined}" if several else "")
    if len(stray) == 2 and not {"--input", "--output"} & {a.partition("=")[0] for a in given}:
        return f"; did you mean --input {first} --output {stray[1]}?"
    return f"; did you mean --input {first}?"


def _as_pattern(paths: Sequence[str]) -> str:
    """Returns the pattern that a shell may have expanded to these paths; empty if none."""
    folders = {path.rpartition("/")[0] for path in paths}
    suffixes = {"".join(path.rpartition("/")[2].rpartition(".")[1:]) for path in paths}
    if len(paths) < _EXPANDED or len(folders) > 1:
        return ""
    suffix = suffixes.pop() if len(suffixes) == 1 and all("." in path for path in paths) else ""
    return "/".join(filter(None, [folders.pop(), f"*{suffix}"]))


_EXPANDED = 3
"""A person may write two paths after one option; three in one folder are a pattern's."""


def worker_processes(
    options: BuildOptions, command: CommandOptions, beam_arguments: Sequence[str]
) -> int | None:
    """Returns the number of processes that write shards besides the runner's.

    None: the build chooses it.

    Raises:
      UsageError: the runner has its own workers, or does not run this writer.
    """
    workers = None if command.workers == "auto" else int(command.workers)
    if options.execution.writer == "beam" and workers is not None:
        refuse("--workers requires --writer shard; with --writer beam the runner's workers write")
    if is_in_process(beam_arguments):
        return workers
    if workers is not None:
        refuse(
            "--workers is for the local runner in one process; other runners have their own "
            "workers (--direct_num_workers, --num_workers, ...)"
        )
    return 1


def waits(command: CommandOptions, beam_arguments: Sequence[str]) -> bool:
    """Returns whether the command waits for the end of the job.

    Raises:
      UsageError: --wait is set, but no job is started.
    """
    if not is_dataflow(beam_arguments):
        return True
    template = any(argument.startswith("--template_location") for argument in beam_arguments)
    if command.wait and template:
        refuse("--wait cannot be combined with --template_location: no job is started")
    return command.wait
