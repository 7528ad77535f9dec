"""Why a job failed: recognizes the errors of imageshards in what a runner reports.

The local runner raises what a worker raised; other runners and services report its traceback as
text, inside an error of their own.

    python -m imageshards.pipeline.job.failures < messages

prints the reason in such a text, on one line. The Airflow DAG calls it.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator

from imageshards.transforms.elements import BuildError, OutputTaken
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.storage import LostUpload, NoFilesystem, Refused, StoreError

_WHILE_RUNNING = re.compile(r"\s*\[while running .*$", re.DOTALL)
_ERRORS = (BuildError, CorruptRecord, LostUpload, NoFilesystem, OutputTaken, Refused, StoreError)
_NAMES = "|".join(error.__name__ for error in _ERRORS)
_OURS = re.compile(rf"\bimageshards\.[\w.]*\.(?:{_NAMES}): (.+)")
_IS_CAUSE = "The above exception was the direct cause of the following exception"
# As the local runner and as Flink report it.
_WORKER_DIED = re.compile(r"Channel closed prematurely|Process died with exit code")
_CAUSE = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b")
_AT_DATAFLOW = re.compile(r"Dataflow pipeline failed\. State: (\w+), Error:\n(.*)", re.DOTALL)
_FAILED = "FAILED"


class JobError(Exception):
    """A job that failed after it had started.

    The message is one line for the user.

    Attributes:
      details: the whole traceback, for `--verbose`.
      may_run: whether a service may still run the job, because it has not reported its end.
    """

    def __init__(self, message: str, details: str = "", *, may_run: bool = False) -> None:
        super().__init__(message)
        self.details = details
        self.may_run = may_run


class JobEnded(Exception):
    """A service reports that a job ended in a state other than DONE, such as CANCELLED."""


def job_error(error: Exception, link: str = "") -> JobError:
    """Returns the error to show for a failed job.

    Args:
      error: what the runner raised.
      link: a page about the job, if there is one.

    Raises:
      KeyboardInterrupt: a worker process was interrupted.
    """
    details = "".join(traceback.format_exception(error))
    if isinstance(error, BuildError | CorruptRecord):
        return JobError(_WHILE_RUNNING.sub("", str(error)), details)
    where = f"; {link}" if link else ""
    state, message = _reported(error)
    if state != _FAILED:
        return JobError(f"the job was {state.lower()}{where}", details)
    may_run = bool(link) and not message
    if reason := reason_in(message or details):
        return JobError(f"{reason}{where}", details, may_run=may_run)
    cause = _last_cause(message or details)
    if "KeyboardInterrupt" in cause:
        raise KeyboardInterrupt
    cause = cause or " ".join((message or f"{type(error).__name__}: {error}").split())
    failed = f"the job failed: {cause}{where} (--verbose shows the traceback)"
    return JobError(failed, details, may_run=may_run)


def reason_in(text: str) -> str:
    """Returns the reason for a failure in the traceback of a worker or in the log of a job.

    >>> reason_in("RuntimeError: imageshards.transforms.elements.BuildError: no image found")
    'no image found'

    Args:
      text: what a runner or service reports.

    Returns:
      One line; empty if nothing is recognized.
    """
    found: re.Match[str] | None = None
    for match in _OURS.finditer(text):
        # An error that is the cause of another one says less, such as not the name of the file.
        if found and _IS_CAUSE not in text[found.end() : match.start()]:
            break
        found = match
    if found:
        return _WHILE_RUNNING.sub("", found[1])
    if "remote job server jar" in text:
        return (
            "no job server was found: specify --job_endpoint=HOST:PORT, or --flink_job_server_jar "
            "and --flink_master (make flink starts a cluster)"
        )
    if _WORKER_DIED.search(text):
        return (
            "a worker process was killed, most likely because memory ran out: run the same "
            "command again to resume"
        )
    return ""


def _last_cause(text: str) -> str:
    causes = [line for line in _lines(text) if _CAUSE.match(line)]
    return _WHILE_RUNNING.sub("", causes[-1]) if causes else ""


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines())


def _reported(error: Exception) -> tuple[str, str]:
    """Returns the state of a job that a service reports, and the text of its last error."""
    if isinstance(error, JobEnded):
        return str(error), ""
    if found := _AT_DATAFLOW.match(str(error)):
        return found[1], "Dataflow reports no reason" if found[2] == "None" else found[2]
    return _FAILED, ""


if __name__ == "__main__":
    messages = sys.stdin.read()
    last = [line for line in _lines(messages) if line][-1:]
    sys.stdout.write(reason_in(messages) or _last_cause(messages) or "".join(last))
