"""Blocks and windows: the order of `Records.shuffled`, of the records of one process. Pure.

A block is a run of consecutive records of a file, read at once. An epoch is a permutation of the
blocks, cut into windows of `per_window` blocks; the records of each window are shuffled together.
The records of a shard are in random order already, so neighbours are not similar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from imageshards.reader.files import RecordFile, read_indexes
from imageshards.reader.splits import Span

_BLOCK_BYTES = 8 << 20
_WINDOW_BYTES = 128 << 20
_BLOCKS_PER_WINDOW = 16
_MIN_WINDOW, _MAX_WINDOW = 16, 1 << 16


@dataclass(frozen=True)
class Blocks:
    """The blocks of a sequence of records.

    Attributes:
      spans: the blocks, as ranges of records.
      largest: the number of records in the largest block.
      per_window: the number of blocks that are shuffled together.
    """

    spans: Sequence[Span]
    largest: int
    per_window: int


def make_blocks(
    files: Sequence[RecordFile], spans: Sequence[Span], window: int | None = None
) -> Blocks:
    """Cuts the records of a host into blocks.

    Args:
      files: the files to which the spans refer.
      spans: the records of the host.
      window: the number of records to shuffle together; None for as many as fit in 128 MB, from 16
        to 65,536. The records of a compressed file are one block, and a window is at least one.
    """
    read_indexes(files[number] for number in sorted({span.file for span in spans}))
    records = sum(span.records for span in spans)
    size = 0
    for span in spans:
        size += int(files[span.file].index.sizes[span.begin : span.end].sum())
    mean = max(size // records, 1)
    if window is None:
        window = min(max(_WINDOW_BYTES // mean, _MIN_WINDOW), _MAX_WINDOW)
    per_block = max(1, min(window // _BLOCKS_PER_WINDOW, _BLOCK_BYTES // mean))
    if not all(files[span.file].container.random_access for span in spans):
        # Reading from the middle of a compressed file requires decompressing all before it.
        per_block = max(span.records for span in spans)
    cut: list[Span] = []
    for span in spans:
        begins = range(span.begin, span.end, per_block)
        cut += [Span(span.file, begin, min(begin + per_block, span.end)) for begin in begins]
    return Blocks(cut, per_block, max(1, window // per_block))
