"""Bytes at a URI, from anywhere: local files by the operating system, the rest by Beam.

A local URI is an absolute path. A name is never taken for a pattern here, whatever
characters are in it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, Any, BinaryIO, Protocol
from urllib.parse import unquote

import google_crc32c

from imageshards.transforms.elements import BuildError

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
MAX_BYTES = 1 << 28
"""A file of more bytes than this is not read: no image of `images.MAX_PIXELS` needs them."""


class ReadError(Exception):
    """Bytes that cannot be had.

    Attributes:
      kind: its type for counting: Missing, Unreadable, NotAFile, TooLarge.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class NoFilesystem(BuildError):
    """A URI of a scheme that nobody here knows."""


def is_local(uri: str) -> bool:
    """Whether a URI is a path of this machine."""
    return _SCHEME.match(uri) is None


def is_web(uri: str) -> bool:
    """Whether a URI is a URL of a web server: what it names can be read, and nothing else."""
    return uri[:8].lower().startswith(("http://", "https://"))


def normalize(uri: str) -> str:
    """One spelling for one place: local paths become absolute, `file://` goes away."""
    if uri.startswith("file://"):
        uri = unquote(uri.removeprefix("file://").removeprefix("localhost"))
    return os.path.abspath(os.path.expanduser(uri)) if is_local(uri) else uri


def join(place: str, *names: str) -> str:
    """A URI below a place."""
    return "/".join((place.rstrip("/"), *names))


def _filesystems() -> Any:
    # Beam takes a second to import: only for what is not local.
    from apache_beam.io.filesystems import FileSystems

    with suppress(ImportError):
        # A local build has loaded Beam without it.
        from apache_beam.io.gcp import gcsfilesystem  # noqa: F401

    return FileSystems


def read(uri: str, limit: int = MAX_BYTES) -> bytes:
    """The bytes of one image.

    Args:
      uri: where it is.
      limit: a file of more bytes is not read.

    Raises:
      ReadError: they cannot be had, and trying again would not help.
    """
    return _read_local(uri, limit) if is_local(uri) else _read_remote(uri, limit)


def _read_local(path: str, limit: int) -> bytes:
    try:
        # O_NONBLOCK: a named pipe must not hold a worker for ever.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise ReadError("Missing", "no such file") from error
    except OSError as error:
        raise ReadError("Unreadable", error.strerror or str(error)) from error
    except ValueError as error:  # a NUL in the name
        raise ReadError("Unreadable", str(error)) from error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ReadError("NotAFile", "not a regular file")
        if status.st_size > limit:
            raise ReadError("TooLarge", f"{status.st_size:,} bytes, more than {limit:,}")
        data = os.read(file, status.st_size)
        while len(data) < status.st_size:
            more = os.read(file, status.st_size - len(data))
            if not more:
                break  # it shrank meanwhile: the check of the image will tell
            data += more
        return data
    except OSError as error:
        raise ReadError("Unreadable", error.strerror or str(error)) from error
    finally:
        os.close(file)


def _read_remote(uri: str, limit: int) -> bytes:
    try:
        with _open_remote(uri) as file:
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        raise ReadError("Missing", "no such object") from error
    except NoFilesystem as error:
        raise ReadError("Unreadable", str(error)) from error
    if len(data) > limit:
        raise ReadError("TooLarge", f"more than {limit:,} bytes")
    return data


def _open_remote(uri: str) -> IO[bytes]:
    from apache_beam.io.filesystem import CompressionTypes

    try:
        file: IO[bytes] = _filesystems().open(uri, compression_type=CompressionTypes.UNCOMPRESSED)
    except Exception as error:
        # Each of Beam's filesystems raises what its client does.
        if _is_missing(error):
            raise FileNotFoundError(2, "no such object", uri) from error
        if isinstance(error, ValueError):
            raise NoFilesystem(f"{uri}: no filesystem for such a URI") from error
        if isinstance(error, AssertionError):  # a client that is not installed
            raise NoFilesystem(
                f"{uri}: {error} (pip install 'apache-beam[aws]' or 'apache-beam[azure]')"
            ) from error
        raise
    return file


def _is_missing(error: Exception) -> bool:
    # By code and never by text: the text holds the URI, and a URI may hold a 404.
    details = getattr(error, "exception_details", None)
    causes = [error, *(details.values() if isinstance(details, dict) else ())]
    return any(
        isinstance(cause, FileNotFoundError) or getattr(cause, "code", None) == 404
        for cause in causes
    )


def open_read(uri: str) -> IO[bytes]:
    """Opens a file for reading.

    Raises:
      FileNotFoundError: there is none.
    """
    return open(uri, "rb") if is_local(uri) else _open_remote(uri)


def stamp(uri: str) -> tuple[int, int]:
    """(size in bytes, a number that changes with the content) of a local file, or (-1, 0)."""
    with suppress(OSError, ValueError):
        status = os.stat(uri)
        return status.st_size, status.st_mtime_ns
    return -1, 0


def exists(uri: str) -> bool:
    """Whether there is a file (or, locally, a folder)."""
    return os.path.lexists(uri) if is_local(uri) else _filesystems().exists(uri)


def size(uri: str) -> int:
    """Bytes of a file, or -1 if there is none or nobody knows."""
    if is_local(uri):
        return stamp(uri)[0]
    if is_web(uri):
        return -1
    try:
        return int(_filesystems().get_filesystem(uri).size(uri)) if exists(uri) else -1
    except ValueError:  # a scheme that nobody knows; reading will tell
        return -1


def remote_stamp(uri: str) -> tuple[int, int]:
    """(size in bytes, a number that changes with the content) of a file that is not local."""
    try:
        found = _filesystems().get_filesystem(uri).metadata(uri)
    except ValueError as error:
        raise NoFilesystem(f"{uri}: no filesystem for such a URI") from error
    except Exception as error:
        if _is_missing(error):
            return -1, 0  # opening it will tell
        raise
    return found.size_in_bytes, int((found.last_updated_in_seconds or 0) * 1000)


def match(pattern: str) -> Iterator[tuple[str, int, int]]:
    """(uri, bytes, stamp) of what matches a pattern of a filesystem that is not local."""
    try:
        results = _filesystems().match([pattern])
    except ValueError as error:
        raise NoFilesystem(f"{pattern}: no filesystem for such a URI") from error
    for result in results:
        for found in result.metadata_list:
            when = int((found.last_updated_in_seconds or 0) * 1000)
            yield found.path, found.size_in_bytes, when


def names_in(folder: str) -> list[str]:
    """Names of the files directly in a folder, sorted; none if there is no such folder."""
    return [name for name, _ in stamps_in(folder)]


def stamps_in(folder: str) -> list[tuple[str, int]]:
    """(name, time of last change in ns) of the files directly in a folder, sorted."""
    if not is_local(folder):
        prefix = folder.rstrip("/") + "/"
        found = match(prefix + "*")
        return sorted((uri.removeprefix(prefix), when * 1_000_000) for uri, _, when in found)
    names = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # it was being written, and is done
                if not entry.is_dir():
                    names.append((entry.name, entry.stat().st_mtime_ns))
    return sorted(names)


def delete(uris: Sequence[str]) -> None:
    """Deletes files; one that is not there is no error."""
    for uri in uris:
        if is_local(uri):
            with suppress(FileNotFoundError):
                os.unlink(uri)
        elif exists(uri):
            _filesystems().delete([uri])


def make_folder(folder: str) -> None:
    """Makes a folder where filesystems have folders."""
    if is_local(folder):
        os.makedirs(folder, exist_ok=True)


TEMP_SUFFIX = ".tmp"
"""Ends the names under which local files grow; a later run sweeps what a killed one left."""
_TEMP_NAME = re.compile(r"\.[0-9a-f]{12}\.tmp$")


class Sink(Protocol):
    """A file that is being written.

    Attributes:
      size: bytes written so far.
      crc32c: of what is written so far.
      keep: whether the file is to appear at the end; what was there before is then gone.
    """

    size: int
    crc32c: int
    keep: bool

    def write(self, parts: Sequence[bytes]) -> None:
        """Appends the parts, in order."""


_BATCH_BYTES = 2 << 20
_BATCH_PARTS = 1000  # the system takes 1,024 in one call


class _LocalSink:
    """Writes in batches, each beside the work that makes the next.

    A 108 kB record costs 37 us of the system's time to write. In batches that another thread
    writes while this one reads and encodes, a record costs 64 us in all where one call after the
    other costs 89 (10,000 JPEGs on a tmpfs, two cores). Of batches of 4 MB the memory goes back to
    the system each time: 150,000 page faults where those of 2 MB have 30,000. No payload is
    copied, as a buffered file object would.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._parts: list[bytes] = []
        self._waiting = 0
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self.size = 0
        self.crc32c = 0
        self.keep = True

    def write(self, parts: Sequence[bytes]) -> None:
        before = self.size
        for part in parts:
            self.size += len(part)
            self.crc32c = google_crc32c.extend(self.crc32c, part)
        self._parts += parts
        self._waiting += self.size - before
        if self._waiting >= _BATCH_BYTES or len(self._parts) >= _BATCH_PARTS:
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, "imageshards-writer")
            self._wait()
            self._writing = self._writer.submit(_write_all, self._file, self._parts)
            self._parts, self._waiting = [], 0

    def finish(self) -> None:
        """Writes what is left; raises what went wrong in the other thread."""
        self._wait()
        if self._parts:
            _write_all(self._file, self._parts)
        self.close()

    def close(self) -> None:
        """Ends the other thread and closes the file."""
        if self._writer:
            self._writer.shutdown()
        os.close(self._file)

    def _wait(self) -> None:
        if self._writing:
            self._writing.result()


def _write_all(file: int, parts: list[bytes]) -> None:
    length = sum(map(len, parts))
    written = os.writev(file, parts)
    if written < length:  # a disk that fills up, a signal, or more than 2 GiB
        rest = memoryview(b"".join(parts))
        while written < length:
            written += os.write(file, rest[written:])


class _RemoteSink:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.crc32c = 0
        self.keep = True

    def write(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            self._file.write(part)
            self.size += len(part)
            self.crc32c = google_crc32c.extend(self.crc32c, part)


@contextmanager
def open_sink(uri: str, scratch: str) -> Iterator[Sink]:
    """Opens a file that appears under its name when the block ends well, and else never.

    Args:
      uri: its name.
      scratch: a folder of the same filesystem in which a local file grows. The name there is
        unique: two workers that write the same file do not meet.
    """
    if not is_local(uri):
        # An object appears when its upload is closed; nothing is renamed.
        file = _filesystems().create(uri, mime_type="application/octet-stream")
        sink: Sink = _RemoteSink(file)
        try:
            yield sink
        except BaseException:
            # Closing would complete the object with what was written so far, and so would the
            # garbage collector; Cloud Storage's writer can be told to forget it.
            if terminate := getattr(file, "terminate", None):
                terminate()
            raise
        file.close()
        if not sink.keep:
            delete([uri])
        return
    temp = join(scratch, f"{os.path.basename(uri)}.{uuid.uuid4().hex[:12]}{TEMP_SUFFIX}")
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        local = _LocalSink(descriptor)
        try:
            yield local
        except BaseException:
            local.close()
            raise
        local.finish()
        if local.keep:
            os.replace(temp, uri)
        else:
            delete([uri, temp])
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temp)
        raise


def sweep(folder: str) -> None:
    """Deletes the files of `open_sink` that killed runs left in a local scratch folder."""
    if is_local(folder):
        delete([join(folder, name) for name in names_in(folder) if _TEMP_NAME.search(name)])


def sweep_folders(folder: str, prefix: str) -> None:
    """Deletes the local folders of a prefix that killed runs left."""
    if is_local(folder):
        for entry in os.scandir(folder):
            if entry.is_dir() and entry.name.startswith(prefix):
                shutil.rmtree(entry.path, ignore_errors=True)


def create(uri: str, data: bytes, scratch: str) -> bool:
    """Writes a small file that is not there yet; False if it is.

    Of two processes that try, one succeeds; that much only a local filesystem promises.
    """
    if not is_local(uri):
        if exists(uri):
            return False
        with open_sink(uri, scratch) as sink:
            sink.write([data])
        return True
    temp = join(scratch, f"{os.path.basename(uri)}.{uuid.uuid4().hex[:12]}{TEMP_SUFFIX}")
    with open_sink(temp, scratch) as sink:
        sink.write([data])
    try:
        os.link(temp, uri)
    except FileExistsError:
        return False
    finally:
        os.unlink(temp)
    return True


def folder_problem(folder: str) -> str:
    """Why a local folder could not be made or written to; empty if it could."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        return f"{folder} is a file, not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to write in {folder}"
    return ""
