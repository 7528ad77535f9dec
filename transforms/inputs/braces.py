"""Patterns with braces, as users of WebDataset write them: `shards-{00000..00099}.tar`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.inputs.files import File, Files, Folder, Pattern, SingleFile
from imageshards.transforms.inputs.kind import InputKind, ListingOptions, WorkUnit

_BRACES = re.compile(
    r"\{(?:(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?|([^{}]*,[^{}]*))\}"
)
_FILES_AT_A_TIME = 1000
_PATTERNS_LOOKED_AT = 16


def expand(text: str) -> Iterator[str]:
    """Yields the texts that a text with braces represents, as bash expands it.

    >>> list(expand("{a,b}-{08..10}.tar"))[1:4]
    ['a-09.tar', 'a-10.tar', 'b-08.tar']
    """
    found = _BRACES.search(text)
    if not found:
        yield text
        return
    for choice in _choices(found):
        yield from expand(text[: found.start()] + choice + text[found.end() :])


def _choices(braces: re.Match[str]) -> Sequence[str] | Iterator[str]:
    first, last, step, names = braces.groups()
    if names is not None:
        return names.split(",")
    if first.isalpha() != last.isalpha():
        raise BuildError(f"{braces[0]}: a range is of numbers or of letters")
    if first.isalpha():
        return map(chr, _range(ord(first), ord(last), step))
    padded = any(re.match("-?0.", end) for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return (f"{number:0{width}d}" for number in _range(int(first), int(last), step))


def _range(first: int, last: int, step: str | None) -> range:
    size = abs(int(step or 1)) or 1
    return range(first, last + 1, size) if first <= last else range(first, last - 1, -size)


class Braces(Pattern):
    """A pattern with braces. Each file that it names must exist."""

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a URI holds braces with a range or with a comma."""
        return _BRACES.search(uri) is not None

    @property
    def root(self) -> str:
        """The last folder before the first brace or wildcard."""
        first = re.search(r"[{*?\[]", self.uri)
        assert first
        return self.uri[: self.uri.rindex("/", 0, first.start()) + 1]

    @property
    def _name_divisions(self) -> int:
        return 0

    def holds(self, folder: str) -> bool:
        """Whether one of the patterns or folders holds it."""
        return any(self._expanded(uri).holds(folder) for uri in expand(self.uri))

    def files(self, part: tuple[Any, ...], options: ListingOptions) -> Iterator[File | WorkUnit]:
        """Yields the files, and those below folders.

        Raises:
          BuildError: a file does not exist.
        """
        root_length, whole = len(self.root), replace(options, divide=False)
        uris = expand(self.uri)
        while some := list(islice(uris, _FILES_AT_A_TIME)):
            for uri, (size, stamp) in zip(some, storage.stats(some), strict=True):
                found = self._expanded(uri)
                if not isinstance(found, Files):
                    if size < 0:
                        raise BuildError(f"--input {self.text}: {uri}: no such file")
                    yield uri, root_length, size, stamp, False
                    continue
                for file in found.files((), whole):
                    assert not isinstance(file, WorkUnit)
                    yield file[0], root_length, *file[2:]

    def _first_files(self) -> Iterator[str]:
        """Yields the files; of an object store, those of the first patterns among them."""
        if storage.is_local(self.uri):
            yield from super()._first_files()
            return
        requests = 0
        for uri in expand(self.uri):
            if not Pattern.recognizes(uri):
                yield uri
            elif requests < _PATTERNS_LOOKED_AT:
                yield from (found for found, *_ in storage.match_first(uri))
                requests += 1

    def _expanded(self, uri: str) -> InputKind:
        if storage.is_local(uri) and os.path.isdir(uri):
            return Folder(self.text, uri)
        is_file = storage.is_local(uri) and os.path.lexists(uri)
        kind = Pattern if Pattern.recognizes(uri) and not is_file else SingleFile
        return kind(self.text, uri)
