"""Progress of a build, derived from the files that it writes.

Runners report no progress, or only through private interfaces, and workers may be other processes.
Finished and growing shards are visible with every runner. References are counted while this process
lists them.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId, counted
from imageshards.transforms.metrics import COMPARED, LISTED
from imageshards.transforms.records.containers import parse_shard_name
from imageshards.transforms.references.keys import first_rank
from imageshards.transforms.shards.layout import Layout, read_json
from imageshards.transforms.storage.protocol import Entry

_BAR_SECONDS = 0.2
_LINE_SECONDS = 10.0
_REMOTE_SECONDS = 10.0
_REMOTE_READS = 50
"""State files that are read at once from a remote store: each is a request."""
_WIDE_COLUMNS = 100
_LEAST_SECONDS = 0.5
"""Rates over shorter times are not shown."""


@dataclass(frozen=True)
class State:
    """What is finished, and the totals.

    Attributes:
      shards: finished shards.
      all_shards: all shards.
      images: images of finished shards, and those of growing shards by the size of their files.
      all_images: all images.
      bytes: bytes of finished and growing shards.
      rejects: rejects of finished shards.
    """

    shards: int = 0
    all_shards: int = 0
    images: int = 0
    all_images: int = 0
    bytes: int = 0
    rejects: int = 0


class Observer:
    """Reports the progress of a build.

    Args:
      layout: the paths of the data set.
      before: the stamp of an earlier run's plan.json, or 0; this run writes the file again.
    """

    def __init__(self, layout: Layout, before: int) -> None:
        self._layout = layout
        self._before = before
        self._known: dict[tuple[str, int], tuple[int, int]] = {}

    def look(self) -> State | None:
        """Returns the progress; None while the build lists its inputs."""
        layout = self._layout
        is_local = storage.is_local(layout.root)
        if is_local and storage.stat(layout.plan)[1] == self._before:
            return None
        try:
            with storage.open_read(layout.plan) as file:
                splits: dict[str, dict[str, int]] = json.load(file)["splits"]
        except (OSError, ValueError, KeyError):
            return None
        finished, growing = _shards_in(storage.entries_in(layout.state))
        images = float(sum(_images_of(shard, splits) for shard, _ in finished))
        new = [entry for _, entry in finished if (entry.name, entry.changed) not in self._known]
        for entry in new if is_local else new[:_REMOTE_READS]:
            self._known[entry.name, entry.changed] = self._read(entry)
        found = [self._known.get((entry.name, entry.changed), (0, 0)) for _, entry in finished]
        for shard, entry in growing:
            if whole := splits.get(shard.split, {}).get("bytes"):
                share = entry.size * shard.num_shards / whole
                images += _images_of(shard, splits) * min(max(share, 0.0), 1.0)
        return State(
            len(finished),
            sum(split["shards"] for split in splits.values()),
            int(images),
            sum(split["images"] for split in splits.values()),
            sum(size for size, _ in found) + sum(max(entry.size, 0) for _, entry in growing),
            sum(rejects for _, rejects in found),
        )

    def _read(self, entry: Entry) -> tuple[int, int]:
        """Returns the bytes and the rejects of a finished shard."""
        state = read_json(storage.join(self._layout.state, entry.name)) or {}
        rejects = state.get("rejects") or {"errors": {}}
        return state.get("report", {}).get("bytes", 0), sum(rejects["errors"].values())


_ShardFiles = list[tuple[ShardId, Entry]]


def _shards_in(entries: list[Entry]) -> tuple[_ShardFiles, _ShardFiles]:
    """Returns the state files of finished shards, and the files of growing ones."""
    finished, growing = [], []
    for entry in entries:
        if entry.name.endswith(".json"):
            if shard := parse_shard_name(entry.name.removesuffix(".json")):
                finished.append((shard, entry))
        elif entry.name.endswith(storage.TEMP_SUFFIX):
            name = entry.name.removesuffix(storage.TEMP_SUFFIX).rpartition(".")[0]
            if shard := parse_shard_name(name):
                growing.append((shard, entry))
    return finished, growing


def _images_of(shard: ShardId, splits: dict[str, dict[str, int]]) -> int:
    if shard.split not in splits:
        return 0
    total = splits[shard.split]["images"]
    begin = first_rank(shard.index, shard.num_shards, total)
    return first_rank(shard.index + 1, shard.num_shards, total) - begin


class Progress:
    """Shows progress on stderr: a bar on a terminal, else a line every ten seconds.

    Args:
      layout: the paths of the data set.
      enabled: whether to show anything.
      noun: what a record is.
      grows: whether shards are visible while they are written; those of Beam's writer are not.
      begin: `time.perf_counter()` at the start of the command; None: now.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        enabled: bool = True,
        noun: str = "image",
        grows: bool = True,
        begin: float | None = None,
    ) -> None:
        self._layout = layout
        self._noun = noun
        self._enabled = enabled
        self._grows = grows
        self._begin = time.perf_counter() if begin is None else begin
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        before = storage.stat(layout.plan)[1] if storage.is_local(layout.root) else 0
        self._observer = Observer(layout, before)
        self._listed_before, self._compared_before = LISTED.value, COMPARED.value
        self._first: tuple[float, State] | None = None

    def __enter__(self) -> Progress:
        if self._enabled:
            watch = self._bar if sys.stderr.isatty() else self._lines
            self._thread = threading.Thread(target=watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread:
            # The thread may be waiting for a remote store that does not respond.
            self._thread.join(1.0)

    def _look(self) -> State | None:
        try:
            state = self._observer.look()
        except Exception:  # showing progress must not fail a build
            return None
        if state and self._first is None:
            self._first = (time.monotonic(), state)
        return state

    @property
    def _compared(self) -> int:
        """Images of which `--dedupe pixels` has compared the pixels."""
        return COMPARED.value - self._compared_before

    def _step(self, state: State | None) -> str:
        if state is None:
            return "comparing pixels" if self._compared else "listing"
        return "finishing" if _is_written(state) else "writing"

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self._begin

    def _lines(self) -> None:
        while not self._stop.wait(_LINE_SECONDS):
            state = self._look()
            if self._stop.is_set():
                return
            facts = ", ".join([*self._facts(state, with_shards=True), duration(self._elapsed)])
            print(f"imageshards: {self._step(state)}: {facts}", file=sys.stderr, flush=True)

    def _facts(self, state: State | None, *, with_shards: bool) -> Iterator[str]:
        """Yields what is known: counts, rates, and the time left."""
        if state is None:
            listed = counted(LISTED.value - self._listed_before, self._noun)
            if self._compared:
                yield f"pixels of {self._compared:,} of {listed} compared"
            elif LISTED.value > self._listed_before:
                yield f"{listed} found"
            return
        if not self._grows:
            yield counted(state.all_images, self._noun)
            return
        images = f"{state.images:,} of {counted(state.all_images, self._noun)}"
        left = ""
        if self._first:
            seconds = time.monotonic() - self._first[0]
            done = state.images - self._first[1].images
            size = state.bytes - self._first[1].bytes
            if seconds > _LEAST_SECONDS and done > 0:
                images += f" ({rate(done / seconds)}/s, {rate(size / seconds / 1e6)} MB/s)"
                left = f"{duration((state.all_images - state.images) / done * seconds)} left"
        yield images
        if with_shards:
            yield f"{state.shards:,} of {counted(state.all_shards, 'shard')}"
        if state.rejects:
            yield counted(state.rejects, "reject")
        if left and not _is_written(state):
            yield left

    def _bar(self) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        columns: list[Any] = [
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[share]}"),
            TextColumn("{task.fields[elapsed]}"),
        ]
        local = storage.is_local(self._layout.root)
        pause = _BAR_SECONDS if local else _REMOTE_SECONDS
        console = Console(stderr=True)
        bar = Bar(*columns, console=console, expand=True)
        task = bar.add_task("listing", total=None, share="", elapsed="")
        facts = Text("", no_wrap=True, overflow="ellipsis")
        state, looked = None, 0.0
        with Live(Group(bar, facts), console=console, transient=True, refresh_per_second=10):
            while not self._stop.wait(_BAR_SECONDS):
                if time.monotonic() - looked >= pause:
                    state, looked = self._look() or state, time.monotonic()
                seen = state if self._grows else None
                bar.update(
                    task,
                    total=seen.all_images if seen else None,
                    completed=seen.images if seen else 0,
                    description=self._step(state),
                    share=f"{100 * seen.images // max(seen.all_images, 1)}%" if seen else "",
                    elapsed=duration(self._elapsed),
                )
                wide = console.width >= _WIDE_COLUMNS
                facts.plain = "  " + ", ".join(self._facts(state, with_shards=wide))


def _is_written(state: State) -> bool:
    return state.images >= state.all_images or state.shards == state.all_shards


def rate(value: float) -> str:
    """Returns a rate with one decimal if it is below ten.

    >>> rate(1234.5), rate(0.25)
    ('1,234', '0.2')
    """
    return f"{value:,.{0 if value >= 10 else 1}f}"


def duration(seconds: float) -> str:
    """Returns a time for people.

    >>> duration(9.6), duration(75), duration(7300)
    ('10 s', '1 min 15 s', '2 h 1 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
