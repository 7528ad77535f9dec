"""References of large shards, kept in files between the sort and the writing of the shards.

A shard is written by one worker, in order. The references of a usual shard reach it as one element
of the graph; those of a shard with millions of records would be an element of any size. They are
written to files, piece by piece, and the worker reads one piece at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

from imageshards.transforms import storage
from imageshards.transforms.elements import OutputTaken
from imageshards.transforms.references.batch import RefBatch

PREFIX = "references-"
"""Beginning of the names of the files."""
_HEAD = struct.Struct("<Q")


@dataclass(frozen=True)
class StoredRefs:
    """References in a file.

    Attributes:
      uri: URI of the file.
    """

    uri: str

    @staticmethod
    def store(batch: RefBatch, uri: str, scratch: str) -> StoredRefs:
        """Writes references to a file.

        Args:
          batch: the references.
          uri: beginning of the file's URI. A digest of the content follows: another run of the
            build, which has the same plan, may find files with other sizes or stamps.
          scratch: a folder of the same filesystem.
        """
        schema, packed = batch.packed()
        parts = [_HEAD.pack(len(schema)), schema, packed]
        digest = blake2b(digest_size=8)
        for part in parts:
            digest.update(part)
        stored = StoredRefs(f"{uri}-{digest.hexdigest()}")
        with storage.open_sink(stored.uri, scratch) as sink:
            sink.write(parts)
        return stored

    def load(self) -> RefBatch:
        """Reads the references.

        Raises:
          OutputTaken: the file has disappeared.
        """
        try:
            with storage.open_read(self.uri) as file:
                data = file.read()
        except FileNotFoundError as error:
            raise OutputTaken.deleted(self.uri) from error
        (length,) = _HEAD.unpack_from(data)
        begin = _HEAD.size + length
        return RefBatch.unpack(data[_HEAD.size : begin], data[begin:])


Piece: TypeAlias = RefBatch | StoredRefs


def loaded(pieces: Iterable[Piece]) -> Iterator[RefBatch]:
    """Yields the references of each piece; one piece is in memory at a time."""
    for piece in pieces:
        yield piece.load() if isinstance(piece, StoredRefs) else piece
