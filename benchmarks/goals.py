"""The goals of imageshards, compared with the measurements. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.contenders import (
    FULL,
    HEADER,
    MDS,
    PLAIN,
    PLAIN_FULL,
    TEXTBOOK,
    TFDS,
    WEBDATASET,
)
from benchmarks.results import Figure, Result, Results

# Number of references -> the most seconds and bytes of memory for them.
REFERENCES = {1_000_000: (5.0, 400e6), 10_000_000: (60.0, 3e9)}


@dataclass(frozen=True)
class Goal:
    """A goal and its measurement.

    Attributes:
      title: what is measured.
      goal: the limit, as text.
      measured: the value, as text.
      reached: whether the value is within the limit; None if it was not measured.
    """

    title: str
    goal: str
    measured: str
    reached: bool | None


def at_most(title: str, value: float | None, limit: float, form: str = "{:.2f}") -> Goal:
    """Returns a goal with an upper limit."""
    return _goal(title, "<= ", value, limit, form, value is not None and value <= limit)


def at_least(title: str, value: float | None, limit: float, form: str = "{:.2f} x") -> Goal:
    """Returns a goal with a lower limit."""
    return _goal(title, ">= ", value, limit, form, value is not None and value >= limit)


def _goal(
    title: str, sense: str, value: float | None, limit: float, form: str, reached: bool
) -> Goal:
    goal = sense + form.format(limit)
    if value is None:
        return Goal(title, goal, "not measured", None)
    return Goal(title, goal, form.format(value), reached)


def ratio(above: float | None, below: float | None) -> float | None:
    """Returns above / below; None if a value is missing or `below` is 0."""
    return above / below if above is not None and below else None


def goals(results: Results) -> list[Goal]:
    """Returns all goals, by subject."""
    return [*_times(results), *_memory(results), *_start_up(results), *_references(results)]


def _times(results: Results) -> Iterator[Goal]:
    def of(name: str) -> Result:
        return results.main.get(name) or Result(name, name, 0)

    header, plain, textbook = of(HEADER), of(PLAIN), of(TEXTBOOK)
    yield at_most(
        "whole process, header check / plain loop", ratio(header.seconds, plain.seconds), 0.40
    )
    yield at_most(
        "cost of a further image, header check / plain loop",
        ratio(results.slope(HEADER), results.slope(PLAIN)),
        0.40,
    )
    yield at_least(
        "images/s in the loop, full check / plain loop with Pillow decode",
        ratio(of(FULL).rate, of(PLAIN_FULL).rate),
        2.8,
    )
    yield at_most(
        "whole process, header check / tensorflow_datasets builder",
        ratio(header.seconds, of(TFDS).seconds),
        0.30,
    )
    for peer, title in ((WEBDATASET, "webdataset ShardWriter"), (MDS, "MosaicML MDSWriter")):
        yield at_least(
            f"images/s in the loop, header check / {title}",
            ratio(header.rate, of(peer).rate),
            1.3,
        )
    yield at_least(
        "speed of the whole process, header check / textbook Beam graph",
        ratio(textbook.seconds, header.seconds),
        10,
        "{:.1f} x",
    )
    yield at_most(
        "peak memory, header check / textbook Beam graph",
        ratio(header.peak_bytes, textbook.peak_bytes), 1 / 20, "{:.3f}",
    )  # fmt: skip


def _memory(results: Results) -> Iterator[Goal]:
    sizes = [result for result in results.growth.get(HEADER, []) if result.peak_bytes]
    if len(sizes) < 2:
        title = "peak memory, header check, as the images grow"
        yield Goal(title, "within 15 %, < 600 MB", "not measured", None)
        return
    first, last = sizes[0], sizes[-1]
    small, large = float(first.peak_bytes or 0), float(last.peak_bytes or 0)
    yield at_most(
        f"growth of peak memory, header check, {first.images:,} to {last.images:,} images",
        100 * (large - small) / small,
        15,
        "{:.0f} %",
    )
    yield at_most(
        f"peak memory, header check, {last.images:,} images",
        max(small, large) / 1e6, 600, "{:.0f} MB",
    )  # fmt: skip


def _start_up(results: Results) -> Iterator[Goal]:
    def seconds(name: str) -> float | None:
        figure = results.figures.get(name)
        return figure.seconds if figure else None

    yield at_most("imageshards --help", seconds("help"), 0.3, "{:.2f} s")
    yield at_most("a build of 10 images", seconds("ten"), 2.5, "{:.2f} s")


def _references(results: Results) -> Iterator[Goal]:
    for count, (seconds, size) in REFERENCES.items():
        figure = results.figures.get(f"references-{count}") or Figure("")
        title = f"list, split, shuffle, plan {count / 1e6:.0f} M references"
        yield at_most(f"{title}, whole process", figure.seconds, seconds, "{:.1f} s")
        peak = figure.peak_bytes
        yield at_most(
            f"{title}, peak memory", peak and peak / 1e6, size / 1e6, "{:,.0f} MB"
        )  # fmt: skip
