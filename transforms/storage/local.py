"""The store of local files. A URI is an absolute path; a stamp is the mtime in ns since 1970."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import resource
import stat as modes
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import IO, TYPE_CHECKING

from imageshards.transforms.storage.protocol import (
    UNKNOWN,
    Entry,
    ReadError,
    Store,
    cannot_be_written,
)
from imageshards.transforms.storage.sink import BatchSink

if TYPE_CHECKING:
    from imageshards.transforms.storage.web import WebOptions

TEMP_SUFFIX = ".tmp"
"""The suffix of files that are being written. `sweep` deletes those that killed runs left."""
_TEMP_NAME = re.compile(r"\.[0-9a-f]{12}\.tmp$")
_OPEN_FILES = 128
"""Files that `read_range` keeps open in a process, or a quarter of what the system allows: to open
one takes 20 us, to read 2 us."""
# O_NONBLOCK: a named pipe must not block a worker for ever.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class _OpenFile:
    """An open file that several threads can read at the same time.

    The file is closed when nothing refers to this object any more, not when the cache evicts it: a
    thread may still be reading, and the system may reuse a closed descriptor for another file.
    """

    def __init__(self, path: str, stamp: int) -> None:
        self._stamp = stamp
        try:
            self._file = os.open(path, _READ_FLAGS)
        except FileNotFoundError as error:
            raise ReadError("Missing", "the file that holds it is gone") from error
        except OSError as error:
            raise ReadError("Unreadable", f"the file that holds it: {error.strerror}") from error

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read_at(self, offset: int, sizes: Sequence[int]) -> list[bytes]:
        try:
            # If the file was written since it was listed, the offsets may be wrong.
            status = os.fstat(self._file)
            if not modes.S_ISREG(status.st_mode):
                raise ReadError("NotAFile", "the file that holds it is not a regular file")
            if self._stamp and status.st_mtime_ns != self._stamp:
                raise ReadError("Changed", "the file that holds it has changed since it was listed")
            parts = []
            for size in sizes:
                parts.append(_read_at(self._file, offset, size))
                offset += size
            return parts
        except OSError as error:
            raise ReadError("Unreadable", f"the file that holds it: {error.strerror}") from error


class LocalStore(Store):
    """Files of this machine."""

    is_local = True

    def __init__(self) -> None:
        # The stamp is part of the cache's key, so that a replaced file is opened again.
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(_OPEN_FILES, allowed // 4) if allowed >= 0 else _OPEN_FILES
        self._open = lru_cache(maxsize=most)(_OpenFile)
        self._opening = threading.Lock()

    def read(self, uri: str, limit: int, stamp: int, web: WebOptions, /) -> tuple[bytes, int]:
        """Returns the content of a file, and its stamp when it was read."""
        try:
            file = os.open(uri, _READ_FLAGS)
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
            # If the file has shrunk since, the validation of the image detects that.
            return _read_at(file, 0, status.st_size), status.st_mtime_ns
        except OSError as error:
            raise ReadError("Unreadable", error.strerror or str(error)) from error
        finally:
            os.close(file)

    def read_range(self, uri: str, offset: int, size: int, stamp: int, /) -> bytes:
        """Returns the bytes of a range; fewer if the file ends before."""
        return self.read_parts(uri, offset, (size,), stamp)[0]

    def read_parts(self, uri: str, offset: int, sizes: Sequence[int], stamp: int, /) -> list[bytes]:
        """Returns the parts of a range, which are not copied."""
        with self._opening:  # so that two threads do not open the same file
            file = self._open(uri, stamp)
        return file.read_at(offset, sizes)

    def close(self) -> None:
        """Closes the files that `read_range` keeps open."""
        self._open.cache_clear()

    def open_read(self, uri: str, /) -> IO[bytes]:
        """Opens a file."""
        return open(uri, "rb")

    def stat(self, uri: str, /) -> tuple[int, int]:
        """Returns (bytes, stamp) of a file, or `UNKNOWN`."""
        with suppress(OSError, ValueError):
            status = os.stat(uri)
            return status.st_size, status.st_mtime_ns
        return UNKNOWN

    def exists(self, uri: str, /) -> bool:
        """Returns whether a file, a folder or a link (even a broken one) exists."""
        return os.path.lexists(uri)

    def match(self, pattern: str, /) -> Iterator[tuple[str, int, int]]:
        """Yields (path, bytes, stamp) of the files that match a pattern of `glob`."""
        for path in glob.iglob(pattern, recursive=True):
            if not os.path.isdir(path):
                yield path, *self.stat(path)

    def entries_in(self, folder: str, /) -> list[Entry]:
        """Returns the files directly in a folder; none if it does not exist."""
        found = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # a temporary file may be renamed at any time
                    if not entry.is_dir():
                        status = entry.stat()
                        found.append(Entry(entry.name, status.st_mtime_ns, status.st_size))
        return found

    def delete(self, uri: str, /) -> None:
        """Deletes a file, if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(uri)

    @contextmanager
    def open_sink(self, uri: str, scratch: str, /) -> Iterator[BatchSink]:
        """Opens a file that is written in `scratch`, a folder of the same filesystem."""
        temp = _temp(uri, scratch)
        with _writing(uri):
            file = os.open(temp, _CREATE_FLAGS, 0o666)
            with suppress(OSError):  # some filesystems do not support locks
                fcntl.flock(file, fcntl.LOCK_SH)

        def write_all(parts: list[bytes]) -> None:
            with _writing(uri):
                _write_all(file, parts)

        try:
            sink = BatchSink(write_all, uri, file)
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
                    self.delete(uri)
                    self.delete(temp)
        except BaseException:
            with suppress(OSError):
                self.delete(temp)
            raise

    def create(self, uri: str, data: bytes, scratch: str, /) -> bool:
        """Writes a small file unless it exists; of two concurrent calls, one succeeds."""
        temp = _temp(uri, scratch)
        with self.open_sink(temp, scratch) as sink:
            sink.write([data])
        try:
            os.link(temp, uri)
        except FileExistsError:
            return False
        except OSError:  # some filesystems do not support links
            try:
                os.close(os.open(uri, _CREATE_FLAGS, 0o666))
            except FileExistsError:
                return False
            os.replace(temp, uri)
        finally:
            self.delete(temp)
        return True

    def replace(self, uri: str, data: bytes, scratch: str, stamp: int, /) -> bool:
        """Writes a small file if it has this stamp; 0: if it does not exist."""
        return self.stat(uri)[1] == stamp and super().replace(uri, data, scratch, stamp)

    def make_folder(self, folder: str, /) -> None:
        """Creates a folder and its parents."""
        os.makedirs(folder, exist_ok=True)

    def folder_problem(self, folder: str, /) -> str:
        """Returns why a folder cannot be created or written to; empty if it can."""
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if not os.path.isdir(folder):
            return f"{folder} is a file, not a folder"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"no permission to write in {folder}"
        return ""

    def sweep(self, folder: str, /) -> None:
        """Deletes incomplete files, except those that a running process has locked."""
        for entry in self.entries_in(folder):
            if not _TEMP_NAME.search(entry.name):
                continue
            path = os.path.join(folder, entry.name)
            with suppress(OSError), open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)


def _read_at(file: int, offset: int, size: int) -> bytes:
    data = os.pread(file, size, offset)
    while 0 < len(data) < size and (more := os.pread(file, size - len(data), offset + len(data))):
        data += more
    return data


def _write_all(file: int, parts: list[bytes]) -> None:
    length = sum(map(len, parts))
    written = os.writev(file, parts)
    if written < length:  # the disk fills up, a signal arrives, or there are more than 2 GiB
        rest = memoryview(b"".join(parts))
        while written < length:
            written += os.write(file, rest[written:])


def _temp(uri: str, scratch: str) -> str:
    # Unique: two workers may write the same file.
    name = f"{os.path.basename(uri)}.{uuid.uuid4().hex[:12]}{TEMP_SUFFIX}"
    return os.path.join(scratch, name)


@contextmanager
def _writing(uri: str) -> Iterator[None]:
    """Translates system errors, such as a full disk or a missing permission, to `StoreError`."""
    try:
        yield
    except OSError as error:
        raise cannot_be_written(uri, error.strerror or str(error)) from error
