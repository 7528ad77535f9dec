"""The code blocks of Markdown documents."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        ROOT / "benchmarks/RESULTS.md",
        ROOT / "transforms/records/SCHEMAS.md",
        *ROOT.glob("launch/*/*.md"),
        *ROOT.glob("docs/**/*.md"),
    )
)
"""The documents of which the site consists, and README.md; paths below ROOT."""
LANGUAGES = ("bash", "python")
"""Blocks in these languages are run."""

_FENCE = re.compile(r"(?ms)^( *)```(\w*) *\n(.*?)^ *```$")
_DIRECTIVE = re.compile(r"<!-- (not run|file|output):? *((?:(?!-->).)*?) *-->\s*\Z", re.S)


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
      document: path below ROOT.
      line: number of its first line, from 1.
      language: the word after the fence.
      code: its text.
      directive: `not run`, `file` or `output`, from the comment before it; empty: none.
      argument: the text after the directive: a reason, or the name of a file.
    """

    document: Path
    line: int
    language: str
    code: str
    directive: str
    argument: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    def commands(self) -> list[list[str]]:
        """The words of each command of a shell block, up to a pipe or a redirection."""
        lines = self.code.replace("\\\n", " ").splitlines()
        commands = (shlex.split(line, comments=True) for line in lines)
        return [
            list(takewhile(lambda word: word not in "|>", words)) for words in commands if words
        ]


def blocks(document: Path) -> Iterator[Block]:
    """Yields the code blocks of a document, in order."""
    text = (ROOT / document).read_text()
    for fence in _FENCE.finditer(text):
        directive = _DIRECTIVE.search(text[: fence.start()])
        yield Block(
            document=document,
            line=text[: fence.start(3)].count("\n") + 1,
            language=fence[2],
            code=dedent(fence[3]),
            directive=directive[1] if directive else "",
            argument=" ".join(directive[2].split()) if directive else "",
        )
