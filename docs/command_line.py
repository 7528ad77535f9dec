"""Writes docs/reference/command_line.md, from the declarations of options and commands.

    .venv/bin/python docs/command_line.py

replaces the text between the marked lines: the table of commands, the options of `build`, and the
arguments of the other commands.
"""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action
from pathlib import Path

from imageshards.launch.commands import COMMANDS
from imageshards.pipeline.options import documents
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.parser import Parser

PAGE = Path(__file__).parent / "reference/command_line.md"


def overview() -> str:
    """Returns a table of all commands."""
    rows = "".join(f"| [`{name}`](#{name}) | {_help(name)} |\n" for name in COMMANDS)
    return f"\n| command | what it does |\n|---|---|\n{rows}\n"


def sections() -> str:
    """Returns a section for each command but `build`: its help, its usage and its arguments."""
    return "\n" + "\n".join(_section(name) for name in COMMANDS if name != "build") + "\n"


def _section(name: str) -> str:
    command = COMMANDS[name]
    parser = Parser(prog=f"imageshards {name}", add_help=False)
    command.declare(parser)
    actions = [action for action in parser._actions if action.help != SUPPRESS]
    of_build = {option.flag for option in BuildOptions.declared().values()}
    takes_them = of_build <= {flag for action in actions for flag in action.option_strings}
    if takes_them:
        groups = [group.title for group in BuildOptions.command_line()]
        own = [group for group in parser._action_groups if group.title not in groups]
        actions = [action for group in own for action in group._group_actions]
    words = [f"[{_name(a)}]" if _is_optional(a) else _name(a) for a in actions]
    usage = " ".join(["imageshards", name, *words, *["[options of build]"] * takes_them])
    text = command.description or f"{_help(name)}."
    rows = "".join(f"| {_cell(action)} | {_text(action)} |\n" for action in actions)
    table = f"\n| argument | what it does |\n|---|---|\n{rows}" if rows else ""
    block = f"<!-- not run: the usage -->\n```text\n{usage}\n```\n"
    return f"### {name}\n\n{_escaped(text)}\n\n{block}{table}"


def _help(name: str) -> str:
    text = COMMANDS[name].help
    return text[0].upper() + text[1:]


def _is_optional(action: Action) -> bool:
    return action.nargs in ("?", "*") or not action.required


def _name(action: Action) -> str:
    if action.nargs == 0:
        return action.option_strings[-1]
    value = action.metavar or "|".join(map(str, action.choices or ()))
    value = f"{value} ..." if action.nargs == "*" else value
    return " ".join([*action.option_strings[-1:], str(value)])


def _cell(action: Action) -> str:
    return "`" + _name(action).replace("|", r"\|") + "`"


def _text(action: Action) -> str:
    text = (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default))
    return _escaped(text[:1].upper() + text[1:])


def _escaped(text: str) -> str:
    return re.sub(r"[\\*|]", r"\\\g<0>", text)


def rewritten(text: str) -> str:
    """Returns a document in which the marked lines are replaced."""
    text = documents.rewritten(text)
    for name, made in (("overview", overview()), ("commands", sections())):
        marked = re.compile(rf"(?m)(^.*{name}:begin.*\n)(?s:.*?)(^.*{name}:end)")
        text = marked.sub(lambda marks, made=made: marks[1] + made + marks[2], text)
    return text


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
