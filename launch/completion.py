"""Scripts that complete the command line in bash, zsh and fish, made by shtab."""

from __future__ import annotations

import argparse

import shtab

from imageshards.launch.commands import COMMANDS
from imageshards.pipeline.options.beam_arguments import DOCUMENTED, RUNNERS
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import options_of
from imageshards.pipeline.options.parser import Parser

_FILES = {"DIR": shtab.DIRECTORY, "NEW": shtab.DIRECTORY, "FILE": shtab.FILE}
_MOST_CHARACTERS = 70


def script(shell: str) -> str:
    """Returns the script for a shell, which needs no Python to complete.

    Args:
      shell: "bash", "zsh" or "fish".
    """
    root = Parser(prog="imageshards", allow_abbrev=False)
    added = root.add_subparsers(dest="command", parser_class=Parser)
    for name, command in COMMANDS.items():
        parser: Parser = added.add_parser(name, help=command.help, allow_abbrev=False)
        command.declare(parser)
        for action in parser._actions:
            _prepare(action, parser.briefs.get(action.dest, ""))
        if parser.briefs:
            parser.add_argument("--help-all", action="help", help="Show all options")
        if command.takes_beam_arguments or command.runs_on_beam:
            for option in DOCUMENTED:
                choices = RUNNERS if option == "--runner" else None
                parser.add_argument(option, choices=choices, help="Option of Beam")
    return shtab.complete(root, shell).rstrip("\n")


def _prepare(action: argparse.Action, brief: str) -> None:
    """Gives an action short help, the choices of its option, and the kind of its files."""
    if action.help and action.help != argparse.SUPPRESS:
        first = brief or action.help.partition(";")[0].partition(" (")[0]
        action.help = first[:_MOST_CHARACTERS].replace("%", "%%")
    option = _DECLARED.get(action.dest) if action.option_strings else None
    if action.dest == "topic":
        action.choices = list(COMMANDS)
    elif option and option.allowed:
        action.choices = list(map(str, option.allowed))
    elif (option and option.is_uri) or "SHARD" in str(action.metavar):
        kind = shtab.DIRECTORY if action.dest == "output" else shtab.FILE
        action.complete = kind  # type: ignore[attr-defined]
    elif str(action.metavar) in _FILES:
        action.complete = _FILES[str(action.metavar)]  # type: ignore[attr-defined]


_DECLARED = {
    option.name: option for group in BuildOptions.command_line() for option in options_of(group)
}
