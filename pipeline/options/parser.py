"""The command line of `imageshards build`, made from the declarations of the options."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from imageshards.pipeline.options.beam_arguments import (
    is_dataflow,
    is_in_process,
    runner_of,
    unknown_to_beam,
)
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import Option, options_of
from imageshards.pipeline.options.groups import CommandOptions
from imageshards.transforms.elements import UsageError

Options = TypeVar("Options", bound=BuildOptions)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises errors as one line."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError, and does not print the usage of fifty options."""
        raise UsageError(f"{message} ({self.prog} --help lists the options)")

    def similar(self, option: str, others: Parser | None = None) -> str:
        """A question whether a similar option was meant; empty if there is none.

        Args:
          option: the unknown argument.
          others: a parser with further options.
        """
        parsers = [self, *([others] if others else [])]
        known = [name for parser in parsers for name in parser._option_string_actions]
        similar = difflib.get_close_matches(option.partition("=")[0], known, 1)
        return f", did you mean {similar[0]}?" if similar else ""


def add_options(
    parser: argparse.ArgumentParser, options: type[BuildOptions] = BuildOptions
) -> None:
    """Adds the options of a build and of its command to a parser."""
    for group in options.command_line():
        added = parser.add_argument_group(group.title)
        for option in options_of(group):
            _add(added, option)


def _add(parser: argparse._ArgumentGroup, option: Option) -> None:
    details: dict[str, Any] = {"help": option.description.replace("%", "%%")}
    if option.is_switch:
        details["action"] = "store_true"
    else:
        details.update(action="append", default=[], metavar=option.metavar)
    parser.add_argument(option.flag, *option.aliases, dest=option.name, **details)


def options_from(
    args: argparse.Namespace,
    options: type[Options] = BuildOptions,  # type: ignore[assignment]
) -> Options:
    """The options of the build from the parsed command line.

    Raises:
      UsageError: a value is missing or not allowed.
    """
    return options.of(**_given(args, options.declared().values()))


def command_options_from(args: argparse.Namespace) -> CommandOptions:
    """The options of the command from the parsed command line.

    Raises:
      UsageError: a value is not allowed.
    """
    return CommandOptions(**_given(args, options_of(CommandOptions)))


def _given(args: argparse.Namespace, declared: Any) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for option in declared:
        value = getattr(args, option.name)
        if value:
            given[option.name] = value if option.is_switch else option.parsed(value)
    return given


def check_beam_arguments(arguments: Sequence[str]) -> None:
    """Checks that Beam knows all of its arguments: it ignores a misspelt one silently.

    Raises:
      UsageError: neither imageshards nor Beam has such an option.
    """
    beam = Parser(prog="imageshards build", add_help=False, allow_abbrev=False)
    unknown = unknown_to_beam(arguments, beam)
    if not unknown:
        return
    check_no_input(unknown)
    ours = Parser(add_help=False)
    add_options(ours)
    raise UsageError(
        f"unknown option {unknown[0]}{beam.similar(unknown[0], ours)} (imageshards build --help "
        "lists the options; those of Beam are accepted too)"
    )


def check_no_input(arguments: Sequence[str]) -> None:
    """Checks that the first argument is an option.

    Raises:
      UsageError: it is a value; inputs need `--input`.
    """
    if arguments and not arguments[0].startswith("-"):
        first = arguments[0]
        raise UsageError(f"unexpected argument {first!r}; did you mean --input {first}?")


def worker_processes(
    options: BuildOptions, command: CommandOptions, beam_arguments: Sequence[str]
) -> int | None:
    """The number of processes that write shards besides the runner's; None: chosen by the build.

    Raises:
      UsageError: the runner has its own workers, or does not run this writer.
    """
    workers = None if command.workers == "auto" else int(command.workers)
    if options.execution.writer == "beam":
        if workers is not None:
            raise UsageError(
                "--workers requires --writer shard; with --writer beam the runner's workers write"
            )
        if runner_of(beam_arguments) == "PrismRunner":
            raise UsageError(
                "--writer beam does not work on Prism, which stops responding; use --writer shard"
            )
    if is_in_process(beam_arguments):
        return workers
    if workers is not None:
        raise UsageError(
            "--workers is for the local runner in one process; other runners have their own "
            "workers (--direct_num_workers, --num_workers, ...)"
        )
    return 1


def waits(command: CommandOptions, beam_arguments: Sequence[str]) -> bool:
    """Whether the command waits for the end of the job.

    Raises:
      UsageError: no job is started that it could wait for.
    """
    if not is_dataflow(beam_arguments):
        return True
    template = any(argument.startswith("--template_location") for argument in beam_arguments)
    if command.wait and template:
        raise UsageError("--wait cannot be combined with --template_location: no job is started")
    return command.wait
