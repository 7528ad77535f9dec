"""The mark of a published version, which decides whether the version may be named or deleted.

A publisher reserves a version before it writes a pointer to it, and a version is deleted only after
its mark says so. Both change the same file, metadata/published.json, and only in the state in which
they have read it (`storage.replace`). So a pointer never names a version that is being deleted, on
Cloud Storage and on local filesystems that support locks.

    {}                                                                   no publish was completed
    {"fingerprint": ..., "build": ..., "name": ..., "pointers": [...]}   it is published
    {..., "publishing": {TOKEN: [POINTER, SECONDS]}}                     a pointer may name it soon
    {..., "deleting": TOKEN}                                             it is being deleted
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.shards.layout import Layout, read_json, to_json

TRIES = 20
_INTERRUPTED_SECONDS = 3600.0
"""A publish takes seconds: an older reservation is of one that was interrupted."""

Mark = dict[str, Any]


class Reservation:
    """The right to write a pointer to a version, until `release` or `publish`.

    Args:
      layout: of the version.
      pointer: the pointer file.

    Raises:
      BuildError: the version is being deleted, or is not complete.
    """

    def __init__(self, layout: Layout, pointer: str) -> None:
        self._layout = layout
        self._token = uuid.uuid4().hex

        def reserve(mark: Mark) -> Mark:
            if mark.get("deleting"):
                raise BuildError(
                    f"{layout.root}: another publish deletes this version; if that one was "
                    "interrupted, run the build command of this version again first"
                )
            mine = {self._token: [pointer, time.time()]}
            return {**mark, "publishing": {**mark.get("publishing", {}), **mine}}

        try:
            _change(layout, reserve)
        except storage.StoreError:
            check_complete(layout)  # the folder of the mark was deleted in the meantime
            raise
        try:
            check_complete(layout)
        except BuildError:
            self.release()
            raise

    def release(self) -> None:
        """Gives the reservation back without a pointer."""
        _change(self._layout, self._without)

    def publish(self, published: Mark) -> None:
        """Marks the version as published.

        Args:
          published: the mark's fields. Its pointers are added to those of the existing mark.
        """

        def finish(mark: Mark) -> Mark:
            pointers = sorted({*mark.get("pointers", ()), *published["pointers"]})
            rest = {"publishing": live} if (live := self._without(mark).get("publishing")) else {}
            return {**published, "pointers": pointers, **rest}

        _change(self._layout, finish)

    def _without(self, mark: Mark) -> Mark:
        live = {token: entry for token, entry in _live(mark).items() if token != self._token}
        rest = {name: value for name, value in mark.items() if name != "publishing"}
        return {**rest, "publishing": live} if live else rest


def mark_for_deletion(layout: Layout) -> str:
    """Marks a version as being deleted, unless a pointer names it or may name it soon.

    Returns:
      A token for `delete_mark`; empty if the version must be kept.
    """
    token = uuid.uuid4().hex

    def marked(mark: Mark) -> Mark:
        is_needed = not mark or _live(mark) or _is_named(layout, mark)
        return mark if is_needed else {**mark, "deleting": token}

    return token if _change(layout, marked).get("deleting") == token else ""


def delete_mark(layout: Layout, token: str) -> bool:
    """Deletes the mark of a deleted version; returns False if another publish deletes it too."""
    mine = read_mark(layout).get("deleting") == token
    if mine:
        storage.delete([layout.uri("published")])
    return mine


def read_mark(layout: Layout) -> Mark:
    """Returns the mark of a version, whatever it says; empty without one."""
    return read_json(layout.uri("published")) or {}


def check_complete(layout: Layout) -> None:
    """Raises a BuildError if a folder does not hold a complete data set."""
    if not storage.exists(layout.dataset_info):
        raise BuildError(f"{layout.root}: no complete data set there; run its build command first")


def _live(mark: Mark) -> dict[str, Any]:
    """Returns the reservations of publishers that may still be running."""
    found: dict[str, Any] = mark.get("publishing", {})
    now = time.time()
    return {t: entry for t, entry in found.items() if abs(now - entry[1]) < _INTERRUPTED_SECONDS}


def _is_named(layout: Layout, mark: Mark) -> bool:
    """Returns whether one of the version's pointers names it now."""
    base = layout.root.rpartition("/")[0]
    pointers = [*mark.get("pointers", ()), *(uri for uri, _ in mark.get("publishing", {}).values())]
    uris = {uri if "/" in uri else storage.join(base, uri) for uri in pointers}
    return any((read_json(uri) or {}).get("uri") == layout.root for uri in sorted(uris))


def _change(layout: Layout, edit: Callable[[Mark], Mark]) -> Mark:
    """Replaces the mark by what `edit` makes of it, and returns the mark.

    `edit` takes {} if there is no mark, and may be called several times.
    """
    uri = layout.uri("published")
    for _ in range(TRIES):
        with locked(layout.metadata):
            before, stamp = _read(uri)
            after = edit(before)
            if after == before:
                return before
            if storage.replace(uri, to_json(after), layout.metadata, stamp):
                return after
        # Another publisher has replaced it, or this one has, and the response was lost.
    raise BuildError(f"{uri}: other publishers keep replacing it; run the command again")


def _read(uri: str) -> tuple[Mark, int]:
    try:
        data, stamp = storage.read(uri)
    except storage.ReadError as error:
        if error.kind == "Missing":
            return {}, 0
        raise BuildError(f"{uri}: cannot be read: {error}") from error
    with suppress(ValueError):
        mark = json.loads(data)
        if isinstance(mark, dict):
            return mark, stamp
    return {}, stamp


_held = threading.local()


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Holds a lock on a local folder, in which files are then replaced one at a time."""
    held: set[tuple[int, int]] = _held.__dict__.setdefault("folders", set())
    with ExitStack() as stack:
        if storage.is_local(folder):
            with suppress(OSError):  # no such folder, or a filesystem without locks
                file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, file)
                status = os.fstat(file)
                identity = (status.st_dev, status.st_ino)
                if identity not in held:  # a thread would wait for itself
                    fcntl.flock(file, fcntl.LOCK_EX)
                    held.add(identity)
                    stack.callback(held.discard, identity)
        yield
