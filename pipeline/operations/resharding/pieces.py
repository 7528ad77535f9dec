"""Which records of the old shards each new shard takes.

The records of a split keep their order, and its new shards differ by at most one record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from imageshards.pipeline.operations.resharding.target import Target
from imageshards.reader.dataset import Dataset
from imageshards.reader.files import RecordFile, find
from imageshards.transforms.elements import ShardId
from imageshards.transforms.references.keys import first_rank
from imageshards.transforms.shards.layout import Layout

_LENGTH = np.dtype("<u4")


class Piece(NamedTuple):
    """Consecutive records of an old shard.

    Attributes:
      old: number of the old shard in its data set.
      file: the old shard.
      begin: number of the first record in it.
      end: number after the last one.
    """

    old: int
    file: RecordFile
    begin: int
    end: int


class NewShard(NamedTuple):
    """A new shard, and the records to copy into it, in 4 bytes for each old shard.

    Attributes:
      number: its number in the data set.
      shard: the shard.
      old: number of the first old shard in its data set.
      first: the first old shard.
      begin: number of the first record in it.
      end: number after the last record in the last old shard.
      records: of each of the old shards; packed uint32.
    """

    number: int
    shard: ShardId
    old: int
    first: ShardId
    begin: int
    end: int
    records: bytes

    def pieces(self, source: Layout) -> Iterator[Piece]:
        """Yields the records to copy, in order.

        Args:
          source: the paths of the old data set.
        """
        lengths = np.frombuffer(self.records, _LENGTH).tolist()
        for position, records in enumerate(lengths):
            shard = replace(self.first, index=self.first.index + position)
            begin = 0 if position else self.begin
            end = self.end if position == len(lengths) - 1 else records
            file = RecordFile(source.shard(shard), source.index(shard), records)
            yield Piece(self.old + position, file, begin, end)


def new_shards(dataset: Dataset, target: Target) -> Iterator[NewShard]:
    """Yields the new shards of a data set, in order."""
    source = find(dataset.layout.root)
    new = enumerate(target.shards())
    for split, count in target.counts:
        spans = deque(source.spans(split))
        records = sum(span.records for span in spans)
        for number, shard in islice(new, count):
            wanted = first_rank(shard.index + 1, count, records)
            wanted -= first_rank(shard.index, count, records)
            copied = []
            while wanted:
                span = spans.popleft()
                end = min(span.end, span.begin + wanted)
                copied.append(replace(span, end=end))
                wanted -= end - span.begin
                if end < span.end:
                    spans.appendleft(replace(span, begin=end))
            lengths = [dataset.shards[span.file].records for span in copied]
            old, begin = copied[0].file, copied[0].begin
            yield NewShard(
                number, shard, old, dataset.shards[old].id, begin, copied[-1].end,
                np.array(lengths, _LENGTH).tobytes(),
            )  # fmt: skip
