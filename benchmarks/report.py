"""Formats results as tables: aligned text for a terminal, Markdown for RESULTS.md. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.contenders import PLAIN
from benchmarks.goals import Goal, ratio
from benchmarks.results import Result, Results

_NOTE = (
    "images/s: throughput of the loop. Peers time their own loop, without imports; for commands "
    "(imageshards, tar) it is images / (whole process - the same command on 10 images). "
    "whole: median wall time of the whole process, including start-up and imports, with the "
    "fastest and slowest run. memory: the highest sum of the proportional set sizes (PSS) of all "
    "processes. ratio: whole process / whole process of the plain loop. "
    "checks: what is validated in an image before it is written. shuffled: measured in the "
    "output; in brackets, the method."
)
_SERVED = (
    "img2dataset reads its images from a local HTTP server, which shares the cores; its memory is "
    "not counted."
)


def rows_of(results: Results) -> list[list[str]]:
    """Returns the table of all contenders; the first row is the header."""
    rows = [["what", "images/s", "whole, s", "memory, MB", "ratio", "checks", "shuffled"]]
    plain = results.main.get(PLAIN)
    for result in results.main.values():
        if not result.runs:
            rows.append([result.title, "-", "-", "-", "-", result.checks, "-"])
            continue
        fraction = ratio(result.seconds, plain.seconds if plain else None)
        rows.append(
            [
                result.title,
                f"{result.rate:,.0f}" if result.rate else "-",
                _seconds(result),
                f"{(result.peak_bytes or 0) / 1e6:,.0f}",
                f"{fraction:.2f}" if fraction else "-",
                result.checks,
                f"{'yes' if result.is_shuffled else 'no'} ({result.shuffle})",
            ]
        )
    return rows


def _seconds(result: Result) -> str:
    fastest, slowest = result.range or (0.0, 0.0)
    return f"{result.seconds:.2f} ({fastest:.2f}-{slowest:.2f})"


def goal_rows(goals: Sequence[Goal]) -> list[list[str]]:
    """Returns the table of goals and measurements."""
    words = {True: "reached", False: "not reached", None: "not measured"}
    return [
        ["figure", "measured", "goal", ""],
        *([goal.title, goal.measured, goal.goal, words[goal.reached]] for goal in goals),
    ]


def growth_rows(results: Results) -> list[list[str]]:
    """Returns the table of time and memory by number of images, with the time per further image."""
    rows = [["what", "images", "whole, s", "memory, MB", "output on", "us per further image"]]
    for name, sizes in results.growth.items():
        slope = results.slope(name)
        for result in sizes:
            last = result is sizes[-1]
            rows.append(
                [
                    result.title,
                    f"{result.images:,}",
                    _seconds(result) if result.runs else "-",
                    f"{result.peak_bytes / 1e6:,.0f}" if result.peak_bytes else "-",
                    result.medium,
                    f"{slope * 1e6:,.0f}" if last and slope is not None else "",
                ]
            )
    return rows


def figure_rows(results: Results) -> list[list[str]]:
    """Returns the table of start-up times and of builds of references only."""
    rows = [["what", "whole, s", "in the pipeline, s", "memory, MB"]]
    rows += [
        [
            figure.title,
            f"{figure.seconds:.2f}" if figure.seconds is not None else "-",
            f"{figure.loop_seconds:.2f}" if figure.loop_seconds is not None else "",
            f"{figure.peak_bytes / 1e6:,.0f}" if figure.peak_bytes else "",
        ]
        for figure in results.figures.values()
    ]
    return rows


def problems(results: Results) -> list[str]:
    """Returns a line for each invalid run, with the reason."""
    found = []
    for result in [*results.main.values(), *(r for rs in results.growth.values() for r in rs)]:
        for problem, count in {p: result.problems.count(p) for p in result.problems}.items():
            times = f" ({count} times)" if count > 1 else ""
            found.append(f"{result.title}, {result.images:,} images: {problem}{times}")
    found += [f"{f.title}: {f.problem}" for f in results.figures.values() if f.problem]
    return found


def changed(results: Results) -> list[str]:
    """Returns the contenders whose output images differ from the input files."""
    return [
        result.title
        for result in results.main.values()
        if result.runs and not all(run.same_bytes for run in result.runs)
    ]


def sections(results: Results, goals: Sequence[Goal]) -> list[tuple[str, list[list[str]], str]]:
    """Returns (title, table, note) for everything that was measured."""
    about = results.about
    found = []
    if results.main:
        note = _NOTE
        if "img2dataset" in results.main:
            note += f" {_SERVED}"
        # Only for a single process is it certain which CPU time is its own.
        plain = results.main.get(PLAIN)
        if plain and plain.others is not None:
            note += (
                f" While the plain loop ran, other processes, the sampler of memory among them, "
                f"kept {plain.others:.1f} cores busy."
            )
        if other := changed(results):
            note += (
                f" Not all images are byte-for-byte identical to the inputs: {', '.join(other)}."
            )
        title = f"{about['images']:,} images in {about['shards']} shards, rounds: {about['rounds']}"
        found.append((title, rows_of(results), note))
    if results.growth:
        note = (
            "Further images are hard links to the same files, so they use no more memory. The time "
            "per further image is the slope of a line through the medians of outputs on the same "
            "medium (tmpfs or disk)."
        )
        found.append(("Growth", growth_rows(results), note))
    if results.figures:
        note = (
            "References are synthetic URIs in a CSV manifest: no image is read or written. "
            "The graph is that of a build up to the GroupByKey by shard."
            if any(name.startswith("references") for name in results.figures)
            else ""
        )
        found.append(("Start-up and references", figure_rows(results), note))
    found.append(("Goals", goal_rows(goals), ""))
    return found


def text(results: Results, goals: Sequence[Goal]) -> str:
    """Returns the report for a terminal."""
    parts = []
    for title, rows, note in sections(results, goals):
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if index in (0,) or not _is_number(cell) else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        parts.append("\n".join([title, "", *lines, *([f"\n{note}"] if note else [])]))
    if found := problems(results):
        parts.append("\n".join(["Invalid runs", "", *found]))
    return "\n\n\n".join(parts)


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell in ("-", "")


def markdown(results: Results, goals: Sequence[Goal], picture: str) -> str:
    """Returns the report as RESULTS.md."""
    about = results.about
    lines = ["# Results", ""]
    lines += [f"- {key}: {value}" for key, value in about["machine"].items()]
    lines += ["", "<!-- not run: takes an hour -->", "```bash", about["command"], "```", ""]
    if results.main:
        lines += [f"![images/s, memory and growth]({picture})", ""]
    for title, rows, note in sections(results, goals):
        lines += [f"## {title}", "", _markdown_row(rows[0])]
        lines.append(_markdown_row(["---", *("---:" if _right(rows, i) else "---"
                                             for i in range(1, len(rows[0])))]))  # fmt: skip
        lines += [*map(_markdown_row, rows[1:]), ""]
        if note:
            lines += [note, ""]
    if found := problems(results):
        lines += ["## Invalid runs", "", *(f"- {problem}" for problem in found), ""]
    lines += ["## Versions", "", _markdown_row(["environment", "versions"]), "| --- | --- |"]
    for name, versions in about["versions"].items():
        listed = ", ".join(f"{package} {version}" for package, version in versions.items())
        lines.append(_markdown_row([name, listed]))
    return "\n".join(lines) + "\n"


def _right(rows: list[list[str]], column: int) -> bool:
    return all(_is_number(row[column]) for row in rows[1:])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
