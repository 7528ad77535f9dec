"""Images with colored rectangles, which the writers in this folder annotated, and the tests draw.

Names have blanks, letters outside of ASCII, several dots, and folders. `write_TOOL.py` runs in an
environment with that tool, and writes TOOL.tar.xz with the files of annotations.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

COLORS = {"owl": (255, 0, 0), "traffic light": (0, 255, 0), "zebra": (0, 0, 255)}
CLASSES = tuple(COLORS)


class Thing(NamedTuple):
    """An object: its class, and (xmin, ymin, xmax, ymax) in pixels."""

    label: str
    box: tuple[int, int, int, int]


class Picture(NamedTuple):
    """An image: the path of its file, its width and height, and its objects."""

    name: str
    size: tuple[int, int]
    things: tuple[Thing, ...]


def _pictures() -> Iterator[Picture]:
    names = (
        "plain",
        "two words",
        "stra\u00dfe",
        "v1.2",
        "\u56fe\u50cf",
        "6",
        "7",
        "8",
        "9",
        "empty",
    )
    for number, name in enumerate(names):
        size = (120, 80) if number % 2 else (80, 120)
        things = [
            Thing("owl", (4 + number, 6, 30 + number, 30)),
            Thing("traffic light", (40, 40 + number, 70, 60 + number)),
            Thing("zebra", (10, 62, 24, 78)),
        ]
        count = 0 if name == "empty" else 1 + number % 3
        folder = "train" if number % 4 else "val"
        yield Picture(f"{folder}/{name}.png", size, tuple(things[:count]))


PICTURES = tuple(_pictures())


def draw(picture: Picture) -> Image.Image:
    """The picture: gray, with the objects as rectangles in the colors of their classes."""
    image = Image.new("RGB", picture.size, (128, 128, 128))
    for label, (left, top, right, bottom) in picture.things:
        ImageDraw.Draw(image).rectangle((left, top, right - 1, bottom - 1), COLORS[label])
    return image


def upload_name(picture: Picture) -> str:
    """The name of a picture after its upload to Label Studio: without folder, with a prefix."""
    base = picture.name.rpartition("/")[2].replace(" ", "_")
    return f"{PICTURES.index(picture) + 1:08x}-{base}"


def write_images(folder: Path, uploads: bool = False) -> Path:
    """Writes all pictures below a folder, which is returned."""
    for picture in PICTURES:
        path = folder / (upload_name(picture) if uploads else picture.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(picture).save(path)
    return folder


@contextmanager
def packed(tool: str) -> Iterator[Path]:
    """An empty folder, of which all files but images are packed into TOOL.tar.xz."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        with tarfile.open(Path(__file__).with_name(f"{tool}.tar.xz"), "w:xz") as tar:
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and path.suffix != ".png":
                    tar.add(path, str(path.relative_to(folder)))


def unpack(tool: str, folder: Path) -> Path:
    """Unpacks the files of a tool into a folder, which is returned."""
    with tarfile.open(Path(__file__).with_name(f"{tool}.tar.xz")) as tar:
        tar.extractall(folder, filter="data")
    return folder
