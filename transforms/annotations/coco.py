"""COCO's JSON files of objects: https://cocodataset.org/#format-data."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, ClassVar, NamedTuple

import ijson

from imageshards.transforms.annotations.objects import Corners
from imageshards.transforms.annotations.source import (
    Annotated,
    AnnotationSource,
    Category,
    has_suffix,
    opened,
)
from imageshards.transforms.elements import BuildError, quoted
from imageshards.transforms.records.objects import (
    CROWD,
    KEYPOINT_NAMES,
    KEYPOINT_SIDES,
    KEYPOINTS,
    MASK,
    TEXT,
    VISIBILITY,
)
from imageshards.transforms.records.schemas import AREA, BOX_SIDES

_BUFFER = 1 << 20
_HELD_BYTES = 1 << 24
"""Memory of the objects that are collected before those of each image are emitted."""
_OTHERS = frozenset({"segments_info", "caption"})
"""Fields of annotations that are no objects with boxes."""
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")
_KEYS = frozenset({"images", "annotations", "categories"})


class CocoFile(AnnotationSource):
    """A file with the arrays `images` and `annotations`, and perhaps `categories`.

    The file is read once for each array, as a stream. One process holds its images: about 200 bytes
    for each of them.
    """

    marker: ClassVar[str]
    """The field that the first annotation has to have."""

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether the first annotation of a JSON file is of this kind."""
        first = _first_annotation(uri)
        return first is not None and cls.marker in first

    def read(self, files: Sequence[str]) -> Iterator[Annotated | Category]:
        """Yields the classes, then the annotations, and then the images without any."""
        categories = dict(self._categories())
        yield from (Category(_order(key), found.name) for key, found in categories.items())
        images: dict[Any, _Image] = {}
        names: dict[str, Any] = {}
        for item in self._items("images"):
            key, name = self._fields(item, "images", "id", "file_name")
            image = _Image(str(name), _size(item))
            if images.setdefault(key, image)[:2] != image[:2]:
                raise BuildError(
                    f"--annotations {self.uri}: the images {images[key].name} and {image.name} "
                    f"have the same id {quoted(key)}: give each image an id of its own"
                )
            if (other := names.setdefault(image.name, key)) != key:
                # Boxes of one of them would be drawn on the other.
                problem = (
                    f"{self.uri}: {quoted(other)} and {quoted(key)} are images with the same "
                    "file_name: name each by its path"
                )
                images[key] = image._replace(problem=problem)
        del names
        seen: set[Any] = set()
        parts: dict[Any, _Part] = {}
        corners = Corners()
        first = number = num_bytes = 0
        for number, item in enumerate(self._items("annotations"), 1):
            (key,) = self._fields(item, "annotations", "image_id")
            part = parts.setdefault(key, _Part())
            image = images.get(key, _Image(f"image_id {key}", (0, 0)))
            for found in self._objects(item):
                num_bytes += self._add(found, part, categories, image, corners)
            if num_bytes >= _HELD_BYTES:
                seen.update(parts)
                yield from self._annotated(parts, first, images)
                parts, first, num_bytes = {}, number, 0
        seen.update(parts)
        yield from self._annotated(parts, first, images)
        corners.check(self.uri)
        for key, image in images.items():
            if key not in seen:
                yield Annotated(image.name, number, 0, {}, self._size_of(image), image.problem)

    def _add(
        self,
        item: Mapping[str, Any],
        part: _Part,
        categories: Mapping[Any, _Class],
        image: _Image,
        corners: Corners,
    ) -> int:
        """Adds an object to those of its image; returns the memory that it takes."""
        part.objects += 1
        before = len(part.columns.get(MASK, ()))
        try:
            values = self._values(item, categories)
            self._check(item, image, corners)
        except (KeyError, TypeError, ValueError) as error:
            what = f"annotation {item.get('id')} has" if isinstance(item, dict) else "one has"
            part.problem = f"{self.uri}: {what} {self._fault(item, error)}"
            return 0
        for column, found in values.items():
            part.columns.setdefault(column, []).extend(found)
        return 1000 + sum(map(len, part.columns.get(MASK, ())[before:]))

    def _annotated(
        self, parts: Mapping[Any, _Part], place: int, images: Mapping[Any, _Image]
    ) -> Iterator[Annotated]:
        for key, part in parts.items():
            image = images.get(key, _Image(f"image_id {key}", (0, 0)))
            size = self._size_of(image)
            problem = part.problem or image.problem
            yield Annotated(image.name, place, part.objects, part.columns, size, problem)

    def _categories(self) -> Iterator[tuple[Any, _Class]]:
        """Yields the id of each class, and the class."""
        found: dict[Any, str] = {}
        for item in self._items("categories"):
            key, name = self._fields(item, "categories", "id", "name")
            if found.setdefault(key, str(name)) != str(name):
                raise BuildError(
                    f"--annotations {self.uri}: the categories {found[key]} and {name} have the "
                    f"same id {quoted(key)}: give each category an id of its own"
                )
            names = tuple(map(str, item.get("keypoints") or ()))
            yield key, _Class(str(name), names, int(bool(item.get("isthing", 1))))

    def _objects(self, item: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Returns the objects of an element of `annotations`."""
        return (item,)

    def _size_of(self, image: _Image) -> tuple[int, int] | None:
        """Returns the size that boxes refer to; see `Annotated.size`."""
        return image.size

    @abstractmethod
    def _values(
        self, item: Mapping[str, Any], categories: Mapping[Any, _Class]
    ) -> Mapping[str, Sequence[Any]]:
        """Returns key -> values of an object.

        Raises:
          KeyError: a field is missing, or no category has its `category_id`.
          ValueError, TypeError: a field is malformed.
        """

    def _check(self, item: Mapping[str, Any], image: _Image, corners: Corners) -> None:
        """Adds the box of an object to `corners`, if the objects of this format have one."""

    @abstractmethod
    def _fault(self, item: Any, error: Exception) -> str:
        """Returns what is wrong with an object, for a message."""

    def _items(self, array: str) -> Iterator[Any]:
        """Yields the objects of one of the file's arrays."""
        with json_opened(self.uri) as file:
            yield from ijson.items(file, f"{array}.item", use_float=True, buf_size=_BUFFER)

    def _fields(self, item: Any, array: str, first: str, *names: str) -> list[Any]:
        """Returns an id and other values, without which the file is not COCO's.

        Raises:
          BuildError: one is missing.
        """
        values = [item.get(name) if isinstance(item, dict) else None for name in (first, *names)]
        values[0] = id_of(values[0])
        for name, value in zip((first, *names), values, strict=True):
            if not isinstance(value, str | int):
                raise BuildError(
                    f"--annotations {self.uri}: {name} of one of its {array} is {quoted(value)}"
                )
        return values


class Coco(CocoFile):
    """A file of instances: objects with boxes and segmentations."""

    name = "coco"
    noun = "a JSON file of COCO"
    has_masks = True

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether a JSON file has one of COCO's arrays."""
        if not has_suffix(uri, ".json"):
            return False
        with json_opened(uri) as file:
            return any(
                event == "map_key" and not prefix and value in _KEYS
                for prefix, event, value in ijson.parse(file, buf_size=_BUFFER)
            )

    @classmethod
    def is_meant(cls, uri: str) -> bool:
        """Returns whether the first annotation, if there is one, is an object."""
        first = _first_annotation(uri)
        return first is None or "bbox" in first or first.keys().isdisjoint(_OTHERS)

    def _values(
        self, item: Mapping[str, Any], categories: Mapping[Any, _Class]
    ) -> dict[str, Sequence[Any]]:
        category = class_of(item, categories)
        values = {**box_values(item), TEXT: [category.name.encode()]}
        if self.masks:
            values[MASK] = [json.dumps(item.get("segmentation")).encode()]
        return values

    def _check(self, item: Mapping[str, Any], image: _Image, corners: Corners) -> None:
        area = item.get("area")
        corners.add(item["bbox"], image.size, area if isinstance(area, int | float) else None)

    def _fault(self, item: Any, error: Exception) -> str:
        if "caption" in item and "bbox" not in item:
            return "a caption and no bbox: set --annotation_format coco_captions"
        if "segments_info" in item and "bbox" not in item:
            return "segments_info and no bbox: set --annotation_format coco_panoptic"
        return fault_of_object(item, error)


class CocoKeypoints(Coco):
    """The same, with the keypoints of each object."""

    name = "coco_keypoints"
    noun = "a JSON file of COCO with keypoints"

    def _values(
        self, item: Mapping[str, Any], categories: Mapping[Any, _Class]
    ) -> dict[str, Sequence[Any]]:
        values = super()._values(item, categories)
        category = class_of(item, categories)
        count = len(category.keypoints)
        numbers = [float(number) for number in item.get("keypoints") or [0] * 3 * count]
        if not count:
            raise ValueError(f"the category {category.name}, which has no keypoints")
        if len(numbers) != 3 * count:
            raise ValueError(
                f"{len(numbers)} numbers of keypoints, but its category has {count} keypoints"
            )
        seen = [int(number) for number in numbers[2::3]]
        return values | {
            KEYPOINT_SIDES[0]: numbers[::3],
            KEYPOINT_SIDES[1]: numbers[1::3],
            VISIBILITY: seen,
            KEYPOINTS: [sum(number > 0 for number in seen)],
            KEYPOINT_NAMES: [name.encode() for name in category.keypoints],
        }


class _Class(NamedTuple):
    """A category: its name, the names of its keypoints, and 1 if it is of things (0: of stuff)."""

    name: str
    keypoints: tuple[str, ...]
    is_thing: int


class _Image(NamedTuple):
    """An image of a file.

    Attributes:
      name: its name.
      size: its (width, height), which are 0 if the file does not have them.
      problem: see `Annotated`.
    """

    name: str
    size: tuple[int, int]
    problem: str = ""


@dataclass(slots=True)
class _Part:
    """Some of the objects of an image."""

    objects: int = 0
    columns: dict[str, list[Any]] = field(default_factory=dict)
    problem: str = ""


def box_values(item: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Returns key -> value of the box (corners in pixels), the area and the crowd of an object.

    Raises:
      KeyError: there is no `bbox`.
      ValueError, TypeError: a field is malformed.
    """
    x, y, width, height = map(float, item["bbox"])
    sides = dict(zip(BOX_SIDES, ([x], [y], [x + width], [y + height]), strict=True))
    area = item.get("area")
    area = width * height if area is None else float(area)
    return {**sides, CROWD: [int(item.get("iscrowd") or 0)], AREA: [area]}


def class_of(item: Mapping[str, Any], categories: Mapping[Any, _Class]) -> _Class:
    """Returns the class of an object.

    Raises:
      KeyError: no category has its `category_id`, or it has none.
    """
    key = item["category_id"]
    found = categories.get(id_of(key)) if isinstance(key, str | int | float) else None
    if found is None:
        raise KeyError(key)
    return found


def fault_of_object(item: Any, error: Exception) -> str:
    """Returns what is wrong with an object, for a message."""
    if isinstance(error, KeyError):
        key = error.args[0]
        missing = key in ("bbox", "category_id", "id")
        return f"no {key}" if missing else f"the category_id {quoted(key)}, which no category has"
    if "keypoints" in str(error):
        return str(error)
    if not isinstance(item, dict):
        return f"no JSON object: {quoted(item)}"
    return (
        f"the bbox {quoted(item.get('bbox'))} and the area {quoted(item.get('area'))}: expected "
        "[x, y, width, height] and a number"
    )


def id_of(value: Any) -> Any:
    """Returns an id in one form: some programs write numbers of images or categories as texts.

    >>> id_of("7"), id_of(7.0), id_of(7), id_of("007")
    (7, 7, 7, '007')
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    return value


def _first_annotation(uri: str) -> Mapping[str, Any] | None:
    """Returns the first annotation of a JSON file of COCO; None if there is none."""
    if not has_suffix(uri, ".json"):
        return None
    with json_opened(uri) as file:
        first = next(ijson.items(file, "annotations.item", use_float=True, buf_size=_BUFFER), None)
    return first if isinstance(first, dict) else None


def _size(image: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the (width, height) of an image; (0, 0) if the file does not say them."""
    width, height = image.get("width"), image.get("height")
    if isinstance(width, int | float) and isinstance(height, int | float) and width and height:
        return int(width), int(height)
    return 0, 0


def _order(key: Any) -> int:
    return key if isinstance(key, int) else 0


@contextmanager
def json_opened(uri: str) -> Iterator[IO[bytes]]:
    """Opens a JSON file.

    Raises:
      BuildError: what is read of it is not JSON.
    """
    try:
        with opened(uri) as file:
            yield file
    except ijson.JSONError as error:
        reason, *context = str(error).splitlines()
        near = f", near {quoted(context[0].strip())}" if "".join(context[:1]).strip() else ""
        raise BuildError(f"--annotations {uri} is not JSON: {reason.strip()}{near}") from error
