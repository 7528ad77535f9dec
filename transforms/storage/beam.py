"""The store of Beam's other filesystems: azfs://, hdfs://, ..."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any

from imageshards.transforms import extras
from imageshards.transforms.storage.protocol import UNKNOWN, Entry, NoFilesystem, ReadError, Store
from imageshards.transforms.storage.sink import BatchSink

if TYPE_CHECKING:
    from imageshards.transforms.storage.web import WebOptions

_CLIENTS = {"azfs": ("azure.storage", "azure"), "hdfs": ("hdfs", "hadoop")}
"""Scheme -> the client module that Beam requires, and the extra of apache-beam that installs it."""
_OPEN_FILES = 8

_threads = threading.local()


def _filesystems() -> Any:
    # Beam takes a second to import: only for URIs that no other store supports.
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def load_filesystem(uri: str) -> None:
    """Registers Beam's own filesystem for Cloud Storage, if the URI is a gs:// URI.

    Beam's sinks need it. The stores of this package do not, so a local build does not import it.

    Raises:
      UsageError: the clients that it requires are not installed.
    """
    if uri.startswith("gs://"):
        extras.require("dataflow", f"--writer beam to {uri}")
        from apache_beam.io.gcp import gcsfilesystem  # noqa: F401


class BeamStore(Store):
    """The files of Beam's filesystems. A stamp is the modification time in ms since 1970."""

    def read(self, uri: str, limit: int, stamp: int, web: WebOptions, /) -> tuple[bytes, int]:
        """Returns the content of a file, and 0: Beam does not report the stamp of what it read."""
        with _read_errors("no such object"), self.open_read(uri) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ReadError("TooLarge", f"more than {limit:,} bytes")
        return data, 0

    def read_range(self, uri: str, offset: int, size: int, stamp: int, /) -> bytes:
        """Returns the bytes of a range; fewer if the file ends before. `stamp` is not compared."""
        # Threads do not share open files: Beam's files do not support concurrent reads.
        if not hasattr(_threads, "open"):
            _threads.open = lru_cache(maxsize=_OPEN_FILES)(self.open_read)
        with _read_errors("the file that holds it is gone"):
            file = _threads.open(uri)
        # Bypass the buffer: each seek would discard it, and each read would fill it.
        file = getattr(file, "raw", file)
        file.seek(offset)
        parts = []
        while size and (part := file.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def open_read(self, uri: str, /) -> IO[bytes]:
        """Opens a file."""
        from apache_beam.io.filesystem import CompressionTypes

        try:
            with _named_client(uri):
                file: IO[bytes] = _filesystems().open(
                    uri, compression_type=CompressionTypes.UNCOMPRESSED
                )
        except Exception as error:
            # Beam's filesystems raise the errors of their clients.
            if _is_missing(error):
                raise FileNotFoundError(2, "no such object", uri) from error
            raise
        return file

    def require_filesystem(self, uri: str) -> None:
        """Checks that Beam has a filesystem for a URI.

        Raises:
          NoFilesystem: it has none, or its client is not installed.
        """
        with _named_client(uri):
            _filesystems().get_filesystem(uri)

    def stat(self, uri: str, /) -> tuple[int, int]:
        """Returns (bytes, stamp) of a file, or `UNKNOWN`."""
        try:
            with _named_client(uri):
                found = _filesystems().get_filesystem(uri).metadata(uri)
        except Exception as error:
            # Reading the file raises the error of a missing filesystem.
            if isinstance(error, NoFilesystem) or _is_missing(error):
                return UNKNOWN
            raise
        return _size_and_time(found)

    def exists(self, uri: str, /) -> bool:
        """Returns whether a file exists."""
        with _named_client(uri):
            found: bool = _filesystems().exists(uri)
        return found

    def match(self, pattern: str, /) -> Iterator[tuple[str, int, int]]:
        """Yields (URI, bytes, stamp) of the files that match a pattern."""
        with _named_client(pattern):
            results = _filesystems().match([pattern])
        for result in results:
            for found in result.metadata_list:
                yield found.path, *_size_and_time(found)

    def entries_in(self, folder: str, /) -> Iterator[Entry]:
        """Yields the files directly in a folder."""
        prefix = folder.rstrip("/") + "/"
        for uri, size, milliseconds in self.match(prefix + "*"):
            yield Entry(uri.removeprefix(prefix), milliseconds * 1_000_000, size)

    def delete(self, uri: str, /) -> None:
        """Deletes a file, if it exists."""
        if self.exists(uri):
            _filesystems().delete([uri])

    @contextmanager
    def open_sink(self, uri: str, scratch: str, /) -> Iterator[BatchSink]:
        """Opens a file that appears when it is closed; `scratch` is not used."""
        with _named_client(uri):
            file = _filesystems().create(uri, mime_type="application/octet-stream")

        def write_all(parts: list[bytes]) -> None:
            for part in parts:
                file.write(part)

        sink = BatchSink(write_all)
        try:
            yield sink
            sink.finish()
        except BaseException:
            # Closing the file would complete the object, and the garbage collector closes files.
            for stream in (file, getattr(file, "raw", file)):
                with suppress(AttributeError):
                    stream.close = lambda: None
            raise
        finally:
            sink.close()
        file.close()
        if not sink.keep:
            self.delete(uri)


def _size_and_time(metadata: Any) -> tuple[int, int]:
    return metadata.size_in_bytes, int((metadata.last_updated_in_seconds or 0) * 1000)


@contextmanager
def _read_errors(missing: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ReadError("Missing", missing) from error
    except NoFilesystem as error:
        raise ReadError("Unreadable", str(error)) from error


@contextmanager
def _named_client(uri: str) -> Iterator[None]:
    """Raises NoFilesystem if there is no filesystem for a URI, or its client is not installed."""
    try:
        yield
    except Exception as error:
        module, extra = _CLIENTS.get(uri.partition(":")[0], ("", ""))
        if module and not extras.is_installed(module):
            raise NoFilesystem(
                f"{uri}: its client is not installed: pip install 'apache-beam[{extra}]'"
            ) from error
        if isinstance(error, ValueError) and not module:
            raise NoFilesystem(f"{uri}: no filesystem supports such URIs") from error
        raise


def _is_missing(error: object) -> bool:
    # By code, not by text: the text contains the URI, which may contain a 404.
    if isinstance(error, FileNotFoundError) or getattr(error, "code", None) == 404:
        return True
    details = getattr(error, "exception_details", None)  # of the files of a batch
    return isinstance(details, dict) and any(map(_is_missing, details.values()))
