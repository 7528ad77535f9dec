"""What all commands share: output on stdout, one-line errors on stderr, common arguments."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError

TYPE_CHECKING = False  # type checkers recognize the name; importing typing takes 8 ms
if TYPE_CHECKING:
    from typing import Any

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def complain(message: str, code: int) -> int:
    """Prints an error as one line, with control characters escaped, and returns the exit code."""
    print(f"imageshards: {message.translate(_CONTROL)}", file=sys.stderr)
    return code


def show(result: Any, *, json: bool) -> int:
    """Prints a result as text or as one line of JSON, and returns the exit code 0.

    Raises:
      StoreError: see `say`.
    """
    say(result.to_json() if json else result)
    return 0


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


def add_common(parser: ArgumentParser, *, json: bool = True) -> None:
    """Adds `--billing_project`, `--verbose` and, if there is a result to print, `--json`."""
    parser.add_argument(
        "--billing_project", default="", metavar="PROJECT",
        help="Google Cloud project that pays for the requests, as buckets with Requester Pays "
        "require",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show tracebacks")
    if json:
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
