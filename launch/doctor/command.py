"""The command: collects the findings, and prints them as a table or as JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from itertools import groupby
from typing import Any, NamedTuple

from imageshards.launch.doctor.finding import Finding, Status
from imageshards.launch.terminal import add_common, complain, say

_MARKS: Mapping[Status, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "note": ("-", "dim"),
    "warning": ("!", "yellow"),
    "problem": ("x", "red"),
}
"""Status -> (mark, colour)."""


class Report(NamedTuple):
    """What the doctor found.

    Attributes:
      ok: whether there is no problem.
      sections: title -> findings, each with name, status (ok, note, warning or problem), value and
        advice.
    """

    ok: bool
    sections: dict[str, list[dict[str, Any]]]


def declare(parser: ArgumentParser) -> None:
    """Adds the arguments of the command to a parser."""
    parser.add_argument(
        "uris", nargs="*", metavar="URI",
        help="Folders, files or patterns, such as gs://BUCKET/photos: whether they can be listed",
    )  # fmt: skip
    parser.add_argument(
        "--output", default="", metavar="DIR",
        help="Folder whose free space counts (default: the working directory)",
    )  # fmt: skip
    add_common(parser)


def run(args: Namespace) -> int:
    """Runs all checks, prints what they find; returns 1 if there is a problem, else 0."""
    with suppress(ImportError):  # the checks report which package is missing
        from imageshards.transforms import storage

        storage.bill(args.billing_project)
    sections = {title: _all(found) for title, found in _checks(args.uris, args.output)}
    problems = [one for found in sections.values() for one in found if one.status == "problem"]
    if args.json:
        shown = {name: [asdict(one) for one in found] for name, found in sections.items()}
        say(json.dumps(Report(not problems, shown)._asdict()))
    elif args.quiet:
        for problem in problems:
            complain(f"{problem.name}: {problem}", 1)
    else:
        say(_table(sections))
        say(_verdict(sections, len(problems)))
    return 1 if problems else 0


def _checks(uris: Sequence[str], output: str) -> Iterator[tuple[str, Iterator[Finding]]]:
    yield "Versions", _check("packages", "versions")
    yield "Extras", _check("packages", "installed_extras")
    yield "Decoders", _check("packages", "decoders")
    yield "Machine", _check("machine", "machine", output)
    yield "Google Cloud", _check("cloud", "credentials")
    yield "Amazon S3", _check("clouds", "amazon")
    yield "Azure", _check("clouds", "azure")
    yield "Network", _check("cloud", "network")
    yield "URIs", _check("cloud", "stores", uris)


def _check(module: str, name: str, *arguments: Any) -> Iterator[Finding]:
    """Yields the findings of a check, which is imported only then: `_all` reports a failure."""
    found = import_module(f"imageshards.launch.doctor.{module}")
    yield from getattr(found, name)(*arguments)


def _all(check: Iterator[Finding]) -> list[Finding]:
    """Returns all findings; an unexpected error of the check is the last one."""
    found: list[Finding] = []
    try:
        found.extend(check)  # keeps those before an error
    except Exception as error:  # an installation may be broken in any way
        found.append(Finding("doctor", "problem", f"{type(error).__name__}: {error}"))
    return found


def _verdict(sections: Mapping[str, Sequence[Finding]], problems: int) -> str:
    from imageshards.transforms.elements import counted

    if problems:
        return f"{counted(problems, 'problem')}, marked x"
    warnings = sum(one.status == "warning" for found in sections.values() for one in found)
    return f"no problems, {counted(warnings, 'warning')}" if warnings else "no problems"


def _table(sections: Mapping[str, Sequence[Finding]]) -> str:
    """Returns the findings as text, with colours if stdout is a terminal."""
    import io

    names = max(len(one.name) for found in sections.values() for one in found if len(one.name) < 30)
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # it is one of the packages that the doctor looks for
        return _plain_table(sections, names)

    terminal = sys.stdout.isatty()
    out = io.StringIO()
    # Lines of a file or a pipe are not wrapped.
    width = shutil.get_terminal_size().columns if terminal else 1000
    console = Console(
        file=out, force_terminal=terminal, width=width, highlight=False,
        no_color="NO_COLOR" in os.environ or None,
    )  # fmt: skip
    for title, found in sections.items():
        if not found:
            continue
        console.print(Text(title, "bold"))
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=4, justify="right")
        grid.add_column(min_width=names, overflow="fold")
        grid.add_column(overflow="fold")
        for (status, text), same in groupby(found, lambda one: (one.status, str(one))):
            equal = [one.name for one in same]
            # What several findings have in common is written once: "decoded   JPEG, PNG".
            name, value = (text, ", ".join(equal)) if len(equal) > 1 else (equal[0], text)
            mark, style = _MARKS[status]
            grid.add_row(Text(mark, style), Text(name), Text(value))
        console.print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _plain_table(sections: Mapping[str, Sequence[Finding]], names: int) -> str:
    lines = []
    for title, found in sections.items():
        lines += [title] * bool(found)
        lines += [f"{_MARKS[one.status][0]:>4} {one.name:<{names}} {one}" for one in found]
    return "\n".join(lines) + "\n"
