"""Versions of a data set side by side, and the pointer file that names the latest.

    BASE/2026-11-20/...                       a version: a data set as `build` makes it
    BASE/2026-11-20/metadata/published.json   that it is published, and of which inputs
    BASE/latest                               which version readers are to take

Versions are ordered by their names, numbers in them as numbers: dates and counters do what one
expects. The pointer is replaced in one step, so that a reader sees the old one or the new one.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from imageshards.pipeline.finish import clear
from imageshards.pipeline.metadata import to_json
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.layout import Layout

POINTER = "latest"
_MARK = "published.json"


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

    Doing it again changes nothing. The pointer is switched before anything is deleted. Deleted are
    published versions beside this one that are older than the one pointed to, file by file as the
    build wrote them: what else lies in their folders stays.

    Args:
      folder: of a complete data set.
      pointer: the file; empty: `latest` beside the folder.
      keep_versions: how many published versions stay, from the latest down; 0: all.
      fingerprint: of its inputs, for `state_of`.
      rollback: switch although the pointer names a later version.

    Raises:
      BuildError: the data set is not complete, or the pointer is a file of another kind.
    """
    layout = Layout(storage.normalize(folder).rstrip("/"))
    base, _, version = layout.root.rpartition("/")
    pointer = storage.normalize(pointer) if pointer else storage.join(base, POINTER)
    if not storage.exists(layout.dataset_info):
        raise BuildError(f"{layout.root}: no complete data set there; run its build command first")
    build = _read_json(layout.build)
    info = _read_json(layout.dataset_info)
    if not build or not info:
        raise BuildError(f"{layout.root}: its metadata cannot be read; run imageshards verify")
    current = read_pointer(pointer)
    fingerprint = fingerprint or _published_of(layout) or ""
    mark = {"fingerprint": fingerprint, "build": _digest(layout.build)}
    layout.write(_mark(layout.root), to_json(mark))
    document = {
        "uri": layout.root,
        "version": version,
        "name": info["name"],
        "records": build["counts"]["records"],
        "rejects": build["counts"]["rejects"],
        "bytes": build["counts"]["bytes"],
        "classes": len(build["classes"]),
        "splits": {name: split["records"] for name, split in build["splits"].items()},
        "report": layout.report,
        "fingerprint": fingerprint,
    }
    latest = current["version"] if current else ""
    if rollback or _order(version) >= _order(latest):
        latest = version
        if document != current:
            with storage.open_sink(pointer, pointer.rpartition("/")[0]) as sink:
                sink.write([to_json(document)])
    deleted = _delete_old(base, latest, keep_versions) if keep_versions else ()
    return Published(**document, pointer=pointer, latest=latest, deleted=deleted)


def read_pointer(uri: str) -> dict[str, Any] | None:
    """What a pointer file says: `uri`, `version`, counts; None if there is none.

    Raises:
      BuildError: it is no pointer file.
    """
    if not storage.exists(uri):
        return None
    document = _read_json(uri)
    if not document or not {"uri", "version"} <= document.keys():
        raise BuildError(f"{uri}: not a pointer file of imageshards: name another with --pointer")
    return document


def state_of(folder: str, fingerprint: str) -> tuple[str, str]:
    """What is to be done for a version, from the fingerprint of its inputs.

    Returns:
      (state, version): `new`: it is to be built; `done`: it is published, of these inputs;
      `changed`: it is published, of other inputs; `unchanged`: the version before it, which is
      named, is of the same inputs.
    """
    layout = Layout(storage.normalize(folder).rstrip("/"))
    base, _, version = layout.root.rpartition("/")
    found = _published_of(layout)
    if found is not None:
        return "done" if found == fingerprint else "changed", version
    for before in reversed([v for v in versions(base) if _order(v) < _order(version)]):
        found = _published_of(Layout(storage.join(base, before)))
        if found is not None:
            return ("unchanged", before) if found == fingerprint else ("new", version)
    return "new", version


def versions(base: str) -> list[str]:
    """Names of the published versions in a folder, the oldest first."""
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


def _order(version: str) -> list[tuple[int, str]]:
    """Numbers in a name count as numbers: v9 is before v10."""
    parts = re.findall(r"\d+|\D+", version)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _mark(root: str) -> str:
    return storage.join(root, "metadata", _MARK)


def _published_of(layout: Layout) -> str | None:
    """The fingerprint with which a version was published; None if what is there now was not."""
    mark = _read_json(_mark(layout.root))
    if not mark or not storage.exists(layout.dataset_info):
        return None
    return str(mark["fingerprint"]) if mark.get("build") == _digest(layout.build) else None


def _delete_old(base: str, latest: str, keep: int) -> tuple[str, ...]:
    old = [version for version in versions(base) if _order(version) < _order(latest)]
    deleted = old[: max(len(old) - keep + 1, 0)]
    for version in deleted:
        layout = Layout(storage.join(base, version))
        clear(layout)
        # The last to go: a deletion that was killed is gone on with.
        storage.delete([_mark(layout.root)])
        if storage.is_local(base):
            for folder in (layout.index_folder, layout.state, layout.metadata, layout.root):
                with suppress(OSError):  # something else lies there
                    os.rmdir(folder)
    return tuple(deleted)


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
