"""Publishes versions of a data set: a pointer file names the latest one.

    BASE/2026-11-20/...                       a version: a data set that `build` wrote
    BASE/2026-11-20/metadata/published.json   marks it as published; has its inputs' fingerprint
    BASE/latest                               the pointer file: names the version to read

Versions are ordered by their names; numbers in names are compared as numbers, so that dates and
counters work. The pointer is replaced atomically. It names versions of one data set only: those
built with the same --name, or without --name in folders whose names differ in their numbers alone.

Publishing reserves the version, writes the pointer, then the mark, then deletes old versions. After
an interruption the version counts as not published, and publishing it again does the rest.
`marks.py` has the protocol by which no pointer ever names a deleted version.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from imageshards.pipeline.assembly import default_name
from imageshards.pipeline.claim import clear
from imageshards.pipeline.marks import (
    TRIES,
    Mark,
    Reservation,
    check_complete,
    delete_mark,
    locked,
    mark_for_deletion,
    read_mark,
)
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, counted
from imageshards.transforms.shards.layout import Layout, read_json, to_json

POINTER = "latest"


@dataclass(frozen=True)
class Published:
    """The result of `publish`.

    Attributes:
      uri: folder of the version.
      version: its name.
      name: of the data set.
      records: number of records in it.
      rejects: number of images that were rejected.
      bytes: of all shards.
      classes: number of classes.
      splits: name -> records.
      report: path of report.html.
      fingerprint: of the inputs; empty if none was given.
      pointer: the pointer file.
      latest: the version that the pointer names now.
      deleted: old versions that were deleted.
    """

    uri: str
    version: str
    name: str
    records: int
    rejects: int
    bytes: int
    classes: int
    splits: dict[str, int]
    report: str
    fingerprint: str
    pointer: str
    latest: str
    deleted: tuple[str, ...]

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if self.latest == self.version:
            lines = [f"{self.pointer} -> {self.latest}"]
        else:
            lines = [
                f"{self.pointer} still names {self.latest}, a later version than {self.version} "
                "(--rollback replaces it)"
            ]
        records, rejects = counted(self.records, "record"), counted(self.rejects, "reject")
        lines.append(f"  {self.uri}: {records}, {rejects}")
        if self.deleted:
            lines.append(f"  deleted: {', '.join(self.deleted)}")
        return "\n".join(lines)


def publish(
    folder: str,
    *,
    pointer: str = "",
    keep_versions: int = 0,
    fingerprint: str = "",
    rollback: bool = False,
) -> Published:
    """Writes a version's URI to the pointer, unless it names a later one; deletes old versions.

    Publishing is idempotent. A pointer whose version does not exist is replaced. Publishing deletes
    versions of the same data set, next to this one, that were published with the same pointer and
    are older than the version that it names. Only the files that the build wrote are deleted; other
    files in their folders are kept.

    If several versions are published at the same time, the latest one wins, on Cloud Storage and on
    local filesystems that support locks. A version is not deleted while a pointer names it, or
    while it is being published with any pointer.

    Args:
      folder: a complete data set.
      pointer: the pointer file; empty: `latest` next to the folder.
      keep_versions: number of published versions to keep, latest first; this one is always kept.
        0: keep all.
      fingerprint: the digest of its inputs, for `state_of`.
      rollback: whether to replace a pointer that names a later version.

    Raises:
      BuildError: the data set is not complete, the pointer is not a pointer file, or it names a
        version of another data set.

    >>> publish("dataset", keep_versions=7).latest
    'dataset'
    """
    layout = Layout(folder)
    base = layout.root.rpartition("/")[0]
    pointer = storage.normalize(pointer) if pointer else storage.join(base, POINTER)
    with locked(pointer.rpartition("/")[0]):
        before = _published(layout) or {}
        document = _describe(layout, fingerprint or before.get("fingerprint", ""))
        reservation = Reservation(layout, pointer)
        try:
            latest = _update(pointer, document, rollback)
        except BaseException:
            # If its response was lost, the pointer may have been written: keep the reservation.
            if not _may_name(pointer, layout):
                reservation.release()
            raise
        reservation.publish(
            {
                "fingerprint": document["fingerprint"],
                "build": _digest(layout.build),
                "name": document["name"],
                "pointers": [_relative(pointer, base)],
            }
        )
        deleted: tuple[str, ...] = ()
        if keep_versions:
            deleted = _delete_old(layout, document["name"], latest, pointer, keep_versions)
    return Published(**document, pointer=pointer, latest=latest, deleted=deleted)


def _describe(layout: Layout, fingerprint: str) -> dict[str, Any]:
    """Returns the content of a pointer file for a version."""
    check_complete(layout)
    build = read_json(layout.build)
    info = read_json(layout.dataset_info)
    if not build or not info:
        raise BuildError(f"{layout.root}: metadata missing or damaged; run imageshards verify")
    return {
        "uri": layout.root,
        "version": layout.root.rpartition("/")[2],
        "name": info["name"],
        "records": build["counts"]["records"],
        "rejects": build["counts"]["rejects"],
        "bytes": build["counts"]["bytes"],
        "classes": len(build["classes"]),
        "splits": {name: split["records"] for name, split in build["splits"].items()},
        "report": layout.report,
        "fingerprint": fingerprint,
    }


def state_of(folder: str, fingerprint: str, name: str) -> tuple[str, str]:
    """Returns whether a version must be built, given the fingerprint of its inputs.

    Args:
      folder: of the version.
      fingerprint: of its inputs, as `imageshards fingerprint` prints it.
      name: of the data set. Versions of other data sets in the same folder are ignored.

    Returns:
      (state, version). `new`: the version must be built. `done`: it is published and was built from
      these inputs. `changed`: it is published and was built from other inputs. `unchanged`: the
      previous version, which is returned, was built from the same inputs.
    """
    layout = Layout(folder)
    base, _, version = layout.root.rpartition("/")
    mark = _published(layout)
    if mark is not None:
        # A version that was published without a fingerprint cannot be compared.
        return "done" if mark["fingerprint"] in (fingerprint, "") else "changed", version
    for before in reversed([v for v in versions(base) if _sort_key(v) < _sort_key(version)]):
        mark = _published(Layout(storage.join(base, before)))
        if mark is not None and _family(mark.get("name", ""), before) == _family(name, version):
            same = mark["fingerprint"] == fingerprint
            return ("unchanged", before) if same else ("new", version)
    return "new", version


def versions(base: str) -> list[str]:
    """Returns the names of the published versions in a folder, of any data set, oldest first."""
    if not storage.is_local(base):
        pattern = Layout(storage.join(base, "*")).uri("published")
        beginning, _, end = pattern.rpartition("*")
        marks = [uri for uri, *_ in storage.match(pattern)]
        names = [uri.removeprefix(beginning).removesuffix(end) for uri in marks]
        return sorted(names, key=_sort_key)
    names = []
    with suppress(FileNotFoundError), os.scandir(base) as entries:
        for entry in entries:
            # A symbolic link may lead to a folder that is not ours to delete.
            mark = Layout(entry.path).uri("published")
            if entry.is_dir(follow_symlinks=False) and os.path.isfile(mark):
                names.append(entry.name)
    return sorted(names, key=_sort_key)


def _update(pointer: str, document: dict[str, Any], rollback: bool) -> str:
    """Writes a version to the pointer unless it names a later one; returns the version it names."""
    version = str(document["version"])
    for _ in range(TRIES):
        current, stamp = _read_pointer(pointer)
        if current and storage.exists(Layout(current["uri"]).dataset_info):
            theirs = str(current.get("name"))
            if _family(theirs, current["version"]) != _family(document["name"], version):
                raise BuildError(
                    f"{pointer} is the pointer of the data set {theirs!r} (version "
                    f"{current['version']}), but {version} is a version of {document['name']!r}: "
                    "set another --pointer, or build both with the same --name"
                )
            if not rollback and _sort_key(version) < _sort_key(current["version"]):
                return str(current["version"])
            if current == document:
                return version
        # Without locks, another publisher may have replaced it in the meantime.
        folder = pointer.rpartition("/")[0]
        if storage.replace(pointer, to_json(document), folder, stamp):
            return version
    raise BuildError(f"{pointer}: other publishers keep replacing it; run the command again")


def _read_pointer(uri: str) -> tuple[dict[str, Any] | None, int]:
    """Returns the content of a pointer file and its stamp; (None, 0) if there is none."""
    document, stamp = None, 0
    try:
        data, stamp = storage.read(uri)
        document = json.loads(data)
    except storage.ReadError as error:
        if error.kind == "Missing":
            return None, 0
        if error.kind != "NotAFile":
            raise BuildError(f"{uri}: cannot be read: {error}") from error
    except ValueError:
        pass
    if not isinstance(document, dict) or not {"uri", "version"} <= document.keys():
        raise BuildError(f"{uri}: not a pointer file of imageshards: set another --pointer")
    return document, stamp


def _may_name(pointer: str, layout: Layout) -> bool:
    """Returns whether a pointer names a version, or cannot be read."""
    try:
        return (read_json(pointer) or {}).get("uri") == layout.root
    except (BuildError, OSError):
        return True


def _family(name: str, version: str) -> str:
    """Returns a name that all versions of a data set share: digits in folder names are masked."""
    return re.sub(r"\d+", "#", name) if name == default_name(version) else name


def _relative(pointer: str, base: str) -> str:
    """Returns a pointer's path relative to its versions, so that both can be moved together."""
    return pointer.removeprefix(storage.join(base, ""))


def _sort_key(version: str) -> list[tuple[int, str]]:
    """Returns a sort key in which numbers count as numbers.

    >>> _sort_key("v9") < _sort_key("v10")
    True
    """
    parts = re.findall(r"\d+|\D+", version)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _published(layout: Layout) -> dict[str, Any] | None:
    """Returns the mark of a version; None if its present build is not published."""
    mark = read_mark(layout)
    return mark if _has_published(layout, mark) and not mark.get("deleting") else None


def _has_published(layout: Layout, mark: Mark) -> bool:
    """Returns whether a mark is that of a version's present build, which is complete."""
    complete = bool(mark) and storage.exists(layout.dataset_info)
    return complete and mark.get("build") == _digest(layout.build)


def _delete_old(mine: Layout, name: str, latest: str, pointer: str, keep: int) -> tuple[str, ...]:
    """Deletes old versions that were published with this pointer and that no pointer names."""
    base, _, version = mine.root.rpartition("/")
    family = _family(name, version)
    old, obsolete, deleted = [], [], []
    for before in versions(base):
        layout = Layout(storage.join(base, before))
        mark = read_mark(layout)
        if (
            _sort_key(before) >= _sort_key(latest)
            or _family(mark.get("name", ""), before) != family
            or _relative(pointer, base) not in mark.get("pointers", ())
        ):
            continue
        if _has_published(layout, mark):
            old.append(layout)
        elif mark.get("deleting") and not storage.exists(layout.dataset_info):
            obsolete.append(layout)  # with a dataset_info.json, it has been built again
    for layout in [*old[: max(len(old) - keep + 1, 0)], *obsolete]:
        if layout == mine or not (token := mark_for_deletion(layout)):
            continue
        clear(layout)
        # The mark is deleted last, so that an interrupted deletion is resumed.
        if delete_mark(layout, token) and storage.is_local(base):
            for folder in (layout.index_folder, layout.state, layout.metadata, layout.root):
                with suppress(OSError):  # not empty
                    os.rmdir(folder)
        deleted.append(layout.root.rpartition("/")[2])
    return tuple(sorted(deleted, key=_sort_key))


def _digest(uri: str) -> str:
    with suppress(FileNotFoundError), storage.open_read(uri) as file:
        return blake2b(file.read(), digest_size=16).hexdigest()
    return ""
