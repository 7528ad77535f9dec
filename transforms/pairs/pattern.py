"""Patterns of paths, such as `masks/{stem}.png`, that lead from an image to another file. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

FIELDS = {"dir": r"[^\0]*", "name": r"[^/\0]+", "stem": r"[^/\0]*", "suffix": r"(?:\.[^/.\0]*)?"}
"""Name of a field -> the regular expression of its values."""
_FIELD = re.compile(r"\{([^{}]*)\}")
_ABSOLUTE = re.compile("[/~]|[a-zA-Z][a-zA-Z0-9+.-]*://")


@dataclass(frozen=True)
class PathPattern:
    """The path of a file that belongs to an image, with fields for parts of the image's name.

    Of the image `train/cat/1.jpg`, {dir} is `train/cat`, {name} is `1.jpg`, {stem} is `1` and
    {suffix} is `.jpg`. A path that is not absolute begins where the image's name begins.

    Attributes:
      text: the pattern.
      base: the folder of `--base_uri`, where names of images below it begin; empty: none.

    >>> PathPattern("../masks/{dir}/{stem}.png").uri("/data/photos/", "cat/1.jpg")
    '/data/masks/cat/1.png'
    """

    text: str
    base: str = ""

    @classmethod
    def parse(cls, option: str, text: str, base: str = "") -> PathPattern:
        """Parses a pattern.

        Raises:
          ValueError: a field is unknown, or all images would have the same file.
        """
        fields = _FIELD.findall(text)
        known = ", ".join(f"{{{name}}}" for name in FIELDS)
        for name in fields:
            if name not in FIELDS:
                raise ValueError(f"{option} {text!r}: there is no {{{name}}}; write {known}")
        if not {"name", "stem"} & set(fields):
            raise ValueError(
                f"{option} {text!r}: all images would have the same file: write {{stem}} or "
                "{name}"
            )
        return cls(text, base)

    def uri(self, root: str, name: str) -> str:
        """Returns the URI of the file of an image.

        Args:
          root: the beginning of the image's URI, before its name.
          name: the image's name.
        """
        folder, _, file = name.rpartition("/")
        stem, dot, suffix = file.rpartition(".")
        if not stem:  # a file without suffix, or one that is hidden
            stem, dot, suffix = file, "", ""
        values = {"dir": folder, "name": file, "stem": stem, "suffix": dot + suffix}
        start, text = self._split(root)
        if not folder:
            text = text.replace("{dir}/", "")
        return start + _FIELD.sub(lambda field: values[field[1]], text)

    def matches(self, uri: str, root: str) -> bool:
        """Returns whether a URI is that of the file of some image.

        Args:
          uri: the URI.
          root: the beginning of the URI that would be no part of an image's name.
        """
        if self.base and uri.startswith(self.base):
            root = self.base
        return _compiled(*self._split(root)).fullmatch(uri) is not None

    def _split(self, root: str) -> tuple[str, str]:
        """Returns a folder without fields, and the rest of the pattern."""
        text = self.text
        if _ABSOLUTE.match(text):
            return "", text
        while text.startswith(("../", "./")):
            if text.startswith("../"):
                root = root[: root.rstrip("/").rfind("/") + 1]
            text = text.partition("/")[2]
        return root, text


@lru_cache(maxsize=256)
def _compiled(start: str, text: str) -> re.Pattern[str]:
    parts = [re.escape(start)]
    at = 0
    for field in _FIELD.finditer(text):
        parts.append(re.escape(text[at : field.start()]))
        at = field.end()
        if field[1] == "dir" and text[at : at + 1] == "/":
            parts.append(r"(?:[^\0]*/)?")
            at += 1
        else:
            parts.append(FIELDS[field[1]])
    return re.compile("".join([*parts, re.escape(text[at:])]))
