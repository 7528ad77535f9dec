"""XML files of Pascal VOC: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from imageshards.transforms.annotations.files import (
    FileOfEach,
    Malformed,
    Objects,
    number,
    size_of,
)
from imageshards.transforms.annotations.source import Annotated
from imageshards.transforms.records.objects import DIFFICULT, TRUNCATED, VIEW

_ROOT = re.compile(rb"<annotation[\s>]")
_SIDES = ("xmin", "ymin", "xmax", "ymax")


class Voc(FileOfEach):
    """A folder of XML files with objects, one for each image."""

    name = "voc"
    noun = "a folder of XML files of Pascal VOC"
    suffix = ".xml"

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether one of the first XML files has a root `annotation`."""
        return cls.some_file_has(uri, _ROOT)

    def parse(self, below: str, data: bytes) -> Annotated:
        """Parses a file; the image is its `filename`, else it is named as the file."""
        try:
            root = ElementTree.fromstring(data)
        except ElementTree.ParseError as error:
            raise Malformed(f"not XML: {error}") from error
        name = (root.findtext("filename") or "").strip()
        image = self.beside(below, name) if name else self.image_of(below)
        with self.naming(image):
            size = size_of(root.findtext("size/width"), root.findtext("size/height"))
            return _objects(root).annotated(image, size)


def _objects(root: ElementTree.Element) -> Objects:
    objects = Objects(DIFFICULT, TRUNCATED, VIEW)
    for item in root.iter("object"):
        box = item.find("bndbox")
        name = (item.findtext("name") or "").strip()
        if box is None or not name:
            raise Malformed(f"an object has no {'name' if box is not None else 'bndbox'}")
        objects.add(
            name,
            [number(box.findtext(side), side) for side in _SIDES],
            int(number(item.findtext("difficult") or 0, "difficult")),
            int(number(item.findtext("truncated") or 0, "truncated")),
            (item.findtext("pose") or "").encode(),
        )
    return objects
