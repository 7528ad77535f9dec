"""Threads that decode the images of several shards at once, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from imageshards.reader.verification.problems import Problem

_WAITING_BYTES = 64 << 20


class Decoders(ThreadPoolExecutor):
    """Threads that check records. The records of all parts that wait for them have a bounded size.

    Args:
      threads: the number of threads.
      limit: the most bytes of the records that are submitted and not yet checked. A larger record
        is checked alone.
    """

    def __init__(self, threads: int, limit: int = _WAITING_BYTES) -> None:
        super().__init__(threads, "imageshards-decode")
        self._limit = self._free = limit
        self._changed = threading.Condition()

    def submit_record(
        self, check: Callable[[bytes], Problem | None], data: bytes
    ) -> Future[Problem | None]:
        """Submits a record to a check, after a wait until its bytes are within the limit."""
        size = min(len(data), self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        future = self.submit(check, data)
        future.add_done_callback(lambda _: self._release(size))
        return future

    def _release(self, size: int) -> None:
        with self._changed:
            self._free += size
            self._changed.notify_all()
