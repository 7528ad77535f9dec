"""Glob patterns as regular expressions, for stores that list by prefix."""

from __future__ import annotations

import re

_WILDCARD = re.compile(r"[*?\[]")
_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


def fixed_prefix(pattern: str) -> str:
    """Returns the part of a pattern before its first wildcard.

    >>> fixed_prefix("photos/class*/**.jpg")
    'photos/class'
    """
    wildcard = _WILDCARD.search(pattern)
    return pattern[: wildcard.start()] if wildcard else pattern


def regex(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern; match whole names with `fullmatch`.

    `*` and `?` match no `/`, `**` matches anything, and `**/` also matches no folder at all.

    >>> bool(regex("photos/**/*.jpg").fullmatch("photos/1.jpg"))
    True
    """
    parts = []
    for token in _TOKEN.findall(pattern):
        if token == "**/":
            parts.append("(?:.*/)?")
        elif token == "**":
            parts.append(".*")
        elif token in ("*", "?"):
            parts.append("[^/]*" if token == "*" else "[^/]")
        elif len(token) > 1:
            inner = token[1:-1].replace("\\", r"\\").replace("[", r"\[")
            parts.append(f"[^{inner[1:]}]" if inner[0] == "!" else f"[{inner}]")
        else:
            parts.append(re.escape(token))
    return re.compile("".join(parts), re.DOTALL)
