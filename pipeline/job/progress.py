"""Progress of a build, derived from the files that it writes.

Runners report no progress, or only through private interfaces, and workers may be other processes.
Finished and growing shards are visible with every runner.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId, counted
from imageshards.transforms.records.containers import parse_shard_name
from imageshards.transforms.references.keys import first_rank
from imageshards.transforms.shards.layout import Layout

_BAR_SECONDS = 0.2
_LINE_SECONDS = 10.0
_REMOTE_SECONDS = 10.0


@dataclass(frozen=True)
class State:
    """Shards and images that are finished, and their totals."""

    shards: int = 0
    all_shards: int = 0
    images: int = 0
    all_images: int = 0


def observe(layout: Layout, before: int) -> State | None:
    """Returns the progress of a build; None while it lists its inputs.

    Args:
      layout: the paths of the data set.
      before: the stamp of an earlier run's plan.json, or 0; this run writes the file again.
    """
    if storage.is_local(layout.root) and storage.stat(layout.plan)[1] == before:
        return None
    try:
        with storage.open_read(layout.plan) as file:
            splits: dict[str, dict[str, int]] = json.load(file)["splits"]
    except (OSError, ValueError, KeyError):
        return None

    def images_of(shard: ShardId | None) -> int:
        if shard is None or shard.split not in splits:
            return 0
        total = splits[shard.split]["images"]
        begin = first_rank(shard.index, shard.num_shards, total)
        return first_rank(shard.index + 1, shard.num_shards, total) - begin

    shards = 0
    images = 0.0
    for name in storage.names_in(layout.state):
        done = parse_shard_name(name.removesuffix(".json")) if name.endswith(".json") else None
        if done:
            shards += 1
            images += images_of(done)
        elif name.endswith(storage.TEMP_SUFFIX):
            shard = parse_shard_name(name.removesuffix(storage.TEMP_SUFFIX).rpartition(".")[0])
            if shard and (whole := splits.get(shard.split, {}).get("bytes")):
                written = storage.size(storage.join(layout.state, name))
                share = written * shard.num_shards / whole
                images += images_of(shard) * min(max(share, 0.0), 1.0)
    return State(
        shards,
        sum(split["shards"] for split in splits.values()),
        int(images),
        sum(split["images"] for split in splits.values()),
    )


class Progress:
    """Shows progress on stderr: a bar on a terminal, else a line every ten seconds."""

    def __init__(self, layout: Layout, *, enabled: bool = True, noun: str = "image") -> None:
        self._layout = layout
        self._noun = noun
        self._enabled = enabled
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._before = storage.stat(layout.plan)[1] if storage.is_local(layout.root) else 0
        self._begin: tuple[float, int] | None = None

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
            state = observe(self._layout, self._before)
        except Exception:  # showing progress must not fail a build
            return None
        if state and self._begin is None:
            self._begin = (time.monotonic(), state.images)
        return state

    def _rate(self, state: State) -> float:
        """Returns images per second in this run."""
        if self._begin is None:
            return 0.0
        seconds = time.monotonic() - self._begin[0]
        return (state.images - self._begin[1]) / seconds if seconds > 0.5 else 0.0

    def _lines(self) -> None:
        while not self._stop.wait(_LINE_SECONDS):
            state = self._look()
            if self._stop.is_set():
                return
            print(f"imageshards: {self._text(state)}", file=sys.stderr, flush=True)

    def _text(self, state: State | None) -> str:
        if state is None:
            return "listing"
        text = (
            f"{state.shards:,} of {counted(state.all_shards, 'shard')}, "
            f"{state.images:,} of {counted(state.all_images, self._noun)}"
        )
        if rate := self._rate(state):
            left = (state.all_images - state.images) / rate
            digits = 0 if rate >= 10 else 1
            text += f", {rate:,.{digits}f} {self._noun}s/s, {_duration(left)} left"
        return text

    def _bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        columns: list[Any] = [
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[detail]}"),
        ]
        local = storage.is_local(self._layout.root)
        pause = _BAR_SECONDS if local else _REMOTE_SECONDS
        with Bar(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
            task = bar.add_task("listing", total=None, detail="")
            while not self._stop.wait(pause):
                state = self._look()
                if state is None:
                    continue
                done = state.images >= state.all_images or state.shards == state.all_shards
                bar.update(
                    task,
                    total=state.all_images,
                    completed=state.images,
                    description="finishing" if done else "writing",
                    detail=self._text(state),
                )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
