"""Measures a command: wall time, CPU time, and the peak memory of all its processes together.

Linux only: memory is read from /proc. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

INTERVAL = 0.05
"""Seconds between two samples of memory."""

# To report its memory the kernel walks the page tables of a process and blocks its page faults
# meanwhile. At most a twentieth of the time is spent on that.
_SAMPLING_SHARE = 20
_RESCAN_SECONDS = 0.25
_FLOOR_BYTES = 3 << 28


@dataclass(frozen=True)
class Measurement:
    """The measurements of one run.

    Attributes:
      seconds: wall time from start to exit, interpreter start-up and imports included.
      cpu_seconds: user and system time of the process and of all children it has waited for.
      busy_seconds: CPU time of the whole machine during the run, other processes included.
      peak_bytes: the highest sum of the proportional set sizes (PSS) of all its processes: a page
        that n processes share counts 1/n for each.
      returncode: of the process; negative if a signal ended it.
      stdout: the end of its standard output.
      stderr: the end of its standard error.
      killed: why the benchmark killed it, or "".
    """

    seconds: float
    cpu_seconds: float
    busy_seconds: float
    peak_bytes: int
    returncode: int
    stdout: str
    stderr: str
    killed: str = ""

    @property
    def problem(self) -> str:
        """Why the run is invalid, in one line; "" if it is valid."""
        if self.killed:
            return self.killed
        if self.returncode == 0:
            return ""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return f"exit {self.returncode}: {lines[-1].strip()[:300] if lines else 'no message'}"


def measure(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float = 3600.0,
) -> Measurement:
    """Runs a command in a session of its own, and measures it.

    Args:
      argv: the command.
      environment: variables on top of those of this process.
      timeout: seconds after which it is killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        busy = _busy_seconds()
        begin = time.perf_counter()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        sampler = _Sampler(process.pid, begin + timeout)
        sampler.start()
        try:
            # Popen.wait(timeout) would poll, and find the end up to 50 ms late.
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - begin
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            sampler.finish()
            for pid in _descendants(process.pid):
                if pid != process.pid or process.returncode is None:
                    _kill(pid)
        return Measurement(
            seconds=seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            busy_seconds=_busy_seconds() - busy,
            peak_bytes=sampler.peak_bytes,
            returncode=process.returncode,
            stdout=_tail(out, 1 << 20),
            stderr=_tail(err, 1 << 16),
            killed=sampler.killed,
        )


def memory_available() -> int:
    """Returns the bytes that new processes can allocate without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def _busy_seconds() -> float:
    """Returns the CPU time of all processes of the machine since it started."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split(maxsplit=4)[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


class _Sampler(threading.Thread):
    """Samples the memory of a process and its descendants until `finish` is called."""

    def __init__(self, root: int, deadline: float) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.killed = ""
        self._root = root
        self._deadline = deadline
        self._stop_event = threading.Event()

    def run(self) -> None:
        pids = [self._root]
        scanned = time.perf_counter()
        while True:
            begin = time.perf_counter()
            if begin - scanned > _RESCAN_SECONDS:
                pids, scanned = _descendants(self._root), begin
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss, pids)))
            if begin > self._deadline:
                self._kill("killed: it reached the time limit")
            elif memory_available() < _FLOOR_BYTES:
                self._kill(
                    f"killed: the machine ran out of memory ({self.peak_bytes / 1e9:.1f} GB)"
                )
            took = time.perf_counter() - begin
            if self._stop_event.wait(max(INTERVAL, _SAMPLING_SHARE * took)):
                return

    def finish(self) -> None:
        """Stops sampling."""
        self._stop_event.set()
        self.join()

    def _kill(self, reason: str) -> None:
        self.killed = reason
        for pid in _descendants(self._root):
            _kill(pid)


def _descendants(root: int) -> list[int]:
    """Returns the ids of a process, its descendants, and all other processes in its session."""
    parents: dict[int, int] = {}
    found = {root}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                # The name of the command is in parentheses, and may contain any character.
                stat = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(stat[1])
            if int(stat[3]) == root:
                found.add(int(name))
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(found)


def _pss(pid: int) -> int:
    # The process may have ended since.
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):  # the process has ended since
        os.kill(pid, signal.SIGKILL)


def _tail(file: IO[bytes], size: int) -> str:
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - size))
    return file.read().decode("utf-8", "replace")
