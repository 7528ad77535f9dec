"""XML files of CVAT: https://docs.cvat.ai/docs/manual/advanced/xml_format/."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from xml.etree import ElementTree

from imageshards.transforms.annotations.files import (
    Malformed,
    Objects,
    bounds,
    number,
    size_of,
)
from imageshards.transforms.annotations.source import (
    Annotated,
    AnnotationSource,
    Category,
    has_suffix,
    opened,
)
from imageshards.transforms.elements import BuildError
from imageshards.transforms.records.objects import OCCLUDED, TEXT

_CORNERS = ("xtl", "ytl", "xbr", "ybr")
_HEAD = 1 << 16
_WHOLE_IMAGE = ("tag",)


class Cvat(AnnotationSource):
    """A file of the format "CVAT for images", with all images and their shapes."""

    name = "cvat"
    noun = "an XML file of CVAT for images"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether an XML file has a root `annotations`."""
        if not has_suffix(uri, ".xml"):
            return False
        with opened(uri) as file:
            return b"<annotations" in file.read(_HEAD)

    def read(self, files: Sequence[str]) -> Iterator[Annotated | Category]:
        """Yields the images one by one, and the classes that they use."""
        names: dict[bytes, None] = {}
        images: set[str] = set()
        place = 0
        with opened(self.uri) as file:
            try:
                for _, item in ElementTree.iterparse(file):
                    if item.tag == "track":
                        raise BuildError(
                            f"--annotations {self.uri} is of CVAT for video: export the task as "
                            "CVAT for images"
                        )
                    if item.tag == "image":
                        place += 1
                        found = self._image(item, place)
                        if found.name in images and not found.problem:
                            # A project has the images of several tasks.
                            reason = f"{self.uri}: several images have this name"
                            found = replace(found, problem=reason)
                        images.add(found.name)
                        names |= dict.fromkeys(found.values.get(TEXT, ()))
                        yield found
                        item.clear()
            except ElementTree.ParseError as error:
                raise BuildError(f"--annotations {self.uri} is not XML: {error}") from error
        yield from (Category(0, name.decode()) for name in names)

    def _image(self, image: ElementTree.Element, place: int) -> Annotated:
        name = image.get("name") or ""
        objects = Objects(OCCLUDED)
        try:
            for shape in image:
                if shape.tag not in _WHOLE_IMAGE:
                    label = shape.get("label") or ""
                    occluded = int(number(shape.get("occluded") or 0, "occluded"))
                    objects.add(label, _box(shape), occluded)
            size = size_of(image.get("width"), image.get("height"))
        except Malformed as error:
            count = sum(shape.tag not in _WHOLE_IMAGE for shape in image)
            return Annotated(name, place, count, {}, (0, 0), f"{self.uri}: {error}")
        return objects.annotated(name, size, place)


def _box(shape: ElementTree.Element) -> Sequence[float]:
    values: Mapping[str, str] = shape.attrib
    if shape.tag == "box":
        box = [number(values.get(side), side) for side in _CORNERS]
        return _rotated(box, number(values.get("rotation") or 0, "rotation"))
    if shape.tag == "polygon":
        points = values.get("points") or ""
        pairs = [pair.partition(",")[::2] for pair in points.split(";")]
        return bounds([(number(x, "point"), number(y, "point")) for x, y in pairs])
    if shape.tag == "ellipse":
        x, y, rx, ry = (number(values.get(key), key) for key in ("cx", "cy", "rx", "ry"))
        return _rotated((x - rx, y - ry, x + rx, y + ry), number(values.get("rotation") or 0, ""))
    if shape.tag == "mask":
        left, top, width, height = (
            number(values.get(key), key) for key in ("left", "top", "width", "height")
        )
        return left, top, left + width, top + height
    raise Malformed(f"a shape is a {shape.tag}, around which there is no box")


def _rotated(box: Sequence[float], degrees: float) -> Sequence[float]:
    """Returns the box around a box that is rotated around its centre."""
    if not degrees:
        return box
    xmin, ymin, xmax, ymax = box
    x, y = (xmin + xmax) / 2, (ymin + ymax) / 2
    sin, cos = abs(math.sin(math.radians(degrees))), abs(math.cos(math.radians(degrees)))
    width = (xmax - xmin) * cos + (ymax - ymin) * sin
    height = (xmax - xmin) * sin + (ymax - ymin) * cos
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2
