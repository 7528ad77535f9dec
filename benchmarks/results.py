"""What was measured, and its medians. Standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import linear_regression, median
from typing import Any

_TOO_SHORT = 0.05
"""A difference of so few seconds between two runs is noise."""


@dataclass(frozen=True)
class Run:
    """One run whose output was read back.

    Attributes:
      seconds: of the whole process.
      cpu_seconds: of the whole process.
      other_seconds: CPU time of processes that are not its own, as far as can be told.
      peak_bytes: of all its processes together.
      loop_seconds: in its loop, where it says so itself.
      images: counted in its output.
      rising: see `read_back.py`.
      same_bytes: every image came out as it went in.
    """

    seconds: float
    cpu_seconds: float
    other_seconds: float
    peak_bytes: int
    loop_seconds: float | None
    images: int
    rising: float
    same_bytes: bool


@dataclass
class Result:
    """The runs of one contender on one set of images.

    Attributes:
      name: of the contender.
      title: of the contender.
      images: that it was given.
      checks: see `contenders.py`.
      shuffle: see `contenders.py`.
      runs: those that count.
      startups: seconds of the same command on 10 images, for commands that time no loop.
      problems: why other runs do not count.
      place: where the output was written: tmpfs or disk.
    """

    name: str
    title: str
    images: int
    checks: str = ""
    shuffle: str = ""
    runs: list[Run] = field(default_factory=list)
    startups: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    place: str = ""

    @property
    def seconds(self) -> float | None:
        """Median of the whole process."""
        return median(run.seconds for run in self.runs) if self.runs else None

    @property
    def range(self) -> tuple[float, float] | None:
        """Fastest and slowest whole process."""
        times = [run.seconds for run in self.runs]
        return (min(times), max(times)) if times else None

    @property
    def others(self) -> float | None:
        """Median of how many cores processes that are not its own kept busy."""
        return median(run.other_seconds / run.seconds for run in self.runs) if self.runs else None

    @property
    def peak_bytes(self) -> int | None:
        """The highest of all runs."""
        return max(run.peak_bytes for run in self.runs) if self.runs else None

    @property
    def loop_seconds(self) -> float | None:
        """Median in the loop; for a command, of what it takes longer than for 10 images."""
        if self.seconds is None:
            return None
        if self.startups:
            rest = self.seconds - median(self.startups)
            return rest if rest > _TOO_SHORT else None
        loops = [run.loop_seconds for run in self.runs if run.loop_seconds is not None]
        return median(loops) if loops else None

    @property
    def rate(self) -> float | None:
        """Images a second in the loop."""
        return self.images / self.loop_seconds if self.loop_seconds else None

    @property
    def is_shuffled(self) -> bool | None:
        """Whether the output follows the listing neither forwards nor backwards."""
        return all(0.4 < run.rising < 0.6 for run in self.runs) if self.runs else None

    def to_json(self) -> dict[str, Any]:
        """All of it, medians included."""
        return {
            **asdict(self),
            "seconds": self.seconds,
            "loop_seconds": self.loop_seconds,
            "images_per_second": self.rate,
            "peak_bytes": self.peak_bytes,
            "is_shuffled": self.is_shuffled,
        }


@dataclass(frozen=True)
class Figure:
    """A simple measurement: a command that makes no shards of its own.

    Attributes:
      title: what.
      seconds: median of the whole process.
      loop_seconds: median in its loop, or None.
      peak_bytes: the highest of all its processes together.
      problem: why it was not measured, or "".
    """

    title: str
    seconds: float | None = None
    loop_seconds: float | None = None
    peak_bytes: int | None = None
    problem: str = ""


@dataclass
class Results:
    """Everything of one invocation.

    Attributes:
      main: contender -> its result.
      growth: contender -> its results at growing numbers of images.
      figures: `help`, `ten`, `references-1000000`, ... -> figure.
      about: machine, versions, date, command.
    """

    main: dict[str, Result] = field(default_factory=dict)
    growth: dict[str, list[Result]] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def slope(self, name: str) -> float | None:
        """Seconds per further image, fitted through the medians.

        Only sizes whose output went to the same kind of place are compared: a disk adds its own.
        """
        points = [result for result in self.growth.get(name, []) if result.seconds is not None]
        places = [result.place for result in points]
        points = [result for result in points if result.place == max(places, key=places.count)]
        if len({result.images for result in points}) < 2:
            return None
        fit = linear_regression(
            [float(result.images) for result in points],
            [result.seconds or 0.0 for result in points],
        )
        # Where the noise is larger than the growth there is nothing to tell.
        return fit.slope if fit.slope > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "about": self.about,
            "contenders": {name: result.to_json() for name, result in self.main.items()},
            "growth": {
                name: {
                    "seconds_per_further_image": self.slope(name),
                    "sizes": [result.to_json() for result in results],
                }
                for name, results in self.growth.items()
            },
            "figures": {name: asdict(figure) for name, figure in self.figures.items()},
        }
