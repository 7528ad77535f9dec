"""Text files of YOLO, as Ultralytics has them: https://docs.ultralytics.com/datasets/detect/."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import yaml

from imageshards.transforms import storage
from imageshards.transforms.annotations.files import (
    FileOfEach,
    Malformed,
    Objects,
    bounds,
    number,
    pattern_of,
)
from imageshards.transforms.annotations.source import Annotated, Category
from imageshards.transforms.elements import BuildError, UsageError, counted, quoted
from imageshards.transforms.images.validate import is_image_name
from imageshards.transforms.records.objects import (
    KEYPOINT_NAMES,
    KEYPOINT_SIDES,
    KEYPOINTS,
    VISIBILITY,
)
from imageshards.transforms.storage.protocol import Match

_YAML = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_LISTS = ("classes.txt", "obj.names", "labels.txt", "names.txt")
_LABELS = "labels"
_WITH_VISIBILITY = 3
_LEAST_OF_POLYGON = 6
"""Numbers of a triangle."""
_LARGEST_QUAD = 9
"""Numbers of four corners and a confidence."""
_LOOKED_AT = 32
"""Files that show whether lines are polygons or keypoints."""
_MOST = 0.9
"""The fraction of the lines that decides."""
_FEW = 3


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

    @classmethod
    def is_meant(cls, uri: str) -> bool:
        """Returns True: objects that data.yaml gives no keypoints are boxes and polygons.

        Raises:
          UsageError: the first files seem to have keypoints.
        """
        source = cls(uri)
        if source._settings.points:
            return True
        found: list[tuple[list[float], str]] = []
        for file, data in source._contents(source._first_files()):
            if isinstance(data, bytes):
                found += ((line, f"{quoted(text)} in {file}") for line, text in _long_lines(data))
        if keypoints := _keypoints_in([line for line, _ in found]):
            points, values = keypoints
            raise UsageError(
                f"--annotations {uri}: {found[0][1]} seems to be a box with "
                f"{counted(points, 'keypoint')}: write 'kpt_shape: [{points}, {values}]' into "
                "data.yaml, or set --annotation_format yolo if it is a polygon"
            )
        return True

    def _first_files(self) -> list[str]:
        for below in (_LABELS, f"**/{_LABELS}", ""):
            found = storage.match_first(pattern_of(self.folder, self.suffix, below))
            if files := [uri for uri, *_ in found if posixpath.basename(uri) not in _LISTS]:
                return files[:_LOOKED_AT]
        return []

    @cached_property
    def folder(self) -> str:
        """The folder that `path` of data.yaml names if the labels are there, else that of the file.

        It has a slash at its end.
        """
        folder = _names_file(self.uri).rpartition("/")[0] + "/"
        path = self._settings.path
        if not path or _has_labels(folder):
            return folder
        is_whole = path.startswith(("/", "~")) or "://" in path
        named = storage.normalize(path if is_whole else storage.join(folder, path)) + "/"
        return named if _has_labels(named) else folder

    def files(self) -> list[str]:
        """Returns the text files: those in folders `labels` if there are any."""
        every = Yolo(self.folder)._all_files()
        found = [uri for uri in every if posixpath.basename(uri) not in _LISTS]
        below = [uri for uri in found if _LABELS in uri.removeprefix(self.folder).split("/")[:-1]]
        return below or found

    def files_in(self) -> Iterator[Match]:
        """Yields all text files, and the file with the names of the classes."""
        uri = _names_file(self.uri)
        yield uri, *storage.stat(uri)
        yield from super(Yolo, Yolo(self.folder)).files_in()

    def _all_files(self) -> list[str]:
        return super().files()

    @cached_property
    def _settings(self) -> _Settings:
        uri = _names_file(self.uri)
        text = storage.read(uri)[0].decode("utf-8-sig")
        if posixpath.basename(uri) in _LISTS:
            return _Settings(dict(enumerate(text.rstrip().splitlines())))
        try:
            return _Settings.parse(yaml.safe_load(text))
        except Malformed as error:
            raise BuildError(f"--annotations {uri}: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
            raise BuildError(f"--annotations {uri}: it has no list `names`") from error

    def read(self, files: Sequence[str]) -> Iterator[Annotated | Category]:
        """Yields all classes, and the annotations of each file."""
        names = self._settings.names
        yield from (Category(order, name.strip()) for order, name in names.items())
        for found in super().read(files):
            if isinstance(found, Annotated):
                yield found

    def parse(self, below: str, data: bytes) -> Annotated | None:
        """Parses a file: a class and x, y, width, height, or the points of a polygon, per line.

        Returns None for a list of images, such as train.txt.
        """
        objects = Objects(*self._keys)
        parities: dict[int, int] = {}
        for line, text in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
            fields = text.split()
            if not fields:
                continue
            if line == 1 and is_image_name(text.strip()):
                return None
            first, *rest = (number(field, f"line {line}") for field in fields)
            if first not in self._settings.names:
                raise Malformed(f"line {line} has the class {fields[0]}, which has no name")
            self._add(objects, self._settings.names[int(first)].strip(), rest, line, text)
            if len(rest) not in self._settings.counts:
                parities.setdefault(len(rest) % 2, line)
        if len(parities) > 1:  # an odd number is a confidence, or a number is missing
            raise Malformed(
                f"line {parities[1]} has an odd number of coordinates, line {parities[0]} does not"
            )
        return objects.annotated(self.image_of(below), None)

    _keys: ClassVar[tuple[str, ...]] = ()

    def _add(self, objects: Objects, name: str, rest: list[float], line: int, text: str) -> None:
        """Adds the object of a line: the class, and the numbers that follow it."""
        if len(rest) in (4, 5, *self._settings.counts):  # the fifth is a confidence
            objects.add(name, _box(rest))
        elif _have_visibilities(rest):
            raise Malformed(
                f"line {line} is {quoted(text)}: keypoints require their kpt_shape in data.yaml"
            )
        elif len(rest) >= _LEAST_OF_POLYGON:
            points = rest[: len(rest) // 2 * 2]  # a confidence may follow
            objects.add(name, bounds(zip(points[::2], points[1::2], strict=True)))
        else:
            raise Malformed(f"line {line} is {quoted(text)}: neither a box nor a polygon")

    def image_of(self, below: str) -> str:
        """Returns the image of a file: those of labels/train are in images/train."""
        parts = super().image_of(below).split("/")
        if _LABELS in parts[:-1]:
            at = len(parts) - 2 - parts[:-1][::-1].index(_LABELS)
            parts[at] = "images"
        return "/".join(parts)


@dataclass(frozen=True)
class YoloKeypoints(Yolo):
    """The same, with the keypoints of each object; data.yaml has their number (`kpt_shape`)."""

    name = "yolo_keypoints"
    noun = "a folder with text files and a data.yaml of YOLO with kpt_shape"
    _keys = (*KEYPOINT_SIDES, VISIBILITY, KEYPOINTS, KEYPOINT_NAMES)

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether data.yaml has a `kpt_shape`."""
        return super().recognizes(uri) and bool(cls(uri)._settings.points)

    def _add(self, objects: Objects, name: str, rest: list[float], line: int, text: str) -> None:
        points, values = self._settings.points, self._settings.values_of_point
        if len(rest) not in self._settings.counts:
            raise Malformed(
                f"line {line} is {quoted(text)}: expected a class, a box, and {points} keypoints "
                f"of {values} numbers"
            )
        numbers = rest[4 : 4 + points * values]
        x, y = numbers[::values], numbers[1::values]
        # Without a third number, keypoints that are not labelled are at 0, 0.
        seen = (
            [int(value) if value.is_integer() else -1 for value in numbers[2::values]]
            if values == _WITH_VISIBILITY
            else [2 if any(pair) else 0 for pair in zip(x, y, strict=True)]
        )
        if not {*seen} <= {0, 1, 2}:
            # Models write confidences there.
            raise Malformed(f"line {line} has a keypoint whose visibility is not 0, 1 or 2")
        names = self._settings.names_of_points(name)
        objects.add_lists(name, _box(rest), x, y, seen, [sum(value > 0 for value in seen)], names)


@dataclass(frozen=True)
class _Settings:
    """The content of data.yaml.

    Attributes:
      names: number of a class -> its name.
      path: the folder of the data set, relative to that of the file; empty: not set.
      points: keypoints of each object; 0: none.
      values_of_point: 2 for x and y, 3 with the visibility.
      point_names: number of a class -> the names of its keypoints.
    """

    names: Mapping[int, str]
    path: str = ""
    points: int = 0
    values_of_point: int = _WITH_VISIBILITY
    point_names: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, values: Any) -> _Settings:
        """Parses the values of a data.yaml.

        Raises:
          AttributeError, KeyError, TypeError, ValueError: they have no names.
          Malformed: the shape of keypoints is none.
        """
        names = values["names"]
        if not isinstance(names, dict | list):
            raise ValueError  # the letters of a text are no names
        pairs = names.items() if isinstance(names, dict) else enumerate(names)
        shape = values.get("kpt_shape") or (0, _WITH_VISIBILITY)
        try:
            points, values_of_point = map(int, shape)
            is_shape = points >= 0 and values_of_point in (2, _WITH_VISIBILITY)
        except (TypeError, ValueError):
            is_shape = False
        if not is_shape:
            raise Malformed(f"its kpt_shape is {quoted(shape)}, not [keypoints, 2 or 3]")
        return cls(
            {int(key): str(name) for key, name in pairs},
            str(values.get("path") or ""),
            points,
            values_of_point,
            {
                int(key): [*map(str, found)]
                for key, found in (values.get("kpt_names") or {}).items()
            },
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers behind the class in a line with keypoints, without and with a confidence."""
        count = 4 + self.points * self.values_of_point
        return (count, count + 1) if self.points else ()

    def names_of_points(self, name: str) -> list[bytes]:
        """Returns the names of the keypoints of a class: their numbers if they have none."""
        for key, found in self.point_names.items():
            if self.names.get(key, "").strip() == name and len(found) == self.points:
                return [text.encode() for text in found]
        return [str(at).encode() for at in range(self.points)]


def _box(numbers: Sequence[float]) -> tuple[float, float, float, float]:
    x, y, width, height = numbers[:4]
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _long_lines(data: bytes) -> Iterator[tuple[list[float], str]]:
    """Yields the numbers behind the class, and the text, of each line that has more than a box."""
    for text in data.decode("utf-8-sig", "replace").splitlines():
        try:
            _, *numbers = map(float, text.split())
        except ValueError:  # a malformed line, or one of a list of images
            continue
        if len(numbers) >= _LEAST_OF_POLYGON:
            yield numbers, text


def _keypoints_in(lines: Sequence[Sequence[float]]) -> tuple[int, int] | None:
    """Returns (keypoints, numbers of each) if lines seem to have them; None for polygons.

    Polygons have different numbers of corners, and a second corner that is near the others. All
    objects have the same number of keypoints, behind the center and the size of a box around them.

    Args:
      lines: the numbers behind the class.

    >>> _keypoints_in([[0.7, 0.6, 0.1, 0.2, 0.69, 0.55, 2, 0.72, 0.63, 1]])
    (2, 3)
    """
    if len({*map(len, lines)}) != 1:
        return None
    count, most = len(lines[0]), _MOST * len(lines)
    if sum(map(_may_be_polygon, lines)) >= most and (len(lines) < _FEW or count <= _LARGEST_QUAD):
        return None
    for values in (_WITH_VISIBILITY, 2):
        points, rest = divmod(count - 4, values)
        if points and rest < 2 and sum(_have_keypoints(line, values) for line in lines) >= most:
            return points, values
    return None


def _may_be_polygon(line: Sequence[float]) -> bool:
    corners = [*zip(line[::2], line[1::2], strict=False)]
    (x, y), others = corners[1], [corners[0], *corners[2:]]
    left, top, right, bottom = bounds(others)
    near = 0.6 * max(right - left, bottom - top)
    return (
        all(0 <= side <= 1 for corner in corners for side in corner)
        and left - near <= x <= right + near
        and top - near <= y <= bottom + near
    )


def _have_keypoints(line: Sequence[float], values: int) -> bool:
    """Returns whether the numbers of a line may be a box and keypoints of so many values."""
    x, y, width, height = line[:4]
    points = (len(line) - 4) // values
    numbers = line[4 : 4 + points * values]
    if values == _WITH_VISIBILITY and {*numbers[2::3]} <= {0, 1, 2}:
        return True
    if values == _WITH_VISIBILITY and points == 1:
        return False
    labelled = [p for p in zip(numbers[::values], numbers[1::values], strict=True) if any(p)]
    if not labelled:
        return True
    left, top, right, bottom = bounds(labelled)
    # Keypoints may be a little outside of their box, and are not all at one position.
    return (
        x - 0.75 * width <= left <= right <= x + 0.75 * width
        and y - 0.75 * height <= top <= bottom <= y + 0.75 * height
        and (len(labelled) == 1 or right - left >= 0.3 * width or bottom - top >= 0.3 * height)
    )


def _have_visibilities(line: Sequence[float]) -> bool:
    """Returns whether the numbers of a line are keypoints for certain: 2 is no coordinate."""
    points, rest = divmod(len(line) - 4, _WITH_VISIBILITY)
    if points < 1 or rest > 1:
        return False
    seen = {*line[6 : 4 + 3 * points : 3]}
    return 2 in seen and seen <= {0, 1, 2}


def _has_labels(folder: str) -> bool:
    """Returns whether there are text files in a folder `labels` somewhere below a folder."""
    return any(
        storage.match_first(pattern_of(folder, Yolo.suffix, below))
        for below in (_LABELS, f"**/{_LABELS}")
    )


def _names_file(uri: str) -> str:
    """Returns the file with the names of the classes of a source; empty if there is none."""
    if uri.lower().endswith((".yaml", ".yml")) or posixpath.basename(uri) in _LISTS:
        return uri if storage.exists(uri) else ""
    for name in (*_YAML, *_LISTS):
        if storage.exists(found := storage.join(uri, name)):
            return found
    return ""
