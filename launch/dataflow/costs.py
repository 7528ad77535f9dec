"""Estimates time and cost of builds on Dataflow: the table in README.md next to this file.

    python -m imageshards.launch.dataflow.costs

The CPU time per image is measured (benchmarks/RESULTS.md in the repository). Prices and start-up
time are assumptions: adjust the constants below to your project.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

IMAGE_BYTES = 108_000
"""Mean size of a photograph in ImageNet."""
READ_MS = 0.5
"""vCPU time to read an object of that size."""
CHECK_MS = {"header": 0.25, "full": 2.0}
"""vCPU time to check, encode and write an image: the upper ends of the measurements."""
LIST_SECONDS = 0.3
"""Time of a request that lists 1,000 objects: an assumption."""
LIST_THREADS = 16
"""Concurrent requests of the worker that lists an input."""
REFERENCE_BYTES = 200
"""Size of a reference in a shuffle; a build has two shuffles."""
START_MINUTES = 5.0
"""Start of the workers, and the time after the last image. VMs are billed for it."""
BUSY = 0.7
"""Fraction of the remaining time in which a vCPU works, and does not wait."""
DISK_GB = 30
"""Disk of a worker: it holds the container image, no data."""

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
      images: number of images, each an object.
      check: "header" or "full".
      machine: type of the workers.
      vcpus: of each worker.
      memory_gb: of each worker.
      workers: number of workers.
    """

    images: int
    check: str
    machine: str
    vcpus: int
    memory_gb: int
    workers: int

    @property
    def vcpu_seconds(self) -> float:
        """Total vCPU time of the images."""
        return self.images * (READ_MS + CHECK_MS[self.check]) / 1000

    @property
    def work_minutes(self) -> float:
        """Wall time in which all workers process the images."""
        return self.vcpu_seconds / (self.workers * self.vcpus) / BUSY / 60

    @property
    def list_minutes(self) -> float:
        """Wall time of the listing, by one worker. The other workers wait."""
        return self.images / LISTED_PER_REQUEST * LIST_SECONDS / LIST_THREADS / 60

    @property
    def minutes(self) -> float:
        """Wall time from submission to the end."""
        return START_MINUTES + self.list_minutes + self.work_minutes

    @property
    def reads_per_second(self) -> float:
        """Rate of all workers together."""
        return self.images / (self.work_minutes * 60)

    @property
    def gigabits(self) -> float:
        """Gigabits per second that each VM receives; it sends as many."""
        return self.reads_per_second / self.workers * IMAGE_BYTES * 8 / 1e9

    @property
    def shards(self) -> int:
        """Number of shards with --num_shards auto."""
        return max(1, round(self.images * IMAGE_BYTES / SHARD_BYTES))

    @property
    def machines_usd(self) -> float:
        """Cost of CPUs, memory and disks."""
        hour = self.vcpus * VCPU_HOUR + self.memory_gb * MEMORY_GB_HOUR + DISK_GB * DISK_GB_HOUR
        return self.workers * hour * self.minutes / 60

    @property
    def shuffle_usd(self) -> float:
        """Cost of shuffling the references twice."""
        return 2 * self.images * REFERENCE_BYTES / 1e9 * SHUFFLE_GB

    @property
    def requests_usd(self) -> float:
        """Cost of reading each image once, of listing, and of writing the shards."""
        others = self.images / LISTED_PER_REQUEST + self.shards * FILES_PER_SHARD
        return self.images / 1000 * READS_1000 + others / 1000 * WRITES_AND_LISTS_1000

    @property
    def usd(self) -> float:
        """Total cost, without storage of the data set."""
        return self.machines_usd + self.shuffle_usd + self.requests_usd


BUILDS = (
    Build(1_000_000, "header", "e2-standard-2", 2, 8, 4),
    Build(1_000_000, "full", "e2-standard-2", 2, 8, 8),
    Build(100_000_000, "header", "e2-standard-4", 4, 16, 8),
    Build(100_000_000, "full", "e2-standard-4", 4, 16, 25),
)


def table() -> Iterator[str]:
    """Yields a table of the builds as lines of Markdown."""
    yield (
        "| images | check | workers | shards | vCPU hours | listing, minutes | total, minutes "
        "| reads/s | Gb/s in, a VM | machines | shuffle | requests | total |"
    )
    yield "| ---: | --- | --- " + "| ---: " * 10 + "|"
    for build in BUILDS:
        yield (
            f"| {build.images:,} | {build.check} | {build.workers} x {build.machine} "
            f"| {build.shards:,} | {build.vcpu_seconds / 3600:,.1f} "
            f"| {build.list_minutes:,.1f} | {build.minutes:,.0f} | {build.reads_per_second:,.0f} "
            f"| {build.gigabits:.2f} | ${build.machines_usd:,.2f} | ${build.shuffle_usd:,.2f} "
            f"| ${build.requests_usd:,.2f} | ${build.usd:,.2f} |"
        )


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in table())
