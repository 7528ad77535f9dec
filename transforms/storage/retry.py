"""The retry policy of object storage, and the translation of its errors to those of users."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from imageshards.transforms.storage.protocol import RESUME, StoreError

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
      retry: whether another attempt may succeed.
      cause: "offline" if the name of the host cannot be resolved, "credentials" if there are
        credentials but no access token for them.
    """

    def __init__(
        self, reason: str, status: int = 0, *, retry: bool | None = None, cause: Cause = ""
    ) -> None:
        super().__init__(reason)
        self.status = status
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
            longest = min(2 * longest, self.longest_wait)

    def _patience(self, failure: Failure) -> float:
        if failure.cause == "offline":
            return self.offline
        return self.refused if failure.refused and self.refused is not None else self.total


POLICY = RetryPolicy()

Refusal = Callable[[str, Action, Failure], StoreError]
"""(URI, action, failure) -> the error that names the missing permission or credentials."""


def translate(uri: str, action: Action, failure: Failure, refusal: Refusal) -> Exception:
    """Returns the error that a failed request raises: FileNotFoundError or StoreError."""
    if failure.status == 404:
        return FileNotFoundError(2, "no such object or bucket", uri)
    if failure.status in (401, 403) or failure.cause == "credentials":
        return refusal(uri, action, failure)
    hint = f"; {RESUME}" if failure.retry else ""
    return StoreError(f"{uri}: cannot be {_PARTICIPLES[action]}: {failure}{hint}")


def connection_error(error: Exception) -> str:
    """Returns the innermost reason of an error, without the object names that urllib3 adds."""
    reason: object = error
    while isinstance(reason, Exception):
        error = reason
        inner = (arg for arg in error.args if isinstance(arg, Exception))
        reason = getattr(error, "reason", None) or next(inner, None)
    text = getattr(error, "strerror", None) or str(error).rpartition("): ")[2]
    return text.rstrip(".") or type(error).__name__
