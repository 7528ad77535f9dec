"""Images that are in more than one split, found by digests of what is written.

Pure but for reading and writing files.

A model that is tested on what it was trained on looks better than it is. Every writer notes eight
bytes a record; the finish looks for those that stand in shards of different splits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId, ShardReport
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.records.tfrecord import parse_index, shard_name
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.layout import Layout

LEAKS_LISTED = 1000
"""Lines of leaks.jsonl; more are counted."""
_PLACES_LISTED = 20
_RECORDS_AT_A_TIME = 1 << 22
_TEXT_SHOWN = 80

Place = tuple[ShardId, int]
"""A shard, and the number of a record in it."""


def find_leaks(
    shards: Sequence[tuple[ShardId, int]], read: Callable[[ShardId], bytes]
) -> Iterator[list[Place]]:
    """Yields the places of every image that is in more than one split.

    Args:
      shards: with their numbers of records.
      read: the digests of a shard's records, one after the other.
    """
    records = sum(count for _, count in shards)
    # Many records are looked at in parts, by ranges of their digests.
    parts = -(-records // _RECORDS_AT_A_TIME)
    for part in range(parts):
        yield from _find([shard for shard, _ in shards], read, part, parts)


def _find(
    shards: Sequence[ShardId], read: Callable[[ShardId], bytes], part: int, parts: int
) -> Iterator[list[Place]]:
    splits = {name: number for number, name in enumerate({shard.split: None for shard in shards})}
    digests, owners, rows = [], [], []
    for number, shard in enumerate(shards):
        found = np.frombuffer(read(shard), dtype="<u8")
        mine = np.flatnonzero(found % np.uint64(parts) == part)
        digests.append(found[mine])
        owners.append(np.full(len(mine), number, dtype=np.uint32))
        rows.append(mine.astype(np.uint32))
    keys, owner, row = map(np.concatenate, (digests, owners, rows))
    order = np.argsort(keys, kind="stable")
    keys, owner, row = keys[order], owner[order], row[order]
    split = np.array([splits[shard.split] for shard in shards])[owner]
    # A run of equal digests is a leak if it crosses splits, and shards come split by split.
    crossing = np.flatnonzero((keys[1:] == keys[:-1]) & (split[1:] != split[:-1]))
    last = -1
    for at in crossing.tolist():
        if at < last:
            continue  # in the run of the one before: it is in three splits
        begin = int(np.searchsorted(keys, keys[at], side="left"))
        last = int(np.searchsorted(keys, keys[at], side="right"))
        yield [(shards[owner[i]], int(row[i])) for i in range(begin, last)]


def write_leaks(layout: Layout, reports: Sequence[ShardReport], schema: Schema) -> int:
    """Writes leaks.jsonl, a line for each image; returns how many there are.

    Args:
      layout: where.
      reports: of all shards.
      schema: of the records: what a leak is called, it may say.
    """

    def read(shard: ShardId) -> bytes:
        with storage.open_read(layout.digests(shard)) as file:
            return file.read()

    count = 0
    listed: list[list[Place]] = []
    written = [(report.shard, report.records) for report in reports if report.records]
    for count, places in enumerate(find_leaks(written, read), 1):
        if count <= LEAKS_LISTED:
            listed.append(_some(places))
    names = _names(layout, {place for places in listed for place in places}, schema)
    with storage.open_sink(layout.leaks, layout.state) as sink:
        for places in listed:
            line = [{"split": place[0].split, "filename": names[place]} for place in places]
            sink.write([(json.dumps({"images": line}) + "\n").encode()])
    return count


def _names(layout: Layout, places: set[Place], schema: Schema) -> dict[Place, str]:
    """What records are called; those of a schema that keeps no names by where they stand."""
    key = schema.key_of("filename") or schema.key_of("source")
    if not key:
        return {(shard, row): f"record {row} of {shard_name(shard)}" for shard, row in places}
    names = {}
    for shard, rows in groupby(sorted(places), key=itemgetter(0)):
        numbers = [row for _, row in rows]
        for row, record in zip(numbers, _records(layout, shard, numbers), strict=True):
            name = record.first(key, b"")
            if schema.holds == "text":
                name += b": " + record.first(schema.key_of("text"), b"")[:_TEXT_SHOWN]
            names[shard, row] = name.decode("utf-8", "replace")
    return names


def _records(layout: Layout, shard: ShardId, rows: Sequence[int]) -> Iterator[read_back.Record]:
    """Some records of a shard, by their numbers, in order."""
    uri = layout.shard(shard)
    if shard.compression:  # it has to be read from its beginning
        wanted = set(rows)
        yield from (r for row, r in enumerate(read_back.read_shard(uri)) if row in wanted)
        return
    with storage.open_read(layout.index(shard)) as file:
        index = parse_index(file.read().decode())
    for row in rows:
        yield read_back.read_record(uri, *index[row])


def _some(places: list[Place]) -> list[Place]:
    """At most so many places, some of each split."""
    of_split: dict[str, list[Place]] = {}
    for place in places:
        of_split.setdefault(place[0].split, []).append(place)
    each = max(1, _PLACES_LISTED // len(of_split))
    return [place for some in of_split.values() for place in some[:each]]
