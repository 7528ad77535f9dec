"""Who writes the shards: this process with threads beside it, or processes of its own. Pure.

Reading and encoding hold the interpreter's lock most of the time, so one process writes on one
core. A worker process here imports no Beam: it is there in 0.05 s, once the server from which it
is forked has loaded beside the main process, where a worker of the local runner takes 1.2 s. Two
of them write 10,000 photographs of 108 kB in 0.6 s instead of 1.0 (header check, two cores).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.shards.encoder import ImageEncoder
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.shards.write import ReadAhead, ShardResult, write_shard
from imageshards.transforms.storage import web

REMOTE_READS_IN_FLIGHT = 32
IMAGES_PER_WORKER = 1000
"""From twice as many on, a second process pays for its start; fewer are not worth one."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_workers(wanted: int | None, images: int, shards: int) -> int:
    """How many processes write.

    Args:
      wanted: by the user; None: as many as pay for their start.
      images: in all shards.
      shards: of all splits; more processes than shards have nothing to do.
    """
    processes = min(cores(), images // IMAGES_PER_WORKER) if wanted is None else wanted
    return max(1, min(processes, shards))


@dataclass(frozen=True)
class ShardJob:
    """All that the owner of a shard must know; small beside the images it stands for.

    Attributes:
      shard: which.
      refs: its references, in order.
      classes: label of a reference -> (number, name) of its class.
      layout: where.
      encoder: reference -> record.
      settings: digest of all options that decide bytes.
      digests: note those of the images.
    """

    shard: ShardId
    refs: RefBatch
    classes: Mapping[str, tuple[int, bytes]]
    layout: Layout
    encoder: ImageEncoder
    settings: str
    digests: bool = False

    def run(self, threads: Threads) -> ShardResult:
        """Writes the shard, or finds that an earlier run has."""
        local = all(map(storage.is_local, self.refs.files()))
        return write_shard(
            self.shard,
            self.refs,
            partial(self.encoder.encode, classes=self.classes),
            self.layout,
            threads.ahead(local, decodes=self.encoder.check == "full"),
            self.settings,
            digests=self.digests,
            coded=self.encoder.schema.holds == "encoded",
        )


class Threads:
    """The threads of one process that read and encode ahead of its writing.

    Args:
      decoders: for local images that are decoded, which does not hold the interpreter's lock.
    """

    def __init__(self, decoders: int) -> None:
        self._count = decoders
        self._readers = ThreadPoolExecutor(REMOTE_READS_IN_FLIGHT, "imageshards-read")
        self._decoders = ThreadPoolExecutor(decoders, "imageshards-decode")

    def ahead(self, local: bool, decodes: bool) -> ReadAhead | None:
        """How the images of a shard are read."""
        if not local:
            return ReadAhead(self._readers, REMOTE_READS_IN_FLIGHT, images=1)
        if self._count == 1 or not decodes:
            return None
        return ReadAhead(self._decoders, 2 * self._count, images=8)

    def shutdown(self) -> None:
        """Ends them, and closes what they kept open."""
        # After a failure or an interrupt reads are still under way, which nobody waits for.
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._decoders.shutdown(wait=False, cancel_futures=True)
        storage.close()


class InProcess:
    """Writes one shard after the other, in this process."""

    def __init__(self) -> None:
        self._threads = Threads(cores())

    def write(self, job: ShardJob) -> Iterator[ShardResult]:
        """Yields what is finished."""
        yield job.run(self._threads)

    def rest(self) -> Iterator[ShardResult]:
        """Yields all that is not yet told."""
        yield from ()

    def shutdown(self) -> None:
        """Ends the threads."""
        self._threads.shutdown()


class WorkerPool:
    """Writes as many shards at a time as it has processes, each in one of them."""

    def __init__(self, processes: int) -> None:
        start_server()
        self._processes = processes
        ends, self._alive = _context().Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            processes, _context(), initializer=_begin, initargs=(processes, ends)
        )
        self._pending: deque[Future[ShardResult]] = deque()

    def write(self, job: ShardJob) -> Iterator[ShardResult]:
        """Hands a shard to a worker; yields what is finished."""
        self._pending.append(self._executor.submit(_run, job))
        # A waiting job holds its references in memory: one beside each that is being written.
        while len(self._pending) > 2 * self._processes:
            yield self._settle()

    def rest(self) -> Iterator[ShardResult]:
        """Waits for all shards that were handed out."""
        while self._pending:
            yield self._settle()

    def _settle(self) -> ShardResult:
        try:
            return self._pending.popleft().result()
        except BrokenProcessPool as error:
            raise BuildError(
                "a worker process was killed, most likely for want of memory: the same command "
                "again does the rest, with --workers 1 in a single process"
            ) from error

    def shutdown(self) -> None:
        """Ends the processes, in the middle of a shard if need be."""
        if self._pending:
            self._alive.close()
        self._executor.shutdown(cancel_futures=True)


def start_server() -> None:
    """Begins to load what worker processes need, beside whatever this process does next."""
    _context()
    if threading.current_thread() is not threading.main_thread():
        forkserver.ensure_running()
        return
    # What it loads must not be interrupted by a Ctrl-C that is meant for this process. It inherits
    # what is ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


@cache
def _context() -> multiprocessing.context.ForkServerContext:
    # Forked from a server that has a single thread, and not from this process, whose threads may
    # hold locks.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


_threads: Threads


def _begin(processes: int, pool: Connection) -> None:
    """Readies one of so many worker processes of a pool."""
    global _threads
    _threads = Threads(max(1, cores() // processes))
    web.divide_requests(processes)
    # An interrupt is for the main process, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(pool,), daemon=True).start()


def _end_with(pool: Connection) -> None:
    """Ends this process when the pool's end of a pipe is closed, by the pool or by its death."""
    wait([pool])
    os._exit(1)


def _run(job: ShardJob) -> ShardResult:
    return job.run(_threads)
