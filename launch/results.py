"""The names that commands print with `--json`: the attributes of their results, for the help."""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from imageshards.launch.commands import Command

_ATTRIBUTE = re.compile(r"(?m)^  (\w+): ((?:.+\n?)(?:    .+\n?)*)")


def names_of(command: Command) -> dict[str, dict[str, str]]:
    """Returns kind of result -> name -> meaning, as the docstrings of the results have them."""
    return {
        title: {name: text for path in classes for name, text in _attributes(path).items()}
        for title, classes in command.results
    }


def described(command: Command) -> str:
    """Returns the paragraphs of the complete help about the names."""
    blocks = []
    for title, names in names_of(command).items():
        of = f" of {title}" if title else ""
        rows = [
            textwrap.fill(f"{name}: {text}", 80, initial_indent="  ", subsequent_indent="    ")
            for name, text in names.items()
        ]
        blocks.append("\n".join([f"names in the JSON{of}:", *rows]))
    return "\n" + "\n\n".join(blocks) + "\n"


@cache
def _attributes(path: str) -> dict[str, str]:
    """Returns the attributes in the docstring of a class, whose module may import Beam."""
    module, _, name = path.rpartition(".")
    spec = find_spec(f"imageshards.{module}")
    tree = ast.parse(Path(str(spec and spec.origin)).read_bytes())
    found = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    _, _, attributes = (ast.get_docstring(found) or "").partition("Attributes:\n")
    section = attributes.partition("\n\n")[0]
    return {match[1]: " ".join(match[2].split()) for match in _ATTRIBUTE.finditer(section)}
