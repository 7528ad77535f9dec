"""Finds images that are in more than one split, and writes leaks.jsonl.

Test images that are also training images make a model seem better than it is. Both writers write
an eight-byte digest of each record; equal digests in different splits are a leak.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId, ShardReport
from imageshards.transforms.records.container import parse_index
from imageshards.transforms.records.containers import container_of, shard_name
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.layout import Layout

LEAKS_LISTED = 1000
"""The maximum number of lines in leaks.jsonl; all leaks are counted."""
_RECORDS_LISTED = 20
_RECORDS_AT_A_TIME = 1 << 22
_TEXT_SHOWN = 80

Position = tuple[ShardId, int]
"""A shard, and the number of a record in it."""


def find_leaks(
    shards: Sequence[tuple[ShardId, int]], read: Callable[[ShardId], bytes]
) -> Iterator[list[Position]]:
    """Yields the positions of each image that is in more than one split.

    Args:
      shards: (shard, records in it), split by split.
      read: returns the digests of a shard's records, eight bytes each.
    """
    records = sum(count for _, count in shards)
    # Digests are compared in parts, by their remainder, so that memory stays bounded.
    parts = -(-records // _RECORDS_AT_A_TIME)
    for part in range(parts):
        yield from _find([shard for shard, _ in shards], read, part, parts)


def _find(
    shards: Sequence[ShardId], read: Callable[[ShardId], bytes], part: int, parts: int
) -> Iterator[list[Position]]:
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
    # Shards are ordered by split, so neighbors with equal digests show each change of split.
    crossing = np.flatnonzero((keys[1:] == keys[:-1]) & (split[1:] != split[:-1]))
    last = -1
    for at in crossing.tolist():
        if at < last:
            continue  # belongs to the previous leak, which is in three splits
        begin = int(np.searchsorted(keys, keys[at], side="left"))
        last = int(np.searchsorted(keys, keys[at], side="right"))
        yield [(shards[owner[i]], int(row[i])) for i in range(begin, last)]


def write_leaks(layout: Layout, reports: Sequence[ShardReport], schema: Schema) -> int:
    """Writes leaks.jsonl, a line for each leaked image, and returns the number of leaks.

    Args:
      layout: of the data set.
      reports: of all shards, in order.
      schema: of the records; names of images are read from the records if it has them.
    """

    def read(shard: ShardId) -> bytes:
        with storage.open_read(layout.digests(shard)) as file:
            return file.read()

    count = 0
    listed: list[list[Position]] = []
    written = [(report.shard, report.records) for report in reports if report.records]
    for count, positions in enumerate(find_leaks(written, read), 1):
        if count <= LEAKS_LISTED:
            listed.append(_some(positions))
    names = _names(layout, {position for positions in listed for position in positions}, schema)
    with storage.open_sink(layout.leaks, layout.state) as sink:
        for positions in listed:
            line = [
                {"split": position[0].split, "filename": names[position]} for position in positions
            ]
            sink.write([(json.dumps({"images": line}) + "\n").encode()])
    return count


def _names(layout: Layout, positions: set[Position], schema: Schema) -> dict[Position, str]:
    """Returns a name for each record; without such a feature in the schema, its position."""
    key = schema.key_of("filename") or schema.key_of("source")
    if not key:
        return {(shard, row): f"record {row} of {shard_name(shard)}" for shard, row in positions}
    names = {}
    for shard, rows in groupby(sorted(positions), key=itemgetter(0)):
        numbers = [row for _, row in rows]
        for row, record in zip(numbers, _records(layout, shard, numbers), strict=True):
            name = record.first(key, b"")
            if schema.holds == "text":
                name += b": " + record.first(schema.key_of("text"), b"")[:_TEXT_SHOWN]
            names[shard, row] = name.decode("utf-8", "replace")
    return names


def _records(layout: Layout, shard: ShardId, rows: Sequence[int]) -> Iterator[read_back.Record]:
    """Yields some records of a shard by their numbers, in order."""
    uri = layout.shard(shard)
    if not container_of(shard).has_index:
        wanted = set(rows)
        yield from (r for row, r in enumerate(read_back.read_shard(uri)) if row in wanted)
        return
    with storage.open_read(layout.index(shard)) as file:
        index = parse_index(file.read())
    for row in rows:
        yield read_back.read_record(uri, *index[row].tolist())


def _some(positions: list[Position]) -> list[Position]:
    """Returns at most `_RECORDS_LISTED` positions, some of each split."""
    of_split: dict[str, list[Position]] = {}
    for position in positions:
        of_split.setdefault(position[0].split, []).append(position)
    each = max(1, _RECORDS_LISTED // len(of_split))
    return [position for some in of_split.values() for position in some[:each]]
