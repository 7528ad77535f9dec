"""An image reference -> the parts of its Example, or a reject. Pure but for reading the image.

The one encoder of both writers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imageshards.transforms import example, images, storage
from imageshards.transforms.convert import Rules, convert
from imageshards.transforms.elements import ImageRef, Problem


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
      conversions: kinds of what was done to the image.
    """

    parts: list[bytes]
    info: images.ImageInfo
    label: int | None
    conversions: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageEncoder:
    """Reads, checks, converts and encodes images.

    Attributes:
      schema: the features of a record.
      rules: how an image is checked and converted.
      base: what `image/filename` leaves out of the beginning of a URI.
    """

    schema: example.Schema
    rules: Rules
    base: str = ""

    @property
    def check(self) -> images.Check:
        """How closely images are looked at: where all are written anew, all are decoded."""
        return "full" if self.rules.rewrites_all else self.rules.check

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
            self.rules.limit_bytes(ref.size)
            data = storage.read(ref.uri)
            image = convert(data, self.rules)
        except storage.ReadError as error:
            raise Rejected(Problem("read", error.kind, str(error))) from error
        except images.ImageError as error:
            raise Rejected(Problem("check", error.kind, str(error))) from error
        info = image.info
        values: dict[str, example.Value] = {
            "encoded": image.data,
            "format": info.format.encode(),
            "height": info.height,
            "width": info.width,
            "filename": ref.uri.removeprefix(self.base).encode("utf-8", "surrogateescape"),
        }
        values.update(ref.features or {})
        label = None
        if ref.label is not None:
            label, name = classes[ref.label]
            values["label"] = label
            values["class_text"] = name
        return Encoded(example.encode(self.schema, values), info, label, image.kinds)
