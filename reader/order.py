"""In which order the records of a host are read: blocks and windows. Pure.

A block is some consecutive records of a file, read at one go. An epoch is a permutation of the
blocks, cut into windows of `blocks_per_window` blocks, each of which is shuffled as a whole. Both
permutations are functions of the seed and the epoch, so that a place in the order is a number.
Records of a shard are in a random order already: neighbours in a block are no kin.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from imageshards.reader.files import RecordFile, fingerprints, read_indexes
from imageshards.reader.splits import Span
from imageshards.transforms.elements import UsageError

MAX_SEED = (1 << 62) - 1
"""What TensorFlow takes, with a bit to spare for the uses of a seed."""
_BLOCK_BYTES = 8 << 20
_WINDOW_BYTES = 128 << 20
_BLOCKS_PER_WINDOW = 16
_MIN_WINDOW, _MAX_WINDOW = 16, 1 << 16


def whole(name: str, value: object, least: int = 0, most: int = MAX_SEED) -> int:
    """An argument that is to be a whole number.

    Raises:
      UsageError: it is none, or too small or large.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        bounds = f"{least} or more" + (f", and {most} at most" if number > most else "")
        raise UsageError(f"{name} {value!r}: take a whole number, {bounds}")
    return number


@dataclass(frozen=True)
class Blocks:
    """What is read at one go.

    Attributes:
      table: int64 [blocks, 4]: place of the file, offset of the first record, records, bytes.
      largest: records of the largest block.
      per_window: blocks that are shuffled together.
      spans: the same as records of files.
    """

    table: npt.NDArray[np.int64]
    largest: int
    per_window: int
    spans: Sequence[Span]

    @property
    def records(self) -> int:
        """Of an epoch."""
        return int(self.table[:, 2].sum())

    @property
    def windows(self) -> int:
        """Of an epoch."""
        return -(-len(self.table) // self.per_window)

    def seek(self, permutation: npt.NDArray[np.int64], record: int) -> tuple[int, int]:
        """(window, records of it that come before) of a record of an epoch."""
        sizes = self.table[permutation, 2]
        starts = np.concatenate(
            [[0], np.add.accumulate(sizes)[self.per_window - 1 :: self.per_window]]
        )
        window = int(np.searchsorted(starts, record, side="right")) - 1
        return window, int(record - starts[window])

    def digest(self, files: Sequence[RecordFile], **settings: object) -> str:
        """By which a state is known to be of the same order, and of the same records."""
        mine = [files[place] for place in np.unique(self.table[:, 0])]
        names = [file.uri.rpartition("/")[2] for file in mine]
        contents = fingerprints(mine)
        head = json.dumps(
            [names, contents, self.largest, self.per_window, sorted(settings.items())]
        )
        return blake2b(head.encode() + self.table.tobytes(), digest_size=8).hexdigest()


def make_blocks(
    files: Sequence[RecordFile], spans: Sequence[Span], window: int | None = None
) -> Blocks:
    """Cuts spans into blocks.

    Args:
      files: in which the spans are.
      spans: of this host.
      window: records to shuffle together; None: as many as take 128 MB, from 16 to 65,536. Of
        compressed files a block is all that is to be read of one, and a window at least a block.
    """
    read_indexes(files[place] for place in sorted({span.file for span in spans}))
    records = sum(span.records for span in spans)
    size = 0
    for span in spans:
        size += int(files[span.file].index[span.begin : span.end, 1].sum())
    mean = max(size // records, 1)
    if window is None:
        window = min(max(_WINDOW_BYTES // mean, _MIN_WINDOW), _MAX_WINDOW)
    per_block = max(1, min(window // _BLOCKS_PER_WINDOW, _BLOCK_BYTES // mean))
    if not all(files[span.file].container.random_access for span in spans):
        # To begin in the middle of a compressed file takes unpacking all that is before.
        per_block = max(span.records for span in spans)
    rows = []
    cut: list[Span] = []
    for span in spans:
        offsets, framed = files[span.file].index.T
        begins = np.arange(span.begin, span.end, per_block, dtype=np.int64)
        ends = np.minimum(begins + per_block, span.end)
        lasts = ends - 1
        sizes = offsets[lasts] + framed[lasts] - offsets[begins]
        places = np.full_like(begins, span.file)
        rows.append(np.stack([places, offsets[begins], ends - begins, sizes], 1))
        cut += [Span(span.file, *ends) for ends in zip(begins.tolist(), ends.tolist(), strict=True)]
    return Blocks(np.concatenate(rows), per_block, max(1, window // per_block), cut)
