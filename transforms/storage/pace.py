"""The number of requests in flight, which adapts while a service refuses requests. Pure.

Cloud Storage refuses requests (429, 503) while their rate is higher than a bucket has scaled for:
https://cloud.google.com/storage/docs/request-rate. Each refused request waits longer and longer;
but with all the others in flight the rate hardly falls. So each process has a limit that falls and
rises as the window of TCP does: a refusal halves it, and each round of successes raises it by one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from imageshards.transforms.storage.retry import Failure


class Pace:
    """Limits the requests in flight of all threads of a process, once one has been refused.

    Attributes:
      limit: how many may be in flight; infinite before the first refusal.
    """

    def __init__(self) -> None:
        self.limit = math.inf
        self._in_flight = 0
        self._cuts = 0
        self._ended = threading.Condition()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Waits until a request may begin. The block makes it; a `Failure` may be a refusal."""
        with self._ended:
            while self._in_flight >= self.limit:
                self._ended.wait()
            self._in_flight += 1
            cuts = self._cuts
        try:
            yield
        except BaseException as error:
            self._end(cuts, isinstance(error, Failure) and error.refused, succeeded=False)
            raise
        self._end(cuts, refused=False, succeeded=True)

    def _end(self, cuts: int, refused: bool, succeeded: bool) -> None:
        with self._ended:
            # Requests that were in flight at the last cut say nothing about the limit since then.
            if refused and cuts == self._cuts:
                self.limit = max(1.0, min(self.limit, self._in_flight) / 2)
                self._cuts += 1
            elif succeeded:
                self.limit += 1 / self.limit
            self._in_flight -= 1
            self._ended.notify(2)
