"""What a build on Dataflow takes and costs: the table of README.md beside this file.

    python -m imageshards.launch.dataflow.costs

An estimate: the CPU of an image is measured (benchmarks/RESULTS.md of the repository), prices
and start-up are assumptions with names. Change them here for yours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

IMAGE_BYTES = 108_000
"""Of a photograph, on average: that of ImageNet."""
READ_MS = 0.5
"""vCPU to get an object of that size."""
CHECK_MS = {"header": 0.25, "full": 2.0}
"""vCPU to check, encode and write an image; the upper ends of what was measured."""
REFERENCE_BYTES = 200
"""Of a reference in a shuffle, and there are two."""
START_MINUTES = 5.0
"""Until workers run, and from the last image to the end: VMs are paid for meanwhile."""
BUSY = 0.7
"""Share of the time between that a vCPU works, and does not wait for the store or at the end."""
DISK_GB = 30
"""A worker's disk: the image, no data."""

# US dollars, list prices of us-central1 as of 2025.
VCPU_HOUR = 0.056
MEMORY_GB_HOUR = 0.003557
DISK_GB_HOUR = 0.000054
SHUFFLE_GB = 0.011
READS_1000 = 0.0004
WRITES_AND_LISTS_1000 = 0.005

SHARD_BYTES = 150e6
FILES_PER_SHARD = 4
LISTED_PER_REQUEST = 1000


@dataclass(frozen=True)
class Build:
    """A build and the workers for it.

    Attributes:
      images: how many, each an object.
      check: "header" or "full".
      machine: type of the workers, with this many
      vcpus: and
      memory_gb: each.
      workers: how many of them.
    """

    images: int
    check: str
    machine: str
    vcpus: int
    memory_gb: int
    workers: int

    @property
    def vcpu_seconds(self) -> float:
        """Of work."""
        return self.images * (READ_MS + CHECK_MS[self.check]) / 1000

    @property
    def work_minutes(self) -> float:
        """Of all workers together, side by side."""
        return self.vcpu_seconds / (self.workers * self.vcpus) / BUSY / 60

    @property
    def minutes(self) -> float:
        """From submission to the end."""
        return START_MINUTES + self.work_minutes

    @property
    def reads_per_second(self) -> float:
        """Of all workers together."""
        return self.images / (self.work_minutes * 60)

    @property
    def gigabits(self) -> float:
        """A second into each VM; as much goes out of it."""
        return self.reads_per_second / self.workers * IMAGE_BYTES * 8 / 1e9

    @property
    def shards(self) -> int:
        """That --num_shards auto makes."""
        return max(1, round(self.images * IMAGE_BYTES / SHARD_BYTES))

    @property
    def machines_usd(self) -> float:
        """CPUs, memory and disks."""
        hour = self.vcpus * VCPU_HOUR + self.memory_gb * MEMORY_GB_HOUR + DISK_GB * DISK_GB_HOUR
        return self.workers * hour * self.minutes / 60

    @property
    def shuffle_usd(self) -> float:
        """References, twice; no pixels."""
        return 2 * self.images * REFERENCE_BYTES / 1e9 * SHUFFLE_GB

    @property
    def requests_usd(self) -> float:
        """Each image read once; listings; what each shard writes."""
        others = self.images / LISTED_PER_REQUEST + self.shards * FILES_PER_SHARD
        return self.images / 1000 * READS_1000 + others / 1000 * WRITES_AND_LISTS_1000

    @property
    def usd(self) -> float:
        """All of it. Storage of the data set is not in it."""
        return self.machines_usd + self.shuffle_usd + self.requests_usd


BUILDS = (
    Build(1_000_000, "header", "e2-standard-2", 2, 8, 4),
    Build(1_000_000, "full", "e2-standard-2", 2, 8, 8),
    Build(100_000_000, "header", "e2-standard-4", 4, 16, 8),
    Build(100_000_000, "full", "e2-standard-4", 4, 16, 25),
)


def table() -> Iterator[str]:
    """The builds as lines of Markdown."""
    yield (
        "| images | check | workers | shards | vCPU hours of work | minutes | reads/s "
        "| Gb/s in, a VM | machines | shuffle | requests | together |"
    )
    yield "| ---: | --- | --- " + "| ---: " * 9 + "|"
    for build in BUILDS:
        yield (
            f"| {build.images:,} | {build.check} | {build.workers} x {build.machine} "
            f"| {build.shards:,} | {build.vcpu_seconds / 3600:,.1f} | {build.minutes:,.0f} "
            f"| {build.reads_per_second:,.0f} | {build.gigabits:.2f} | ${build.machines_usd:,.2f} "
            f"| ${build.shuffle_usd:,.2f} | ${build.requests_usd:,.2f} | ${build.usd:,.2f} |"
        )


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in table())
