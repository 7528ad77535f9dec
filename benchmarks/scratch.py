"""The images that a run works on: copies, links to the copies, and where there is room for them.

Standard library only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import memory_available

_SUFFIXES = (".jpg", ".jpeg")
_SPARE = 2 << 30
"""Bytes that are left to the processes where files fill the memory."""


@dataclass(frozen=True)
class Images:
    """A folder of images, FOLDER/CLASS/NAME, and what must be found in every output.

    Attributes:
      folder: where.
      count: images.
      bytes: of all of them.
      checksum: sum of the CRC-32 of every image; no order is in it.
      ranks: CRC-32 of an image -> its place in the sorted listing, copies counted as one.
    """

    folder: Path
    count: int
    bytes: int
    checksum: int
    ranks: dict[int, int] = field(repr=False)


def find_images(folder: Path) -> list[Path]:
    """All JPEG files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)


def copy_images(source: Path, target: Path, copies: int) -> Images:
    """Copies every image some times into TARGET/CLASS/NAME; a class is a folder's name.

    Raises:
      ValueError: there is no image, or two would get one name.
    """
    paths = find_images(source)
    if not paths:
        raise ValueError(f"{source}: no JPEG file there ({', '.join(_SUFFIXES)})")
    ranks: dict[int, int] = {}
    total = checksum = 0
    # Sorted as the copies will be.
    for path in sorted(paths, key=lambda path: (path.parent.name, path.name)):
        data = path.read_bytes()
        crc = zlib.crc32(data)
        ranks.setdefault(crc, len(ranks))
        total += len(data)
        checksum += crc
        place = target / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            name = place / f"{path.stem}_{copy:03d}{path.suffix}"
            if name.exists():
                raise ValueError(f"{path}: another image of this class has the same name")
            name.write_bytes(data)
    return Images(target, len(paths) * copies, total * copies, checksum * copies, ranks)


def link_images(images: Images, target: Path, times: int) -> Images:
    """More images without more bytes: hard links to the copies under other names."""
    for path in find_images(images.folder):
        place = target / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        for time in range(times):
            os.link(path, place / f"{path.stem}_{time:03d}{path.suffix}")
    return Images(
        target,
        images.count * times,
        images.bytes * times,
        images.checksum * times,
        images.ranks,
    )


def take_images(images: Images, target: Path, count: int) -> Images:
    """Some images from all over a folder, as hard links."""
    total = checksum = 0
    paths = find_images(images.folder)
    paths = paths[:: max(1, len(paths) // count)][:count]
    for path in paths:
        place = target / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        os.link(path, place / path.name)
        data = path.read_bytes()
        total += len(data)
        checksum += zlib.crc32(data)
    return Images(target, len(paths), total, checksum, images.ranks)


def is_tmpfs(folder: Path) -> bool:
    """Whether a folder's files live in memory."""
    best, kind = "", ""
    place = os.path.realpath(folder)
    for line in Path("/proc/mounts").read_text().splitlines():
        mount, name = line.split()[1:3]
        if os.path.commonpath([place, mount]) == mount and len(mount) >= len(best):
            best, kind = mount, name
    return kind == "tmpfs"


def has_room(folder: Path, size: int) -> bool:
    """Whether so many bytes can be written to a folder, with memory left for processes."""
    if shutil.disk_usage(folder).free < size:
        return False
    return not is_tmpfs(folder) or memory_available() > size + _SPARE


def choose_place(size: int, wish: Path | None = None) -> Path:
    """Where to put so many bytes: as wished, a tmpfs where there is one with room, or the disk.

    Raises:
      OSError: there is no room.
    """
    places = [wish] if wish else [Path("/dev/shm"), Path(tempfile.gettempdir())]
    for place in places:
        if place.is_dir() and has_room(place, size):
            return place
    raise OSError(f"no room for {size / 1e9:.1f} GB in {' or '.join(map(str, places))}")


@contextmanager
def scratch_folder(place: Path) -> Iterator[Path]:
    """A new folder that is removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="imageshards-bench-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
