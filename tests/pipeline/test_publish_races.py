"""No pointer ever names a deleted version, whatever publishers do at the same time.

On an object store every request of every publisher is a step, and hypothesis chooses whose step is
next. On the local disk publishers run freely, with a random delay before each operation.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imageshards.pipeline.publish import publish
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.storage import globs
from imageshards.transforms.storage.local import LocalStore
from imageshards.transforms.storage.protocol import UNKNOWN, Entry, Sink, Store
from imageshards.transforms.storage.sink import BatchSink
from imageshards.transforms.storage.web import WebOptions

BUILD = {"counts": {"records": 1, "rejects": 0, "bytes": 1}, "classes": [], "splits": {}}
VERSIONS = 4


class Action(NamedTuple):
    """The arguments of one publisher."""

    version: int
    pointer: str
    rollback: bool
    keep_versions: int

    def run(self, base: str) -> None:
        publish(
            f"{base}/sets/v{self.version}", pointer=f"{base}/{self.pointer}",
            rollback=self.rollback, keep_versions=self.keep_versions,
        )  # fmt: skip


ACTIONS = st.builds(
    Action, st.integers(1, VERSIONS), st.sampled_from(["sets/latest", "other/stable"]),
    st.booleans(), st.integers(0, 1),
)  # fmt: skip


def make_versions(base: str, write: Callable[[str, bytes], None]) -> None:
    """Writes data sets. All but the last are published, each with both pointers."""
    for number in range(1, VERSIONS + 1):
        folder = f"{base}/sets/v{number}"
        write(f"{folder}/dataset_info.json", b'{"name": "x"}')
        write(f"{folder}/metadata/shards/plan.json", b"{}")
        write(f"{folder}/metadata/build.json", json.dumps({**BUILD, "n": number}).encode())
    for number in range(1, VERSIONS):
        for pointer in ("sets/latest", "other/stable"):
            Action(number, pointer, False, 0).run(base)


Choose = Callable[[list[int]], int]


class Killed(BaseException):
    """The process of a publisher has been killed."""


class Steps:
    """Lets one of several threads make one step at a time.

    Attributes:
      choose: chooses one of the threads that wait, which are numbered.
      check: called after each step.
    """

    def __init__(self, choose: Choose, check: Callable[[], None]) -> None:
        self._choose = choose
        self._check = check
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._running: set[int] = set()
        self._next: int | None = None
        self._mine = threading.local()
        self.left: dict[int, int] = {}

    def take(self) -> None:
        """Waits for a turn of this thread, if it is one of those."""
        me = getattr(self._mine, "number", None)
        if me is None:
            return
        if self.left.get(me, 1) <= 0:
            raise Killed
        self.left[me] = self.left.get(me, 1 << 60) - 1
        with self._changed:
            self._waiting.add(me)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next == me)
            self._next = None

    def run(self, functions: list[Callable[[], None]]) -> list[BaseException]:
        """Runs functions in threads, and returns their errors."""
        errors: list[BaseException] = []

        def run(number: int, function: Callable[[], None]) -> None:
            self._mine.number = number
            try:
                function()
            except BaseException as error:
                errors.append(error)
            with self._changed:
                self._running.discard(number)
                self._changed.notify_all()

        self._running = set(range(len(functions)))
        threads = [
            threading.Thread(target=run, args=item, daemon=True) for item in enumerate(functions)
        ]
        for thread in threads:
            thread.start()
        while True:
            with self._changed:
                assert self._changed.wait_for(lambda: self._waiting == self._running, 20)
                self._check()
                if not self._running:
                    return errors
                self._next = self._choose(sorted(self._waiting))
                self._waiting.discard(self._next)
                self._changed.notify_all()


class SteppedStore(Store):
    """An object store with generations. Every request is a step."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}
        self.writes = 0
        self.steps: Steps | None = None

    def _step(self) -> None:
        if self.steps:
            self.steps.take()

    def write(self, uri: str, data: bytes) -> None:
        self.writes += 1
        self.files[uri] = data, self.writes

    def read(self, uri: str, limit: int, stamp: int, web: WebOptions, /) -> tuple[bytes, int]:
        self._step()
        if uri not in self.files:
            raise storage.ReadError("Missing", "no such object")
        return self.files[uri]

    def open_read(self, uri: str, /) -> Any:
        import io

        self._step()
        if uri not in self.files:
            raise FileNotFoundError(2, "no such object", uri)
        return io.BytesIO(self.files[uri][0])

    def stat(self, uri: str, /) -> tuple[int, int]:
        self._step()
        data, stamp = self.files.get(uri, (None, 0))
        return UNKNOWN if data is None else (len(data), stamp)

    def match(self, pattern: str, /) -> Iterator[tuple[str, int, int]]:
        self._step()
        matches = globs.regex(pattern).fullmatch
        return iter([(uri, 1, 1) for uri in list(self.files) if matches(uri)])

    def entries_in(self, folder: str, /) -> Iterator[Entry]:
        prefix = folder.rstrip("/") + "/"
        return (Entry(uri.removeprefix(prefix), 1, 1) for uri, *_ in self.match(prefix + "*"))

    def delete(self, uri: str, /) -> None:
        self._step()
        self.files.pop(uri, None)

    def replace(self, uri: str, data: bytes, scratch: str, stamp: int, /) -> bool:
        self._step()
        if self.files.get(uri, (b"", 0))[1] != stamp:
            return False
        self.write(uri, data)
        return True

    @contextmanager
    def open_sink(self, uri: str, scratch: str, /) -> Iterator[Sink]:
        data = bytearray()
        sink = BatchSink(lambda parts: data.extend(b"".join(parts)))
        yield sink
        sink.finish()
        sink.close()
        self._step()
        self.write(uri, bytes(data))


POINTERS = ("sets/latest", "other/stable")


def run_stepped(
    actions: Sequence[Action], choose: Choose, killed_after: Mapping[int, int] | None = None
) -> int:
    """Runs publishers on an object store, checks the pointers after each request; counts requests.

    Args:
      actions: what each publisher does.
      choose: whose request is next.
      killed_after: number of a publisher -> its requests before it is killed.
    """
    store, base, steps = SteppedStore(), "mem://bucket", 0

    def check() -> None:
        nonlocal steps
        steps += 1
        for pointer in POINTERS:
            version = json.loads(store.files[f"{base}/{pointer}"][0])["uri"]
            assert f"{version}/dataset_info.json" in store.files, f"{pointer} names {version}"

    storage.STORES["mem"] = store
    try:
        make_versions(base, store.write)
        store.steps = Steps(choose, check)
        store.steps.left = dict(killed_after or {})
        errors = store.steps.run([lambda action=action: action.run(base) for action in actions])
        assert not [e for e in errors if not isinstance(e, BuildError | Killed)], errors
        if not any(isinstance(error, Killed) for error in errors):
            marks = [data for uri, (data, _) in store.files.items() if "published.json" in uri]
            assert not [mark for mark in marks if b"publishing" in mark], "a reservation is left"
    finally:
        del storage.STORES["mem"]
    return steps


CLEANS_UP = Action(VERSIONS, "sets/latest", False, 1)
GOES_BACK = Action(1, "other/stable", True, 0)


@pytest.mark.parametrize("others", [[GOES_BACK], [GOES_BACK, CLEANS_UP]])
def test_a_publisher_that_is_interrupted_by_others_at_any_request_deletes_nothing_in_use(
    others: list[Action],
):
    requests = run_stepped([CLEANS_UP], min)
    for before in range(requests):
        left = iter(range(before))

        def choose(waiting: list[int], left: Iterator[int] = left) -> int:
            return min(waiting) if next(left, None) is not None else max(waiting)

        run_stepped([CLEANS_UP, *others], choose)


@settings(max_examples=100)
@given(
    st.lists(ACTIONS, min_size=2, max_size=3),
    st.dictionaries(st.integers(0, 2), st.integers(0, 40), max_size=1),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30)), max_size=8),
)
def test_on_an_object_store_no_pointer_names_a_deleted_version_after_any_request(
    actions: list[Action], killed_after: dict[int, int], turns: list[tuple[int, int]]
):
    order = iter([number for number, steps in turns for _ in range(steps)])

    def choose(waiting: list[int]) -> int:
        return waiting[next(order, 0) % len(waiting)]

    run_stepped(actions, choose, killed_after)


class SlowLocalStore(LocalStore):
    """The local disk, with a random delay before each operation that publishing uses."""

    def read(self, *arguments: Any) -> tuple[bytes, int]:
        time.sleep(random.random() / 500)
        return super().read(*arguments)

    def open_read(self, *arguments: Any) -> Any:
        time.sleep(random.random() / 500)
        return super().open_read(*arguments)

    def delete(self, *arguments: Any) -> None:
        time.sleep(random.random() / 500)
        super().delete(*arguments)

    def replace(self, *arguments: Any) -> bool:
        time.sleep(random.random() / 500)
        return super().replace(*arguments)


@pytest.mark.slow
def test_on_the_local_disk_no_pointer_names_a_deleted_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def write(uri: str, data: bytes) -> None:
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
        Path(uri).write_bytes(data)

    def attempt(action: Action) -> None:
        try:
            action.run(base)
        except BuildError:
            return

    choice = random.Random(0)
    for number in range(25):
        base = str(tmp_path / f"{number}")
        Path(base, "other").mkdir(parents=True)
        make_versions(base, write)
        actions = [
            Action(VERSIONS, "sets/latest", False, 1),
            Action(choice.randint(1, 3), "other/stable", True, 0),
            Action(choice.randint(1, 4), "sets/latest", True, 1),
        ]
        with monkeypatch.context() as patch, ThreadPoolExecutor(3) as threads:
            patch.setattr(storage, "_LOCAL", SlowLocalStore())
            list(threads.map(attempt, actions))
        for pointer in POINTERS:
            version = json.loads(Path(base, pointer).read_text())["uri"]
            assert Path(version, "dataset_info.json").exists(), f"{pointer} names {version}"


def test_a_publisher_that_gives_up_never_deletes_the_mark_of_another_one():
    base, wrong = "mem://bucket", Action(VERSIONS, "other/foreign", False, 0)
    for before in range(30):
        store = SteppedStore()
        storage.STORES["mem"] = store
        try:
            make_versions(base, store.write)
            store.write(f"{base}/y/dataset_info.json", b"{}")
            foreign = {"uri": f"{base}/y", "version": "y", "name": "y"}
            store.write(f"{base}/other/foreign", json.dumps(foreign).encode())
            left = iter(range(before))

            def choose(waiting: list[int], left: Iterator[int] = left) -> int:
                return min(waiting) if next(left, None) is not None else max(waiting)

            store.steps = Steps(choose, lambda: None)
            right = Action(VERSIONS, "sets/latest", False, 0)
            actions = [wrong, right]
            (error,) = store.steps.run(
                [lambda action=action: action.run(base) for action in actions]
            )
            assert "is the pointer of the data set 'y'" in str(error)
            mark = json.loads(store.files[f"{base}/sets/v{VERSIONS}/metadata/published.json"][0])
            assert mark["pointers"] == ["latest"], f"after {before} requests"
            assert "publishing" not in mark
        finally:
            del storage.STORES["mem"]


class LosesResponse(SteppedStore):
    """An object store that writes a file, and whose response is lost."""

    lost = ""

    def replace(self, uri: str, data: bytes, scratch: str, stamp: int, /) -> bool:
        done = super().replace(uri, data, scratch, stamp)
        if uri == self.lost:
            raise storage.StoreError(f"{uri}: cannot be written: no response")
        return done


def test_a_pointer_that_was_written_though_its_response_was_lost_keeps_its_version():
    store, base = LosesResponse(), "mem://bucket"
    storage.STORES["mem"] = store
    try:
        make_versions(base, store.write)
        for number in range(1, VERSIONS):
            store.delete(f"{base}/sets/v{number}/metadata/published.json")
            Action(number, "sets/latest", False, 0).run(base)
        store.delete(f"{base}/other/stable")
        store.lost = f"{base}/other/stable"
        with pytest.raises(storage.StoreError, match="no response"):
            Action(1, "other/stable", False, 0).run(base)
        CLEANS_UP.run(base)
        named = json.loads(store.files[f"{base}/other/stable"][0])["uri"]
        assert f"{named}/dataset_info.json" in store.files
        assert f"{base}/sets/v2/dataset_info.json" not in store.files
    finally:
        del storage.STORES["mem"]
