"""The `Store` protocol, which each store of files implements, and the errors of stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from heapq import nsmallest
from itertools import accumulate
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol

from imageshards.transforms.elements import BuildError

if TYPE_CHECKING:
    from imageshards.transforms.storage.web import WebOptions

MAX_BYTES = 1 << 28
"""The largest file that is read, in bytes. It is enough for every image that is not rejected."""

UNKNOWN = (-1, 0)
"""(bytes, stamp) of a file that does not exist, or whose store does not report them."""

_FIRST = 100
"""Files that `match_first` returns at most, of a store that lists no pages."""

AGAIN = "run the same command again"
RESUME = f"{AGAIN} to resume"
"""Only for what a command writes: a dry run, `verify` or `inspect` has nothing to resume."""


class ReadError(Exception):
    """A file cannot be read, and another attempt would not help.

    Attributes:
      kind: the error type that rejects are counted by: Missing, Unreadable, NotAFile, TooLarge or
        Changed; from web servers also Forbidden, PrivateHost, Timeout, TooManyRedirects or
        HttpError.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class NoFilesystem(BuildError):
    """No store supports the URI, or the client that the store needs is not installed."""


class StoreError(BuildError):
    """A store failed: no permission, no connection, no space."""


def cannot_be_written(uri: str, reason: str) -> StoreError:
    """Returns the error of a local file that cannot be written, such as on a full disk."""
    return StoreError(f"{uri}: cannot be written: {reason}; correct that, then {RESUME}")


class Refused(StoreError):
    """A store refused a request.

    Attributes:
      as_output: the message if the file belongs to an output, which requires more permissions.
    """

    def __init__(self, message: str, as_output: str = "") -> None:
        super().__init__(message)
        self.as_output = as_output or message


class LostUpload(StoreError):
    """The service lost a part of a file that was being written: it must be written again."""


class Entry(NamedTuple):
    """A file in a folder.

    Attributes:
      name: its name in the folder.
      changed: time of the last change, in ns since 1970.
      size: its size in bytes.
      crc32c: CRC-32C of the content; None if the store would have to read the file for it.
    """

    name: str
    changed: int
    size: int
    crc32c: int | None = None


class Names(NamedTuple):
    """A range of names of files, in the order of a store's lists.

    Attributes:
      begin: the first name; empty: from the first of all.
      end: the name to stop before; empty: to the last of all.
    """

    begin: str = ""
    end: str = ""


Match = tuple[str, int, int]
"""URI, bytes and stamp of a file that matches a pattern."""


class Sink(Protocol):
    """A file that is being written.

    Attributes:
      size: bytes written so far.
      crc32c: CRC-32C of the bytes written so far.
      keep: whether the file appears at the end. Set it to False to delete the file instead, and
        also an older file of that name.
      file: descriptor of the local file that the bytes go to; -1 if there is none. A writer that
        appends to it by itself calls `appended`, and not `write`.
    """

    size: int
    crc32c: int
    keep: bool
    file: int

    def write(self, parts: Sequence[bytes]) -> None:
        """Appends the parts, in order."""

    def appended(self, data: bytes) -> None:
        """Counts the next bytes of the file that a writer has appended to `file` by itself."""

    def refusal(self, reason: str) -> StoreError:
        """Returns the error of a writer that cannot append to `file`."""

    def compute_sha256(self) -> None:
        """Requests a SHA-256 of the file; called before the first write."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file in hexadecimal, when it is complete; empty if not requested."""


class Store(Protocol):
    """Files of one kind of URI. The functions of `storage` find the store of a URI and call it.

    A store subclasses this protocol and implements the methods without a body. The bodies of the
    others suit a store without folders and preconditions. A *stamp* is a positive number that
    changes with a file's content; 0 means unknown. Methods are called from several threads.

    Attributes:
      is_local: whether URIs are absolute paths that `os` accepts, and reads have no latency.
      can_list: whether files can be listed, with sizes and stamps; if not, they can only be read.
      beam_writes: whether Beam's own sinks can write files.
    """

    is_local: bool = False
    can_list: bool = True
    beam_writes: bool = True

    def read(self, uri: str, limit: int, stamp: int, web: WebOptions, /) -> tuple[bytes, int]:
        """Returns the content of a file and its stamp; see `storage.read`."""

    def read_range(self, uri: str, offset: int, size: int, stamp: int, /) -> bytes:
        """Returns the bytes of a range; see `storage.read_range`."""

    def read_parts(self, uri: str, offset: int, sizes: Sequence[int], stamp: int, /) -> list[bytes]:
        """Returns the parts of a range; see `storage.read_parts`."""
        data = self.read_range(uri, offset, sum(sizes), stamp)
        ends = list(accumulate(sizes))
        return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def open_read(self, uri: str, /) -> IO[bytes]:
        """Opens a file for reading; FileNotFoundError if it does not exist."""

    def stat(self, uri: str, /) -> tuple[int, int]:
        """Returns (bytes, stamp) of a file, or `UNKNOWN`."""

    def match(self, pattern: str, /) -> Iterator[Match]:
        """Yields (URI, bytes, stamp) of the files that match a pattern, in any order."""

    def entries_in(self, folder: str, /) -> Iterator[Entry]:
        """Yields the files directly in a folder, in any order; none if it does not exist."""

    def delete(self, uri: str, /) -> None:
        """Deletes a file, if it exists."""

    def open_sink(self, uri: str, scratch: str, /) -> AbstractContextManager[Sink]:
        """Opens a file that appears complete or not at all; see `storage.open_sink`."""

    def match_part(self, pattern: str, names: Names, few: bool, /) -> Iterator[Match | Names]:
        """Yields some matches, and ranges of names with the others; see `storage.match_part`."""
        return iter(self.match(pattern))

    def match_first(self, pattern: str, /) -> list[Match]:
        """Returns the first matches by name, with few requests; see `storage.match_first`."""
        return nsmallest(_FIRST, self.match(pattern))

    def exists(self, uri: str, /) -> bool:
        """Returns whether a file (or, locally, a folder) exists."""
        return self.stat(uri) != UNKNOWN

    def crc32c(self, uri: str, /) -> int | None:
        """Returns the CRC-32C of a file; None if the store would have to read the file for it."""
        return None

    def create(self, uri: str, data: bytes, scratch: str, /) -> bool:
        """Writes a small file unless it exists; of two concurrent calls, both may write."""
        return not self.exists(uri) and self.replace(uri, data, scratch, 0)

    def replace(self, uri: str, data: bytes, scratch: str, stamp: int, /) -> bool:
        """Writes a small file; this implementation ignores the stamp of the existing one."""
        with self.open_sink(uri, scratch) as sink:
            sink.write([data])
        return True

    def make_folder(self, folder: str, /) -> None:
        """Creates a folder, where the store has folders."""
        return

    def folder_problem(self, folder: str, /) -> str:
        """Returns why a folder cannot be created or written to; empty if no reason is known."""
        return ""

    def abort_uploads(self, folder: str, /) -> None:
        """Discards what killed processes have sent of files that they did not complete."""
        return

    def sweep(self, folder: str, /) -> None:
        """Deletes the incomplete files that killed runs left in a scratch folder."""
        return
