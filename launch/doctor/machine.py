"""Cores, memory, disks and limits of this machine, as far as this process may use them."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from imageshards.launch.doctor.finding import Finding

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_LITTLE_DISK = 1_000_000_000
_LITTLE_MEMORY = 1_000_000_000

_FEW_FILES = 1024


def machine(output: str) -> Iterator[Finding]:
    """Checks cores, memory, free space and limits.

    Args:
      output: the folder that is to be written to; empty: the working directory.
    """
    yield from _memory()
    # The following checks import what a build does, which fails if the installation is broken.
    from imageshards.transforms import storage

    yield _space("temporary files", tempfile.gettempdir())
    where = storage.normalize(output or os.curdir)
    if storage.is_local(where):
        yield _space("output", where)
    yield _cores()
    yield from _limits()


def _cores() -> Finding:
    from imageshards.transforms.shards.cores import cores

    usable, present = cores(), os.cpu_count() or 1
    value = f"{usable}" if usable == present else f"{usable} of {present}"
    quota = cpu_quota()
    if quota is not None and quota < usable:
        count = max(1, int(quota))
        return Finding(
            "cores", "warning", f"{value}, limited to {quota:.3g} by the control group",
            f"set --workers {count}, because a build starts a process for each core",
        )  # fmt: skip
    return Finding("cores", "ok", value)


def cpu_quota(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> float | None:
    """Returns the number of cores that the control group allows; None: no limit.

    Args:
      root: where the control groups are mounted.
      membership: the file that names the groups of this process.
    """
    for folder in _groups(root, membership, "cpu"):
        words = _read(folder / "cpu.max").split()  # version 2: QUOTA PERIOD, in us
        if len(words) == 2 and words[0].isdecimal():
            return int(words[0]) / int(words[1])
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal():
            return int(quota) / int(period)
    return None


def memory_limit(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> tuple[int, int] | None:
    """Returns (limit, used) in bytes of the control group's memory; None: no limit.

    The arguments are those of `cpu_quota`.
    """
    for folder in _groups(root, membership, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(folder / limit_name), _read(folder / used_name)
            # Version 1 has a limit near 2**63 if there is none.
            if limit.isdecimal() and int(limit) < 1 << 60:
                return int(limit), int(used) if used.isdecimal() else 0
    return None


def _groups(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Yields the folders of this process's control group and of its parents, the innermost first.

    A container sees its own group as the root.
    """
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = root if not controllers else root / controller
            group = top.joinpath(*Path(path).parts[1:])
            yield from (each for each in (group, *group.parents) if each.is_relative_to(top))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _memory() -> Iterator[Finding]:
    facts = {}
    for line in _read(Path("/proc/meminfo")).splitlines():
        name, _, value = line.partition(":")
        facts[name] = int(value.split()[0]) * 1024
    if "MemTotal" not in facts:
        return
    total, free = facts["MemTotal"], facts.get("MemAvailable", facts["MemTotal"])
    note = ""
    limited = memory_limit()
    if limited and limited[0] < total:
        total, free = limited[0], min(free, limited[0] - limited[1])
        note = ", limited by the control group"
    value = f"{_gb(free)} free of {_gb(total)}{note}"
    if free < _LITTLE_MEMORY:
        yield Finding("memory", "warning", value, "set --workers 1, and close other programs")
    else:
        yield Finding("memory", "ok", value)


def _space(name: str, folder: str) -> Finding:
    existing = Path(folder)
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    from imageshards.transforms import storage

    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(name, "problem", f"{folder}: {error.strerror}", "use another folder")
    if problem := storage.folder_problem(folder):
        return Finding(name, "problem", f"{folder}: {problem}", "use another folder")
    value = f"{_gb(free)} free in {folder}"
    if free < _LITTLE_DISK:
        return Finding(name, "warning", value, "free some, or use another disk")
    return Finding(name, "ok", value)


def _limits() -> Iterator[Finding]:
    from imageshards.transforms.shards.workers import pool_problem

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= files < _FEW_FILES:
        yield Finding("open files", "warning", f"at most {files}", f"ulimit -n {_FEW_FILES}")
    if problem := pool_problem():
        yield Finding("processes", "warning", f"one writes all shards: {problem}")
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        value = f"this process is limited to {_gb(space)}"
        yield Finding("address space", "warning", value, "ulimit -v unlimited")


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
