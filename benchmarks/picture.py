"""Draws the results of a run: python picture.py RESULTS.json PICTURE.png; needs matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_OURS, _PEER, _INK = "#1f6feb", "#b8bec6", "#30363d"


def bars(axes: Any, names: list[str], values: list[float], ours: list[bool], form: str) -> None:
    """Draws horizontal bars with their values at the ends."""
    colors = [_OURS if own else _PEER for own in ours]
    drawn = axes.barh(range(len(names)), values, color=colors, height=0.72)
    labels = [form.format(value) if value else "-" for value in values]
    axes.bar_label(drawn, labels, padding=4, fontsize=8.5, color=_INK)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
    axes.tick_params(length=0, labelsize=9, colors=_INK)
    axes.xaxis.set_visible(False)


def growth_lines(axes: Any, growth: dict[str, Any]) -> None:
    """Draws the wall time of the whole process over the number of images."""
    styles = iter(["-", "--", ":"])
    for name, grown in growth.items():
        points = [size for size in grown["sizes"] if size["seconds"] is not None]
        if not points:
            continue
        own = name.startswith("imageshards")
        slope = grown["seconds_per_further_image"]
        label = points[0]["title"] + (f": {slope * 1e6:,.0f} us per image" if slope else "")
        axes.plot(
            [p["images"] for p in points],
            [p["seconds"] for p in points],
            marker="o",
            markersize=4,
            linestyle=next(styles) if own else "-",
            color=_OURS if own else "#6e7781",
            label=label,
        )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("images", color=_INK)
    axes.set_ylabel("seconds, whole process", color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, colors=_INK)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)


def draw(results: dict[str, Any], target: Path) -> None:
    """Draws throughput, time and memory of all contenders, and growth if it was measured."""
    done = [r for r in results["contenders"].values() if r["seconds"] is not None]
    growth = results["growth"]
    height = 1.3 + 0.31 * len(done)
    figure = plt.figure(figsize=(15, height + (3.9 if growth else 0)), layout="constrained")
    grid = figure.add_gridspec(
        2 if growth else 1, 3, height_ratios=[height, 3.9] if growth else None
    )
    titles = [r["title"] for r in done]
    ours = [r["name"].startswith("imageshards") for r in done]
    panels = [
        ("images/s in the loop", [r["images_per_second"] or 0 for r in done], "{:,.0f}"),
        ("seconds, whole process", [r["seconds"] for r in done], "{:.1f}"),
        ("peak memory, MB", [r["peak_bytes"] / 1e6 for r in done], "{:,.0f}"),
    ]
    for column, (title, values, form) in enumerate(panels):
        axes = figure.add_subplot(grid[0, column])
        bars(axes, titles if column == 0 else [""] * len(done), values, ours, form)
        axes.set_title(title, loc="left", fontsize=11, color=_INK)
    if growth:
        axes = figure.add_subplot(grid[1, :])
        axes.set_title("growth", loc="left", fontsize=11, color=_INK)
        growth_lines(axes, growth)
    about = results["about"]
    figure.suptitle(
        f"{about['images']:,} images, {about['bytes'] / 1e9:.2f} GB, {about['shards']} shards; "
        f"{about['machine']['Machine']}",
        x=0.01, ha="left", fontsize=12, color=_INK,
    )  # fmt: skip
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
