"""The results of all runs, and their medians. Standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import linear_regression, median
from typing import Any

_TOO_SHORT = 0.05
"""Seconds: a smaller difference between two runs is noise."""


@dataclass(frozen=True)
class Run:
    """A valid run, whose output was read back.

    Attributes:
      seconds: wall time of the whole process.
      cpu_seconds: CPU time of the whole process.
      other_seconds: CPU time of all other processes of the machine, estimated.
      peak_bytes: peak memory of all its processes together.
      loop_seconds: wall time of its loop, if it reports it.
      images: counted in its output.
      rising: see `read_back.py`.
      same_bytes: whether every image in the output has the bytes of the input.
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
      images: number of input images.
      checks: see `contenders.py`.
      shuffle: see `contenders.py`.
      runs: the valid runs.
      startups: seconds of the same command on 10 images, for commands that do not time their loop.
      problems: the reasons of invalid runs.
      medium: where the output was written: "tmpfs" or "disk".
    """

    name: str
    title: str
    images: int
    checks: str = ""
    shuffle: str = ""
    runs: list[Run] = field(default_factory=list)
    startups: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    medium: str = ""

    @property
    def seconds(self) -> float | None:
        """Median wall time of the whole process."""
        return median(run.seconds for run in self.runs) if self.runs else None

    @property
    def range(self) -> tuple[float, float] | None:
        """Wall times of the fastest and the slowest run."""
        times = [run.seconds for run in self.runs]
        return (min(times), max(times)) if times else None

    @property
    def others(self) -> float | None:
        """Median number of cores that other processes kept busy."""
        return median(run.other_seconds / run.seconds for run in self.runs) if self.runs else None

    @property
    def peak_bytes(self) -> int | None:
        """The highest peak memory of all runs."""
        return max(run.peak_bytes for run in self.runs) if self.runs else None

    @property
    def loop_seconds(self) -> float | None:
        """Median time of the loop; for a command, the time beyond that for 10 images."""
        if self.seconds is None:
            return None
        if self.startups:
            rest = self.seconds - median(self.startups)
            return rest if rest > _TOO_SHORT else None
        loops = [run.loop_seconds for run in self.runs if run.loop_seconds is not None]
        return median(loops) if loops else None

    @property
    def rate(self) -> float | None:
        """Images per second in the loop."""
        return self.images / self.loop_seconds if self.loop_seconds else None

    @property
    def is_shuffled(self) -> bool | None:
        """Whether the order of the output is unrelated to that of the listing."""
        return all(0.4 < run.rising < 0.6 for run in self.runs) if self.runs else None

    def to_json(self) -> dict[str, Any]:
        """Returns all values, including the medians."""
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
    """The measurement of a command whose output is not read back.

    Attributes:
      title: what is measured.
      seconds: median wall time of the whole process.
      loop_seconds: median time of its loop, or None.
      peak_bytes: the highest peak memory of all its processes together.
      problem: why it was not measured, or "".
      cpu_seconds: median CPU time of the whole process; of `reads-...` only that of the reads.
      count: the number of images, references or shards; 0: unknown.
    """

    title: str
    seconds: float | None = None
    loop_seconds: float | None = None
    peak_bytes: int | None = None
    problem: str = ""
    cpu_seconds: float | None = None
    count: int = 0


@dataclass
class Results:
    """The results of one invocation.

    Attributes:
      main: contender -> result.
      growth: contender -> results on growing numbers of images.
      figures: `help`, `ten`, `small`, `references-1000000`, ... -> figure.
      about: machine, versions, date, command.
    """

    main: dict[str, Result] = field(default_factory=dict)
    growth: dict[str, list[Result]] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def slope(self, name: str) -> float | None:
        """Returns the seconds per further image: the slope of a line through the medians.

        Only outputs on the same medium are compared, because a disk takes additional time.
        """
        points = [result for result in self.growth.get(name, []) if result.seconds is not None]
        media = [result.medium for result in points]
        points = [result for result in points if result.medium == max(media, key=media.count)]
        if len({result.images for result in points}) < 2:
            return None
        fit = linear_regression(
            [float(result.images) for result in points],
            [result.seconds or 0.0 for result in points],
        )
        # A negative slope means that the noise is larger than the growth.
        return fit.slope if fit.slope > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Returns all results as JSON values."""
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
