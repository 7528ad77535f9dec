"""`imageshards advise --images`: shards for a fleet, and the time and cost of a build."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from imageshards.launch.fleet.stages import SHARDS_PER_THREAD, Fleet
from imageshards.transforms.elements import UsageError, counted

_SMALL_BYTES = 10_000_000
_LARGE_BYTES = 1_000_000_000
_MOST = 10**18
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}
_BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


@dataclass(frozen=True)
class FleetAdvice:
    """The estimate for a build on `fleet`. JSON has the attributes of both.

    Attributes:
      threads: threads of all workers that write shards.
      seconds: wall time from submission to the end.
      stages: the stages of the build, in order: the names are those of `stages.Stage`, and `usd`.
      warnings: what is wrong with the number of shards or workers.
      machines_usd: dollars for the machines; only for Dataflow.
      usd: dollars for the machines, the requests and the shuffle; only for Dataflow.
    """

    fleet: Fleet

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the number of shards or workers."""
        return tuple(self._warnings())

    def _warnings(self) -> Iterator[str]:
        fleet = self.fleet
        shards, threads, size = fleet.num_shards, fleet.threads, fleet.bytes / fleet.num_shards
        if shards < SHARDS_PER_THREAD * threads:
            useful = max(1, shards * fleet.workers // (SHARDS_PER_THREAD * threads))
            yield (
                f"{counted(shards, 'shard')} for {counted(threads, 'thread')}: fewer than "
                f"{SHARDS_PER_THREAD} for each, so that workers wait for the last shards; use at "
                f"most {counted(useful, 'worker')}, or more shards"
            )
        if size < _SMALL_BYTES and shards > 1:
            yield f"shards of {_size(size)}: opening files takes as long as reading them"
        if size > _LARGE_BYTES:
            yield f"shards of {_size(size)}: few can be read in parallel"

    def to_json(self) -> str:
        """Returns one line of JSON."""
        fleet = self.fleet
        stages = [stage._asdict() | {"usd": fleet.usd(stage)} for stage in fleet.stages]
        totals = {
            "shards": fleet.num_shards, "threads": fleet.threads, "seconds": fleet.seconds,
            "stages": stages, "warnings": list(self.warnings),
        }  # fmt: skip
        if fleet.engine == "dataflow":
            totals |= {"machines_usd": fleet.machines_usd, "usd": fleet.total_usd}
        return json.dumps(asdict(fleet) | totals)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        fleet = self.fleet
        shards = fleet.num_shards
        yield (
            f"{counted(fleet.images, 'image')}, {_size(fleet.bytes)}, on "
            f"{counted(fleet.workers, 'worker')} with {counted(fleet.vcpus, 'vCPU')} "
            f"({fleet.engine}, --check {fleet.check})"
        )
        yield (
            f"  --num_shards {shards}: {counted(shards, 'shard')} of "
            f"{_size(fleet.bytes / shards)}, written by {counted(fleet.threads, 'thread')}"
        )
        for warning in self.warnings:
            yield f"    WARNING: {warning}"
        for stage in fleet.stages:
            yield (
                f"  {stage.name + ':':12}{duration(stage.seconds):>9}  "
                f"{counted(stage.elements, 'element'):>20}  limit: {stage.limit}"
            )
        yield (
            f"  {'in all:':12}{duration(fleet.seconds):>9}  with {duration(fleet.start)} to start "
            "and to end"
        )
        if fleet.engine == "dataflow":
            requests = sum(map(fleet.usd, fleet.stages))
            yield (
                f"  {'cost:':12}{f'${fleet.total_usd:,.2f}':>9}  machines "
                f"${fleet.machines_usd:,.2f}, requests and shuffle ${requests:,.2f}"
            )
        yield (
            "  Extrapolated from at most 160,000 images and 10 million references on two cores; "
            "launch/fleet/rates.py has the measurements, prices and assumptions"
        )


def advise_fleet(fleet: Fleet) -> FleetAdvice:
    """Returns the estimate for a build on a fleet.

    Raises:
      UsageError: a number is out of range, or there are more images than bytes, or more shards
        than images.
    """
    for option, value in (
        ("--images", fleet.images), ("--bytes", fleet.bytes), ("--workers", fleet.workers),
        ("--vcpus", fleet.vcpus),
    ):  # fmt: skip
        if value < 1:
            raise UsageError(f"invalid {option} {value}: must be at least 1")
        if value > _MOST:
            raise UsageError(f"invalid {option}: must be at most {_MOST:,}")
    if fleet.shards > fleet.images:
        raise UsageError(
            f"invalid --num_shards {fleet.shards}: there are {counted(fleet.images, 'image')}, and "
            "a shard has at least one"
        )
    if fleet.bytes < fleet.images:
        raise UsageError(
            f"invalid --bytes {fleet.bytes}: the size of all {fleet.images:,} images together, "
            "such as 10.8TB"
        )
    return FleetAdvice(fleet)


def parse_bytes(text: str) -> int:
    """Returns a number of bytes.

    >>> parse_bytes("10.8TB"), parse_bytes("1.5 GiB"), parse_bytes("512")
    (10800000000000, 1610612736, 512)

    Raises:
      ValueError: the text is not one.
    """
    for unit, factor in (_UNITS | _BINARY_UNITS).items():
        if text.lower().endswith(unit.lower()):
            return round(float(text[: -len(unit)]) * factor)
    return int(text)


def _size(size: float) -> str:
    unit = next((u for u, factor in _UNITS.items() if size < 1000 * factor), "PB")
    return f"{size / _UNITS[unit]:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Returns a duration in a unit that fits it.

    >>> duration(90), duration(5400)
    ('1.5 min', '1.5 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"
