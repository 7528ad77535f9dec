"""What a command needs of its own process: standard streams, names in UTF-8, a working directory.

Schedulers, containers and embedded systems start commands without one or the other.
"""

from __future__ import annotations

import os
import sys


def use_utf8() -> None:
    """Starts this program again in Python's UTF-8 mode if names of files are not UTF-8.

    That is so in the locale C or POSIX with PYTHONUTF8=0. Then names that are not ASCII would
    differ from those that other processes read from manifests and archives.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        environment = {**os.environ, "PYTHONUTF8": "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def open_streams() -> None:
    """Opens /dev/null for each standard stream that is closed.

    Otherwise the next file that is opened, such as a shard, would get the messages of libraries.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the smallest free number
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - stays open


def flush_streams() -> None:
    """Writes what is buffered; drops it if nobody can read it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), stream.fileno())
            stream.flush()


def folder_problem() -> str:
    """Returns why the working directory cannot be used; empty if it can."""
    try:
        os.getcwd()
    except OSError:
        return "the working directory was deleted: change to another one (cd)"
    return ""


_OUT_OF_MEMORY = (
    "MemoryError", "SystemError", "Cannot allocate memory", "failed to map segment",
    "can't start new thread", "C-extensions failed",
)  # fmt: skip


def advice(message: str) -> str:
    """Returns what to do about a limit of this process that an error message is about, or ""."""
    if "Too many open files" in message:
        return "; raise the limit of open files (ulimit -n 1024)"
    if any(sign in message for sign in _OUT_OF_MEMORY):
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            limit = f"{most / 1e6:,.0f} MB of address space"
            return f"; this process is limited to {limit}: raise the limit (ulimit -v unlimited)"
    return ""
