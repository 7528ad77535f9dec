"""The parallel listing by prefixes, on containers that are sets of names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.transforms.storage.clouds import prefix_list
from imageshards.transforms.storage.clouds.prefix_list import ALL, Requests, pages, part_pages
from imageshards.transforms.storage.parallel_list import Item
from imageshards.transforms.storage.protocol import Names

PAGE = 3


class Container:
    """The requests of a container that counts them."""

    def __init__(self, names: set[str]) -> None:
        self.items = [(name, len(name), 1) for name in sorted(names)]
        self.count = 0
        self.requests = Requests(self._blobs, self._level)

    def _blobs(self, prefix: str) -> Iterator[list[Item]]:
        found = [item for item in self.items if item[0].startswith(prefix)]
        for start in range(0, max(1, len(found)), PAGE):
            self.count += 1
            yield found[start : start + PAGE]

    def _level(self, prefix: str) -> Iterator[tuple[list[Item], list[str]]]:
        entries: dict[str, Item | None] = {}
        for item in self.items:
            if item[0].startswith(prefix):
                here, slash, _ = item[0][len(prefix) :].partition("/")
                entries[prefix + here + slash] = None if slash else item
        found = list(entries.items())
        for start in range(0, max(1, len(found)), PAGE):
            self.count += 1
            page = found[start : start + PAGE]
            yield [item for _, item in page if item], [name for name, item in page if not item]


def in_parts(container: Container, prefix: str, depth: int, names: Names = ALL) -> list[Item]:
    """Lists as the steps of a graph do: a unit divides itself `depth` times."""
    found: list[Item] = []
    if not depth:
        return [item for page in pages(container.requests, prefix, names) for item in page]
    for part in part_pages(container.requests, prefix, names):
        found += in_parts(container, prefix, depth - 1, part) if isinstance(part, Names) else part
    return found


paths = st.lists(st.text("ab\U0001f600", max_size=3), min_size=1, max_size=4).map("/".join)


@given(st.sets(paths, max_size=60), paths | st.just(""), st.integers(0, 2))
def test_every_blob_is_listed_once(names: set[str], prefix: str, depth: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_list, "FEW_PAGES", 2)
        patch.setattr(prefix_list, "_GROUPS", 3)
        container = Container(names - {""})
        found = in_parts(container, prefix, depth)
    assert sorted(found) == [item for item in container.items if item[0].startswith(prefix)]


def test_few_blobs_take_one_request_and_many_folders_few_more_than_their_pages():
    few = Container({"a/1", "b/2"})
    assert [len(page) for page in pages(few.requests, "")] == [2]
    assert few.count == 1
    many = Container({f"photos/{folder:04d}/{n}.jpg" for folder in range(1000) for n in range(6)})
    assert sum(map(len, pages(many.requests, "photos/"))) == 6000
    assert many.count < 2 * 6000 / PAGE + 1000


def test_an_error_of_a_thread_ends_the_listing():
    container = Container({f"{folder}/{n}" for folder in range(9) for n in range(30)})

    def failing(prefix: str) -> Iterator[list[Item]]:
        if prefix == "7/":
            raise OSError("lost")
        yield from container.requests.blobs(prefix)

    with pytest.raises(OSError, match="lost"):
        list(pages(Requests(failing, container.requests.level), ""))


def test_a_folder_that_a_store_repeats_is_grouped_once():
    assert prefix_list._groups(["a/b/", "a/c/", "a/c/"]) == ["a/b/", "a/c/"]
