"""The store of what Beam's other filesystems know: s3://, abfs://, hdfs://, ..."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import IO, Any

from imageshards.transforms.storage.protocol import (
    UNKNOWN,
    BatchSink,
    Entry,
    NoFilesystem,
    ReadError,
)


def _filesystems() -> Any:
    # Beam takes a second to import: only for what nobody else reads.
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def read(uri: str, limit: int, stamp: int = 0) -> tuple[bytes, int]:
    """The bytes of a file; nobody tells its stamp."""
    try:
        with open_read(uri) as file:
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        raise ReadError("Missing", "no such object") from error
    except NoFilesystem as error:
        raise ReadError("Unreadable", str(error)) from error
    if len(data) > limit:
        raise ReadError("TooLarge", f"more than {limit:,} bytes")
    return data, 0


def open_read(uri: str) -> IO[bytes]:
    """Opens a file."""
    from apache_beam.io.filesystem import CompressionTypes

    try:
        with _explained(uri):
            file: IO[bytes] = _filesystems().open(
                uri, compression_type=CompressionTypes.UNCOMPRESSED
            )
    except NoFilesystem:
        raise
    except Exception as error:
        # Each of Beam's filesystems raises what its client does.
        if _is_missing(error):
            raise FileNotFoundError(2, "no such object", uri) from error
        raise
    return file


_CLIENTS = {"s3": ("boto3", "aws"), "azfs": ("azure.storage", "azure"), "hdfs": ("hdfs", "hadoop")}
"""Scheme -> the module that Beam's filesystem needs, and what Beam is installed with to have it."""


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Says in words that there is no filesystem for a URI, or no client of it."""
    try:
        yield
    except Exception as error:
        module, extra = _CLIENTS.get(uri.partition(":")[0], ("", ""))
        if module and not _is_installed(module):
            raise NoFilesystem(
                f"{uri}: its client is not installed: pip install 'apache-beam[{extra}]'"
            ) from error
        if isinstance(error, ValueError) and not module:
            raise NoFilesystem(f"{uri}: no filesystem for such a URI") from error
        raise


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that would hold it
        return False


def _causes(error: object) -> Iterator[object]:
    """An error, and those that it holds for the files of a batch."""
    yield error
    details = getattr(error, "exception_details", None)
    for cause in details.values() if isinstance(details, dict) else ():
        yield from _causes(cause)


def _is_missing(error: Exception) -> bool:
    # By code and never by text: the text holds the URI, and a URI may hold a 404.
    return any(
        isinstance(cause, FileNotFoundError) or getattr(cause, "code", None) == 404
        for cause in _causes(error)
    )


def stat(uri: str) -> tuple[int, int]:
    """(bytes, time of the last change in ms)."""
    try:
        with _explained(uri):
            found = _filesystems().get_filesystem(uri).metadata(uri)
    except NoFilesystem:
        return UNKNOWN  # reading will tell
    except Exception as error:
        if _is_missing(error):
            return UNKNOWN
        raise
    return found.size_in_bytes, int((found.last_updated_in_seconds or 0) * 1000)


def exists(uri: str) -> bool:
    """Whether there is such a file."""
    with _explained(uri):
        there: bool = _filesystems().exists(uri)
    return there


def match(pattern: str) -> Iterator[tuple[str, int, int]]:
    """(uri, bytes, time of the last change in ms) of what matches a pattern."""
    with _explained(pattern):
        results = _filesystems().match([pattern])
    for result in results:
        for found in result.metadata_list:
            when = int((found.last_updated_in_seconds or 0) * 1000)
            yield found.path, found.size_in_bytes, when


def entries_in(folder: str) -> list[Entry]:
    """The files directly in a folder."""
    prefix = folder.rstrip("/") + "/"
    return [
        Entry(uri.removeprefix(prefix), milliseconds * 1_000_000, size)
        for uri, size, milliseconds in match(prefix + "*")
    ]


def delete(uri: str) -> None:
    """Deletes a file."""
    if exists(uri):
        _filesystems().delete([uri])


@contextmanager
def open_sink(uri: str, scratch: str) -> Iterator[BatchSink]:
    """Opens a file that appears when it is closed; `scratch` is not used."""
    with _explained(uri):
        file = _filesystems().create(uri, mime_type="application/octet-stream")

    def write_all(parts: list[bytes]) -> None:
        for part in parts:
            file.write(part)

    sink = BatchSink(write_all)
    try:
        yield sink
        sink.finish()
    except BaseException:
        # Closing would complete the object with what was written so far, and so would the garbage
        # collector.
        for stream in (file, getattr(file, "raw", file)):
            with suppress(AttributeError):
                stream.close = lambda: None
        raise
    finally:
        sink.close()
    file.close()
    if not sink.keep:
        delete(uri)


def create(uri: str, data: bytes, scratch: str) -> bool:
    """Writes a small file that is not there yet; of two that try at once, both may."""
    if exists(uri):
        return False
    with open_sink(uri, scratch) as sink:
        sink.write([data])
    return True


def replace(uri: str, data: bytes, scratch: str, stamp: int) -> bool:
    """Writes a small file, whatever is there: nobody tells a stamp."""
    with open_sink(uri, scratch) as sink:
        sink.write([data])
    return True
