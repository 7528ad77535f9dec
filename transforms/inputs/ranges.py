"""Images that are byte ranges of other files: members of archives, records of TFRecord files.

Formats: a member of a tar stands in it as it is. Before the data of a member of a zip stands its
local header (PKWARE APPNOTE 4.3.7), whose length only the header itself says. The data of a
record of a TFRecord file is a serialized tf.train.Example.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import threading
import zlib
from functools import lru_cache
from typing import Any, Protocol

from imageshards.transforms import storage
from imageshards.transforms.elements import ByteRange
from imageshards.transforms.inputs import unpack
from imageshards.transforms.records import example
from imageshards.transforms.storage import MAX_BYTES, ReadError, gcs, gcs_auth

_OPEN_FILES = 128
"""Local archives that a process keeps open: one of them costs 20 us to open, a read of it 2."""

_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_ENCRYPTED, _SIZE_FOLLOWS = 1, 8
_IN_EXTRA_FIELD = 0xFFFFFFFF
STORED, DEFLATED = 0, 8
_LONG_HEADER_BYTES = 512
_PIECE_BYTES = 1 << 24


def read(place: ByteRange, stamp: int, limit: int = MAX_BYTES) -> bytes:
    """The bytes of one image in an archive.

    Args:
      place: where they are.
      stamp: what changes with the archive, as it was when it was listed, or 0.
      limit: more bytes than this are not read.

    Raises:
      ReadError: they cannot be had, and trying again would not help.
    """
    if place.size > limit:
        raise ReadError("TooLarge", f"{place.size:,} bytes, more than {limit:,}")
    file = _open(place.uri, stamp)
    if place.codec == "zip":
        return _read_zip_member(file, place, limit)
    return _exactly(file, place.offset, place.size)


def read_record(place: ByteRange, stamp: int, image_key: str) -> tuple[bytes, dict[str, list[Any]]]:
    """The bytes of the image in a tf.train.Example, and key -> values of all its features.

    Raises:
      ReadError: they cannot be had, and trying again would not help.
    """
    if place.size > MAX_BYTES:
        raise ReadError("TooLarge", f"a record of {place.size:,} bytes, more than {MAX_BYTES:,}")
    try:
        values = example.decode(_exactly(_open(place.uri, stamp), place.offset, place.size))
    except example.CorruptExample as error:
        raise ReadError("Unreadable", str(error)) from error
    images = values.get(image_key)
    if not images or not isinstance(images[0], bytes):
        raise ReadError("Missing", f"the record has no image in {image_key!r}")
    return images[0], values


def _open(uri: str, stamp: int) -> _File:
    if uri.startswith(gcs_auth.SCHEME):
        # The stamp of what was unpacked is its archive's, and stands in its name.
        return _CloudObject(uri, 0 if unpack.is_unpacked(uri) else stamp)
    if not storage.is_local(uri):
        return _beam_file(uri)
    with _opening:  # two threads would open it twice
        return _local(uri, stamp)


def close() -> None:
    """Closes the local files that this process keeps open."""
    _local.cache_clear()


class _File(Protocol):
    is_remote: bool

    def read_at(self, offset: int, size: int) -> bytes:
        """At most that many bytes."""


def _exactly(file: _File, offset: int, size: int) -> bytes:
    data = file.read_at(offset, size)
    if len(data) < size:
        raise ReadError(
            "Changed", f"the file that holds it ends {size - len(data):,} bytes before it does"
        )
    return data


class _LocalFile:
    """An open archive. Any number of threads read it at the same time.

    It is closed when the last thread that reads it lets it go, and not when the cache does: the
    number of a closed file may at once be that of another.
    """

    is_remote = False

    def __init__(self, path: str, stamp: int) -> None:
        self._stamp = stamp
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise ReadError("Missing", "the file that holds it is gone") from error
        except OSError as error:
            raise ReadError("Unreadable", f"the file that holds it: {error.strerror}") from error

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            # Of a file that was written since, nobody knows what stands where.
            status = os.fstat(self._file)
            if not stat.S_ISREG(status.st_mode):
                raise ReadError("NotAFile", "the file that holds it is not a regular file")
            if self._stamp and status.st_mtime_ns != self._stamp:
                raise ReadError("Changed", "the file that holds it has changed since it was listed")
            data = os.pread(self._file, size, offset)
            while 0 < len(data) < size:
                more = os.pread(self._file, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data
        except OSError as error:
            raise ReadError("Unreadable", f"the file that holds it: {error.strerror}") from error


# By stamp too: another file of the same name is another file.
_local = lru_cache(maxsize=_OPEN_FILES)(_LocalFile)
_opening = threading.Lock()


class _CloudObject:
    """An object of Cloud Storage."""

    is_remote = True

    def __init__(self, uri: str, stamp: int) -> None:
        self._uri = uri
        self._stamp = stamp

    def read_at(self, offset: int, size: int) -> bytes:
        return gcs.read_range(self._uri, offset, size, self._stamp)


_threads = threading.local()


def _beam_file(uri: str) -> _File:
    """A file as this thread reads it: clients are not for two at a time."""
    if not hasattr(_threads, "files"):
        _threads.files = lru_cache(maxsize=8)(_BeamFile)
    return _threads.files(uri)  # type: ignore[no-any-return]


class _BeamFile:
    """A file of another of Beam's filesystems."""

    is_remote = True

    def __init__(self, uri: str) -> None:
        try:
            file: Any = storage.open_read(uri)
        except FileNotFoundError as error:
            raise ReadError("Missing", "the file that holds it is gone") from error
        except storage.NoFilesystem as error:
            raise ReadError("Unreadable", str(error)) from error
        # Without the buffer, which would be filled for every image.
        self._file: io.RawIOBase = getattr(file, "raw", file)

    def read_at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        parts = []
        while size and (part := self._file.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _read_zip_member(file: _File, place: ByteRange, limit: int) -> bytes:
    # A request costs more than bytes do: of a remote file all is asked for at once.
    ahead = place.size + _LONG_HEADER_BYTES if file.is_remote else 0
    known = file.read_at(place.offset, _LOCAL_HEADER.size + ahead)
    if len(known) < _LOCAL_HEADER.size:
        raise ReadError("Changed", "the archive ends before the image does")
    magic, _, flags, method, _, _, _, size, _, name_size, extra_size = _LOCAL_HEADER.unpack_from(
        known
    )
    sized = not flags & _SIZE_FOLLOWS and size != _IN_EXTRA_FIELD
    if (
        magic != b"PK\3\4"
        or flags & _ENCRYPTED
        or method not in (STORED, DEFLATED)
        or (sized and size != place.size)
    ):
        raise ReadError("Unreadable", "the zip's directory says what the member does not")
    start = _LOCAL_HEADER.size + name_size + extra_size
    data = known[start : start + place.size]
    if len(data) < place.size:
        data = _exactly(file, place.offset + start, place.size)
    return data if method == STORED else _inflate(data, limit)


def _inflate(data: bytes, limit: int) -> bytes:
    # Piece by piece: what a bomb expands to is never asked for at once.
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    parts = []
    size = 0
    try:
        while not inflater.eof:
            part = inflater.decompress(data, _PIECE_BYTES)
            data = inflater.unconsumed_tail
            if not part and not data:
                break
            parts.append(part)
            size += len(part)
            if size > limit:
                raise ReadError("TooLarge", f"expands to more than {limit:,} bytes")
    except zlib.error as error:
        raise ReadError("Unreadable", f"cannot be inflated: {error}") from error
    if not inflater.eof:
        raise ReadError("Unreadable", "cannot be inflated: its data breaks off")
    return b"".join(parts)
