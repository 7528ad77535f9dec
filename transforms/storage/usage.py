"""Counts the bytes that a process reads from stores, and the requests that it makes again."""

from __future__ import annotations

import threading
from typing import NamedTuple


class Usage(NamedTuple):
    """Counts since they were last taken.

    Attributes:
      bytes_read: bytes of images and of other ranges of files.
      retries: requests that were made again after a failure.
    """

    bytes_read: int = 0
    retries: int = 0


_lock = threading.Lock()
_used = Usage()


def add(bytes_read: int = 0, retries: int = 0) -> None:
    """Adds to the counts of this process. Any thread may call it."""
    global _used
    with _lock:
        _used = Usage(_used.bytes_read + bytes_read, _used.retries + retries)


def take() -> Usage:
    """Returns the counts of this process, and sets them to 0: each read is counted once."""
    global _used
    with _lock:
        used, _used = _used, Usage()
    return used
