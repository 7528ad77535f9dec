"""Text files of YOLO, as Ultralytics has them: https://docs.ultralytics.com/datasets/detect/."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import yaml

from imageshards.transforms import storage
from imageshards.transforms.annotations.files import (
    FileOfEach,
    Malformed,
    Objects,
    bounds,
    number,
)
from imageshards.transforms.annotations.source import Annotated, Category
from imageshards.transforms.elements import BuildError, quoted
from imageshards.transforms.storage.protocol import Match

_YAML = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_LISTS = ("classes.txt", "obj.names", "labels.txt", "names.txt")
_LABELS = "labels"


@dataclass(frozen=True)
class Yolo(FileOfEach):
    """A folder of text files with a line for each object, and a file with the names of the classes.

    The names are in data.yaml, or one per line in classes.txt.
    """

    name = "yolo"
    noun = "a folder with text files and the data.yaml of YOLO"
    suffix = ".txt"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether a folder has a file with the names of classes, or is such a file."""
        return bool(_names_file(uri))

    @cached_property
    def folder(self) -> str:
        """The folder of data.yaml, with a slash at its end."""
        return _names_file(self.uri).rpartition("/")[0] + "/"

    def files(self) -> list[str]:
        """Returns the text files: those in folders `labels` if there are any."""
        found = Yolo(self.folder)._all_files()
        below = [uri for uri in found if _LABELS in uri.removeprefix(self.folder).split("/")[:-1]]
        return below or [uri for uri in found if posixpath.basename(uri) not in _LISTS]

    def files_in(self) -> Iterator[Match]:
        """Yields all text files, and the file with the names of the classes."""
        uri = _names_file(self.uri)
        yield uri, *storage.stat(uri)
        yield from super(Yolo, Yolo(self.folder)).files_in()

    def _all_files(self) -> list[str]:
        return super().files()

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Number of a class -> its name."""
        return self._settings[0]

    @cached_property
    def _settings(self) -> tuple[Mapping[int, str], int]:
        """The names of the classes, and the numbers of an object with keypoints; 0: it has none."""
        uri = _names_file(self.uri)
        text = storage.read(uri)[0].decode("utf-8-sig")
        if posixpath.basename(uri) in _LISTS:
            return dict(enumerate(text.splitlines())), 0
        try:
            settings = yaml.safe_load(text)
            names = settings["names"]
            pairs = names.items() if isinstance(names, dict) else enumerate(names)
            shape = settings.get("kpt_shape")
            numbers = 4 + math.prod(map(int, shape)) if shape else 0
            return {int(key): str(name) for key, name in pairs}, numbers
        except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
            raise BuildError(f"--annotations {uri}: it has no list `names`") from error

    def read(self, files: Sequence[str]) -> Iterator[Annotated | Category]:
        """Yields all classes, and the annotations of each file."""
        yield from (Category(order, name) for order, name in self.names.items())
        for found in super().read(files):
            if isinstance(found, Annotated):
                yield found

    def parse(self, below: str, data: bytes) -> Annotated:
        """Parses a file: a class and x, y, width, height, or the points of a polygon, per line.

        Keypoints after the box are ignored.
        """
        objects = Objects()
        for line, text in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
            fields = text.split()
            if not fields:
                continue
            first, *rest = (number(field, f"line {line}") for field in fields)
            if first not in self.names:
                raise Malformed(f"line {line} has the class {fields[0]}, which has no name")
            if len(rest) in (4, 5, self._settings[1]):  # the fifth is a confidence
                x, y, width, height = rest[:4]
                box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            elif len(rest) >= 6 and len(rest) % 2 == 0:
                box = bounds(zip(rest[::2], rest[1::2], strict=True))
            else:
                raise Malformed(f"line {line} is {quoted(text)}: neither a box nor a polygon")
            objects.add(self.names[int(first)], box)
        return objects.annotated(self.image_of(below), None)

    def image_of(self, below: str) -> str:
        """Returns the image of a file: those of labels/train are in images/train."""
        parts = super().image_of(below).split("/")
        if _LABELS in parts[:-1]:
            at = len(parts) - 2 - parts[:-1][::-1].index(_LABELS)
            parts[at] = "images"
        return "/".join(parts)


def _names_file(uri: str) -> str:
    """Returns the file with the names of the classes of a source; empty if there is none."""
    if uri.lower().endswith((".yaml", ".yml")) or posixpath.basename(uri) in _LISTS:
        return uri if storage.exists(uri) else ""
    for name in (*_YAML, *_LISTS):
        if storage.exists(found := storage.join(uri, name)):
            return found
    return ""
