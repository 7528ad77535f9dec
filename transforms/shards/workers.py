"""Writes shards in this process, or in a pool of worker processes.

Reading and encoding hold the interpreter's lock most of the time, so one process uses one core.
Worker processes do not import Beam: each starts in 0.05 s, forked from a server that loads while
the main process lists; a worker of Beam's local runner starts in 1.2 s. Two processes write 10,000
photographs of 108 kB in 0.6 s instead of 1.0 s (header check, two cores).
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.images.silence import silence_pillow
from imageshards.transforms.references.batch import use_system_allocator
from imageshards.transforms.references.stored import loaded
from imageshards.transforms.shards.read_ahead import ReadAhead
from imageshards.transforms.shards.state import ShardResult
from imageshards.transforms.shards.write import ShardJob, write_shard
from imageshards.transforms.storage import usage, web

_LOG = logging.getLogger(__name__)
REMOTE_READS_IN_FLIGHT = 32
_POOL_FILES = 64
"""Open files that a pool of processes requires, besides those of the images."""
IMAGES_PER_WORKER = 1000
"""Images for each process; with fewer, starting another process takes longer than it saves."""


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_workers(wanted: int | None, images: int, shards: int) -> int:
    """Returns the number of processes that write shards.

    Args:
      wanted: the value of `--workers`; None: as many as save time.
      images: number of images in all shards.
      shards: number of shards in all splits, which is the largest useful number of processes.

    >>> choose_workers(2, images=100, shards=1)
    1
    """
    processes = min(cores(), images // IMAGES_PER_WORKER) if wanted is None else wanted
    processes = max(1, min(processes, shards))
    if processes > 1 and (problem := pool_problem()):
        _LOG.warning("one process writes all shards: %s", problem)
        return 1
    return processes


@cache
def pool_problem() -> str:
    """Returns why this process cannot start others; empty if it can."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < _POOL_FILES:
        return f"more require {_POOL_FILES} open files, and the limit is {limit} (ulimit -n)"
    try:
        multiprocessing.get_context("fork").Lock()
    except OSError as error:
        return f"more require shared memory, and /dev/shm cannot be used: {error.strerror}"
    return ""


def run_job(job: ShardJob, threads: Threads) -> ShardResult:
    """Writes a shard, unless an earlier run has."""
    local = all(storage.is_local(uri) for refs in loaded(job.pieces) for uri in refs.files())
    return write_shard(job, threads.ahead(local, decodes=job.encoder.check == "full"))


class Threads:
    """The threads of one process that read and encode while it writes.

    Args:
      decoders: number of threads for local images that are decoded; decoding does not hold the
        interpreter's lock.
    """

    def __init__(self, decoders: int) -> None:
        self._count = decoders
        self._readers = ThreadPoolExecutor(REMOTE_READS_IN_FLIGHT, "imageshards-read")
        self._decoders = ThreadPoolExecutor(decoders, "imageshards-decode")

    def ahead(self, local: bool, decodes: bool) -> ReadAhead | None:
        """Returns how to read a shard's images; None: in the writing thread."""
        if not local:
            return ReadAhead(self._readers, REMOTE_READS_IN_FLIGHT, images=1)
        if self._count == 1 or not decodes:
            return None
        return ReadAhead(self._decoders, 2 * self._count, images=8)

    def shutdown(self) -> None:
        """Stops the threads, and closes the files that they kept open."""
        # After a failure or an interrupt, reads in progress are not waited for.
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._decoders.shutdown(wait=False, cancel_futures=True)
        storage.close()


class InProcess:
    """Writes one shard after another in this process."""

    def __init__(self) -> None:
        self._threads = Threads(cores())

    def write(self, job: ShardJob) -> Iterator[ShardResult]:
        """Writes a shard, and yields its result."""
        yield run_job(job, self._threads)

    def rest(self) -> Iterator[ShardResult]:
        """Yields nothing: `write` has yielded every result."""
        yield from ()

    def shutdown(self) -> None:
        """Stops the threads."""
        self._threads.shutdown()


class WorkerPool:
    """Writes one shard at a time in each of its processes."""

    def __init__(self, processes: int) -> None:
        start_server()
        self._processes = processes
        ends, self._alive = _context().Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            processes,
            _context(),
            initializer=_begin,
            initargs=(processes, ends, storage.billing_project()),
        )
        self._pending: deque[Future[ShardResult]] = deque()

    def write(self, job: ShardJob) -> Iterator[ShardResult]:
        """Queues a shard; yields the results of earlier ones while the queue is full."""
        self._pending.append(self._executor.submit(_run, job))
        # A queued job holds its references in memory: at most one is queued for each process.
        while len(self._pending) > 2 * self._processes:
            yield self._settle()

    def rest(self) -> Iterator[ShardResult]:
        """Waits for the queued shards, and yields their results."""
        while self._pending:
            yield self._settle()

    def _settle(self) -> ShardResult:
        try:
            return self._pending.popleft().result()
        except BrokenProcessPool as error:
            raise BuildError(
                "a worker process was killed, most likely because memory ran out: run the same "
                "command again to finish the rest; --workers 1 uses a single process"
            ) from error

    def shutdown(self) -> None:
        """Stops the processes, even in the middle of a shard."""
        if self._pending:
            self._alive.close()
        self._executor.shutdown(cancel_futures=True)


def start_server() -> None:
    """Starts the server that workers are forked from; it loads while this process continues."""
    _context()
    if threading.current_thread() is not threading.main_thread():
        forkserver.ensure_running()
        return
    # Ctrl-C must interrupt this process only. The server inherits SIG_IGN.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


@cache
def _context() -> multiprocessing.context.ForkServerContext:
    # Workers are forked from a single-threaded server: threads of this process may hold locks.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


_threads: Threads


def _begin(processes: int, pool: Connection, billing_project: str) -> None:
    """Initializes a worker process; `processes` is the size of its pool."""
    global _threads
    storage.bill(billing_project)
    _threads = Threads(max(1, cores() // processes))
    web.divide_requests(processes)
    silence_pillow()
    use_system_allocator()
    # The main process handles an interrupt, and stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(pool,), daemon=True).start()


def _end_with(pool: Connection) -> None:
    """Ends this process when the main process closes its end of a pipe, or dies."""
    wait([pool])
    os._exit(1)


def _run(job: ShardJob) -> ShardResult:
    return replace(run_job(job, _threads), used=usage.take())
