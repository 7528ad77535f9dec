"""Writes the measured constants of estimates: python -m benchmarks.rates [RESULTS.json].

Reads the results of `make bench` (build/bench/results.json), and writes launch/fleet/measured.json.
A constant that was not measured keeps its value and its date. `make rates` runs this, and then
renews the tables of launch/dataflow. Runs in the environment of imageshards.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from imageshards.launch.fleet.rates import MEASURED, MEASURED_FILE, Measured, rate

_ROOT = Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "build/bench/results.json"
_ALONE = "imageshards-header-1", "imageshards-full-1"
"""Builds in one process. The CPU time of worker processes is not in that of the main process."""


class Value(NamedTuple):
    """A constant that is computed from results.

    Attributes:
      name: key of `rates.RATES`.
      value: the value, in the unit that `rates` names.
      source: what was measured.
    """

    name: str
    value: float
    source: str


def values(results: Mapping[str, Any]) -> Iterator[Value]:
    """Yields the constants that can be computed from results.

    Times are those of CPUs, not of clocks: other processes of the machine change them little.

    Args:
      results: the content of results.json.
    """
    about, figures = results["about"], results["figures"]
    share = rate("image_bytes") * about["images"] / about["bytes"]
    ours = [
        each
        for name, each in results["contenders"].items()
        if name.startswith(("imageshards-header", "imageshards-full"))
    ]
    if peaks := [each["peak_bytes"] for each in ours if each["peak_bytes"]]:
        yield Value("process_memory", max(peaks), "peak memory of a build")
    start = _cpu(figures, "ten")
    small = _slope(figures, "ten", "small")
    header, full = (_image_cpu(results, name, start) for name in _ALONE)
    if small:
        yield Value("check_fixed", small, figures["small"]["title"])
        for name, found in (("check_header", header), ("check_full", full)):
            if found and found > small:
                yield Value(
                    name,
                    (found - small) * share,
                    f"{about['images']:,} photographs, without check_fixed",
                )
    reads = sorted(
        (int(name.removeprefix("reads-")), figure["cpu_seconds"])
        for name, figure in figures.items()
        if name.startswith("reads-") and figure.get("cpu_seconds")
    )
    if len(reads) == 2 and reads[1][1] > reads[0][1]:
        (_, fixed), (size, whole) = reads
        sizes = " and ".join(f"{each / 1000:.0f} kB" for each, _ in reads)
        source = f"python -m benchmarks.gcs, 32 reads in flight, objects of {sizes}"
        yield Value("read_fixed", fixed, source)
        yield Value("read_sized", (whole - fixed) * rate("image_bytes") / size, source)
    counts = sorted(
        int(name.removeprefix("references-")) for name in figures if name.startswith("references-")
    )
    if len(counts) > 1:
        least, most = counts[0], counts[-1]
        if found := _slope(figures, f"references-{least}", f"references-{most}"):
            yield Value("reference", found, f"{least:,} to {most:,} references")
    if used := _cpu(figures, "digests"):
        figure = figures["digests"]
        yield Value("digest", used / figure["count"], figure["title"])
    if seconds := figures.get("finish", {}).get("loop_seconds"):
        figure = figures["finish"]
        yield Value("finish", seconds / figure["count"], figure["title"])
        # What a build of 10 images takes is in `process_memory`.
        more = figure["peak_bytes"] - figures["ten"]["peak_bytes"]
        yield Value("finish_memory", more / figure["count"] * 1e6, figure["title"])


def _image_cpu(results: Mapping[str, Any], name: str, start: float | None) -> float | None:
    """The CPU seconds for a further image; None if it was not measured."""
    result = results["contenders"].get(name)
    if not result or not result["runs"] or start is None:
        return None
    used = median(run["cpu_seconds"] for run in result["runs"])
    return float((used - start) / (result["images"] - 10))


def _cpu(figures: Mapping[str, Any], name: str) -> float | None:
    return figures.get(name, {}).get("cpu_seconds")


def _slope(figures: Mapping[str, Any], first: str, last: str) -> float | None:
    """The CPU seconds for a further element, from two figures; None if one was not measured."""
    begin, end = _cpu(figures, first), _cpu(figures, last)
    if begin is None or end is None or end <= begin:
        return None
    return float((end - begin) / (figures[last]["count"] - figures[first]["count"]))


def text(measured: Mapping[str, Measured]) -> str:
    """Returns the content of measured.json."""
    rows = {name: constant._asdict() for name, constant in sorted(measured.items())}
    return json.dumps(rows, indent=2) + "\n"


def renewed(measured: Mapping[str, Measured], results: Mapping[str, Any]) -> dict[str, Measured]:
    """Returns the constants with those replaced that can be computed from results."""
    machine = results["about"]["machine"]
    date = machine["Date"].partition(" ")[0]
    where = machine["Machine"].partition(",")[0]
    found = {
        name: Measured(float(f"{value:.3g}"), date, f"make bench: {source}; {where}")
        for name, value, source in values(results)
    }
    return {**measured, **found}


def main() -> None:
    """Writes measured.json, and prints the constants."""
    path = Path(sys.argv[1]) if sys.argv[1:] else _RESULTS
    if not path.is_file():
        sys.exit(f"benchmarks.rates: {path}: no such file; run make bench IMAGES=DIR")
    found = renewed(MEASURED, json.loads(path.read_text()))
    MEASURED_FILE.write_text(text(found))
    for name, (value, _, source) in sorted(found.items()):
        before = MEASURED[name].value if name in MEASURED else None
        print(f"{name:16}{value:>14,.10g}  before {before}  {source}")


if __name__ == "__main__":
    main()
