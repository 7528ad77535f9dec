"""Checks the files of a data set that are not shards, and the counts in them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from imageshards.reader.dataset import Dataset
from imageshards.reader.verification.problems import Missing, Problem
from imageshards.transforms import storage
from imageshards.transforms.records.containers import is_shard_like
from imageshards.transforms.shards.layout import DatasetFacts


def metadata_problems(dataset: Dataset) -> Iterator[Problem]:
    """Yields what is wrong with the metadata, and files that readers would take for shards."""
    layout = dataset.layout
    known = {os.path.basename(shard.uri) for shard in dataset.shards}
    for name in storage.names_in(layout.root):
        if is_shard_like(name) and name not in known:
            uri = storage.join(layout.root, name)
            yield Problem(f"{uri}: not of this data set, but readers' patterns match it")
    lengths: dict[str, list[int]] = {}
    for shard in dataset.shards:
        lengths.setdefault(shard.id.split, []).append(shard.records)
    if dataset.lengths != lengths:
        yield Problem(f"{layout.dataset_info}: its shardLengths do not match {layout.build}")
    counts = dataset.counts
    left_out = sum(dataset.build.get("left_out", {}).values())
    if counts["records"] + counts["rejects"] + counts["duplicates"] + left_out != counts["inputs"]:
        yield Problem(
            f"{layout.build}: records + rejects + duplicates + what is left out are not the inputs"
        )
    if counts["records"] != sum(shard.records for shard in dataset.shards):
        yield Problem(f"{layout.build}: its records are not the sum of its shards' records")
    facts = DatasetFacts(dataset.build, dataset.schema)
    for metadata_file, uri in layout.files_of(facts):
        if not metadata_file.make and not metadata_file.check:
            continue
        try:
            with storage.open_read(uri) as file:
                fits = metadata_file.fits(facts, file.read())
        except FileNotFoundError:
            yield Missing(f"{uri}: missing")
        except ValueError as error:
            yield Problem(f"{uri}: damaged: {error}")
        else:
            if not fits:
                yield Problem(f"{uri}: does not match {layout.build}")
