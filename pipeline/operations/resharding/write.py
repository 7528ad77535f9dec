"""Writes the records of old shards into a new one, and sums up what was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from imageshards.pipeline.operations.resharding.pieces import Piece
from imageshards.reader.files import RecordFile
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.containers import container_of
from imageshards.transforms.shards.layout import Layout

_CHUNK_BYTES = 4 << 20
_COPIED = np.dtype([("number", "<u4"), ("bytes", "<u8"), ("crc32c", "<u4"), ("sha256", "V32")])
_PIECE = np.dtype([("number", "<u4"), ("piece", "<u4"), ("bytes", "<u8"), ("crc32c", "<u4")])


@dataclass
class Copied:
    """Written shards, in 48 bytes for each and 20 for each of its pieces.

    Attributes:
      shards: packed `_COPIED`.
      pieces: packed `_PIECE`: the number of the shard, that of the piece in it, size and CRC-32C.
    """

    shards: bytearray = field(default_factory=bytearray)
    pieces: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, number: int, state: Mapping[str, Any]) -> Copied:
        """Returns a shard, from its state file."""
        rows = [(number, piece, *found) for piece, found in enumerate(state["pieces"])]
        digest = bytes.fromhex(state["sha256"])
        shards = np.array([(number, state["bytes"], state["crc32c"], digest)], _COPIED)
        return cls(bytearray(shards.tobytes()), bytearray(np.array(rows, _PIECE).tobytes()))

    def merge(self, other: Copied) -> None:
        """Adds other shards."""
        self.shards += other.shards
        self.pieces += other.pieces

    def in_order(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns the rows of the shards, and those of the pieces, in order."""
        shards = np.frombuffer(bytes(self.shards), _COPIED)
        pieces = np.frombuffer(bytes(self.pieces), _PIECE)
        return (
            shards[np.argsort(shards["number"])],
            pieces[np.lexsort((pieces["piece"], pieces["number"]))],
        )


def write_shard(
    layout: Layout, shard: ShardId, pieces: Sequence[Piece], sha256: bool
) -> dict[str, Any]:
    """Writes a new shard and its index; returns its state: sizes and checksums."""
    copied = []
    with storage.open_sink(layout.shard(shard), layout.state) as sink:
        if sha256:
            sink.compute_sha256()
        container = container_of(shard)
        writer = container.writer(sink)
        for _, file, begin, end in pieces:
            size = crc32c = 0
            for first, last in _chunks(file, begin, end):
                stored = file.stored(first, last)
                size += len(stored)
                crc32c = google_crc32c.extend(crc32c, stored)
                if container.can_copy and container.name == file.container.name:
                    writer.copy(stored, file.index.sizes[first:last].tolist())
                    continue
                try:
                    for data in file.records_in(stored, first, last):
                        writer.write([data])
                except CorruptRecord as error:
                    raise BuildError(
                        f"{error}: run imageshards verify to see what is damaged"
                    ) from error
            copied.append([size, crc32c])
        index = writer.close()
    if index is not None:
        layout.write(layout.index(shard), index)
    return {
        "bytes": sink.size, "crc32c": sink.crc32c, "sha256": sink.sha256, "pieces": copied,
    }  # fmt: skip


def _chunks(file: RecordFile, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of consecutive records of about 4 MB, of the records [begin, end)."""
    first = begin
    size = 0
    for row in range(begin, end):
        size += int(file.index.sizes[row])
        if size >= _CHUNK_BYTES:
            yield first, row + 1
            first, size = row + 1, 0
    if first < end:
        yield first, end
