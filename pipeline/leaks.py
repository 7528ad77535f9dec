"""Writes leaks.jsonl, which lists images that are in more than one split.

Test images that are also training images make a model seem better than it is. Both writers compute
an eight-byte digest of each record; equal digests in different splits are a leak.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId
from imageshards.transforms.records.container import CorruptRecord, parse_index
from imageshards.transforms.records.containers import container_of, shard_name
from imageshards.transforms.records.example import CorruptExample
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.shards.leaked import RECORDS_LISTED, Leaks, position_of

_TEXT_SHOWN = 80
_READS = 16
"""Shards of which the names of leaks are read at a time."""

Position = tuple[ShardId, int]
"""A shard, and the number of a record in it."""


def write_leaks(layout: Layout, plan: Plan, leaks: Leaks, schema: Schema) -> None:
    """Writes leaks.jsonl, a line for each of the listed leaks.

    Args:
      layout: of the data set.
      plan: of the build.
      leaks: of all records.
      schema: of the records; names of images are read from the records if it has them.
    """
    shards = _Shards(plan)
    listed = [_some([shards.position(number) for number in found]) for _, found in leaks.listed]
    names = _names(layout, {position for positions in listed for position in positions}, schema)
    with storage.open_sink(layout.leaks, layout.state) as sink:
        for positions in listed:
            line = [
                {"split": position[0].split, "filename": names[position]} for position in positions
            ]
            sink.write([(json.dumps({"images": line}) + "\n").encode()])


class _Shards:
    """Finds the shard of a position in a table of digests."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._splits = list(plan.first_shards)
        self._first = list(plan.first_shards.values())

    def position(self, number: int) -> Position:
        shard, row = position_of(number)
        at = bisect_right(self._first, shard) - 1
        return self._plan.shard(self._splits[at], shard - self._first[at]), row


def _names(layout: Layout, positions: set[Position], schema: Schema) -> dict[Position, str]:
    """Returns a name for each record; without such a feature in the schema, its position."""
    key = schema.key_of("filename") or schema.key_of("source")
    if not key:
        return {(shard, row): f"record {row} of {shard_name(shard)}" for shard, row in positions}
    rows_of = {
        shard: [row for _, row in rows]
        for shard, rows in groupby(sorted(positions), key=itemgetter(0))
    }

    def names_in(shard: ShardId) -> list[str]:
        """Returns the names of the wanted records of a shard."""
        names = []
        try:
            for record in _records(layout, shard, rows_of[shard]):
                name = record.first(key, b"")
                if schema.holds == "text":
                    name += b": " + record.first(schema.key_of("text"), b"")[:_TEXT_SHOWN]
                names.append(name.decode("utf-8", "replace"))
        except (CorruptRecord, CorruptExample) as error:  # of a shard that an earlier run wrote
            raise BuildError(
                f"{layout.shard(shard)}: {error}: delete this file, and run the same command again"
            ) from error
        return names

    # The records are in as many shards; on an object store each one is two or more requests.
    with ThreadPoolExecutor(_READS) as threads:
        return {
            (shard, row): name
            for shard, names in zip(rows_of, threads.map(names_in, rows_of), strict=True)
            for row, name in zip(rows_of[shard], names, strict=True)
        }


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
    """Returns at most `RECORDS_LISTED` positions, some of each split."""
    of_split: dict[str, list[Position]] = {}
    for position in positions:
        of_split.setdefault(position[0].split, []).append(position)
    each = max(1, RECORDS_LISTED // len(of_split))
    return [position for some in of_split.values() for position in some[:each]]
