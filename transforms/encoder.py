"""An image reference -> the parts of its Example, or a reject. Pure but for reading the image.

The one encoder of both writers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from imageshards.transforms import example, images, storage
from imageshards.transforms.elements import ImageRef, Problem
from imageshards.transforms.reader import ImageReader


class Rejected(Exception):
    """An image that does not go into the data set, with its problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.reason)
        self.problem = problem


@dataclass(frozen=True)
class Encoded:
    """A record before its framing.

    Attributes:
      parts: bytes whose concatenation is the serialized Example.
      info: format and size in pixels of the image.
      label: label number, or None.
    """

    parts: list[bytes]
    info: images.ImageInfo
    label: int | None


@dataclass(frozen=True)
class ImageEncoder:
    """Reads, checks and encodes images.

    Attributes:
      schema: the features of a record.
      check: how closely an image is looked at.
      base: what `image/filename` leaves out of the beginning of a URI.
      reader: gets the bytes.
    """

    schema: example.Schema
    check: images.Check
    base: str = ""
    reader: ImageReader = field(default_factory=ImageReader)

    def encode(self, ref: ImageRef, classes: Mapping[str, tuple[int, bytes]]) -> Encoded:
        """The record of one image.

        Args:
          ref: which image.
          classes: label of a reference -> (number, name) of its class; empty without labels.

        Raises:
          Rejected: the image cannot be had or would not decode in training.
        """
        if ref.problem:
            raise Rejected(ref.problem)
        try:
            data = self.reader.read(ref)
        except storage.ReadError as error:
            raise Rejected(Problem("read", error.kind, str(error))) from error
        try:
            info = images.inspect(data, self.check)
        except images.ImageError as error:
            raise Rejected(Problem("check", error.kind, str(error))) from error
        values: dict[str, example.Value] = {
            "encoded": data,
            "format": info.format.encode(),
            "height": info.height,
            "width": info.width,
            "filename": ref.uri.removeprefix(self.base).encode("utf-8", "surrogateescape"),
        }
        label = None
        if ref.label is not None:
            label, name = classes[ref.label]
            values["label"] = label
            values["class_text"] = name
        return Encoded(example.encode(self.schema, values), info, label)
