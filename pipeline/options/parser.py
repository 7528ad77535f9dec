"""The argument parser of all commands. It imports little, so that `--help` is fast."""

from __future__ import annotations

import argparse
from typing import NoReturn


def refuse(message: str) -> NoReturn:
    """Raises a UsageError; modules that `--help` imports do not import its module."""
    from imageshards.transforms.elements import UsageError

    raise UsageError(message) from None


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, without the usage of fifty options."""

    def error(self, message: str) -> NoReturn:
        """Raises a UsageError."""
        refuse(f"{message} ({self.prog} --help lists the options)")

    def similar(self, option: str, *others: Parser) -> str:
        """Returns a question that suggests a similar option; empty if there is none.

        Args:
          option: the unknown argument.
          *others: parsers with further options.
        """
        from difflib import get_close_matches

        known = [name for parser in (self, *others) for name in parser._option_string_actions]
        similar = get_close_matches(option.partition("=")[0], known, 1)
        return f", did you mean {similar[0]}?" if similar else ""
