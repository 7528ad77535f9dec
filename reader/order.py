"""The order in which a host reads its records: blocks and windows. Pure.

A block is a run of consecutive records of a file, read at once. An epoch is a permutation of the
blocks, cut into windows of `per_window` blocks; the records of each window are shuffled together.
Both permutations are functions of the seed and the epoch, so a number of records is a position in
the order. The records of a shard are in random order already, so neighbours are not similar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from imageshards.reader.files import RecordFile, fingerprints, read_indexes
from imageshards.reader.splits import Span

_BLOCK_BYTES = 8 << 20
_WINDOW_BYTES = 128 << 20
_BLOCKS_PER_WINDOW = 16
_MIN_WINDOW, _MAX_WINDOW = 16, 1 << 16


@dataclass(frozen=True)
class Blocks:
    """The blocks of a host.

    Attributes:
      table: int64 [blocks, 4]: index of the file, offset of the first record, records, bytes.
      largest: the number of records in the largest block.
      per_window: the number of blocks that are shuffled together.
      spans: the same blocks as ranges of records.
    """

    table: npt.NDArray[np.int64]
    largest: int
    per_window: int
    spans: Sequence[Span]

    @property
    def records(self) -> int:
        """The number of records in an epoch."""
        return int(self.table[:, 2].sum())

    @property
    def windows(self) -> int:
        """The number of windows in an epoch."""
        return -(-len(self.table) // self.per_window)

    def seek(self, permutation: npt.NDArray[np.int64], record: int) -> tuple[int, int]:
        """Finds a record of an epoch.

        Args:
          permutation: int64 [blocks], the order of the blocks in the epoch.
          record: the number of records before it in the epoch.

        Returns:
          (the index of its window, the number of records before it in the window).
        """
        sizes = self.table[permutation, 2]
        starts = np.concatenate(
            [[0], np.add.accumulate(sizes)[self.per_window - 1 :: self.per_window]]
        )
        window = int(np.searchsorted(starts, record, side="right")) - 1
        return window, int(record - starts[window])

    def digest(self, files: Sequence[RecordFile], **settings: object) -> str:
        """Returns a digest that identifies the order and the records, for saved states."""
        used = [files[number] for number in np.unique(self.table[:, 0])]
        names = [file.uri.rpartition("/")[2] for file in used]
        contents = fingerprints(used)
        head = json.dumps(
            [names, contents, self.largest, self.per_window, sorted(settings.items())]
        )
        return blake2b(head.encode() + self.table.tobytes(), digest_size=8).hexdigest()


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
        size += int(files[span.file].index[span.begin : span.end, 1].sum())
    mean = max(size // records, 1)
    if window is None:
        window = min(max(_WINDOW_BYTES // mean, _MIN_WINDOW), _MAX_WINDOW)
    per_block = max(1, min(window // _BLOCKS_PER_WINDOW, _BLOCK_BYTES // mean))
    if not all(files[span.file].container.random_access for span in spans):
        # Reading from the middle of a compressed file requires decompressing all before it.
        per_block = max(span.records for span in spans)
    rows = []
    cut: list[Span] = []
    for span in spans:
        offsets, framed = files[span.file].index.T
        begins = np.arange(span.begin, span.end, per_block, dtype=np.int64)
        ends = np.minimum(begins + per_block, span.end)
        lasts = ends - 1
        sizes = offsets[lasts] + framed[lasts] - offsets[begins]
        numbers = np.full_like(begins, span.file)
        rows.append(np.stack([numbers, offsets[begins], ends - begins, sizes], 1))
        cut += [Span(span.file, *ends) for ends in zip(begins.tolist(), ends.tolist(), strict=True)]
    return Blocks(np.concatenate(rows), per_block, max(1, window // per_block), cut)
