"""Unpacks compressed tars and MDS shards, once each, into plain ones below the output.

Images are read in random order, which a compressed stream does not allow. The name of an unpacked
file is a digest of its source's URI, size and stamp, so that a resumed build finds it. The build
deletes it at its end.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import IO, Any, cast

import pyarrow as pa

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError

PREFIX = "unpacked-"
_PIECE_BYTES = 1 << 20
_MAX_RATIO = 100
_ALWAYS_ALLOWED_BYTES = 1 << 30


def gunzip(file: IO[bytes]) -> IO[bytes]:
    """Decompresses a file whose name says that it is gzip.

    A file that is not is returned unchanged: object stores decompress a `.tar.gz` that was uploaded
    with `Content-Encoding: gzip`, as some tools do.
    """
    magic = file.read(2)
    file.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=file)) if magic == b"\x1f\x8b" else file


def _zstd(file: IO[bytes]) -> Any:
    # The reader of zstandard does not report a stream that is cut off.
    return pa.CompressedInputStream(file, "zstd")


_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".tar.gz": gunzip, ".tgz": gunzip,
    ".tar.bz2": bz2.BZ2File, ".tbz2": bz2.BZ2File,
    ".tar.xz": lzma.LZMAFile, ".txz": lzma.LZMAFile,
    ".tar.zst": _zstd,
    ".mds.gz": gunzip, ".mds.bz2": bz2.BZ2File, ".mds.zstd": _zstd,
}  # fmt: skip


def _opener(uri: str) -> Callable[[IO[bytes]], Any] | None:
    small = uri.lower()
    return next((opener for suffix, opener in _OPENERS.items() if small.endswith(suffix)), None)


def is_packed(uri: str) -> bool:
    """Whether a URI has the suffix of a compressed tar or MDS shard that can be unpacked."""
    return _opener(uri) is not None


def is_unpacked(uri: str) -> bool:
    """Whether a URI names a file that `unpack` wrote."""
    return uri.rpartition("/")[2].startswith(PREFIX)


def unpack(uri: str, size: int, stamp: int, folder: str) -> str:
    """Unpacks a compressed file, unless an earlier run has unpacked it.

    Args:
      uri: its URI.
      size: its size, in bytes.
      stamp: changes with its content, or 0 if unknown.
      folder: folder of the plain file, local or remote.

    Returns:
      The URI of the plain file.

    Raises:
      BuildError: it is damaged, or expands to more than 100 times its size.
    """
    target = target_of((uri, size, stamp), folder, ".tar")
    if not storage.exists(target):
        _unpack(uri, size, target, folder)
    set_stamp(target, stamp)
    return target


def target_of(source: tuple[object, ...], folder: str, suffix: str = "") -> str:
    """The URI of the file that a source is unpacked into.

    Args:
      source: what identifies the source: a URI, and what changes with the content.
      folder: folder of the file.
      suffix: suffix of the file.
    """
    digest = blake2b(repr(source).encode("utf-8", "backslashreplace"), digest_size=12)
    return storage.join(folder, f"{PREFIX}{digest.hexdigest()}{suffix}")


def set_stamp(target: str, stamp: int) -> None:
    """Gives an unpacked file that is local the stamp of its source."""
    if stamp and storage.is_local(target):
        # Readers compare it, to detect a file that has changed since it was listed.
        os.utime(target, ns=(stamp, stamp))


def _unpack(uri: str, size: int, target: str, folder: str) -> None:
    opener = _opener(uri)
    assert opener is not None
    storage.make_folder(folder)
    most = max(_ALWAYS_ALLOWED_BYTES, _MAX_RATIO * size)
    try:
        with (
            storage.open_read(uri) as file,
            opener(file) as plain,
            storage.open_sink(target, folder) as sink,
        ):
            while piece := _read(plain, uri, sink.size):
                sink.write([piece])
                if sink.size > most:
                    raise BuildError(
                        f"{uri}: expands to more than {_MAX_RATIO} times its size; if "
                        "this is intended, unpack it and pass the plain file"
                    )
    except OSError as error:
        raise BuildError(
            f"{uri}: cannot be unpacked into {folder}: {error.strerror or error}"
        ) from error


def _read(plain: Any, uri: str, done: int) -> bytes:
    try:
        piece: bytes = plain.read(_PIECE_BYTES)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise BuildError(
            f"{uri}: cannot be unpacked beyond byte {done:,} of its content: {error}"
        ) from error
    return piece
