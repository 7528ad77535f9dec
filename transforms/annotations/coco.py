"""COCO's JSON files of objects: https://cocodataset.org/#format-data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import ijson

from imageshards.transforms import storage
from imageshards.transforms.annotations.source import Annotated, AnnotationSource, Category
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
_HELD = 20_000
"""Objects that are collected before those of each image are emitted."""
_KEYS = frozenset({"images", "annotations", "categories"})


class Coco(AnnotationSource):
    """A file with the arrays `images`, `annotations` and `categories`.

    The file is read once for each of the three, as a stream. One process holds its images: about
    200 bytes for each of them.
    """

    name = "coco"
    noun = "a JSON file of COCO"
    has_masks = True

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether a JSON file has one of COCO's arrays."""
        if not uri.lower().endswith(".json"):
            return False
        with _opened(uri) as file:
            return any(
                event == "map_key" and not prefix and value in _KEYS
                for prefix, event, value in ijson.parse(file, buf_size=_BUFFER)
            )

    def read(self, files: Sequence[str]) -> Iterator[Annotated | Category]:
        """Yields the classes, then the annotations, and then the images without any."""
        categories: dict[Any, _Class] = {}
        for item in self._items("categories"):
            key, name = self._fields(item, "categories", "id", "name")
            categories[key] = _Class(str(name), tuple(map(str, item.get("keypoints") or ())))
            yield Category(_order(key), str(name))
        images: dict[Any, tuple[str, tuple[int, int]]] = {}
        for item in self._items("images"):
            key, name = self._fields(item, "images", "id", "file_name")
            images[key] = str(name), _size(item)
        seen: set[Any] = set()
        held: dict[Any, list[Mapping[str, Any]]] = {}
        first = number = 0
        for number, item in enumerate(self._items("annotations"), 1):
            (key,) = self._fields(item, "annotations", "image_id")
            held.setdefault(key, []).append(item)
            if number - first == _HELD:
                seen.update(held)
                yield from self._annotated(held, first, images, categories)
                held, first = {}, number
        seen.update(held)
        yield from self._annotated(held, first, images, categories)
        for key, (name, size) in images.items():
            if key not in seen:
                yield Annotated(name, number, 0, {}, size)

    def _annotated(
        self,
        held: Mapping[Any, list[Mapping[str, Any]]],
        place: int,
        images: Mapping[Any, tuple[str, tuple[int, int]]],
        categories: Mapping[Any, _Class],
    ) -> Iterator[Annotated]:
        for key, items in held.items():
            name, size = images.get(key, (f"image_id {key}", (0, 0)))
            problem = ""
            columns: dict[str, list[Any]] = {}
            for item in items:
                try:
                    values = self._values(item, categories[item["category_id"]])
                except (KeyError, TypeError, ValueError) as error:
                    problem = f"{self.uri}: annotation {item.get('id')} has {_fault(item, error)}"
                    continue
                for column, found in values.items():
                    columns.setdefault(column, []).extend(found)
            yield Annotated(name, place, len(items), columns, size, problem)

    def _values(self, item: Mapping[str, Any], category: _Class) -> dict[str, Sequence[Any]]:
        """Returns key -> values of an object.

        Raises:
          KeyError: a field is missing.
          ValueError: a field is malformed; so do TypeErrors.
        """
        x, y, width, height = map(float, item["bbox"])
        sides = dict(zip(BOX_SIDES, ([x], [y], [x + width], [y + height]), strict=True))
        area = float(item.get("area", width * height))
        values: dict[str, Sequence[Any]] = {
            **sides,
            TEXT: [category.name.encode()],
            CROWD: [int(item.get("iscrowd") or 0)],
            AREA: [area],
        }
        if self.masks:
            values[MASK] = [json.dumps(item.get("segmentation")).encode()]
        return values

    def _items(self, array: str) -> Iterator[Any]:
        """Yields the objects of one of the file's arrays."""
        with _opened(self.uri) as file:
            yield from ijson.items(file, f"{array}.item", use_float=True, buf_size=_BUFFER)

    def _fields(self, item: Any, array: str, *names: str) -> list[Any]:
        """Returns the values of some fields, without which the file is not COCO's."""
        values = [item.get(name) if isinstance(item, dict) else None for name in names]
        for name, value in zip(names, values, strict=True):
            if not isinstance(value, str | int):
                raise BuildError(
                    f"--annotations {self.uri}: {name} of one of its {array} is {quoted(value)}"
                )
        return values


class CocoKeypoints(Coco):
    """The same, with the keypoints of each object."""

    name = "coco_keypoints"
    noun = "a JSON file of COCO with keypoints"

    def _values(self, item: Mapping[str, Any], category: _Class) -> dict[str, Sequence[Any]]:
        values = super()._values(item, category)
        count = len(category.keypoints)
        numbers = [float(number) for number in item.get("keypoints") or [0] * 3 * count]
        if not count or len(numbers) != 3 * count:
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
    """A category: its name, and the names of its keypoints."""

    name: str
    keypoints: tuple[str, ...]


def _fault(item: Mapping[str, Any], error: Exception) -> str:
    if "caption" in item and "bbox" not in item:
        return "a caption and no bbox: write captions to a manifest, and set --captions column:NAME"
    if isinstance(error, KeyError):
        key = error.args[0]
        missing = key in ("bbox", "category_id")
        return f"no {key}" if missing else f"the category_id {quoted(key)}, which no category has"
    if "keypoints" in str(error):
        return str(error)
    return (
        f"the bbox {quoted(item.get('bbox'))} and the area {quoted(item.get('area'))}: expected "
        "[x, y, width, height] and a number"
    )


def _size(image: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the (width, height) of an image; (0, 0) if the file does not say them."""
    width, height = image.get("width"), image.get("height")
    if isinstance(width, int | float) and isinstance(height, int | float) and width and height:
        return int(width), int(height)
    return 0, 0


def _order(key: Any) -> int:
    try:
        return int(key)
    except (TypeError, ValueError):
        return 0


@contextmanager
def _opened(uri: str) -> Iterator[IO[bytes]]:
    try:
        with storage.open_read(uri) as file:
            yield file
    except ijson.JSONError as error:
        reason, *context = str(error).splitlines()
        near = f", near {quoted(context[0].strip())}" if "".join(context[:1]).strip() else ""
        raise BuildError(f"--annotations {uri} is not JSON: {reason.strip()}{near}") from error
