"""What all commands share: output on stdout, one-line errors on stderr, common arguments."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError

TYPE_CHECKING = False  # type checkers recognize the name; importing typing takes 8 ms
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, TextIO

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def complain(message: str, code: int) -> int:
    """Prints an error as one line, with control characters escaped, and returns the exit code."""
    prefix = _colored("imageshards:", _RED, sys.stderr)
    print(f"{prefix} {message.translate(_CONTROL)}", file=sys.stderr)
    return code


def interrupted(*, resumes: bool) -> int:
    """Prints that the command was interrupted, and returns the exit code.

    Args:
      resumes: whether the same command resumes it.
    """
    return complain(f"interrupted{'; run the same command again to resume' * resumes}", 130)


def warn(message: str) -> None:
    """Prints a warning as one line, with control characters escaped."""
    prefix = f"imageshards: {_colored('warning:', _YELLOW, sys.stderr)}"
    print(f"{prefix} {message.translate(_CONTROL)}", file=sys.stderr)


_RED, _YELLOW = 31, 33


def _colored(text: str, color: int, stream: TextIO) -> str:
    """Returns a text in a color of ANSI, if the stream is a terminal that shows colors."""
    shows = stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    return f"\x1b[{color}m{text}\x1b[0m" if shows else text


def show(result: Any, *, json: bool, quiet: bool = False) -> int:
    """Prints a result as text or as one line of JSON, and returns the exit code 0.

    Args:
      result: what to print.
      json: whether to print it as JSON.
      quiet: whether to print it only as JSON; its warnings go to stderr then.

    Raises:
      StoreError: see `say`.
    """
    warnings: Sequence[str] = getattr(result, "warnings", ())
    if json:
        say(result.to_json())
    elif not quiet:
        say("\n".join(_lines(str(result), warnings)))
    for warning in warnings if quiet else ():
        warn(warning)
    return 0


def _lines(text: str, warnings: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a result; on a terminal they are wrapped, and warnings are colored."""
    import shutil
    import textwrap

    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in text.splitlines():
        color = _YELLOW if line.strip() in warnings else 0
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        wrapped = (
            textwrap.wrap(
                line,
                columns,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            if columns
            else [line]
        )
        for part in wrapped or [""]:
            yield _colored(part, color, sys.stdout) if color else part


def say(text: object) -> None:
    """Prints a line, or several, of a command's result; all commands print theirs here.

    Raises:
      StoreError: stdout cannot be written, such as a file on a full disk.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        from imageshards.transforms.storage import StoreError

        reason = f"the result cannot be written to stdout: {error.strerror}"
        raise StoreError(reason) from error


def count(text: str) -> int:
    """Parses a number from 0.

    Raises:
      ArgumentTypeError: the text is not such a number.
    """
    if not text.isdecimal():
        raise ArgumentTypeError(f"expected a number from 0, not {text!r}")
    return int(text)


_FACTORS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}


def large_count(text: str) -> int:
    """Parses a number from 0, which may be written in thousands, millions or billions.

    >>> large_count("100M"), large_count("1.28M"), large_count("5B"), large_count("2500")
    (100000000, 1280000, 5000000000, 2500)

    Raises:
      ArgumentTypeError: the text is not such a number.
    """
    found = re.fullmatch(r"([0-9]{1,20})(?:\.([0-9]{1,9}))?([kKMB]?)", text)
    whole, part, unit = found.groups("") if found else ("0", "1", "")
    size: int = 10 ** len(part)
    number, rest = divmod(int(whole + part) * _FACTORS[unit], size)
    if rest:
        raise ArgumentTypeError(f"expected a number such as 2500, 10k, 1.28M or 5B, not {text!r}")
    return number


def add_common(parser: ArgumentParser, *, json: bool = True) -> None:
    """Adds the common options: `--json` and `--quiet` only if there is a result to print."""
    parser.add_argument(
        "--billing_project", default="", metavar="PROJECT",
        help="Google Cloud project that pays for the requests, as buckets with Requester Pays "
        "require",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="Show tracebacks")
    if json:
        parser.add_argument("--json", action="store_true", help="Print the result as JSON")
        parser.add_argument("--quiet", action="store_true", help="Print only errors and warnings")
