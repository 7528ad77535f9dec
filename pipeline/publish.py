"""Versions of a data set side by side, and the pointer file that names the latest.

    BASE/2026-11-20/...                       a version: a data set as `build` makes it
    BASE/2026-11-20/metadata/published.json   that it is published, and of which inputs
    BASE/latest                               which version readers are to take

Versions are ordered by their names, numbers in them as numbers: dates and counters do what one
expects. The pointer is replaced in one step, so that a reader sees the old one or the new one. It
names versions of one data set: those that have the name of the data set, or that were given none
and have folders whose names differ in their numbers alone.

Publishing goes pointer, mark, deletions. Where it breaks off, the version counts as not published,
and publishing it again does the rest.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from imageshards.pipeline.assembly import default_name
from imageshards.pipeline.finish import clear
from imageshards.pipeline.metadata import to_json
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.shards.layout import Layout

POINTER = "latest"
_MARK = "published.json"
_TRIES = 20


@dataclass(frozen=True)
class Published:
    """What publishing came to.

    Attributes:
      uri: folder of the version.
      version: its name.
      name: of the data set.
      records: images in it.
      rejects: images left out.
      bytes: of all shards.
      classes: how many.
      splits: name -> records.
      report: the page to look at.
      fingerprint: of the inputs, or empty.
      pointer: the file that names the latest version.
      latest: the version that it names now.
      deleted: versions that were too many.
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
        """One line for machines."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        moved = self.latest == self.version
        lines = [
            f"{self.pointer} -> {self.latest}" + ("" if moved else ", which is later than this one")
        ]
        lines.append(f"  {self.uri}: {self.records:,} images, {self.rejects:,} rejects")
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
    """Makes a data set the latest version, unless a later one is; deletes old versions.

    Doing it again changes nothing. The pointer is switched before anything is deleted. A pointer
    whose version is gone counts as none. Deleted are published versions beside this one that are
    older than the one pointed to, of the same data set and published with the same pointer, file
    by file as the build wrote them: what else lies in their folders stays.

    Of several publishers at a time, on local filesystems that know locks and on Cloud Storage, the
    latest version wins.

    Args:
      folder: of a complete data set.
      pointer: the file; empty: `latest` beside the folder.
      keep_versions: how many published versions stay, from the latest down, and this one in any
        case; 0: all.
      fingerprint: of its inputs, for `state_of`.
      rollback: switch although the pointer names a later version.

    Raises:
      BuildError: the data set is not complete, or the pointer is a file of another kind, or names
        a version of another data set.
    """
    layout = Layout(storage.normalize(folder).rstrip("/"))
    base = layout.root.rpartition("/")[0]
    pointer = storage.normalize(pointer) if pointer else storage.join(base, POINTER)
    with _alone(pointer.rpartition("/")[0]):
        before = _published(layout) or {}
        document = _describe(layout, fingerprint or before.get("fingerprint", ""))
        latest = _switch(pointer, document, rollback)
        mark = {
            "fingerprint": document["fingerprint"],
            "build": _digest(layout.build),
            "name": document["name"],
            "pointers": sorted({*before.get("pointers", ()), _beside(pointer, base)}),
        }
        layout.write(_mark(layout.root), to_json(mark))
        deleted: tuple[str, ...] = ()
        if keep_versions:
            deleted = _delete_old(layout, document["name"], latest, pointer, keep_versions)
    return Published(**document, pointer=pointer, latest=latest, deleted=deleted)


def _describe(layout: Layout, fingerprint: str) -> dict[str, Any]:
    """What a pointer file says of a version."""
    if not storage.exists(layout.dataset_info):
        raise BuildError(f"{layout.root}: no complete data set there; run its build command first")
    build = _read_json(layout.build)
    info = _read_json(layout.dataset_info)
    if not build or not info:
        raise BuildError(f"{layout.root}: its metadata cannot be read; run imageshards verify")
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


def read_pointer(uri: str) -> dict[str, Any] | None:
    """What a pointer file says: `uri`, `version`, counts; None if there is none.

    Raises:
      BuildError: it is no pointer file.
    """
    return _read_pointer(uri)[0]


def state_of(folder: str, fingerprint: str, name: str) -> tuple[str, str]:
    """What is to be done for a version, from the fingerprint of its inputs.

    Args:
      folder: of the version.
      fingerprint: of its inputs.
      name: of the data set. Versions of others, in the same folder, do not count.

    Returns:
      (state, version): `new`: it is to be built; `done`: it is published, of these inputs;
      `changed`: it is published, of other inputs; `unchanged`: the version before it, which is
      named, is of the same inputs.
    """
    layout = Layout(storage.normalize(folder).rstrip("/"))
    base, _, version = layout.root.rpartition("/")
    mark = _published(layout)
    if mark is not None:
        return "done" if mark["fingerprint"] == fingerprint else "changed", version
    for before in reversed([v for v in versions(base) if _order(v) < _order(version)]):
        mark = _published(Layout(storage.join(base, before)))
        if mark is not None and _family(mark.get("name", ""), before) == _family(name, version):
            same = mark["fingerprint"] == fingerprint
            return ("unchanged", before) if same else ("new", version)
    return "new", version


def versions(base: str) -> list[str]:
    """Names of the published versions in a folder, of any data set, the oldest first."""
    if not storage.is_local(base):
        tail = f"/metadata/{_MARK}"
        marks = [uri for uri, *_ in storage.match(f"{base}/*{tail}")]
        names = [uri.removeprefix(f"{base}/").removesuffix(tail) for uri in marks]
        return sorted((name for name in names if "/" not in name), key=_order)
    names = []
    with suppress(FileNotFoundError), os.scandir(base) as entries:
        for entry in entries:
            # A link leads to what somebody else may own.
            if entry.is_dir(follow_symlinks=False) and os.path.isfile(_mark(entry.path)):
                names.append(entry.name)
    return sorted(names, key=_order)


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Waits for other publishers whose pointers lie in a local folder, and keeps them waiting."""
    with ExitStack() as held:
        if storage.is_local(folder):
            with suppress(OSError):  # no such folder, or a filesystem that knows no locks
                file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                held.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _switch(pointer: str, document: dict[str, Any], rollback: bool) -> str:
    """Makes the pointer name a version, unless it names a later one; returns which it names."""
    version = str(document["version"])
    for _ in range(_TRIES):
        current, stamp = _read_pointer(pointer)
        if current and storage.exists(Layout(current["uri"]).dataset_info):
            theirs = str(current.get("name"))
            if _family(theirs, current["version"]) != _family(document["name"], version):
                raise BuildError(
                    f"{pointer} names {current['version']} of the data set {theirs}, and this is "
                    f"{version} of {document['name']}: name another file with --pointer, or build "
                    "both with one --name"
                )
            if not rollback and _order(version) < _order(current["version"]):
                return str(current["version"])
            if current == document:
                return version
        # Somebody else may have switched it meanwhile, where there are no locks.
        folder = pointer.rpartition("/")[0]
        if storage.replace(pointer, to_json(document), folder, stamp):
            return version
    raise BuildError(f"{pointer}: others switch it all the time; run the command again")


def _read_pointer(uri: str) -> tuple[dict[str, Any] | None, int]:
    """What it says, and the stamp of the file."""
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
        raise BuildError(f"{uri}: not a pointer file of imageshards: name another with --pointer")
    return document, stamp


def _family(name: str, version: str) -> str:
    """The same for all versions of a data set."""
    return re.sub(r"\d+", "#", name) if name == default_name(version) else name


def _beside(pointer: str, base: str) -> str:
    """How a mark names a pointer: a folder of versions can be moved together with its pointer."""
    return pointer.removeprefix(f"{base}/")


def _order(version: str) -> list[tuple[int, str]]:
    """Numbers in a name count as numbers: v9 is before v10."""
    parts = re.findall(r"\d+|\D+", version)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _mark(root: str) -> str:
    return storage.join(root, "metadata", _MARK)


def _published(layout: Layout) -> dict[str, Any] | None:
    """The mark with which a version was published; None if what is there now was not."""
    mark = _read_json(_mark(layout.root))
    if not mark or not storage.exists(layout.dataset_info):
        return None
    return mark if mark.get("build") == _digest(layout.build) else None


def _delete_old(mine: Layout, name: str, latest: str, pointer: str, keep: int) -> tuple[str, ...]:
    """Deletes versions that the pointer named before, and that no pointer names now."""
    base, _, version = mine.root.rpartition("/")
    family = _family(name, version)
    old, doomed = [], []
    for before in versions(base):
        layout = Layout(storage.join(base, before))
        mark = _read_json(_mark(layout.root)) or {}
        if (
            _order(before) >= _order(latest)
            or _family(mark.get("name", ""), before) != family
            or _beside(pointer, base) not in mark.get("pointers", ())
        ):
            continue
        if _published(layout):
            old.append((layout, mark))
        elif mark.get("deleting") and not storage.exists(layout.dataset_info):
            doomed.append(layout)  # else it is being built anew
    for layout, mark in old[: max(len(old) - keep + 1, 0)]:
        if layout != mine and not _is_named(layout, mark["pointers"]):
            layout.write(_mark(layout.root), to_json({**mark, "deleting": True}))
            doomed.append(layout)
    for layout in doomed:
        clear(layout)
        # The last to go: a deletion that was killed is gone on with.
        storage.delete([_mark(layout.root)])
        if storage.is_local(base):
            for folder in (layout.index_folder, layout.state, layout.metadata, layout.root):
                with suppress(OSError):  # something else lies there
                    os.rmdir(folder)
    return tuple(sorted((layout.root.rpartition("/")[2] for layout in doomed), key=_order))


def _is_named(layout: Layout, pointers: list[str]) -> bool:
    """Whether one of the pointers with which a version was published names it now."""
    base = layout.root.rpartition("/")[0]
    uris = [uri if "/" in uri else storage.join(base, uri) for uri in pointers]
    return any((_read_json(uri) or {}).get("uri") == layout.root for uri in uris)


def _digest(uri: str) -> str:
    with suppress(FileNotFoundError), storage.open_read(uri) as file:
        return blake2b(file.read(), digest_size=16).hexdigest()
    return ""


def _read_json(uri: str) -> dict[str, Any] | None:
    try:
        with storage.open_read(uri) as file:
            value = json.load(file)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None
