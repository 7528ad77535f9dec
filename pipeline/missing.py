"""Suggests how to correct a manifest most of whose images do not exist."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from imageshards.transforms import storage
from imageshards.transforms.shards.layout import Layout, first_lines

_SUFFIXES = (".jpg", ".jpeg", ".png", ".JPEG", ".JPG", ".PNG", ".webp")
_MOST_FOLDERS = 50
_LONGEST_SUFFIX = 5


def suggestion(layout: Layout, column: str) -> str:
    """Returns which change of the URIs would find the missing images; empty if none is known.

    It looks for some of the missing images only, those among the first lines of rejects.jsonl.

    Args:
      layout: of the data set.
      column: the column of the manifest that the URIs are; empty: they come from a template.
    """
    return suggestion_for(
        [
            (line["uri"], line["name"])
            for line in first_lines(layout.rejects)
            if line["error"] == "Missing" and storage.can_list(line["uri"])
        ],
        column,
    )


def suggestion_for(missing: Sequence[tuple[str, str]], column: str) -> str:
    """As `suggestion`, of the (URI, name) of some missing images."""
    for text, changed in _changes(missing, column):
        uris = [uri for pair in missing if (uri := changed(*pair))]
        found = sum(size >= 0 for size, _ in storage.stats(uris))
        if found * 2 > len(missing):
            return f"{found} of {len(missing)} missing images that were looked for exist {text}"
    return ""


def _changes(
    missing: Sequence[tuple[str, str]], column: str
) -> Iterator[tuple[str, Callable[[str, str], str]]]:
    """Yields (where the images would exist and what to do, function of URI and name)."""
    for suffix in _SUFFIXES:
        what = f"with {suffix} at the end: {_add(column, suffix)}"
        yield what, lambda uri, _, suffix=suffix: uri + suffix  # type: ignore[misc]
    for suffix in _SUFFIXES:
        what = f"with the suffix {suffix}: change the suffix in the manifest"
        yield what, lambda uri, _, suffix=suffix: _with_suffix(uri, suffix)  # type: ignore[misc]
    roots = {uri.removesuffix(name) for uri, name in missing if uri != name}
    for below in dict.fromkeys(near[len(top) :] for top in sorted(roots) for near in _below(top)):
        for suffix in _SUFFIXES:
            what = f"in {below} with {suffix} at the end: {_add(column, suffix, below)}"
            yield (
                what,
                lambda uri, name, below=below, suffix=suffix: (  # type: ignore[misc]
                    uri.removesuffix(name) + below + name + suffix
                ),
            )
    for folder in dict.fromkeys(near for root in sorted(roots) for near in _near(root)):
        what = f"below {folder}: move the manifest into that folder"
        yield what, lambda uri, name, folder=folder: folder + name if name != uri else ""  # type: ignore[misc]


def _add(column: str, suffix: str, folder: str = "") -> str:
    template = f", or set --uri_template '{folder}{{{column}}}{suffix}'" if column else ""
    return f"add it to the URIs in the manifest{template}"


def _with_suffix(uri: str, suffix: str) -> str:
    stem, old = os.path.splitext(uri)
    return stem + suffix if 1 < len(old) <= _LONGEST_SUFFIX else ""


def _near(root: str) -> Iterator[str]:
    """Yields the folder above a folder, and local folders in both, with a slash at their ends."""
    above = storage.join(root.rstrip("/").rpartition("/")[0], "")
    yield above
    yield from _below(root)
    yield from _below(above)


def _below(folder: str) -> Iterator[str]:
    """Yields the local folders in a folder, with a slash at their ends."""
    if storage.is_local(folder):
        with suppress(OSError), os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
            yield from (storage.join(folder, name, "") for name in names[:_MOST_FOLDERS])
