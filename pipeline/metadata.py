"""What `finish` writes beside the shards, as values. Pure: no clock, no folder, no runner.

Two builds of the same inputs and options have the same metadata, byte for byte.

Format: dataset_info.json is that of tensorflow_datasets (core/proto/dataset_info.proto, as JSON).
"""

from __future__ import annotations

import json
import platform
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata as packages
from typing import Any

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.options.build_options import FORMAT_VERSION
from imageshards.transforms.elements import ShardReport
from imageshards.transforms.records.tfrecord import GZIP_SUFFIX, shard_name
from imageshards.transforms.references.plan import Plan

_VERSIONED = ("apache-beam", "google-crc32c", "numpy", "pillow", "pyarrow", "simplejpeg")
_VERSIONED_IF_THERE = ("pillow-heif",)


@cache
def version() -> str:
    """The version of imageshards."""
    return packages.version("imageshards")


def to_json(value: Any) -> bytes:
    """JSON as all files here are written."""
    return (json.dumps(value, indent=1) + "\n").encode()


def plan_json(plan: Plan, spec: BuildSpec) -> dict[str, Any]:
    """Which build a folder belongs to: what a resumed run compares."""
    return {
        "digest": plan.digest,
        "settings": spec.settings,
        "options": spec.options.recorded,
        "splits": {
            name: {"images": split.images, "shards": split.num_shards, "bytes": split.bytes}
            for name, split in plan.splits.items()
        },
    }


def _sum(counts: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
    total: Counter[Any] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def build_json(
    plan: Plan,
    shards: Sequence[ShardReport],
    errors: Mapping[str, int],
    leaks: int,
    spec: BuildSpec,
) -> dict[str, Any]:
    """Everything that is known of a build."""
    records = sum(shard.records for shard in shards)
    splits = {}
    for name, split in plan.splits.items():
        mine = [shard for shard in shards if shard.shard.split == name]
        whole = [shard for shard in mine if shard.records]
        splits[name] = {
            "images": split.images,
            "records": sum(shard.records for shard in mine),
            "bytes": sum(shard.bytes for shard in mine),
            "shards": len(mine),
            "labels": {str(k): v for k, v in _sum([shard.labels for shard in mine]).items()},
            "formats": _sum([shard.formats for shard in mine]),
            "converted": sum(shard.converted for shard in mine),
            "conversions": _sum([shard.conversions for shard in mine]),
            "long_sides": {
                str(k): v for k, v in _sum([shard.long_sides for shard in mine]).items()
            },
            "smallest": min((s.smallest for s in whole), key=_pixels, default=(0, 0)),
            "largest": max((s.largest for s in whole), key=_pixels, default=(0, 0)),
        }
    return {
        "imageshards": version(),
        "format": FORMAT_VERSION,
        "name": spec.dataset_name,
        "options": {"input": list(spec.options.inputs.input), **spec.options.recorded},
        "versions": {
            "python": platform.python_version(),
            **{name: packages.version(name) for name in _VERSIONED},
            **{name: found for name in _VERSIONED_IF_THERE if (found := _version_if_there(name))},
            **({"zlib": zlib.ZLIB_RUNTIME_VERSION} if plan.compression else {}),
        },
        "counts": {
            "inputs": plan.listed,
            "records": records,
            "rejects": sum(errors.values()),
            "converted": sum(shard.converted for shard in shards),
            "duplicates": plan.duplicates,
            "leaks": leaks,
            "passed_over": plan.passed_over,
            "bytes": sum(shard.bytes for shard in shards),
        },
        "rejects": dict(sorted(errors.items())),
        "conversions": _sum([shard.conversions for shard in shards]),
        "notes": list(plan.notes),
        "classes": list(plan.classes),
        "splits": splits,
        "shards": [
            {
                "name": shard_name(shard.shard),
                "records": shard.records,
                "bytes": shard.bytes,
                "crc32c": f"{shard.crc32c:08x}",
            }
            for shard in shards
        ],
    }


def _version_if_there(name: str) -> str:
    try:
        return packages.version(name)
    except packages.PackageNotFoundError:
        return ""


def _pixels(size: tuple[int, int]) -> tuple[int, int, int]:
    return size[0] * size[1], *size


def dataset_info_json(plan: Plan, shards: Sequence[ShardReport], spec: BuildSpec) -> dict[str, Any]:
    """What `tfds.builder_from_directory` needs; int64 are strings, as in protobuf's JSON."""
    seed = spec.options.output.seed
    counts = f"{sum(shard.records for shard in shards):,} {spec.schema.noun}s"
    ending = "{FILEFORMAT}" + (GZIP_SUFFIX if plan.compression else "")
    return {
        "name": spec.dataset_name,
        "version": "1.0.0",
        "description": f"{counts}, shuffled with seed {seed} by imageshards {version()}.",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": name,
                "numBytes": str(sum(s.bytes for s in shards if s.shard.split == name)),
                "shardLengths": [str(s.records) for s in shards if s.shard.split == name],
                "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}." + ending,
            }
            for name in plan.splits
        ],
    }
