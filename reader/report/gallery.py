"""Chooses and draws the images on the report's page: a sample, outliers, and rejects."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

from imageshards.reader.files import RecordFile
from imageshards.reader.report import pictures
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ByteRange, ImageRef
from imageshards.transforms.images.measure import LEVEL
from imageshards.transforms.inputs.fetch import ImageReader
from imageshards.transforms.inputs.kind import IMAGE_KEY
from imageshards.transforms.records import example
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.containers import parse_shard_name
from imageshards.transforms.records.example import CorruptExample
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.layout import DatasetFacts, Layout

_SAMPLES, _SAMPLES_OF_SPLIT = 120, 24
_OUTLIERS, _OUTLIERS_OF_KIND = 64, 4
REJECTS_SHOWN = 60
"""Rejects on the page, at most."""
_REJECT_BYTES = 16 << 20


def make_gallery(
    layout: Layout,
    facts: DatasetFacts,
    statistics: Mapping[str, Any],
    rejected: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Returns the entries of the gallery, with small pictures.

    Args:
      layout: of the data set, whose shards must exist.
      facts: build.json and the schema.
      statistics: the content of statistics.json; {} without one.
      rejected: the first lines of rejects.jsonl.
    """
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        chosen = list(_chosen(layout, facts.build, statistics))
        # A record may be chosen for several reasons; it is drawn once.
        records = {(known["split"], known["index"]): record for known, record in chosen}
        drawn = dict(
            zip(records, executor.map(partial(_entry, facts=facts), records.values()), strict=True)
        )
        entries = [{**known, **drawn[known["split"], known["index"]]} for known, _ in chosen]
        key = facts.build["options"].get("image_key", IMAGE_KEY)
        draw = partial(_reject_entry, reader=ImageReader(key))
        return entries + list(executor.map(draw, rejected))


_Chosen = tuple[dict[str, Any], read_back.Record]


def _chosen(
    layout: Layout, build: Mapping[str, Any], statistics: Mapping[str, Any]
) -> Iterator[_Chosen]:
    """Yields (what is known, record) for the gallery.

    The first records of each split are a random sample, because records are shuffled.
    """
    splits = list(build["splits"])
    samples = max(1, min(_SAMPLES_OF_SPLIT, _SAMPLES // max(len(splits), 1)))
    profiles = statistics.get("splits", {})
    for split in splits[:_SAMPLES]:
        every = (record for row in _rows(build, split)
                 for record in read_back.read_shard(_file(layout, row).uri))  # fmt: skip
        for index, record in enumerate(islice(every, samples)):
            yield {"kind": "sample", "split": split, "index": index}, record
    for split in splits[:_OUTLIERS]:
        kinds = profiles.get(split, {}).get("outliers", {})
        each = max(1, min(_OUTLIERS_OF_KIND, _OUTLIERS // max(len(splits) * len(kinds), 1)))
        wanted = [(kind, value, index)
                  for kind, found in kinds.items() for value, index in found[:each]]  # fmt: skip
        records = _records_at(layout, _rows(build, split), {index for _, _, index in wanted})
        for kind, value, index in wanted:
            if index in records:
                level = abs(value) / LEVEL
                known = {"kind": kind, "split": split, "index": index, "value": level}
                yield known, records[index]


def _rows(build: Mapping[str, Any], split: str) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a split's shards that have records. A build may have a million rows."""
    is_of_split = re.compile(rf"{re.escape(split)}-\d{{5,}}-of-\d{{5,}}(?!-)").match
    for row in build["shards"]:
        if is_of_split(row["name"]) and row["records"]:
            yield row


def _file(layout: Layout, row: Mapping[str, Any]) -> RecordFile:
    shard = parse_shard_name(row["name"])
    assert shard
    return RecordFile(layout.shard(shard), layout.index(shard), row["records"])


def _records_at(
    layout: Layout, rows: Iterable[Mapping[str, Any]], wanted: set[int]
) -> dict[int, read_back.Record]:
    """Returns number in the split -> record. Files without random access are not read."""
    found: dict[int, read_back.Record] = {}
    left = sorted(wanted, reverse=True)
    begin = 0
    for row in rows:
        if not left:
            break
        end = begin + row["records"]
        file = _file(layout, row) if left[-1] < end else None
        while file and left and left[-1] < end:
            number = left.pop()
            if file.container.random_access and file.container.has_index:
                try:
                    data = next(file.data(number - begin, number - begin + 1))
                    found[number] = read_back.Record(0, 0, example.decode(data))
                except (BuildError, CorruptRecord, CorruptExample):
                    continue  # `verify` reports it
        begin = end
    return found


def _entry(record: read_back.Record, facts: DatasetFacts) -> dict[str, Any]:
    entry = pictures.entry_of(record, facts.schema, facts.build["classes"])
    return pictures.with_picture(entry, record, facts.schema)


def _reject_entry(line: Mapping[str, Any], reader: ImageReader) -> dict[str, Any]:
    keys = ("split", "name", "uri", "stage", "error", "reason")
    entry = {"kind": "reject", **{key: line[key] for key in keys}}
    place = ByteRange(**line["range"]) if line.get("range") else None
    ref = ImageRef(line["uri"], range=place)
    file = place.uri if place else ref.uri
    # Images that were not read are not read now, nor are requests sent to web servers.
    if line["stage"] == "read" or not (storage.is_local(file) or storage.can_list(file)):
        return entry
    try:
        data = reader.read(ref, _REJECT_BYTES)
        return {**entry, **pictures.picture(pictures.open_file(data))}
    except Exception:  # Most rejects do not decode; errors are of many types.
        return entry
