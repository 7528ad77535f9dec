"""The metadata of a data set that `reshard` has copied."""

from __future__ import annotations

import copy
from typing import Any

from imageshards.pipeline.metadata import filepath_template, shard_row
from imageshards.pipeline.operations.resharding.target import Format, Target
from imageshards.pipeline.options.config_file import with_options
from imageshards.pipeline.report import command_of, write_report
from imageshards.reader.dataset import Dataset, Shard
from imageshards.transforms import storage
from imageshards.transforms.shards.layout import (
    METADATA_FILES,
    DatasetFacts,
    Layout,
    read_json,
    to_json,
)


def write_metadata(
    dataset: Dataset, layout: Layout, shards: list[Shard], target: Target
) -> dict[str, Any]:
    """Writes all metadata but dataset_info.json, and returns the content of that.

    Args:
      dataset: the old data set.
      layout: the paths of the new one.
      shards: the new shards, in order.
      target: how they were specified.
    """
    old = dataset.layout
    build = copy.deepcopy(dataset.build)
    build["resharded"] = {"from": old.root, "num_shards": build["options"]["num_shards"]}
    # All splits, because those that the command does not name keep their present number.
    num_shards = ",".join(f"{name}={count}" for name, count in target.counts)
    options: dict[str, Any] = {"num_shards": num_shards}
    before, now = Format.of(build["options"]), target.format
    container = now.container
    for name, value in now._asdict().items():
        if value != getattr(before, name):
            options[name] = value
            build["resharded"][name] = getattr(before, name)
    build["versions"].pop(before.container.library, None)
    build["versions"] |= container.versions
    if now != before:
        notes = [note for note in build["notes"] if note != before.container.note]
        build["notes"] = notes + [container.note] * bool(container.note)
    build["options"] |= options
    build["counts"]["bytes"] = sum(shard.bytes for shard in shards)
    build["shards"] = [shard_row(s.id, s.records, s.bytes, s.crc32c, s.sha256) for s in shards]
    info = copy.deepcopy(dataset.info)
    info["fileFormat"] = container.tfds_format
    for split in info["splits"]:
        mine = [shard for shard in shards if shard.id.split == split["name"]]
        size = sum(shard.bytes for shard in mine)
        split["numBytes"] = str(size)
        split["filepathTemplate"] = filepath_template(container)
        split["shardLengths"] = [str(shard.records) for shard in mine]
        build["splits"][split["name"]] |= {"bytes": size, "shards": len(mine)}
    facts = DatasetFacts(build, dataset.schema)
    layout.write(layout.build, to_json(build))
    layout.write_derived(facts)
    for name, file in METADATA_FILES.items():
        if file.resharded and storage.exists(old.uri(name)):
            with storage.open_read(old.uri(name)) as copied:
                layout.write(layout.uri(name), copied.read())
    if build_yaml := old.read("build_yaml"):  # data sets of version 0.1.0 have none
        build_yaml = with_options(build_yaml, **options)
        layout.write(layout.uri("build_yaml"), build_yaml)
    statistics = read_json(layout.uri("statistics")) or {}
    write_report(layout, facts, statistics, command_of(build_yaml))
    return info
