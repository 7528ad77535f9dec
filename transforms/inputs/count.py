"""Counts the references that this process has listed, for the progress of a build.

Runners report metrics at the end of a job only. A worker process has a count of its own.
"""

from __future__ import annotations

import threading


class Count:
    """A number that several threads increase.

    >>> count = Count()
    >>> count.add(3)
    >>> count.value
    3
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self, number: int) -> None:
        """Adds a number."""
        with self._lock:
            self.value += number


LISTED = Count()
"""References listed by this process since it started."""
