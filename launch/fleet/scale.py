"""Writes launch/dataflow/SCALE.md, and the table of costs in the README.md next to it.

`python -m imageshards.launch.fleet.scale launch/dataflow` renews them, in a checkout.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from imageshards.launch.fleet.advise import duration
from imageshards.launch.fleet.rates import RATES, rate
from imageshards.launch.fleet.stages import Fleet, bounds

BEGIN = "<!-- python -m imageshards.launch.fleet.scale launch/dataflow -->"
_SCALES = (100_000_000, 1_000_000_000, 5_000_000_000)
_WORKERS = (100, 1000)
_BUILDS = (
    Fleet(1_000_000, 108_000_000_000, 4, 2, "header"),
    Fleet(1_000_000, 108_000_000_000, 8, 2, "full"),
    Fleet(100_000_000, 10_800_000_000_000, 8, 4, "header"),
    Fleet(100_000_000, 10_800_000_000_000, 25, 4, "full"),
)


def costs() -> Iterator[str]:
    """Yields the table of builds on Dataflow as lines of Markdown."""
    yield (
        "| images | check | workers | shards | vCPU hours | listing | writing | in all | machines "
        "| requests and shuffle | total |"
    )
    yield "| ---: | --- | --- " + "| ---: " * 8 + "|"
    for fleet in _BUILDS:
        listing, _, writing, *_ = fleet.stages
        requests = sum(map(fleet.usd, fleet.stages))
        yield (
            f"| {fleet.images:,} | {fleet.check} | {fleet.workers} x e2-standard-{fleet.vcpus} "
            f"| {fleet.num_shards:,} | {fleet.images * fleet.image_seconds / 3600:,.1f} "
            f"| {duration(listing.seconds)} | {duration(writing.seconds)} "
            f"| {duration(fleet.seconds)} | ${fleet.machines_usd:,.2f} | ${requests:,.2f} "
            f"| ${fleet.total_usd:,.2f} |"
        )


def scale() -> str:
    """Returns the content of SCALE.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Builds of 100 million to 5 billion images"
    yield ""
    yield BEGIN
    yield ""
    yield (
        "**No build of this size has been run.** All figures are computed by\n"
        "[launch/fleet/stages.py](../fleet/stages.py) from the constants at the end of this page.\n"
        "What was measured is small: at most 160,000 images and 10 million references, on two\n"
        "cores. The rest is extrapolated in proportion to the number of images. To estimate a\n"
        "build of your own, run\n"
        "\n"
        "```bash\nimageshards advise --images 100M --bytes 10.8TB --workers 100\n```\n"
    )
    size = int(rate("image_bytes"))
    yield (
        f"Images have {size / 1000:.0f} kB, and are checked in full. Workers are e2-standard-4 "
        "on Dataflow. *Largest\nelement* and *memory* are those of one element and of one worker "
        "process, of which each vCPU has\none. *Archives* are uncompressed tars of 1 GB."
    )
    for images in _SCALES:
        for archives in (False, True):
            yield ""
            yield f"## {images / 1e6:,.0f} million images, {'archives' if archives else 'files'}"
            yield ""
            yield from _table([
                Fleet(images, images * size, workers, archives=archives) for workers in _WORKERS
            ])  # fmt: skip
    yield ""
    yield "## What breaks first"
    yield ""
    yield (
        "| bound | at most "
        + "".join(f"| {images / 1e6:,.0f} million " for images in _SCALES)
        + "| remedy |"
    )
    yield "| --- | ---: " + "| ---: " * len(_SCALES) + "| --- |"
    found = [bounds(Fleet(images, images * size, _WORKERS[0])) for images in _SCALES]
    for bound in found[-1]:
        values = [next(b.value for b in each if b.what == bound.what) for each in found]
        yield (
            f"| {bound.what} | {bound.most:,.0f} "
            + "".join(f"| {value:,.0f} " for value in values)
            + f"| {bound.remedy} |"
        )
    first = found[-1][0]
    reached = _SCALES[-1] * first.most / first.value
    yield ""
    yield (
        f"With shards of 150 MB, the first bound is reached at {reached / 1e6:,.0f} million images."
        "\nAnother limit is the bucket: it serves 5,000 reads a second at first, and twice as many "
        "every 20\nminutes at best. Archives have the same number of reads, because each image is "
        "read by a request\nfor a range."
    )
    yield ""
    yield (
        "Some elements hold all that has one name, whatever the number of workers is:\n"
        "\n"
        "- the references of one URI with different labels, splits or features. A build in which\n"
        "  one has more than 100,000 fails with one line;\n"
        "- with `--annotations`, the images with one base name, such as `*/image.jpg`. A build\n"
        "  with more than 1,048,576 fails with one line. A worker takes 2 GB or more for them;\n"
        "- a value of a sample in an MDS shard, of 1 MiB at most, and a row of a text manifest,\n"
        "  of 4 MiB at most: larger ones are refused."
    )
    yield ""
    yield "## Constants"
    yield ""
    yield "| constant | value | | kind | source | date |"
    yield "| --- | ---: | --- | --- | --- | --- |"
    for name, constant in RATES.items():
        yield (
            f"| {name} | {constant.value:,.10g} | {constant.unit} | {constant.kind} "
            f"| {constant.source} | {constant.date} |"
        )


def _table(fleets: list[Fleet]) -> Iterator[str]:
    hours = "".join(f"| hours, {fleet.workers:,} workers | limit " for fleet in fleets)
    yield f"| stage | elements | largest element | memory | requests {hours}| requests, $ |"
    yield "| --- | ---: | ---: | ---: | ---: " + "| ---: | --- " * len(fleets) + "| ---: |"
    for stages in zip(*(fleet.stages for fleet in fleets), strict=True):
        stage = stages[0]
        yield (
            f"| {stage.name} | {stage.elements:,} | {stage.element_bytes / 1e6:,.1f} MB "
            f"| {stage.memory / 1e9:,.2f} GB | {stage.reads + stage.writes:,.0f} "
            + "".join(f"| {each.seconds / 3600:,.2f} | {each.limit} " for each in stages)
            + f"| {fleets[0].usd(stage):,.2f} |"
        )
    yield (
        "| in all, with the machines | | | | "
        + "".join(f"| {fleet.seconds / 3600:,.2f} | ${fleet.total_usd:,.0f} " for fleet in fleets)
        + "| |"
    )


def write(folder: Path) -> None:
    """Writes both files.

    Args:
      folder: launch/dataflow of a checkout.
    """
    (folder / "SCALE.md").write_text(scale())
    readme = folder / "README.md"
    before, _, after = readme.read_text().partition(BEGIN)
    rest = after.split("\n\n", 1)[1]
    readme.write_text("\n".join([before + BEGIN, *costs(), "", rest]))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
