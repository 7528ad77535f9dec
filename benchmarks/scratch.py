"""Prepares the input images: copies, hard links to the copies, and a folder with enough room.

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
"""Bytes of memory that files on a tmpfs leave to processes."""


@dataclass(frozen=True)
class Images:
    """A folder of images, FOLDER/CLASS/NAME, and what every output must contain.

    Attributes:
      folder: the folder.
      count: number of images.
      bytes: total size of the images.
      checksum: sum of the CRC-32 of all images, which does not depend on their order.
      ranks: CRC-32 of an image -> its position in the sorted listing; copies count as one.
    """

    folder: Path
    count: int
    bytes: int
    checksum: int
    ranks: dict[int, int] = field(repr=False)


def find_images(folder: Path) -> list[Path]:
    """Returns all JPEG files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)


def copy_images(source: Path, target: Path, copies: int) -> Images:
    """Copies every image `copies` times to TARGET/CLASS/NAME; the class is its folder's name.

    Raises:
      ValueError: there is no image, or two images get the same name.
    """
    paths = find_images(source)
    if not paths:
        raise ValueError(f"{source}: the folder has no JPEG file ({', '.join(_SUFFIXES)})")
    ranks: dict[int, int] = {}
    total = checksum = 0
    # In the order of the copies.
    for path in sorted(paths, key=lambda path: (path.parent.name, path.name)):
        data = path.read_bytes()
        crc = zlib.crc32(data)
        ranks.setdefault(crc, len(ranks))
        total += len(data)
        checksum += crc
        class_folder = target / path.parent.name
        class_folder.mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            name = class_folder / f"{path.stem}_{copy:03d}{path.suffix}"
            if name.exists():
                raise ValueError(f"{path}: another image of this class has the same name")
            name.write_bytes(data)
    return Images(target, len(paths) * copies, total * copies, checksum * copies, ranks)


def link_images(images: Images, target: Path, times: int) -> Images:
    """Makes `times` hard links to every image: more images without more bytes."""
    for path in find_images(images.folder):
        class_folder = target / path.parent.name
        class_folder.mkdir(parents=True, exist_ok=True)
        for time in range(times):
            os.link(path, class_folder / f"{path.stem}_{time:03d}{path.suffix}")
    return Images(
        target,
        images.count * times,
        images.bytes * times,
        images.checksum * times,
        images.ranks,
    )


def take_images(images: Images, target: Path, count: int) -> Images:
    """Makes hard links to `count` images, evenly spread over the folder."""
    total = checksum = 0
    paths = find_images(images.folder)
    paths = paths[:: max(1, len(paths) // count)][:count]
    for path in paths:
        class_folder = target / path.parent.name
        class_folder.mkdir(parents=True, exist_ok=True)
        os.link(path, class_folder / path.name)
        data = path.read_bytes()
        total += len(data)
        checksum += zlib.crc32(data)
    return Images(target, len(paths), total, checksum, images.ranks)


def is_tmpfs(folder: Path) -> bool:
    """Returns whether a folder is on a tmpfs."""
    best, kind = "", ""
    real = os.path.realpath(folder)
    for line in Path("/proc/mounts").read_text().splitlines():
        mount, name = line.split()[1:3]
        if os.path.commonpath([real, mount]) == mount and len(mount) >= len(best):
            best, kind = mount, name
    return kind == "tmpfs"


def has_room(folder: Path, size: int) -> bool:
    """Returns whether `size` bytes fit into a folder and leave memory for processes."""
    if shutil.disk_usage(folder).free < size:
        return False
    return not is_tmpfs(folder) or memory_available() > size + _SPARE


def choose_folder(size: int, wish: Path | None = None) -> Path:
    """Returns a folder with room for `size` bytes: `wish`, else a tmpfs, else one on the disk.

    Raises:
      OSError: none has enough room.
    """
    candidates = [wish] if wish else [Path("/dev/shm"), Path(tempfile.gettempdir())]
    for parent in candidates:
        if parent.is_dir() and has_room(parent, size):
            return parent
    raise OSError(f"no room for {size / 1e9:.1f} GB in {' or '.join(map(str, candidates))}")


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Makes a folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="imageshards-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
