"""A complete data set, described by its metadata."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId
from imageshards.transforms.records.columns import schema_of
from imageshards.transforms.records.containers import parse_shard_name
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.shards.layout import Layout

_COUNTS = ("inputs", "records", "rejects", "duplicates", "passed_over", "bytes")


@dataclass(frozen=True)
class Shard:
    """A shard, described by build.json.

    Attributes:
      id: the split and the number of the shard.
      uri: the URI of its file.
      records: the number of records.
      bytes: the size of the file.
      crc32c: the CRC32C of the file.
      sha256: the SHA-256 of the file in hexadecimal; empty if the build did not compute it.
    """

    id: ShardId
    uri: str
    records: int
    bytes: int
    crc32c: int
    sha256: str = ""


@dataclass(frozen=True)
class Dataset:
    """A complete data set; `open_dataset` returns it.

    Attributes:
      layout: the paths of its files.
      build: the content of build.json.
      info: the content of dataset_info.json.
    """

    layout: Layout
    build: dict[str, Any]
    info: dict[str, Any]

    @cached_property
    def schema(self) -> Schema:
        """The features of its records."""
        return schema_of(self.build["options"])

    @property
    def classes(self) -> list[str]:
        """Class names in label order; empty without labels."""
        return list(self.build["classes"])

    @property
    def counts(self) -> dict[str, int]:
        """inputs, records, rejects, duplicates, passed_over (skipped files) and bytes."""
        counts = self.build["counts"]
        return {key: counts[key] for key in _COUNTS}

    @property
    def lengths(self) -> dict[str, list[int]]:
        """Split -> number of records in each shard, according to dataset_info.json."""
        return {s["name"]: [int(n) for n in s["shardLengths"]] for s in self.info["splits"]}

    @cached_property
    def shards(self) -> list[Shard]:
        """All shards, in order."""
        shards = []
        for row in self.build["shards"]:
            shard = parse_shard_name(row["name"])
            if shard is None:
                raise BuildError(f"{self.layout.build}: {row['name']!r} is not a shard name")
            uri = self.layout.shard(shard)
            crc = int(row["crc32c"], 16)
            shards.append(
                Shard(shard, uri, row["records"], row["bytes"], crc, row.get("sha256", ""))
            )
        return shards


def open_dataset(folder: str) -> Dataset:
    """Opens a data set that imageshards built.

    Args:
      folder: its folder, local or remote.

    Raises:
      BuildError: there is no data set, it is not complete, or its metadata is damaged.
    """
    if not folder:
        raise BuildError("no data set is given: name its folder")
    layout = Layout(folder)
    if storage.is_local(layout.root) and not os.path.isdir(layout.root):
        what = "is a file" if os.path.lexists(layout.root) else "does not exist"
        raise BuildError(f"{layout.root} {what}: name the folder of a data set")
    if not storage.exists(layout.dataset_info):
        if storage.exists(layout.plan):
            hint = "run its build command again"
            if storage.size(layout.rejects) > 0:
                hint = f"its build failed; see {layout.rejects}"
            raise BuildError(f"{layout.root}: the data set is not complete: {hint}")
        raise BuildError(
            f"{layout.root}: not a data set (no dataset_info.json): name the output of a build"
        )
    documents = []
    for uri in (layout.build, layout.dataset_info):
        try:
            with storage.open_read(uri) as file:
                documents.append(json.load(file))
        except FileNotFoundError as error:
            raise BuildError(
                f"{uri} is missing: name a data set that imageshards built, or "
                "its files by a pattern, such as DIR/train-*"
            ) from error
        except ValueError as error:
            raise BuildError(f"{uri} is damaged: {error}") from error
    try:
        dataset = Dataset(layout, documents[0], documents[1])
        _ = dataset.schema, dataset.classes, dataset.shards, dataset.counts, dataset.lengths
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BuildError(
            f"{layout.build} or {layout.dataset_info} is damaged, or of another version of "
            f"imageshards ({type(error).__name__} {error}): build the data set again"
        ) from error
    return dataset
