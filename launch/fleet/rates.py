"""The constants of all estimates, each with its source and date.

Kinds of values: "measured" on a machine, by the named benchmark; "documented" by a service; a
"bound" that the code enforces; a "list price"; an "assumption" that nothing here has measured.
The measured ones are in measured.json, which `make bench IMAGES=DIR && make rates` writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["measured", "documented", "bound", "list price", "assumption"]


class Measured(NamedTuple):
    """A measured constant.

    Attributes:
      value: the value, in the unit of the `Rate` with the same name.
      date: when it was measured, YYYY-MM-DD.
      source: what was measured, and on which machine.
    """

    value: float
    date: str
    source: str


MEASURED_FILE = Path(__file__).with_name("measured.json")
MEASURED = {name: Measured(**row) for name, row in json.loads(MEASURED_FILE.read_text()).items()}
"""Name of a constant -> its measurement."""


class Rate(NamedTuple):
    """A constant.

    Attributes:
      value: the value.
      unit: its unit, and what it is.
      kind: see the module.
      source: where it comes from.
      date: when it was measured, read or set.
    """

    value: float
    unit: str
    kind: Kind
    source: str
    date: str


def _measured(name: str, unit: str) -> Rate:
    value, date, source = MEASURED[name]
    return Rate(value, unit, "measured", source, date)


def _measured_or(name: str, unit: str, value: float, source: str, date: str) -> Rate:
    """A bound that holds as long as the constant has not been measured."""
    if name in MEASURED:
        return _measured(name, unit)
    return Rate(value, unit, "bound", source, date)


_REQUESTS = "cloud.google.com/storage/docs/request-rate"
_DATAFLOW = "cloud.google.com/dataflow/pricing, us-central1"
_STORAGE = "cloud.google.com/storage/pricing, us-central1"

RATES = {
    "image_bytes": Rate(
        108_000, "bytes of an image, to which the times below refer", "assumption",
        "the average of ImageNet", "2026-11-21",
    ),
    "read_fixed": _measured("read_fixed", "vCPU seconds to read an object of any size"),
    "read_sized": _measured("read_sized", "vCPU seconds more to read 108 kB"),
    "check_fixed": _measured(
        "check_fixed", "vCPU seconds to check, encode and write an image of any size"
    ),
    "check_header": _measured("check_header", "vCPU seconds more for 108 kB with --check header"),
    "check_full": _measured("check_full", "vCPU seconds more for 108 kB with --check full"),
    "reference": _measured("reference", "vCPU seconds to list, sort and assign a reference"),
    "digest": _measured(
        "digest", "vCPU seconds to compare the digest of an image with those of other splits"
    ),
    "reference_bytes": Rate(
        131, "bytes of a reference in a group", "bound", "32 MiB for 250,000 references",
        "2026-11-22",
    ),
    "digest_bytes": Rate(
        52, "bytes of a digest in the shuffle, at most", "bound", "transforms/shards/facts.py",
        "2026-11-22",
    ),
    "group_references": Rate(
        250_000, "references in a group that is sorted, at most", "bound", "transforms/references",
        "2026-11-22",
    ),
    "group_fill": Rate(
        200_000, "references in a group on average, at most", "bound", "transforms/references",
        "2026-11-22",
    ),
    "element_bytes": Rate(
        64 << 20, "bytes of any element of the graph, at most", "bound", "transforms/shuffle.py",
        "2026-11-22",
    ),
    "group_memory": Rate(
        150e6, "bytes to sort a group", "assumption",
        "extrapolated from 373 MB for 780,000 references, measured", "2026-11-22",
    ),
    "process_memory": _measured("process_memory", "bytes of a worker process"),
    "thread_memory": Rate(
        64e6, "bytes of images that wait in a thread, at most", "bound", "transforms/shards",
        "2026-11-21",
    ),
    "finish_memory": _measured_or(
        "finish_memory", "bytes to finish 1,000,000 shards with 1,000 classes", 1e9,
        "the goal of benchmarks/finish.py", "2026-11-22",
    ),
    "finish": _measured_or(
        "finish", "seconds to finish a shard, on one worker", 300e-6,
        "the goal of benchmarks/finish.py: 1,000,000 shards in 5 minutes", "2026-11-22",
    ),
    "finish_shards": Rate(
        1_000_000, "shards of a build, at most, for which the end was measured", "bound",
        "benchmarks/finish.py", "2026-11-22",
    ),
    "unit_references": Rate(
        100_000, "references in a unit of work of the listing", "assumption",
        "the largest prefix that benchmarks/listing.py lists", "2026-11-22",
    ),
    "archive_bytes": Rate(1e9, "bytes of an archive", "assumption", "", "2026-11-22"),
    "walk": Rate(
        200e6, "bytes of an uncompressed tar that a thread walks in a second", "assumption", "",
        "2026-11-22",
    ),
    "walk_request": Rate(
        4 << 20, "bytes that a request of this walk reads", "bound", "transforms/storage",
        "2026-11-22",
    ),
    "page": Rate(0.3, "seconds of a request that lists objects", "assumption", "", "2025"),
    "page_objects": Rate(
        1000, "objects in the response", "documented",
        "cloud.google.com/storage/docs/json_api/v1/objects/list", "2026-11-21",
    ),
    "latency": Rate(0.05, "seconds of a request that reads an image", "assumption", "", "2025"),
    "in_flight": Rate(
        32, "reads in flight in each thread that writes a shard", "bound",
        "transforms/shards/workers.py", "2026-11-21",
    ),
    "bucket_reads": Rate(
        5000, "reads a second that a bucket serves at first", "documented", _REQUESTS, "2026-11-22"
    ),
    "bucket_writes": Rate(
        1000, "writes a second that a bucket accepts at first", "documented", _REQUESTS,
        "2026-11-22",
    ),
    "doubling": Rate(
        1200, "seconds in which these rates may double", "documented", _REQUESTS, "2026-11-22"
    ),
    "network": Rate(
        250e6, "bytes a second that a vCPU receives, and sends", "documented",
        "cloud.google.com/compute/docs/network-bandwidth: 2 Gb/s", "2025",
    ),
    "threads": Rate(
        2, "threads that write shards, for each vCPU", "bound", "launch/dataflow/arguments.py",
        "2026-11-21",
    ),
    "shard_files": Rate(
        4, "files that are written for a shard", "bound", "transforms/shards/write.py", "2026-11-21"
    ),
    "shard_rows": Rate(
        88, "bytes of a new shard in the result of a reshard", "bound",
        "pipeline/operations/resharding/write.py", "2026-11-22",
    ),
    "busy": Rate(
        0.7, "fraction of the time in which a vCPU works, and does not wait", "assumption", "",
        "2025",
    ),
    "start": Rate(
        300, "seconds to start the workers and to stop them; they are billed", "assumption", "",
        "2025",
    ),
    "start_flink": Rate(
        30, "seconds to start the worker processes of a running cluster", "assumption", "",
        "2026-11-22",
    ),
    "memory_per_vcpu": Rate(
        4, "GB of memory for each vCPU of a worker", "documented",
        "cloud.google.com/compute/docs: e2-standard", "2025",
    ),
    "disk": Rate(
        30, "GB of disk of a worker, for the container image", "assumption", "", "2025"
    ),
    "vcpu_hour": Rate(0.056, "dollars for a vCPU and an hour", "list price", _DATAFLOW, "2025"),
    "memory_hour": Rate(
        0.003557, "dollars for a GB of memory and an hour", "list price", _DATAFLOW, "2025"
    ),
    "disk_hour": Rate(
        0.000054, "dollars for a GB of disk and an hour", "list price", _DATAFLOW, "2025"
    ),
    "shuffle_gb": Rate(0.011, "dollars to shuffle a GB", "list price", _DATAFLOW, "2025"),
    "read_request": Rate(0.0004 / 1000, "dollars for a read", "list price", _STORAGE, "2025"),
    "write_request": Rate(
        0.005 / 1000, "dollars for a write or a page of a list", "list price", _STORAGE, "2025"
    ),
}  # fmt: skip
"""Name -> constant."""


def rate(name: str) -> float:
    """Returns the value of a constant."""
    return RATES[name].value
