"""The interface of an operation that many workers share, and the two ways to run one.

An operation divides itself into parts. Any worker processes any part, in any order; the results are
merged, and one worker finishes the operation. Without a runner, the threads of this process do so;
with one, the steps of a Beam pipeline. Both call the same functions.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any, Generic, Protocol, Self, TypeVar

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.shards.cores import cores

Part = TypeVar("Part")


class Mergeable(Protocol):
    """A result of some parts."""

    def merge(self, other: Self) -> None:
        """Adds the result of other parts. The order of the calls does not affect the result."""


Result = TypeVar("Result", bound=Mergeable)


class Operation(ABC, Generic[Part, Result]):
    """An operation. Workers receive a pickled copy, so it holds nothing that grows with its parts.

    Attributes:
      divisions: how many times `rest` may return parts of parts, for other workers.
    """

    divisions: int = 0

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """Yields the parts, each of bounded size."""

    def undivided(self) -> Self:
        """Returns the operation for a worker that processes each part as a whole."""
        return self

    def rest(self, result: Result) -> Sequence[Part]:
        """Removes from the result of a part the parts of it that other workers process."""
        return ()

    def worker(self) -> AbstractContextManager[Callable[[Part], Result]]:
        """Returns a context with the function that processes parts in one worker.

        Several threads of the worker call the function.
        """
        return nullcontext(self.process)

    def process(self, part: Part) -> Result:
        """Returns the result of one part."""
        raise NotImplementedError

    @abstractmethod
    def empty(self) -> Result:
        """Returns the result of no part."""

    @abstractmethod
    def finish(self, result: Result) -> dict[str, Any]:
        """Ends the operation; returns an outcome that JSON can represent.

        One worker calls it with the result of all parts, and again if that attempt fails.
        """


Run = Callable[[Operation[Any, Any]], dict[str, Any]]
"""Runs an operation and returns its outcome."""


def run_here(operation: Operation[Part, Result]) -> dict[str, Any]:
    """Runs an operation in threads of this process, one for each core."""
    with explained():
        return _run_here(operation)


def _run_here(operation: Operation[Part, Result]) -> dict[str, Any]:
    total = operation.empty()
    threads = cores()
    with operation.undivided().worker() as process, _threads(threads) as executor:
        parts = operation.parts()
        running: set[Future[Result]] = set()
        while True:
            # The parts that wait in the queue of the threads take memory: there are few.
            running |= {
                executor.submit(process, part) for part in islice(parts, 2 * threads - len(running))
            }
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                total.merge(future.result())
    return operation.finish(total)


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    executor = ThreadPoolExecutor(count, "imageshards-parts")
    try:
        yield executor
    except Exception:
        executor.shutdown(cancel_futures=True)  # what has failed writes nothing more
        raise
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)  # an interrupt ends the command at once
        raise
    executor.shutdown()


def run_on_beam(
    operation: Operation[Any, Any],
    beam_arguments: Sequence[str],
    announce: Callable[[str, str], None] | None = None,
) -> dict[str, Any]:
    """Runs an operation as a Beam pipeline, and waits for its end.

    The worker that finishes the operation writes the outcome to a file, which this process reads
    and deletes. The file is in the folder `--temp_location`, or else in this machine's folder for
    temporary files.

    Args:
      operation: the operation.
      beam_arguments: Beam's options, including `--runner`.
      announce: called with the id and the web page of the job if a service runs it.

    Raises:
      UsageError: Beam refuses the options, or the folder cannot be written.
      JobError: the job failed.
    """
    from imageshards.pipeline.job.execution import CachedOptions, new_pipeline, wait_for
    from imageshards.pipeline.job.failures import JobEnded, job_error
    from imageshards.pipeline.job.submission import submission_of
    from imageshards.pipeline.operations.graph import add_operation

    options = CachedOptions(list(beam_arguments))
    pipeline = new_pipeline(options, storage.billing_project())
    folder = options.get_all_options().get("temp_location") or tempfile.gettempdir()
    outcome = storage.join(storage.folder_uri(folder), f"imageshards-{uuid.uuid4().hex}.json")
    _check_writable(outcome, folder)
    link = ""
    try:
        add_operation(pipeline, operation, outcome)
        result = pipeline.run()
        if job := submission_of(result, options, folder):
            link = job.link
            if announce:
                announce(job.job, link)
        wait_for(result)
        if job and result.state != "DONE":
            raise JobEnded(result.state)
    except Exception as error:
        raise job_error(error, link) from error
    try:
        with storage.open_read(outcome) as file:
            found: dict[str, Any] = json.load(file)
    except FileNotFoundError as error:
        raise BuildError(
            f"{outcome}: the result of the job is missing: set --temp_location to a folder that "
            "this machine and all workers can access"
        ) from error
    storage.delete([outcome])
    return found


def _check_writable(outcome: str, folder: str) -> None:
    """Writes and deletes the file of the outcome: the job writes it only after hours of work."""
    try:
        write_outcome(outcome, {})
        storage.delete([outcome])
    except (BuildError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"--temp_location {folder} cannot be used: {reason}; specify a folder that this "
            "machine and all workers can write to"
        ) from error


@contextmanager
def explained() -> Iterator[None]:
    """Raises a `BuildError` for files that cannot be read or written, on any worker.

    Raises:
      BuildError: the block raised an `OSError`; the message names the file.
    """
    try:
        yield
    except OSError as error:
        if not error.filename:
            raise
        raise BuildError(f"{error.filename}: {error.strerror or error}") from error


def write_outcome(uri: str, outcome: dict[str, Any]) -> None:
    """Writes the outcome of an operation to a file."""
    folder = os.path.dirname(uri)
    storage.make_folder(folder)
    with storage.open_sink(uri, folder) as sink:
        sink.write([json.dumps(outcome).encode()])
