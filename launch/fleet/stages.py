"""A model of a build on a fleet of workers: its stages, their time, and their cost. Pure.

The time of a stage is that of its slowest resource. Each is computed as if it was the only one:
CPU, requests in flight, requests a second of a bucket, network, and the last element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from imageshards.launch.fleet.rates import rate
from imageshards.transforms.references.plan import TARGET_SHARD_BYTES

Engine = Literal["dataflow", "flink"]
Check = Literal["header", "full"]
_LEAST_GROUPS = 128
_TAIL = 0.2
"""A last shard that takes a larger fraction of its stage is named as its limit."""
SHARDS_PER_THREAD = 4
"""With fewer, many threads wait while the last shards are written."""


class Stage(NamedTuple):
    """One stage of a build.

    Attributes:
      name: what it does.
      elements: the number of elements that workers process in parallel.
      element_bytes: the size of the largest one.
      memory: bytes of a worker process.
      reads: requests that read.
      writes: requests that write or list.
      shuffled: bytes of the shuffle before it.
      seconds: wall time.
      limit: the resource that determines this time.
    """

    name: str
    elements: int
    element_bytes: float
    memory: float
    reads: float
    writes: float
    shuffled: float
    seconds: float
    limit: str


@dataclass(frozen=True)
class Fleet:
    """A build, and the workers that run it.

    Attributes:
      images: the number of images.
      bytes: the size of all images.
      workers: the number of workers (machines).
      vcpus: of each worker.
      check: the value of `--check`.
      archives: whether the images are in uncompressed tars; otherwise each is an object.
      engine: the runner; only Dataflow has prices.
      shards: the number of shards; 0: the recommended one.
    """

    images: int
    bytes: int
    workers: int
    vcpus: int = 4
    check: Check = "full"
    archives: bool = False
    engine: Engine = "dataflow"
    shards: int = 0

    @property
    def all_vcpus(self) -> int:
        """The number of vCPUs of all workers."""
        return self.workers * self.vcpus

    @property
    def threads(self) -> int:
        """Threads of all workers that write shards. A slot of Flink is one of them."""
        per_vcpu = int(rate("threads")) if self.engine == "dataflow" else 1
        return self.all_vcpus * per_vcpu

    @property
    def num_shards(self) -> int:
        """Number of shards: of 150 MB, but enough for all threads as long as each has 10 MB."""
        if self.shards:
            return self.shards
        usual = round(self.bytes / TARGET_SHARD_BYTES)
        most = min(self.images, max(1, self.bytes // 10_000_000))
        return max(1, min(max(usual, SHARDS_PER_THREAD * self.threads), max(usual, most)))

    @property
    def image_seconds(self) -> float:
        """The vCPU seconds to read, check, encode and write an image."""
        size = self.bytes / self.images / rate("image_bytes")
        fixed = rate("read_fixed") + rate("check_fixed")
        return fixed + size * (rate("read_sized") + rate(f"check_{self.check}"))

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""
        return (
            self._list_archives() if self.archives else self._list_objects(),
            self._sort(),
            self._write(),
            self._leaks(),
            self._finish(),
        )

    @property
    def start(self) -> float:
        """Seconds to start the workers and to stop them."""
        return rate("start" if self.engine == "dataflow" else "start_flink")

    @property
    def seconds(self) -> float:
        """Wall time from submission to the end."""
        return self.start + sum(stage.seconds for stage in self.stages)

    @property
    def machines_usd(self) -> float:
        """Cost of CPUs, memory and disks."""
        memory = self.vcpus * rate("memory_per_vcpu")
        hour = (
            self.vcpus * rate("vcpu_hour")
            + memory * rate("memory_hour")
            + rate("disk") * rate("disk_hour")
        )
        return self.workers * hour * self.seconds / 3600

    def usd(self, stage: Stage) -> float:
        """Cost of the requests and the shuffle of a stage."""
        return (
            stage.reads * rate("read_request")
            + stage.writes * rate("write_request")
            + stage.shuffled / 1e9 * rate("shuffle_gb")
        )

    @property
    def total_usd(self) -> float:
        """Total cost, without storage of the data set."""
        return self.machines_usd + sum(map(self.usd, self.stages))

    def _cpu(self, vcpu_seconds: float, elements: int) -> float:
        return vcpu_seconds / min(self.all_vcpus, elements) / rate("busy")

    def _list_objects(self) -> Stage:
        pages = math.ceil(self.images / rate("page_objects"))
        units = math.ceil(self.images / rate("unit_references"))
        parallel = min(units, self.threads)
        seconds, limit = _slowest({
            "requests in flight": pages * rate("page") / parallel,
            "reads a second of the bucket": ramp_seconds(pages, parallel / rate("page"), "reads"),
        })  # fmt: skip
        size = rate("unit_references") * rate("reference_bytes")
        return Stage("list", units, size, rate("process_memory"), 0, pages, 0, seconds, limit)

    def _list_archives(self) -> Stage:
        archives = math.ceil(self.bytes / rate("archive_bytes"))
        parallel = min(archives, self.threads)
        reads = self.bytes / rate("walk_request")
        fastest = parallel * rate("walk") / rate("walk_request")
        seconds, limit = _slowest({
            "reads a second of the bucket": ramp_seconds(reads, fastest, "reads"),
            "reading archives": self.bytes / rate("walk") / parallel,
            "network": self.bytes / rate("network") / min(archives, self.all_vcpus),
        })  # fmt: skip
        refs = self.images / archives * rate("reference_bytes")
        return Stage(
            "list", archives, min(refs, rate("element_bytes")), rate("process_memory"),
            reads, archives / rate("page_objects"), 0, seconds, limit,
        )  # fmt: skip

    def _sort(self) -> Stage:
        groups = max(_LEAST_GROUPS, math.ceil(self.images / rate("group_fill")))
        groups = 1 << (groups - 1).bit_length()
        size = self.images * rate("reference_bytes")
        seconds = self._cpu(self.images * rate("reference"), groups)
        memory = rate("process_memory") + rate("group_memory")
        return Stage("sort", groups, size / groups, memory, 0, 0, 2 * size, seconds, "CPU")

    def _write(self) -> Stage:
        shards = self.num_shards
        parallel = min(shards, self.threads)
        fastest = parallel * rate("in_flight") / rate("latency")
        seconds, limit = _slowest({
            f"CPU of --check {self.check}": self._cpu(self.images * self.image_seconds, shards),
            "reads in flight": self.images / fastest,
            "reads a second of the bucket": ramp_seconds(self.images, fastest, "reads"),
            "writes a second of the bucket": ramp_seconds(
                shards * rate("shard_files"), math.inf, "writes"
            ),
            "network": self.bytes / rate("network") / min(shards, self.all_vcpus),
        })  # fmt: skip
        per_vcpu = self.threads / self.all_vcpus
        # Threads of a process share its vCPU as long as there are several.
        in_shard = self.images / shards
        last = in_shard * max(self.image_seconds, rate("latency") / rate("in_flight"))
        if last > _TAIL * (seconds + last):
            limit = "one long shard at the end"
        memory = rate("process_memory") + per_vcpu * rate("thread_memory")
        size = min(in_shard * rate("reference_bytes"), rate("element_bytes"))
        return Stage(
            "write", shards, size, memory, self.images, shards * rate("shard_files"), 0,
            seconds + last, limit,
        )  # fmt: skip

    def _leaks(self) -> Stage:
        groups = self._sort().elements
        size = self.images * rate("digest_bytes")
        return Stage(
            "find leaks", groups, size / groups, rate("process_memory"), 0, 0, size,
            self._cpu(self.images * rate("digest"), groups), "CPU",
        )  # fmt: skip

    def _finish(self) -> Stage:
        shards = self.num_shards
        memory = rate("process_memory") + rate("finish_memory") * shards / rate("finish_shards")
        return Stage(
            "finish", 1, rate("element_bytes"), memory, 0, 0, 0, shards * rate("finish"),
            "one worker",
        )  # fmt: skip


def _slowest(seconds: dict[str, float]) -> tuple[float, str]:
    limit = max(seconds, key=lambda name: seconds[name])
    return seconds[limit], limit


def ramp_seconds(requests: float, most: float, kind: Literal["reads", "writes"]) -> float:
    """Returns the time of requests to a bucket whose rate doubles every 20 minutes.

    Args:
      requests: their number.
      most: requests a second that the workers send at most.
      kind: "reads" or "writes", which have different rates at first.

    >>> ramp_seconds(5_000_000, 2500, "reads")
    2000.0
    """
    first = rate(f"bucket_{kind}")
    if most <= first:
        return requests / most
    growth = math.log(2) / rate("doubling")  # the rate is first * exp(growth * seconds)
    until = math.log1p(requests * growth / first) / growth
    if most < math.inf and first * math.exp(growth * until) > most:
        reached = math.log(most / first) / growth
        done = first * math.expm1(growth * reached) / growth
        return reached + (requests - done) / most
    return until


class Bound(NamedTuple):
    """A bound that a larger build reaches.

    Attributes:
      what: the quantity.
      value: of this build.
      most: the bound.
      remedy: what to do.
    """

    what: str
    value: float
    most: float
    remedy: str


def bounds(fleet: Fleet) -> tuple[Bound, ...]:
    """Returns the bounds, first the one that a larger build reaches first."""
    shards = fleet.num_shards
    found = (
        Bound(
            "shards for which the end of a build was measured", shards, rate("finish_shards"),
            "set --num_shards: larger shards, of up to 1 GB",
        ),
        Bound(
            "bytes of the result of `reshard`, one element", shards * rate("shard_rows"),
            rate("element_bytes"), "larger shards",
        ),
        Bound(
            "bytes of the references of a shard, one element unless it is divided",
            fleet.images / shards * rate("reference_bytes"), rate("element_bytes"),
            "nothing: a larger shard is divided",
        ),
    )  # fmt: skip
    return tuple(sorted(found, key=lambda bound: -bound.value / bound.most))
