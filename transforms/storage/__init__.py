"""Bytes at a URI, from anywhere: chooses the store.

A local URI is an absolute path. A name is never taken for a pattern here, whatever
characters are in it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import IO
from urllib.parse import unquote

from imageshards.transforms.storage import beam, gcs, gcs_auth, local
from imageshards.transforms.storage.local import TEMP_SUFFIX
from imageshards.transforms.storage.protocol import (
    MAX_BYTES,
    UNKNOWN,
    Entry,
    NoFilesystem,
    ReadError,
    RemoteStore,
    Sink,
    Store,
    StoreError,
)

__all__ = ["MAX_BYTES", "TEMP_SUFFIX", "NoFilesystem", "ReadError", "Sink", "StoreError"]

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_AT_A_TIME = 32


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


def _store(uri: str) -> Store:
    return local if is_local(uri) else _remote_store(uri)


def _remote_store(uri: str) -> RemoteStore:
    return gcs if uri.startswith(gcs_auth.SCHEME) else beam


def read(uri: str, limit: int = MAX_BYTES, stamp: int = 0) -> tuple[bytes, int]:
    """The bytes of one image.

    Args:
      uri: where it is.
      limit: a file of more bytes is not read.
      stamp: as the file was listed, or 0. Where the store can tell, another content is not read.

    Returns:
      The bytes, and the stamp of the file that they were read from, 0 where nobody tells.

    Raises:
      ReadError: they cannot be had, and trying again would not help.
      BuildError: nothing can be had there: no permission, no connection.
    """
    return _store(uri).read(uri, limit, stamp)


def open_read(uri: str) -> IO[bytes]:
    """Opens a file for reading.

    Raises:
      FileNotFoundError: there is none.
    """
    return _store(uri).open_read(uri)


def stat(uri: str) -> tuple[int, int]:
    """(size in bytes, a number that changes with the content) of a file, or (-1, 0)."""
    return UNKNOWN if is_web(uri) else _store(uri).stat(uri)


def stats(uris: Sequence[str]) -> list[tuple[int, int]]:
    """`stat` of each, many requests at a time."""
    if all(map(is_local, uris)):
        return list(map(stat, uris))
    with ThreadPoolExecutor(_AT_A_TIME, "imageshards-stat") as threads:
        return list(threads.map(stat, uris))


def exists(uri: str) -> bool:
    """Whether there is a file (or, locally, a folder)."""
    return _store(uri).exists(uri)


def size(uri: str) -> int:
    """Bytes of a file, or -1 if there is none or nobody knows."""
    return stat(uri)[0]


def match(pattern: str) -> Iterator[tuple[str, int, int]]:
    """(uri, bytes, stamp) of what matches a pattern of a store that is not local.

    In a pattern `*` and `?` stand for what is not `/`, `**` for anything.
    """
    return _remote_store(pattern).match(pattern)


def names_in(folder: str) -> list[str]:
    """Names of the files directly in a folder, sorted; none if there is no such folder."""
    return [entry.name for entry in entries_in(folder)]


def entries_in(folder: str) -> list[Entry]:
    """The files directly in a folder, sorted by name; none if there is no such folder."""
    return sorted(_store(folder).entries_in(folder))


def delete(uris: Sequence[str]) -> None:
    """Deletes files; one that is not there is no error."""
    if len(uris) < 2 or all(map(is_local, uris)):
        for uri in uris:
            _store(uri).delete(uri)
        return
    with ThreadPoolExecutor(_AT_A_TIME, "imageshards-delete") as threads:
        for _ in threads.map(lambda uri: _store(uri).delete(uri), uris):
            pass


def make_folder(folder: str) -> None:
    """Makes a folder where stores have folders."""
    if is_local(folder):
        os.makedirs(folder, exist_ok=True)


def open_sink(uri: str, scratch: str) -> AbstractContextManager[Sink]:
    """Opens a file that appears under its name when the block ends well, and else never.

    Args:
      uri: its name.
      scratch: a folder of the same filesystem in which a local file grows. The name there is
        unique: two workers that write the same file do not meet.
    """
    return _store(uri).open_sink(uri, scratch)


def sweep(folder: str) -> None:
    """Deletes the files of `open_sink` that killed runs left in a local scratch folder."""
    if is_local(folder):
        local.sweep(folder)


def sweep_folders(folder: str, prefix: str) -> None:
    """Deletes the folders of a prefix that killed runs left."""
    if not is_local(folder):
        delete([uri for uri, *_ in match(f"{folder}/{prefix}**")])
    else:
        for entry in os.scandir(folder):
            if entry.is_dir() and entry.name.startswith(prefix):
                shutil.rmtree(entry.path, ignore_errors=True)


def create(uri: str, data: bytes, scratch: str) -> bool:
    """Writes a small file that is not there yet; False if it is.

    Of two processes that try, one succeeds, on local filesystems and Cloud Storage.
    """
    return _store(uri).create(uri, data, scratch)


def replace(uri: str, data: bytes, scratch: str, stamp: int) -> bool:
    """Writes a small file in place of the one of a stamp, or of none; False if it is another.

    Of two processes that try, one succeeds on Cloud Storage. Locally they must not try at once,
    and elsewhere both succeed.

    Args:
      uri: its name.
      data: all of it.
      scratch: see `open_sink`.
      stamp: as `read` told it; 0: there was no file.
    """
    return _store(uri).replace(uri, data, scratch, stamp)


def folder_problem(folder: str) -> str:
    """Why a local folder could not be made or written to; empty if it could."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        return f"{folder} is a file, not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to write in {folder}"
    return ""
