"""Storage: read, list and write files by URI, wherever they are.

Here: the stores, one for each kind of URI, and the functions that find the store of a URI and call
it. Not here: the content of the files. To add a store, implement `protocol.Store` and add it to
`STORES`. A local path is a URI too. Only `match` interprets characters of a URI as a pattern.
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

from imageshards.transforms.storage import gcs_auth, gcs_json, usage
from imageshards.transforms.storage.beam import BeamStore
from imageshards.transforms.storage.clouds import azure, s3
from imageshards.transforms.storage.local import TEMP_SUFFIX, LocalStore
from imageshards.transforms.storage.objects import ObjectStore
from imageshards.transforms.storage.protocol import (
    MAX_BYTES,
    Entry,
    LostUpload,
    Match,
    Names,
    NoFilesystem,
    ReadError,
    Refused,
    Sink,
    Store,
    StoreError,
)
from imageshards.transforms.storage.web import WebOptions, WebStore

__all__ = [
    "MAX_BYTES", "TEMP_SUFFIX", "LostUpload", "Match", "Names", "NoFilesystem", "ReadError",
    "Refused", "Sink", "StoreError",
]  # fmt: skip

STORES: dict[str, Store] = {
    "gs": ObjectStore("gs", gcs_json, beam_writes=True),
    "s3": ObjectStore("s3", s3),
    "az": ObjectStore("az", azure),
    "http": WebStore(),
    "https": WebStore(),
}
"""Scheme -> the store of its URIs. Beam's filesystems are the store of all other schemes."""
_LOCAL = LocalStore()
_BEAM = BeamStore()

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_LAST_SLASHES = re.compile(r"(?<=[^/:])/+$")
_CONCURRENT_REQUESTS = 32
_WEB_OPTIONS = WebOptions()


def _store(uri: str) -> Store:
    scheme = _SCHEME.match(uri)
    return STORES.get(scheme[1].lower(), _BEAM) if scheme else _LOCAL


def is_local(uri: str) -> bool:
    """Returns whether a URI is a path that functions of `os` accept, and reads have no latency."""
    return _store(uri).is_local


def can_list(uri: str) -> bool:
    """Returns whether the store of a URI lists files and reports their sizes; web servers do not.

    >>> can_list("https://example.org/photos/1.jpg")
    False
    """
    return _store(uri).can_list


def require_filesystem(uri: str) -> None:
    """Checks that there is a store for a URI, without a request.

    Raises:
      NoFilesystem: its scheme is not known, or the client for it is not installed.
    """
    if _store(uri) is _BEAM:
        _BEAM.require_filesystem(uri)


def beam_writes(uri: str) -> bool:
    """Returns whether Beam's own sinks can write to a URI.

    >>> beam_writes("gs://bucket/dataset"), beam_writes("s3://bucket/dataset")
    (True, False)
    """
    return _store(uri).beam_writes


def normalize(uri: str) -> str:
    """Returns the one spelling of a URI: an absolute path for local files, without `file://`.

    >>> normalize("file:///photos/a%20b/../1.jpg")
    '/photos/1.jpg'
    """
    if uri.startswith("file://"):
        uri = unquote(uri.removeprefix("file://").removeprefix("localhost"))
    return os.path.abspath(os.path.expanduser(uri)) if is_local(uri) else uri


def folder_uri(uri: str) -> str:
    """Returns the one spelling of a folder's URI: as `normalize`, without a slash at its end.

    >>> folder_uri("gs://bucket/dataset/")
    'gs://bucket/dataset'
    """
    return _LAST_SLASHES.sub("", normalize(uri))


def join(folder: str, *names: str) -> str:
    """Returns the URI of a file in a folder. No other code appends names to folders.

    >>> join("gs://bucket/photos/", "cats", "1.jpg")
    'gs://bucket/photos/cats/1.jpg'
    """
    return "/".join((folder.rstrip("/"), *names))


def read(
    uri: str, limit: int = MAX_BYTES, stamp: int = 0, web: WebOptions = _WEB_OPTIONS
) -> tuple[bytes, int]:
    """Reads a whole file.

    Args:
      uri: the file's URI.
      limit: the largest size to read, in bytes.
      stamp: the file's stamp in the listing, or 0. Object stores read only this version.
      web: limits of requests to web servers.

    Returns:
      The content, and the file's stamp when it was read: a number that changes with the content,
      or 0 if the store does not report it.

    Raises:
      ReadError: the file cannot be read, and another attempt would not help.
      BuildError: the store cannot be used: no permission, or no connection.
    """
    found = _store(uri).read(uri, limit, stamp, web)
    usage.add(bytes_read=len(found[0]))
    return found


def read_range(uri: str, offset: int, size: int, stamp: int = 0) -> bytes:
    """Reads a part of a file.

    Args:
      uri: the file's URI.
      offset: the offset of the first byte.
      size: the number of bytes.
      stamp: see `read`. Local files too are read only with this stamp.

    Returns:
      The bytes; fewer if the file ends before.

    Raises:
      ReadError, BuildError: see `read`.
    """
    data = _store(uri).read_range(uri, offset, size, stamp)
    usage.add(bytes_read=len(data))
    return data


def read_parts(uri: str, offset: int, sizes: Sequence[int], stamp: int = 0) -> list[bytes]:
    """Reads parts of a file that follow each other, with one request.

    Args:
      uri: the file's URI.
      offset: the offset of the first byte.
      sizes: the number of bytes of each part.
      stamp: see `read_range`.

    Returns:
      The bytes of each part; fewer if the file ends before. Those of local files are not copied.

    Raises:
      ReadError, BuildError: see `read`.
    """
    parts = _store(uri).read_parts(uri, offset, sizes, stamp)
    usage.add(bytes_read=sum(map(len, parts)))
    return parts


def open_read(uri: str) -> IO[bytes]:
    """Opens a file for reading.

    Raises:
      FileNotFoundError: the file does not exist.
    """
    return _store(uri).open_read(uri)


def stat(uri: str) -> tuple[int, int]:
    """Returns (bytes, stamp) of a file; (-1, 0) if it does not exist or they are unknown."""
    return _store(uri).stat(uri)


def stats(uris: Sequence[str]) -> list[tuple[int, int]]:
    """Returns `stat` of each file, with concurrent requests."""
    if all(map(is_local, uris)):
        return list(map(stat, uris))
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS, "imageshards-stat") as threads:
        return list(threads.map(stat, uris))


def crc32cs(uris: Sequence[str]) -> list[int | None]:
    """Returns the CRC-32C of each file, with concurrent requests.

    It is None if the store would have to read the file for it.
    """
    if all(map(is_local, uris)):
        return [None] * len(uris)
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS, "imageshards-crc32c") as threads:
        return list(threads.map(lambda uri: _store(uri).crc32c(uri), uris))


def exists(uri: str) -> bool:
    """Returns whether a file (or, locally, a folder) exists."""
    return _store(uri).exists(uri)


def size(uri: str) -> int:
    """Returns the bytes of a file; -1 if it does not exist or they are unknown."""
    return stat(uri)[0]


def match(pattern: str) -> Iterator[Match]:
    """Yields (URI, bytes, stamp) of the files that match a pattern, in any order.

    `*` and `?` do not match `/`; `**` matches any characters.
    """
    return _store(pattern).match(pattern)


def match_part(pattern: str, names: Names, *, few: bool) -> Iterator[Match | Names]:
    """Yields the files that match a pattern and whose names are in a range.

    Args:
      pattern: as of `match`.
      names: the range. A store that cannot list ranges ignores it.
      few: whether to list some thousands only, and to yield ranges that contain all other names,
        which other workers can list. A store that cannot list ranges lists all.
    """
    return _store(pattern).match_part(pattern, names, few)


def match_first(pattern: str) -> list[Match]:
    """Returns the first files by name that match a pattern, or none; for a look at a pattern.

    Object stores make at most four requests: if no match is among their first names, the result is
    empty.
    """
    return _store(pattern).match_first(pattern)


def names_in(folder: str) -> list[str]:
    """Returns the names of the files directly in a folder, sorted; none if it does not exist."""
    return [entry.name for entry in entries_in(folder)]


def entries_in(folder: str) -> list[Entry]:
    """Returns the files directly in a folder, sorted by name; none if it does not exist."""
    return sorted(scan(folder))


def scan(folder: str) -> Iterator[Entry]:
    """Yields the files directly in a folder, in any order; none if it does not exist.

    Unlike `entries_in`, it does not hold all of them, such as a million shards.
    """
    return _store(folder).entries_in(folder)


def delete(uris: Sequence[str]) -> None:
    """Deletes the files that exist, with concurrent requests."""
    if len(uris) < 2 or all(map(is_local, uris)):
        for uri in uris:
            _store(uri).delete(uri)
        return
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS, "imageshards-delete") as threads:
        for _ in threads.map(lambda uri: _store(uri).delete(uri), uris):
            pass


def make_folder(folder: str) -> None:
    """Creates a folder and its parents, where the store has folders."""
    _store(folder).make_folder(folder)


def open_sink(uri: str, scratch: str) -> AbstractContextManager[Sink]:
    """Opens a file for writing. It appears only if the block ends without an error.

    Args:
      uri: the file's URI.
      scratch: a folder of the same filesystem. A local file is written there under a unique name,
        because two workers may write the same file.

    Raises:
      LostUpload: the store lost what was written: the file must be written again.
      StoreError: the file cannot be written.
    """
    return _store(uri).open_sink(uri, scratch)


def sweep(folder: str) -> None:
    """Deletes the incomplete files that killed runs left in a scratch folder of `open_sink`."""
    _store(folder).sweep(folder)


def abort_uploads(folder: str) -> None:
    """Discards what killed processes have sent of files below a folder that they did not complete.

    An upload of a running process is lost too: it begins again. Services that discard unfinished
    uploads by themselves do nothing here.
    """
    _store(folder).abort_uploads(folder)


def sweep_folders(folder: str, prefix: str) -> None:
    """Deletes the folders in a folder whose names begin with a prefix."""
    if not is_local(folder):
        delete([uri for uri, *_ in match(join(folder, f"{prefix}**"))])
        return
    for entry in os.scandir(folder):
        if entry.is_dir() and entry.name.startswith(prefix):
            shutil.rmtree(entry.path, ignore_errors=True)


def create(uri: str, data: bytes, scratch: str) -> bool:
    """Writes a small file unless it exists, and returns whether it did.

    If two processes call it at the same time, one succeeds on local filesystems and on object
    storage; elsewhere both may.
    """
    return _store(uri).create(uri, data, scratch)


def replace(uri: str, data: bytes, scratch: str, stamp: int) -> bool:
    """Writes a small file if the existing one has a certain stamp, and returns whether it did.

    If two processes call it at the same time, one succeeds on object storage; elsewhere both
    may.

    Args:
      uri: the file's URI.
      data: its new content.
      scratch: see `open_sink`.
      stamp: the stamp that `read` returned, or 0 if the file must not exist.
    """
    return _store(uri).replace(uri, data, scratch, stamp)


def folder_problem(folder: str) -> str:
    """Returns why a local folder cannot be created or written to; empty if nothing is known."""
    return _store(folder).folder_problem(folder)


def bill(project: str) -> None:
    """Sets the project that pays for the requests of this process to Google Cloud Storage.

    Buckets with Requester Pays require it. It is the value of the environment variable
    IMAGESHARDS_BILLING_PROJECT, which child processes inherit, but not those that a server has
    forked that was started earlier: they call this function too.

    Args:
      project: the ID of the project; empty: the value before the last call, if there is one.
    """
    gcs_auth.bill(project)


def billing_project() -> str:
    """Returns the project that pays for requests; empty: the owner of the bucket pays."""
    return gcs_auth.billing_project()


def close() -> None:
    """Closes the files that `read_range` keeps open in this process."""
    _LOCAL.close()
