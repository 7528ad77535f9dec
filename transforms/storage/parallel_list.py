"""The parallel listing of objects, by ranges of their names. Pure.

A list has pages of 1,000 objects, each with the token of the next page: 100 M objects take 100,000
requests, one after the other. But a list may begin and end at any name. Here each thread lists a
range of names, and a thread that has finished takes over the second part of another thread's range.
Folders do not matter: a million of them, or none, are listed at the same speed.

Where a range can be cut is found by probes, which ask for the first name after a name. Threads that
have nothing to list send several at a time: the names of a prefix mostly end far before the last
possible name, and one probe after the other found their end in three seconds.
"""

from __future__ import annotations

import math
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from imageshards.transforms.storage.protocol import Names

Item = tuple[str, int, int]
"""Name, bytes, stamp."""
Page = Callable[[str, str, int], list[Item]]
"""(first name, name to stop before or "", largest number of items) -> the first items, in order."""

PAGE_ITEMS = 1000
_THREADS = 16
_ROUNDS = 10
"""How often the probes of a cut are repeated if none of them finds a name."""
# The first ranges may end far after their last name: each shared character takes about six probes.
_FIRST_HALVING_PROBES, _HALVING_PROBES, _FEW_RANGES = 64, 5, 8
FEW_PAGES = 1024
"""Pages that one worker lists before the other names are divided.

Dividing takes about 6 s with responses after 0.1 s, in which a worker lists 400,000 names. Four
workers took 166 s for a million names if 16 pages were listed before; one worker takes 13 s.
"""
_PARTS = 64
"""Ranges that the names after these pages are divided into, if possible."""
_FIRST_PAGES = 4
_FIRST = "\0"
"""A name followed by this character is the first name after it."""
_LAST_ASCII = 0x7F
_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def pages(page: Page, prefix: str, threads: int = _THREADS) -> Iterator[list[Item]]:
    """Yields all objects with a prefix, page by page, in any order of the pages.

    Args:
      page: lists a page; called from several threads.
      prefix: a prefix of names; empty: list all objects.
      threads: concurrent requests.
    """
    for found in _pages(page, _names_with(prefix), math.inf, threads):
        assert not isinstance(found, Names)
        yield found


def part_pages(
    page: Page, prefix: str, names: Names, few: bool, threads: int = _THREADS
) -> Iterator[list[Item] | Names]:
    """Yields the objects with a prefix whose names are in a range, page by page.

    Args:
      page: lists a page; called from several threads.
      prefix: a prefix of names; empty: any name.
      names: the range.
      few: whether to list about `FEW_PAGES` pages only, and to yield the ranges of all names that
        are not listed. The ranges do not overlap.
      threads: concurrent requests.
    """
    every = _names_with(prefix)
    ends = [end for end in (names.end, every.end) if end]
    names = Names(max(names.begin, every.begin), min(ends, default=""))
    return _pages(page, names, FEW_PAGES if few else math.inf, threads)


def items_of(pages: Iterable[list[Item] | Names]) -> Iterator[Item | Names]:
    """Yields the objects of pages one by one, and the ranges between them."""
    for found in pages:
        if isinstance(found, Names):
            yield found
        else:
            yield from found


def first_page(page: Page, prefix: str, accept: Callable[[str], object]) -> list[Item]:
    """Returns the accepted names of the first page that has any, or none after a few pages."""
    names = _names_with(prefix)
    for _ in range(_FIRST_PAGES):
        found = page(names.begin, names.end, PAGE_ITEMS)
        if kept := [item for item in found if accept(item[0])]:
            return kept
        if len(found) < PAGE_ITEMS:
            break
        names = names._replace(begin=found[-1][0] + _FIRST)
    return []


def _pages(page: Page, names: Names, most: float, threads: int) -> Iterator[list[Item] | Names]:
    if names.end and names.begin >= names.end:
        return
    first = page(names.begin, names.end, PAGE_ITEMS)
    yield first
    if len(first) < PAGE_ITEMS:
        return
    lister = _RangeLister(page, _Range(first[-1][0] + _FIRST, names.end), threads, most - 1)
    yield from lister.run()
    rest = lister.rest()
    if rest:
        yield from _divided(page, rest, threads)


def _divided(page: Page, ranges: list[Names], threads: int) -> list[Names]:
    """Divides ranges of names into about `_PARTS` ranges that together hold the same objects."""
    whole: list[Names] = []
    with ThreadPoolExecutor(threads, "imageshards-list") as executor:
        while ranges and len(whole) + len(ranges) < _PARTS:
            probes = _FIRST_HALVING_PROBES if len(ranges) < _FEW_RANGES else _HALVING_PROBES
            halves = list(executor.map(partial(_halves, page, probes), ranges))
            # A range that few probes do not divide is not worth more of them.
            whole += [half for pair in halves if len(pair) == 1 for half in pair]
            ranges = [half for pair in halves if len(pair) > 1 for half in pair]
    return whole + ranges


def _halves(page: Page, probes: int, names: Names) -> list[Names]:
    """Two ranges that together hold the objects of a range, or one if it cannot be divided."""
    begin, end = names
    for _ in range(probes):
        if not (name := middle(begin, end)):
            break
        if found := page(name, end, 1):
            return [Names(begin, name), Names(found[0][0], end)]
        end = name
    return [Names(begin, end)]


@dataclass
class _Range:
    """Names from `start` on and before `end`.

    Attributes:
      listed: whether a page has been listed since the range was last cut.
      busy: whether a thread lists it.
      in_cut: whether a thread cuts it.
    """

    start: str
    end: str
    listed: bool = True
    busy: bool = False
    in_cut: bool = False


class Lister(ABC):
    """Threads that list pages.

    Attributes:
      changed: guards what the threads share, and wakes those that wait for a change of it.
      stopped: whether no more pages are wanted.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._found: queue.Queue[list[Item] | BaseException | None] = queue.Queue(2 * threads)
        self.changed = threading.Condition()
        self.stopped = False

    @abstractmethod
    def work(self) -> None:
        """Lists pages and puts them, until none is left or `stopped`. Each thread runs it."""

    def run(self) -> Iterator[list[Item]]:
        """Yields the pages of all threads, in any order. Raises the first error of a thread."""
        with ThreadPoolExecutor(self._threads, "imageshards-list") as executor:
            try:
                for _ in range(self._threads):
                    executor.submit(self._work)
                running = self._threads
                while running:
                    found = self._found.get()
                    if found is None:
                        running -= 1
                    elif isinstance(found, BaseException):
                        raise found
                    else:
                        yield found
            finally:
                with self.changed:
                    self.stopped = True
                    self.changed.notify_all()
                while not self._found.empty():  # a full queue would block the threads
                    self._found.get_nowait()

    def _work(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.put(error)
        self.put(None)

    def put(self, item: list[Item] | BaseException | None) -> None:
        """Adds a page, an error, or None: the thread has finished. Waits if there are many."""
        while not self.stopped:
            try:
                return self._found.put(item, timeout=0.1)
            except queue.Full:
                continue


class _RangeLister(Lister):
    """Lists a range of names, of which each thread takes a part."""

    def __init__(self, page: Page, first: _Range, threads: int, most: float) -> None:
        super().__init__(threads)
        self._page = page
        self._pages_left = most
        self._ranges = [first]
        self._probing = 0

    def run(self) -> Iterator[list[Item]]:
        """Yields the pages."""
        with ThreadPoolExecutor(self._threads, "imageshards-list-probe") as self._probes:
            yield from super().run()

    def rest(self) -> list[Names]:
        """Returns the ranges that are not listed, after `run` has listed its number of pages."""
        return [Names(rest.start, rest.end) for rest in self._ranges]

    def work(self) -> None:
        while (mine := self._take()) is not None:
            self._list(mine)

    def _take(self) -> _Range | None:
        """Returns a range that no thread lists, or the second part of another; None at the end."""
        while True:
            with self.changed:
                if self.stopped or self._pages_left <= 0 or not self._ranges:
                    return None
                for mine in self._ranges:
                    if not mine.busy:
                        mine.busy = True
                        return mine
                theirs = next((r for r in self._ranges if r.listed and not r.in_cut), None)
                if theirs is None:
                    self.changed.wait()
                    continue
                theirs.listed, theirs.in_cut = False, True
            try:
                cut = self._cut(theirs)
            finally:
                with self.changed:
                    theirs.in_cut = False
                    self.changed.notify_all()
            if cut:
                return cut

    def _cut(self, theirs: _Range) -> _Range | None:
        """Divides a range, and returns its last part; None if it cannot be divided."""
        for _ in range(_ROUNDS):
            with self.changed:
                start, end = theirs.start, theirs.end
                # With the threads that list, no more requests than there are threads.
                busy = sum(other.busy for other in self._ranges)
                count = max(1, self._threads - busy - self._probing)
                self._probing += count
            try:
                names = between(start, end, count)
                if self.stopped or not names:
                    return None
                found = list(self._probes.map(partial(self._first, end), names))
            finally:
                with self.changed:
                    self._probing -= count
            with self.changed:
                # The thread of that range may have finished in the meantime, or passed a name.
                if theirs not in self._ranges:
                    return None
                pairs = zip(names, found, strict=True)
                cuts = [(name, first) for name, first in pairs if name > theirs.start]
                if parts := _divide(theirs, cuts):
                    parts[0].busy = True
                    self._ranges += parts
                    self.changed.notify_all()
                    return parts[0]
        return None

    def _first(self, end: str, name: str) -> str:
        """Returns the first existing name from a name on, before an end; empty if there is none."""
        return next((found for found, *_ in self._page(name, end, 1)), "")

    def _list(self, mine: _Range) -> None:
        while True:
            with self.changed:
                start, end = mine.start, mine.end
            found = self._page(start, end, PAGE_ITEMS) if not end or start < end else []
            with self.changed:
                # Another thread lists the part that was cut off during this request.
                kept = [entry for entry in found if not mine.end or entry[0] < mine.end]
                done = len(found) < PAGE_ITEMS or len(kept) < len(found) or self.stopped
                self._pages_left -= 1
                if done:
                    self._ranges.remove(mine)
                else:
                    mine.start = found[-1][0] + _FIRST
                    mine.listed = True
                    done = self._pages_left <= 0
                self.changed.notify_all()
            if kept:
                self.put(kept)
            if done:
                return


def _divide(theirs: _Range, cuts: list[tuple[str, str]]) -> list[_Range]:
    """Divides a range, and returns all parts but its first one, the last one first.

    Args:
      theirs: the range, which loses these parts, and the names after the last one.
      cuts: names of `between`, each with the first existing name from it on; empty: there is none.
    """
    parts: list[_Range] = []
    names = [name for name, first in cuts if first]
    # Only those at one place divide a range evenly. The others show where its names end.
    kept = {name for name in names if len(name) == len(cuts[-1][0])} or set(names[-1:])
    for name, first in reversed(cuts):
        if first and name not in kept:
            continue
        if first and (not theirs.end or first < theirs.end):
            parts.append(_Range(first, theirs.end, listed=False))
        theirs.end = name
    return parts


def _names_with(prefix: str) -> Names:
    return Names(prefix, after_all(prefix))


def after_all(prefix: str) -> str:
    """Returns the first name after all names with a prefix; empty if there is none."""
    while prefix:
        last = ord(prefix[-1])
        prefix = prefix[:-1]
        if last < _LAST:
            return prefix + _character(last + 1)
    return ""


def middle(start: str, end: str) -> str:
    """Returns a name between two names that divides well; empty if there is none."""
    return next(iter(between(start, end, 1)), "")


def between(start: str, end: str, count: int) -> list[str]:
    """Returns names between two names, in the order of code points, which is that of UTF-8.

    Half of them differ in the first place where names between the two can differ: they divide
    evenly. The others are the next names after `start` in later places: those after which there is
    no name show how far the existing names agree.

    Args:
      start: a name.
      end: a later one, or empty for the end of all.
      count: how many names to return at most.

    Returns:
      Different names after `start` and before `end`, in order.

    >>> between("p/0001.jpg", "p0", 4)
    ['p/0001/', 'p/01', 'p/J', 'p/e']
    """
    gaps = list(_gaps(start, end))
    if not gaps:
        return []
    (place, low, high), *later = gaps
    evenly = min(-(-count // 2) if later else count, high - low - 1)
    names = {
        start[:place] + _character(low + (high - low) * part // (evenly + 1))
        for part in range(1, evenly + 1)
    }
    others = min(count - evenly, len(later))
    for number in range(others):
        place, low, _ = later[number * len(later) // others]
        names.add(start[:place] + _character(low + 1))
    return sorted(name for name in names if start < name and (not end or name < end))


def _gaps(start: str, end: str) -> Iterator[tuple[int, int, int]]:
    """Yields each place in which a name between two names can differ from the first one.

    Yields:
      The place, and the characters there between which that of the name may be.
    """
    shared = 0
    while shared < min(len(start), len(end)) and start[shared] == end[shared]:
        shared += 1
    for place in range(shared, max(len(start), shared + 1)):
        low = ord(start[place]) if place < len(start) else 0
        high = _LAST_ASCII + 1 if low < _LAST_ASCII else _LAST  # most names are of these characters
        if place == shared and place < len(end):
            high = min(high, ord(end[place])) if low < _LAST_ASCII else ord(end[place])
        if high - low > 1:
            yield place, low, high


def _character(code: int) -> str:
    # UTF-8 has no surrogates.
    return chr(_SURROGATES.stop if code in _SURROGATES else code)
