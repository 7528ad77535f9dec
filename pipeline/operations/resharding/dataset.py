"""Copies the records of a data set into new shards, on many workers.

Each new shard is a part, whose worker reads ranges of the old shards. It leaves a state file with
the CRC-32C of each range: a resumed run skips the shards that have one, and at the end the CRC-32C
of each old shard is that of its ranges. dataset_info.json is written last, as in a build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy.typing as npt

from imageshards.pipeline.operations.operation import Operation
from imageshards.pipeline.operations.resharding.claim import check_ownership
from imageshards.pipeline.operations.resharding.crc32c import combine
from imageshards.pipeline.operations.resharding.metadata import write_metadata
from imageshards.pipeline.operations.resharding.pieces import NewShard, new_shards
from imageshards.pipeline.operations.resharding.target import Format, Target
from imageshards.pipeline.operations.resharding.write import Copied, write_shard
from imageshards.reader.dataset import Dataset, Shard, open_dataset
from imageshards.reader.files import RecordFile
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId
from imageshards.transforms.shards.layout import Layout, read_json, to_json
from imageshards.transforms.shards.write import repeated_if_lost

_OPENED = 8
"""Old shards whose indexes a worker keeps: about 5 to 9 bytes for each of their records."""


def claim_of(dataset: Dataset, target: Target) -> dict[str, Any]:
    """Returns what identifies a reshard of a data set."""
    is_changed = target.format != Format.of(dataset.build["options"])
    return {
        "from": dataset.layout.root,
        "shards": [[s.uri.rpartition("/")[2], s.crc32c] for s in dataset.shards],
        "num_shards": dict(target.counts),
        **(target.format.claimed if is_changed else {}),
    }


@dataclass(frozen=True)
class Resharding(Operation[NewShard, Copied]):
    """Writes each new shard, and then the metadata.

    Attributes:
      source: the paths of the old data set.
      layout: the paths of the new one.
      target: the shards to write.
      sha256: whether to compute the SHA-256 of the new shards.
    """

    source: Layout
    layout: Layout
    target: Target
    sha256: bool

    def parts(self) -> Iterator[NewShard]:
        """Yields the new shards, in order."""
        return new_shards(open_dataset(self.source.root), self.target)

    @contextmanager
    def worker(self) -> Iterator[Callable[[NewShard], Copied]]:
        """Yields the function that writes a shard; it keeps the indexes of the last files."""
        yield partial(self._copy, opened=lru_cache(_OPENED)(replace))

    def _copy(self, new: NewShard, opened: Callable[[RecordFile], RecordFile]) -> Copied:
        layout, shard = self.layout, new.shard
        state = read_json(layout.shard_state(shard)) or {}
        index = layout.index(shard)
        done = state and storage.size(layout.shard(shard)) == state["bytes"]
        if not (done and (not index or storage.exists(index))):
            pieces = [piece._replace(file=opened(piece.file)) for piece in new.pieces(self.source)]
            state = repeated_if_lost(lambda: write_shard(layout, shard, pieces, self.sha256))
            layout.write(layout.shard_state(shard), to_json(state))
        return Copied.of(new.number, state)

    def empty(self) -> Copied:
        """Returns no shard."""
        return Copied()

    def finish(self, result: Copied) -> dict[str, Any]:
        """Compares the old shards with their CRC-32C, and writes the metadata.

        Raises:
          BuildError: an old shard is damaged.
        """
        dataset = open_dataset(self.source.root)
        mine = claim_of(dataset, self.target)
        check_ownership(self.layout, mine)
        copied, pieces = result.in_order()
        self._check_source(dataset, pieces)
        shards = [
            Shard(
                new.shard, self.layout.shard(new.shard),
                sum(piece.end - piece.begin for piece in new.pieces(self.source)),
                int(row["bytes"]), int(row["crc32c"]),
                row["sha256"].tobytes().hex() if self.sha256 else "",
            )
            for new, row in zip(self.parts(), copied, strict=True)
        ]  # fmt: skip
        storage.sweep(self.layout.state)
        info = write_metadata(dataset, self.layout, shards, self.target)
        check_ownership(self.layout, mine)
        self.layout.write(self.layout.dataset_info, to_json(info))
        return {}

    def _check_source(self, dataset: Dataset, pieces: npt.NDArray[Any]) -> None:
        rows = iter(pieces)
        old, size, crc32c = -1, 0, 0
        readers: list[ShardId] = []  # of the current old shard
        for new in self.parts():
            for piece in new.pieces(self.source):
                row = next(rows)
                if piece.old != old:
                    old, size, crc32c, readers = piece.old, 0, 0, []
                size += int(row["bytes"])
                crc32c = combine(crc32c, int(row["crc32c"]), int(row["bytes"]))
                readers.append(new.shard)
                shard = dataset.shards[old]
                # The records of a file with a footer are compared one by one instead.
                whole_file = not (piece.file.compression or piece.file.container.has_footer)
                is_whole = piece.end == shard.records and whole_file
                if is_whole and (size, crc32c) != (shard.bytes, shard.crc32c):
                    # After the file is repaired, the same command copies it again.
                    storage.delete([self.layout.shard_state(reader) for reader in readers])
                    raise BuildError(
                        f"{shard.uri}: its CRC32C is not the one in build.json: run imageshards "
                        "verify to see what is damaged"
                    )
