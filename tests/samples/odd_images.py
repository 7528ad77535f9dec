"""More than 400 odd image files: every format, what codecs' own test suites hold, and damage.

`odd_images()` returns them by name. An `Odd` says whether it is intact: such a file must become a
record, unless an option rejects its format or its frames.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from odd import DAMAGED, EXOTIC, INTACT, Odd
from odd_bmp import bmps
from odd_damage import damaged, not_images
from odd_gif import gifs
from odd_jpeg import jpegs
from odd_others import orientations, others
from odd_png import pngs
from odd_tiff import tiffs
from pictures import written


@cache
def odd_images() -> dict[str, Odd]:
    """Name -> file. The suffixes are right, except where a name says otherwise."""
    unreadable = {"ICNS-P", "TIFF-YCbCr"}
    found = {
        f"written/{name}.{name.partition('-')[0].lower()}": Odd(
            data, DAMAGED if name in unreadable else INTACT
        )
        for name, data in written().items()
    }
    for folder, files in (
        ("jpeg", jpegs()), ("png", pngs()), ("gif", gifs()), ("bmp", bmps()),
        ("tiff", tiffs()), ("other", others()), ("orientation", orientations()),
        ("damaged", damaged()), ("none", not_images()),
    ):  # fmt: skip
        for name, odd in files:
            assert f"{folder}/{name}" not in found
            found[f"{folder}/{name}"] = odd
    return found


def may_reject(odd: Odd, kind: str, convert: str, multi_frame: str) -> bool:
    """Whether a build with these options may reject a file with an error of this kind."""
    if odd.state == DAMAGED:
        return True
    if odd.state == EXOTIC:
        return kind in ("Unsupported", "Corrupt")
    return (
        (kind in ("Unsupported", "NotAnImage") and (convert == "never" or multi_frame == "all"))
        or (kind == "MultiFrame" and multi_frame != "first")
        or (kind == "TooLarge" and convert == "jpeg")  # a side is longer than JPEG's limit
    )


def write_odd_images(
    folder: Path, wanted: Callable[[str, Odd], bool] = lambda name, odd: True
) -> list[str]:
    """Writes the odd images below a folder; returns their names."""
    names = [name for name, odd in odd_images().items() if wanted(name, odd)]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(odd_images()[name].data)
    return names
