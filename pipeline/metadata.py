"""The contents of plan.json, build.json and dataset_info.json, without input or output.

They are reproducible: they contain no time, no temporary path and nothing that depends on the
runner.

dataset_info.json is in the format of tensorflow_datasets (core/proto/dataset_info.proto as JSON).
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata as packages
from itertools import accumulate
from typing import Any, overload

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.options.build_options import FORMAT_VERSION
from imageshards.transforms.annotations.objects import LEFT_OUT
from imageshards.transforms.elements import ShardId
from imageshards.transforms.records.container import Container
from imageshards.transforms.records.containers import container_of, shard_name
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.profile import Profile
from imageshards.transforms.shards.stats import ShardStats
from imageshards.transforms.shards.totals import Totals

_VERSIONED = ("apache-beam", "google-crc32c", "numpy", "pillow", "pyarrow", "simplejpeg")
_OPTIONAL = "pillow-heif"


@cache
def version() -> str:
    """Returns the version of imageshards."""
    return packages.version("imageshards")


def plan_json(plan: Plan, spec: BuildSpec) -> dict[str, Any]:
    """Returns the content of plan.json, which identifies the build that a folder belongs to."""
    return {
        "format": FORMAT_VERSION,
        "digest": plan.digest,
        "settings": spec.settings,
        "options": spec.options.recorded,
        "splits": {
            name: {"images": split.images, "shards": split.num_shards, "bytes": split.bytes}
            for name, split in plan.splits.items()
        },
    }


def build_json(plan: Plan, totals: Totals, leaks: int, spec: BuildSpec) -> dict[str, Any]:
    """Returns the content of build.json; its `shards` is a sequence that makes rows when read.

    Args:
      plan: of the build.
      totals: the sum of the shards' reports.
      leaks: number of images that are in more than one split.
      spec: the build.
    """
    total = totals.all_splits
    values = total.values()
    splits = {
        name: _split_json(split.images, totals.of_split(name))
        for name, split in plan.splits.items()
    }
    unseen = classes_not_in_train(splits, plan.classes)
    annotations = dict(values["annotations"])
    if left_out := sum(count.objects for count in plan.annotated.values()) - plan.objects:
        annotations[LEFT_OUT] = left_out
    return {
        "imageshards": version(),
        "format": FORMAT_VERSION,
        "name": spec.dataset_name,
        "about": _about(spec),
        "options": {"input": list(spec.options.inputs.input), **spec.options.recorded},
        "versions": _versions(plan),
        "counts": {
            "inputs": plan.listed,
            "records": total.records,
            "rejects": totals.errors.total(),
            "converted": values["converted"],
            "duplicates": plan.duplicates,
            "leaks": leaks,
            "classes_not_in_train": len({name for names in unseen.values() for name in names}),
            "passed_over": plan.passed_over,
            "bytes": total.bytes,
        },
        "rejects": dict(sorted(totals.errors.items())),
        **({"left_out": dict(plan.left_out)} if plan.left_out else {}),
        "conversions": values["conversions"],
        **({"annotations": annotations} if annotations else {}),
        "notes": list(plan.notes),
        "classes": list(plan.classes),
        **_annotated_json(plan),
        "splits": splits,
        "shards": ShardRows(plan, totals),
    }


def _annotated_json(plan: Plan) -> dict[str, Any]:
    """Returns the classes of annotated objects, and the counts of each file of annotations."""
    if not plan.annotated:
        return {}
    files = {file: count.to_json() for file, count in sorted(plan.annotated.items())}
    return {"object_classes": list(plan.object_classes), "annotation_files": files}


class ShardRows(Sequence[dict[str, Any]]):
    """The rows of `shards` in build.json, made when they are read: a million take 700 MB."""

    def __init__(self, plan: Plan, totals: Totals) -> None:
        self._plan = plan
        self._first = plan.first_shards
        self._tables = {name: totals.rows(name) for name in plan.splits}

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for split, table in self._tables.items():
            for row in table:
                yield self._row(split, row)

    @overload
    def __getitem__(self, number: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, number: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, number: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        at = range(len(self))[number]
        split = next(name for name in reversed(self._first) if self._first[name] <= at)
        return self._row(split, self._tables[split][at - self._first[split]])

    def _row(self, split: str, row: Any) -> dict[str, Any]:
        index, records, size, crc32c, sha256 = row.tolist()
        digest = sha256.hex() if any(sha256) else ""
        return shard_row(self._plan.shard(split, index), records, size, crc32c, digest)


def classes_not_in_train(
    splits: Mapping[str, Mapping[str, Any]], classes: Sequence[str]
) -> dict[str, list[str]]:
    """Returns split -> names of its classes of which the training split has no record.

    Args:
      splits: `splits` of build.json.
      classes: the class names in label order.
    """
    training = next((splits[name] for name in ("train", "training") if name in splits), None)
    if training is None:
        return {}
    found = {
        name: [classes[int(label)] for label in split["labels"] if label not in training["labels"]]
        for name, split in splits.items()
    }
    return {name: names for name, names in found.items() if names}


def _about(spec: BuildSpec) -> dict[str, str]:
    """Returns the options that describe the data set, if they are set."""
    about = spec.options.about
    found = {
        "description": about.description,
        "license": about.license,
        "citation": about.citation,
        "creator": about.creator,
        "homepage": about.homepage,
        "date_published": about.date_published,
    }
    return {name: text for name, text in found.items() if text}


def statistics_json(plan: Plan, totals: Totals) -> dict[str, Any]:
    """Returns the content of statistics.json: a profile of each split's images.

    Args:
      plan: of the build.
      totals: the sum of the shards' reports.
    """
    return {
        "splits": {
            name: _split_statistics(
                totals.of_split(name).profile, totals.rows(name)["records"].tolist()
            )
            for name in plan.splits
        }
    }


def _split_statistics(profile: Profile, records: Sequence[int]) -> dict[str, Any]:
    """Returns the profile of a split, which has shards of these numbers of records."""
    found = profile.statistics()
    first = list(accumulate(records, initial=0))
    # Numbers of records in the split stay valid when the data set is resharded.
    found["outliers"] = {
        name: [[value, first[shard] + row] for value, shard, row in outliers]
        for name, outliers in found["outliers"].items()
    }
    return found


def _versions(plan: Plan) -> dict[str, str]:
    """Returns the versions of the libraries that determine the bytes of shards."""
    versions = {"python": platform.python_version()}
    versions |= {name: packages.version(name) for name in _VERSIONED}
    with suppress(packages.PackageNotFoundError):
        versions[_OPTIONAL] = packages.version(_OPTIONAL)
    return versions | container_of(plan.shard(next(iter(plan.splits)), 0)).versions


def _split_json(images: int, stats: ShardStats) -> dict[str, Any]:
    values = stats.values()
    if not values["annotations"]:
        del values["annotations"]
    del values["profile"]  # it is in statistics.json
    for counts in ("labels", "long_sides"):  # JSON has text keys only
        values[counts] = {str(key): count for key, count in values[counts].items()}
    counted = {"records": stats.records, "bytes": stats.bytes, "shards": stats.shards}
    return {"images": images, **counted, **values}


def shard_row(shard: ShardId, records: int, size: int, crc32c: int, sha256: str) -> dict[str, Any]:
    """Returns the row of a shard in build.json; `size` is in bytes, and `sha256` may be empty."""
    name = shard_name(shard)
    row = {"name": name, "records": records, "bytes": size, "crc32c": f"{crc32c:08x}"}
    return {**row, "sha256": sha256} if sha256 else row


def dataset_info_json(plan: Plan, totals: Totals, spec: BuildSpec) -> dict[str, Any]:
    """Returns the content of dataset_info.json; protobuf's JSON has int64 as strings."""
    seed = spec.options.output.seed
    counts = f"{totals.records:,} {spec.schema.noun}s"
    container = container_of(plan.shard(next(iter(plan.splits)), 0))
    return {
        "name": spec.dataset_name,
        "version": "1.0.0",
        "description": f"{counts}, shuffled with seed {seed} by imageshards {version()}.",
        "fileFormat": container.tfds_format,
        **_supervised_keys(spec.schema),
        "splits": [
            {
                "name": name,
                "numBytes": str(totals.of_split(name).bytes),
                "shardLengths": list(map(str, totals.rows(name)["records"].tolist())),
                "filepathTemplate": filepath_template(container),
            }
            for name in plan.splits
        ],
    }


def filepath_template(container: Container) -> str:
    """Returns how dataset_info.json declares the names of shards."""
    return "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}" + container.tfds_suffix


def _supervised_keys(schema: Schema) -> dict[str, Any]:
    """Returns the keys that `as_dataset(as_supervised=True)` returns: the content and the label."""
    keys = [schema.key_of(schema.holds), schema.target_key]
    if not all(keys):
        return {}
    return {"supervisedKeys": {"tuple": {"items": [{"featureKey": key} for key in keys]}}}
