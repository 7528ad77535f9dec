"""The parallel listing of blobs, by prefixes of their names. Pure.

A list of Azure Blob Storage has pages of 5,000 blobs, each with the token of the next page, and it
can begin at a prefix only. So folders are listed in parallel. What is in few pages is listed as a
whole; of everything else, the folders of one level are found first, in pages of 5,000 too, and
divided into groups with common prefixes. The blobs of a single folder cannot be divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from os.path import commonprefix
from typing import NamedTuple

from imageshards.transforms.storage.parallel_list import Item, Lister, after_all
from imageshards.transforms.storage.protocol import Names

ALL = Names()
FEW_PAGES = 4
"""The most pages that are listed without a look at the folders."""
_GROUPS = 64
"""The number of groups that folders are divided into, if there are as many."""
_THREADS = 16


class Requests(NamedTuple):
    """The requests of a container.

    Attributes:
      blobs: prefix -> pages of all blobs with it.
      level: prefix -> pages of the blobs with it and without a further `/`, and of the folders:
        the beginnings, up to the next `/`, of the names of all other blobs with it.
    """

    blobs: Callable[[str], Iterator[list[Item]]]
    level: Callable[[str], Iterator[tuple[list[Item], list[str]]]]


def pages(requests: Requests, prefix: str, names: Names = ALL) -> Iterator[list[Item]]:
    """Yields all blobs with a prefix, in any order, with concurrent requests.

    Args:
      requests: of the container; called from several threads.
      prefix: the prefix.
      names: one of the ranges that `part_pages` yields for this prefix, or all names.
    """
    rest: list[str] = []
    for found in part_pages(requests, prefix, names):
        if isinstance(found, Names):
            rest.append(found.begin)
        else:
            yield found
    if rest:
        yield from _PrefixLister(requests, prefix, rest).run()


def part_pages(requests: Requests, prefix: str, names: Names = ALL) -> Iterator[list[Item] | Names]:
    """Yields the blobs with a prefix if they are few; else some of them, and ranges of the others.

    Args:
      requests: of the container.
      prefix: the prefix.
      names: one of the ranges that an earlier call has yielded for this prefix, or all names.
    """
    # A range that does not end with a folder may hold blobs of the level that it is a part of,
    # which the earlier call has yielded.
    key = names.begin or prefix
    level = key.rfind("/") + 1 if names.begin and not key.endswith("/") else -1
    held = list(islice(requests.blobs(key), FEW_PAGES))
    if len(held) < FEW_PAGES:
        for found in held:
            kept = found if level < 0 else [item for item in found if "/" in item[0][level:]]
            if kept:
                yield kept
        return
    held.clear()
    folders: list[str] = []
    for found, below in requests.level(key):
        folders += below
        if found and level < 0:
            yield found
    for group in _groups(folders):
        yield Names(group, after_all(group))


def _groups(folders: Sequence[str]) -> list[str]:
    """Returns about `_GROUPS` prefixes, of which each folder has one."""
    folders = list(dict.fromkeys(folders))  # a store may repeat one on its next page
    length = len(commonprefix(folders))  # noqa: RUF071
    groups: dict[str, list[str]] = {}
    while len(groups) < min(_GROUPS, len(folders)):
        length += 1
        groups.clear()
        for folder in folders:
            groups.setdefault(folder[:length], []).append(folder)
    return [commonprefix(members) for members in groups.values()]  # noqa: RUF071


class _PrefixLister(Lister):
    """Lists prefixes in threads, which divide them."""

    def __init__(self, requests: Requests, prefix: str, keys: list[str]) -> None:
        super().__init__(_THREADS)
        self._requests = requests
        self._prefix = prefix
        self._waiting = keys
        self._unfinished = len(keys)

    def work(self) -> None:
        while (key := self._take()) is not None:
            for found in part_pages(self._requests, self._prefix, Names(key)):
                if self.stopped:
                    return
                if isinstance(found, Names):
                    self._add(found.begin)
                else:
                    self.put(found)
            self._finish()

    def _take(self) -> str | None:
        """Returns a range that no thread lists; None at the end."""
        with self.changed:
            while not self._waiting and self._unfinished and not self.stopped:
                self.changed.wait()
            if self.stopped or not self._unfinished:
                return None
            return self._waiting.pop()

    def _add(self, key: str) -> None:
        with self.changed:
            self._waiting.append(key)
            self._unfinished += 1
            self.changed.notify()

    def _finish(self) -> None:
        with self.changed:
            self._unfinished -= 1
            if not self._unfinished:
                self.changed.notify_all()
