"""The store of local files. A URI is an absolute path; a stamp is the time of the last change."""

from __future__ import annotations

import fcntl
import os
import re
import stat as modes
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from imageshards.transforms.storage.protocol import UNKNOWN, BatchSink, Entry, ReadError, StoreError

TEMP_SUFFIX = ".tmp"
"""Ends the names under which files grow; a later run sweeps what a killed one left."""
_TEMP_NAME = re.compile(r"\.[0-9a-f]{12}\.tmp$")


def read(uri: str, limit: int, stamp: int = 0) -> tuple[bytes, int]:
    """The bytes of a file, and its stamp as they were read."""
    try:
        # O_NONBLOCK: a named pipe must not hold a worker for ever.
        file = os.open(uri, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise ReadError("Missing", "no such file") from error
    except OSError as error:
        raise ReadError("Unreadable", error.strerror or str(error)) from error
    except ValueError as error:  # a NUL in the name
        raise ReadError("Unreadable", str(error)) from error
    try:
        status = os.fstat(file)
        if not modes.S_ISREG(status.st_mode):
            raise ReadError("NotAFile", "not a regular file")
        if status.st_size > limit:
            raise ReadError("TooLarge", f"{status.st_size:,} bytes, more than {limit:,}")
        data = os.read(file, status.st_size)
        while len(data) < status.st_size:
            more = os.read(file, status.st_size - len(data))
            if not more:
                break  # it shrank meanwhile: the check of the image will tell
            data += more
        return data, status.st_mtime_ns
    except OSError as error:
        raise ReadError("Unreadable", error.strerror or str(error)) from error
    finally:
        os.close(file)


def open_read(uri: str) -> IO[bytes]:
    """Opens a file."""
    return open(uri, "rb")


def stat(uri: str) -> tuple[int, int]:
    """(bytes, time of the last change in ns)."""
    with suppress(OSError, ValueError):
        status = os.stat(uri)
        return status.st_size, status.st_mtime_ns
    return UNKNOWN


def exists(uri: str) -> bool:
    """Whether there is anything of that name."""
    return os.path.lexists(uri)


def entries_in(folder: str) -> list[Entry]:
    """The files in a folder; none if there is no folder."""
    found = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # it was being written, and is done
                if not entry.is_dir():
                    status = entry.stat()
                    found.append(Entry(entry.name, status.st_mtime_ns, status.st_size))
    return found


def delete(uri: str) -> None:
    """Deletes a file."""
    with suppress(FileNotFoundError):
        os.unlink(uri)


def _write_all(file: int, parts: list[bytes]) -> None:
    length = sum(map(len, parts))
    written = os.writev(file, parts)
    if written < length:  # a disk that fills up, a signal, or more than 2 GiB
        rest = memoryview(b"".join(parts))
        while written < length:
            written += os.write(file, rest[written:])


def _temp(uri: str, scratch: str) -> str:
    # Unique: two workers that write the same file do not meet.
    return f"{scratch}/{os.path.basename(uri)}.{uuid.uuid4().hex[:12]}{TEMP_SUFFIX}"


@contextmanager
def _writing(uri: str) -> Iterator[None]:
    """What goes wrong with a write becomes one line.

    Raises:
      StoreError: no space, no permission.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{uri}: cannot be written: {error.strerror or error}; mend that, and the same "
            "command again does the rest"
        ) from error


@contextmanager
def open_sink(uri: str, scratch: str) -> Iterator[BatchSink]:
    """Opens a file that grows in `scratch`, a folder of the same filesystem."""
    temp = _temp(uri, scratch)
    with _writing(uri):
        file = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # of a filesystem that knows no locks
            fcntl.flock(file, fcntl.LOCK_SH)

    def write_all(parts: list[bytes]) -> None:
        with _writing(uri):
            _write_all(file, parts)

    try:
        sink = BatchSink(write_all)
        try:
            yield sink
            sink.finish()
        finally:
            sink.close()
            os.close(file)
        with _writing(uri):
            if sink.keep:
                os.replace(temp, uri)
            else:
                delete(uri)
                delete(temp)
    except BaseException:
        with suppress(OSError):
            delete(temp)
        raise


def sweep(folder: str) -> None:
    """Deletes what killed runs left in a folder; what a run is writing is locked, and stays."""
    for entry in entries_in(folder):
        if not _TEMP_NAME.search(entry.name):
            continue
        path = f"{folder}/{entry.name}"
        with suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)


def create(uri: str, data: bytes, scratch: str) -> bool:
    """Writes a small file that is not there yet; False if it is."""
    temp = _temp(uri, scratch)
    with open_sink(temp, scratch) as sink:
        sink.write([data])
    try:
        os.link(temp, uri)
    except FileExistsError:
        return False
    except OSError:  # a filesystem without links
        try:
            os.close(os.open(uri, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:
            return False
        os.replace(temp, uri)
    finally:
        delete(temp)
    return True


def replace(uri: str, data: bytes, scratch: str, stamp: int) -> bool:
    """Writes a small file in place of the one of a stamp; False if it is another."""
    if stat(uri)[1] != stamp:
        return False
    with open_sink(uri, scratch) as sink:
        sink.write([data])
    return True
