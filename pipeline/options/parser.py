"""The argument parser of all commands. It imports little, so that `--help` is fast."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

_MISSING = "the following arguments are required: "
_HELP = ("-h", "--help")
_HELP_ALL = ("--help-all", "--help_all")
_MOST_COLUMNS = 100
_WIDEST_NAME = 24


def refuse(message: str) -> NoReturn:
    """Raises a UsageError; modules that `--help` imports do not import its module."""
    from imageshards.transforms.elements import UsageError

    raise UsageError(message) from None


def with_underscores(argument: str) -> str:
    """Returns an argument with the name of its option in the declared spelling.

    >>> with_underscores("--num-shards=train=8"), with_underscores("train-8")
    ('--num_shards=train=8', 'train-8')
    """
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def closest(word: str, names: Iterable[str], others: Iterable[str] = ()) -> str:
    """Returns the name that is most similar to a word; empty if none is similar.

    Args:
      word: a misspelt name. Dashes at its beginning, and its case, are not compared.
      names: the names.
      others: names that are chosen only if they are clearly more similar.
    """
    from difflib import SequenceMatcher

    def similarity(name: str) -> float:
        begins = _PREFIX if _bare(name).startswith(_bare(word)) else 0
        return SequenceMatcher(None, _bare(word), _bare(name)).ratio() + begins

    rated = [(similarity(name), name) for name in names]
    rated += [(similarity(name) - _DISADVANTAGE, name) for name in others]
    rating, name = max(rated, default=(0.0, ""))
    return name if rating >= _SIMILAR else ""


def expected(value: object, choices: Iterable[object]) -> str:
    """Returns what is expected instead of a value, for messages.

    >>> expected("ful", ["full", "header"])
    'expected full or header; did you mean full?'
    """
    from imageshards.transforms.elements import alternatives

    names = list(map(str, choices))
    similar = closest(str(value), names)
    hint = f"; did you mean {similar}?" if similar else ""
    return f"expected {alternatives(names)}{hint}"


_SIMILAR = 0.6
_DISADVANTAGE = 0.1
_PREFIX = 0.2


def _bare(name: str) -> str:
    return name.lower().lstrip("-").replace("-", "_")


def wants_help(arguments: Sequence[str]) -> str:
    """Returns which help the arguments request: "short", "all", or "" for none."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if any(argument in _HELP_ALL for argument in options):
        return "all"
    return "short" if any(argument in _HELP for argument in options) else ""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with a short and a complete help, whose errors are one line.

    Names of options may have dashes for underscores.

    Attributes:
      briefs: destination -> text in the short help; options with an empty text are only in the
        complete help. Arguments that are not in it have one text for both.
      more: a paragraph about the complete help, at the end of the short one.
    """

    def __init__(self, *args: Any, **details: Any) -> None:
        super().__init__(*args, **details)
        self.briefs: dict[str, str] = {}
        self.more = ""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses arguments; returns the values, and the arguments that are not declared."""
        if args is not None:
            end = args.index("--") if "--" in args else len(args)
            args = [*map(with_underscores, args[:end]), *args[end:]]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises a UsageError."""
        message = message.removeprefix("argument ").replace("one argument", "a value")
        if (missing := message.removeprefix(_MISSING)) != message:
            message = f"missing {missing}"
        option = "--help-all" if self.briefs else "--help"
        refuse(f"{message} ({self.prog} {option} lists the options)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[0] if action.option_strings else action.metavar
            message = f"invalid {name} {value!r}: {expected(value, action.choices)}"
            raise argparse.ArgumentError(None, message)

    def similar(self, option: str, others: Iterable[str] = ()) -> str:
        """Returns a question that suggests a similar option; empty if there is none.

        Args:
          option: the unknown argument.
          others: names of further options, which are suggested if they are clearly more similar.
        """
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        names = [name for action in shown for name in action.option_strings if name[:2] == "--"]
        name = closest(option.partition("=")[0], names, others)
        return f", did you mean {name}?" if name else ""

    def format_help(self, *, complete: bool = True) -> str:
        """Returns the help.

        Args:
          complete: whether it has all options; otherwise those with a short text in `briefs`.
        """
        columns = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
        groups = {
            str(group.title): [
                (_invocation(action, complete=complete), self._text(action, complete=complete))
                for action in group._group_actions
                if self._is_shown(action, complete=complete)
            ]
            for group in self._action_groups
        }
        names = [name for rows in groups.values() for name, _ in rows]
        widest = max((len(name) for name in names if len(name) <= _WIDEST_NAME), default=0)
        blocks = [[self._usage()], _wrapped(self.description or "", columns)]
        for title, rows in groups.items():
            if rows:
                lines = [line for row in rows for line in _row(*row, widest + 4, columns)]
                blocks.append([f"{_TITLES.get(title, title)}:", *lines])
        if self.more and not complete:
            blocks.append(_wrapped(self.more, columns))
        blocks.append(_wrapped(self.epilog or "", columns))
        return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"

    def _is_shown(self, action: argparse.Action, *, complete: bool) -> bool:
        if action.help == argparse.SUPPRESS or action.dest == "help":
            return False
        return complete or bool(self.briefs.get(action.dest, True))

    def _text(self, action: argparse.Action, *, complete: bool) -> str:
        if not complete and (brief := self.briefs.get(action.dest)):
            return brief
        return self._get_formatter()._expand_help(action) if action.help else ""

    def _usage(self) -> str:
        if self.usage:
            return f"usage: {self.usage}"
        needed = [
            _invocation(action)
            for action in self._actions
            if action.required and action.nargs != "*" and action.help != argparse.SUPPRESS
        ]
        positional = [
            f"[{action.metavar}{' ...' if action.nargs == '*' else ''}]"
            for action in self._actions
            if not action.option_strings and action.nargs in ("?", "*")
        ]
        return " ".join(["usage:", self.prog, *needed, *positional, "[OPTION ...]"])


_TITLES = {"positional arguments": "arguments"}


def _invocation(action: argparse.Action, *, complete: bool = False) -> str:
    """An argument as help shows it, such as `--labels RULE`; if complete, with all its names."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    names = ", ".join(action.option_strings if complete else action.option_strings[:1])
    metavar = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    if action.nargs != 0 and not metavar:
        metavar = action.dest.upper()
    return f"{names} {metavar}" if metavar and action.nargs != 0 else names


def _row(name: str, text: str, indent: int, columns: int) -> Iterator[str]:
    lines = _wrapped(text, max(columns - indent, 20)) or [""]
    if len(name) > indent - 4:
        yield f"  {name}"
    else:
        yield f"  {name}".ljust(indent) + lines.pop(0)
    for line in lines:
        yield " " * indent + line


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, break_on_hyphens=False, break_long_words=False)
