"""What object storage does after a failure: the retry policy, the pace, and the errors of users.

Cloud Storage refuses requests (429, 503) while their rate is higher than a bucket has scaled for:
https://cloud.google.com/storage/docs/request-rate. A refused request waits longer and longer; but
with all the others in flight the rate hardly falls. So each process has a limit of requests in
flight, which falls and rises as the window of TCP does: a refusal halves it, and each round of
successes raises it by one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from imageshards.transforms.storage import usage
from imageshards.transforms.storage.protocol import AGAIN, RESUME, StoreError

T = TypeVar("T")

Action = Literal["read", "list", "write", "delete"]
Cause = Literal["", "offline", "credentials"]
_PARTICIPLES = {"read": "read", "list": "listed", "write": "written", "delete": "deleted"}
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_REFUSALS = frozenset({429, 503})


class Failure(Exception):
    """A failed request, of any client.

    Attributes:
      status: the status of the HTTP response, or 0 if there was none.
      message: what the service says about the failure; empty if it says nothing.
      retry: whether another attempt may succeed.
      cause: "offline" if the name of the host cannot be resolved, "credentials" if there are
        credentials but no access token for them.
    """

    def __init__(
        self,
        reason: str,
        status: int = 0,
        *,
        message: str = "",
        retry: bool | None = None,
        cause: Cause = "",
    ) -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.status = status
        self.message = message
        self.retry = (not status or status in _TRANSIENT) if retry is None else retry
        self.cause = cause

    @property
    def refused(self) -> bool:
        """Whether the service asks for fewer requests."""
        return self.status in _REFUSALS


@dataclass(frozen=True)
class RetryPolicy:
    """How long clients of object storage wait, and when they give up. All times are in seconds.

    Attributes:
      connect: timeout of a connection.
      silence: timeout of a response that sends no further bytes.
      total: no attempt begins later than this after the first failure.
      refused: like `total`, while the service asks for fewer requests; None: `total`.
      offline: like `total`, while the host's name cannot be resolved: probably there is no network.
      first_wait: the longest wait before the second attempt; doubled before each further attempt.
      longest_wait: the limit of that doubling.
    """

    connect: float = 10.0
    silence: float = 20.0
    total: float = 120.0
    refused: float | None = None
    offline: float = 10.0
    first_wait: float = 0.2
    longest_wait: float = 20.0

    def call(self, attempt: Callable[[], T]) -> T:
        """Calls `attempt` until it succeeds, fails permanently, or the time is over.

        Raises:
          Failure: the failure of the last attempt.
        """
        import random

        begin: float | None = None
        longest = self.first_wait
        while True:
            try:
                return attempt()
            except Failure as failure:
                now = time.monotonic()
                begin = now if begin is None else begin
                pause = random.uniform(0, longest)
                if not failure.retry or now + pause > begin + self._patience(failure):
                    raise
            time.sleep(pause)
            usage.add(retries=1)
            longest = min(2 * longest, self.longest_wait)

    def _patience(self, failure: Failure) -> float:
        if failure.cause == "offline":
            return self.offline
        return self.refused if failure.refused and self.refused is not None else self.total


POLICY = RetryPolicy()


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


Refusal = Callable[[str, Action, Failure], StoreError]
"""(URI, action, failure) -> the error that says why a request was refused, and what to do."""


def translate(uri: str, action: Action, failure: Failure, refusal: Refusal) -> Exception:
    """Returns the error that a failed request raises: FileNotFoundError or StoreError."""
    if failure.status == 404:
        return FileNotFoundError(2, "no such object or bucket", uri)
    if failure.cause == "credentials" or (300 <= failure.status < 500 and not failure.retry):
        return refusal(uri, action, failure)
    advice = RESUME if action == "write" else AGAIN
    hint = f"; {advice}" if failure.retry else ""
    return StoreError(f"{cannot(uri, action)}: {failure}{hint}")


def cannot(uri: str, action: Action) -> str:
    """Returns the beginning of a message: what cannot be done.

    >>> cannot("gs://bucket/1.jpg", "read")
    'gs://bucket/1.jpg: cannot be read'
    """
    return f"{uri}: cannot be {_PARTICIPLES[action]}"


def connection_error(error: Exception) -> str:
    """Returns the innermost reason of an error, without the object names that urllib3 adds."""
    reason: object = error
    while isinstance(reason, Exception):
        error = reason
        inner = (arg for arg in error.args if isinstance(arg, Exception))
        reason = getattr(error, "reason", None) or next(inner, None)
    text = getattr(error, "strerror", None) or str(error).rpartition("): ")[2]
    return text.rstrip(".") or type(error).__name__
