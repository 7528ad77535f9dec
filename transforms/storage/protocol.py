"""What every store of files does: the protocol, its errors, and the sink that writes in batches.

Three modules are stores: `local_files`, `gcs`, and `beam_files` for what else Beam knows.
`storage` chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import IO, NamedTuple, Protocol

import google_crc32c

from imageshards.transforms.elements import BuildError

MAX_BYTES = 1 << 28
"""A file of more bytes than this is not read: no image of `images.MAX_PIXELS` needs them."""

UNKNOWN = (-1, 0)
"""(bytes, stamp) of what is not there, or of which nothing can be told."""


class ReadError(Exception):
    """Bytes that cannot be had.

    Attributes:
      kind: its type for counting: Missing, Unreadable, NotAFile, TooLarge, Changed.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class NoFilesystem(BuildError):
    """A URI of a scheme that nobody here knows."""


class StoreError(BuildError):
    """A store that does not do what it is asked for: no permission, no connection, no space."""


class Entry(NamedTuple):
    """A file in a folder.

    Attributes:
      name: of it in the folder.
      changed: time of the last change in ns.
      size: bytes.
      crc32c: of the content, where the store tells it without reading.
    """

    name: str
    changed: int
    size: int
    crc32c: int | None = None


class Sink(Protocol):
    """A file that is being written.

    Attributes:
      size: bytes written so far.
      crc32c: of what is written so far.
      keep: whether the file is to appear at the end; what was there before is then gone.
    """

    size: int
    crc32c: int
    keep: bool

    def write(self, parts: Sequence[bytes]) -> None:
        """Appends the parts, in order."""


class Store(Protocol):
    """Files by URI. A stamp is a number that changes with the content of a file, or 0."""

    def read(self, uri: str, limit: int, stamp: int) -> tuple[bytes, int]:
        """See `storage.read`."""

    def open_read(self, uri: str) -> IO[bytes]:
        """Opens a file; FileNotFoundError if there is none."""

    def stat(self, uri: str) -> tuple[int, int]:
        """(bytes, stamp) of a file, or `UNKNOWN`."""

    def exists(self, uri: str) -> bool:
        """Whether there is a file (or, locally, a folder)."""

    def entries_in(self, folder: str) -> list[Entry]:
        """The files directly in a folder, in any order; none if there is no such folder."""

    def delete(self, uri: str) -> None:
        """Deletes a file; one that is not there is no error."""

    def open_sink(self, uri: str, scratch: str) -> AbstractContextManager[Sink]:
        """See `storage.open_sink`."""

    def create(self, uri: str, data: bytes, scratch: str) -> bool:
        """See `storage.create`."""

    def replace(self, uri: str, data: bytes, scratch: str, stamp: int) -> bool:
        """See `storage.replace`."""


class RemoteStore(Store, Protocol):
    """A store that is not of this machine."""

    def match(self, pattern: str) -> Iterator[tuple[str, int, int]]:
        """(uri, bytes, stamp) of the files that match a pattern, in any order."""


_BATCH_BYTES = 2 << 20
_BATCH_PARTS = 1000  # the system takes 1,024 in one call


class BatchSink:
    """Writes in batches, each beside the work that makes the next.

    A 108 kB record costs 37 us of the system's time to write. In batches that another thread
    writes while this one reads and encodes, a record costs 64 us in all where one call after the
    other costs 89 (10,000 JPEGs on a tmpfs, two cores). Of batches of 4 MB the memory goes back to
    the system each time: 150,000 page faults where those of 2 MB have 30,000. No payload is
    copied, as a buffered file object would.

    Args:
      write_all: appends parts to what is being written.
    """

    def __init__(self, write_all: Callable[[list[bytes]], None]) -> None:
        self._write_all = write_all
        self._parts: list[bytes] = []
        self._waiting = 0
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self.size = 0
        self.crc32c = 0
        self.keep = True

    def write(self, parts: Sequence[bytes]) -> None:
        """Appends the parts, in order."""
        before = self.size
        for part in parts:
            self.size += len(part)
            self.crc32c = google_crc32c.extend(self.crc32c, part)
        self._parts += parts
        self._waiting += self.size - before
        if self._waiting >= _BATCH_BYTES or len(self._parts) >= _BATCH_PARTS:
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, "imageshards-writer")
            self._wait()
            self._writing = self._writer.submit(self._write_all, self._parts)
            self._parts, self._waiting = [], 0

    def finish(self) -> None:
        """Writes what is left; raises what went wrong in the other thread."""
        self._wait()
        if self._parts:
            self._write_all(self._parts)

    def close(self) -> None:
        """Waits for the other thread, and ends it."""
        if self._writer:
            self._writer.shutdown()

    def _wait(self) -> None:
        if self._writing:
            self._writing.result()
