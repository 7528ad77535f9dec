"""The parallel listing yields each object once, in few requests."""

import random
import threading
import time
from bisect import bisect_left
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.transforms.storage import parallel_list
from imageshards.transforms.storage.parallel_list import (
    PAGE_ITEMS,
    Item,
    between,
    middle,
    pages,
    part_pages,
)
from imageshards.transforms.storage.protocol import Names

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


class Bucket:
    """A bucket of names, which counts the requests for them."""

    def __init__(self, names: list[str], pause: float = 0.0) -> None:
        self.names = sorted(names)
        self.pause = pause
        self.requests = 0
        self.pages: list[str] = []
        self.now = self.most_at_a_time = 0
        self._lock = threading.Lock()

    def page(self, start: str, end: str, most: int) -> list[Item]:
        with self._lock:
            self.requests += 1
            if most > 1:
                self.pages.append(start)
            self.now += 1
            self.most_at_a_time = max(self.most_at_a_time, self.now)
        time.sleep(self.pause)
        begin = bisect_left(self.names, start)
        stop = bisect_left(self.names, end) if end else len(self.names)
        found = self.names[begin : max(begin, min(stop, begin + most))]
        with self._lock:
            self.now -= 1
        return [(name, 1, 1) for name in found]

    def listed(self, prefix: str = "", threads: int = 8) -> list[str]:
        def page(start: str, end: str, most: int) -> list[Item]:
            return self.page(max(start, prefix), end, most)

        return [name for found in pages(page, prefix, threads) for name, _, _ in found]


def names_of(kind: str, count: int) -> list[str]:
    rng = random.Random(kind)
    return {
        "numbers": [f"photos/{number:09}.jpg" for number in range(count)],
        "folders": [f"photos/n{number % 997:08}/{number}.JPEG" for number in range(count)],
        "hashes": [f"photos/{rng.randbytes(8).hex()}" for _ in range(count)],
        "words": [f"photos/{chr(0x4E00 + number % 3000)}/{number}" for number in range(count)],
        "one folder a file": [f"photos/{number}/{number}/x.jpg" for number in range(count)],
        "long": ["photos/" + "a" * 900 + str(number) for number in range(count)],
    }[kind]


@pytest.mark.parametrize(
    "kind", ["numbers", "folders", "hashes", "words", "one folder a file", "long"]
)
def test_each_name_is_listed_once_in_few_requests(kind: str):
    names = names_of(kind, 30_000)
    bucket = Bucket([*names, "photo", "photos", "photos0", "zebra"], pause=0.002)
    found = bucket.listed("photos/")
    assert len(found) == len(names)
    assert set(found) == set(names)
    # 31 pages are the least.
    assert bucket.requests < 200
    assert bucket.most_at_a_time > 2


@pytest.mark.parametrize("kind", ["numbers", "folders", "long"])
def test_many_threads_list_after_few_pages(kind: str):
    names = names_of(kind, 100_000)
    bucket = Bucket(names, pause=0.05)  # on a busy machine, threads start late
    assert len(bucket.listed("photos/", threads=16)) == len(names)
    # The pages that one thread lists one after the other, before the range is cut.
    first = list(zip(names_in_pages(names), bucket.pages, strict=False))
    alone = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], first))
    assert alone <= 20
    assert bucket.requests < 400


def names_in_pages(names: list[str]) -> list[str]:
    """Where the pages of a listing by one thread begin."""
    ends = sorted(names)[PAGE_ITEMS - 1 :: PAGE_ITEMS]
    return ["photos/", *(f"{name}\0" for name in ends)]


@given(TEXT, TEXT, st.integers(1, 20))
def test_names_between_two_names_are_in_order(one: str, two: str, count: int):
    start, end = min(one, two), max(one, two)
    for last in (end, ""):
        if start != last:
            found = between(start, last, count)
            assert len(found) <= count
            assert found == sorted(set(found))
            assert all(start < name and (not last or name < last) for name in found)
            "".join(found).encode()  # there is no surrogate


@pytest.mark.parametrize("kind", ["numbers", "folders", "hashes", "words", "long"])
def test_parts_hold_each_name_once_in_few_requests(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parallel_list, "FEW_PAGES", 16)
    names = names_of(kind, 30_000)
    bucket = Bucket([*names, "photo", "photos0"])
    found: list[str] = []
    parts: list[Names] = [Names()]
    counts: list[int] = []
    for few in (True, True, False):
        further: list[Names] = []
        for part in parts:
            for listed in part_pages(bucket.page, "photos/", part, few, threads=4):
                if isinstance(listed, Names):
                    further.append(listed)
                else:
                    found += [name for name, _, _ in listed]
        parts = further
        if not counts:
            assert len(found) <= (16 + 4) * PAGE_ITEMS
        counts.append(len(parts))
    assert sorted(found) == sorted(names)
    assert counts[0] > 3 or kind == "long"
    # Pages, parts, and five probes at most to divide each.
    assert bucket.requests < 500


def test_names_that_a_worker_lists_in_seconds_are_not_divided():
    names = names_of("folders", 40_000)
    whole, divided = Bucket(names), Bucket(names)
    assert len(whole.listed("photos/", threads=1)) == len(names)
    found = list(part_pages(divided.page, "photos/", Names(), few=True, threads=1))
    assert not any(isinstance(part, Names) for part in found)
    assert divided.requests == whole.requests


@pytest.mark.parametrize("count", [0, 1, PAGE_ITEMS - 1, PAGE_ITEMS, PAGE_ITEMS + 1])
def test_numbers_around_a_full_page_are_listed(count: int):
    names = names_of("numbers", count)
    assert sorted(Bucket(names).listed()) == names
    assert sorted(Bucket(names).listed("photos/")) == names


def test_few_names_take_one_request():
    bucket = Bucket(names_of("numbers", 999))
    bucket.listed("photos/")
    assert bucket.requests == 1


@given(st.sets(TEXT, min_size=0, max_size=40), TEXT)
def test_any_names_with_a_prefix_are_listed(names: set[str], prefix: str):
    bucket = Bucket(list(names))

    def page(start: str, end: str, most: int) -> list[Item]:
        return bucket.page(max(start, prefix), end, most)

    found = [name for entries in pages(page, prefix, 3) for name, _, _ in entries]
    assert sorted(found) == sorted(name for name in names if name.startswith(prefix))


@given(TEXT, TEXT)
def test_the_middle_is_between_both_names(one: str, two: str):
    start, end = min(one, two), max(one, two)
    if start != end and (name := middle(start, end)):
        assert start < name < end
        assert name.encode() > start.encode()
    if name := middle(start, ""):
        assert start < name
        name.encode()


def test_an_error_ends_the_listing_and_its_threads():
    bucket = Bucket(names_of("numbers", 20_000), pause=0.001)

    def page(start: str, end: str, most: int) -> list[Item]:
        if bucket.requests > 10:
            raise ConnectionError("gone")
        return bucket.page(start, end, most)

    with pytest.raises(ConnectionError, match="gone"):
        list(pages(page, "photos/", 4))
    assert not [thread for thread in threading.enumerate() if "imageshards-list" in thread.name]


def test_a_caller_that_stops_ends_the_listing_and_its_threads():
    bucket = Bucket(names_of("numbers", 50_000), pause=0.001)
    found = pages(bucket.page, "", 4)
    next(found)
    next(found)
    found.close()
    assert bucket.requests < 60
    assert not [thread for thread in threading.enumerate() if "imageshards-list" in thread.name]
