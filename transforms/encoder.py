"""An image reference -> the parts of its Example, or a reject. Pure but for reading the image.

The one encoder of both writers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imageshards.transforms import example, images, storage
from imageshards.transforms.convert import Rules, convert, pixel_digest
from imageshards.transforms.elements import ImageRef, Problem
from imageshards.transforms.features import FeatureColumn
from imageshards.transforms.reader import ImageReader


class Rejected(Exception):
    """An image that does not go into the data set.

    Attributes:
      problem: why.
      stamp: of the file, as it was read, or 0.
    """

    def __init__(self, problem: Problem, stamp: int = 0) -> None:
        super().__init__(problem.reason)
        self.problem = problem
        self.stamp = stamp


@dataclass(frozen=True)
class Encoded:
    """A record before its framing.

    Attributes:
      parts: bytes whose concatenation is the serialized Example.
      info: format and size in pixels of the image.
      image: the bytes of the image in it.
      label: label number, or None.
      conversions: kinds of what was done to the image.
      stamp: of the file that is the image, as it was read, or 0.
    """

    parts: list[bytes]
    info: images.ImageInfo
    image: bytes
    label: int | None
    conversions: tuple[str, ...] = ()
    stamp: int = 0


@dataclass(frozen=True)
class ImageEncoder:
    """Reads, checks, converts and encodes images.

    Attributes:
      schema: the features of a record.
      rules: how an image is checked and converted.
      base: what `image/filename` leaves out of the beginning of a URI.
      reader: gets the bytes.
      columns: features that come with the reference or, of records of TFRecord files, stand there.
    """

    schema: example.Schema
    rules: Rules
    base: str = ""
    reader: ImageReader = field(default_factory=ImageReader)
    columns: tuple[FeatureColumn, ...] = ()

    @property
    def check(self) -> images.Check:
        """How closely images are looked at: where all are written anew, all are decoded."""
        return "full" if self.rules.rewrites_all else self.rules.check

    def pixel_digest(self, ref: ImageRef) -> bytes | None:
        """16 bytes that are equal for images whose pixels are, whatever their formats.

        None for an image that cannot be had or is no image: `encode` will tell.
        """
        if ref.problem:
            return None
        try:
            self.rules.limit_bytes(ref.size)
            return pixel_digest(self.reader.read(ref, self.rules.max_bytes), self.rules)
        except (storage.ReadError, images.ImageError):
            return None

    def _features_of(self, record: Mapping[str, list[Any]]) -> dict[str, example.Value]:
        try:
            return {
                column.source: column.of_record(record.get(column.column))
                for column in self.columns
            }
        except ValueError as error:
            raise Rejected(Problem("features", "NoFeature", str(error))) from error

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
            read = self.reader.read_all(ref, self.rules.max_bytes)
        except storage.ReadError as error:
            raise Rejected(Problem("read", error.kind, str(error))) from error
        except images.ImageError as error:
            raise Rejected(Problem("check", error.kind, str(error))) from error
        try:
            image = convert(read.image, self.rules)
        except images.ImageError as error:
            raise Rejected(Problem("check", error.kind, str(error)), read.stamp) from error
        info = image.info
        values: dict[str, example.Value] = {
            "encoded": image.data,
            "format": info.format.encode(),
            "height": info.height,
            "width": info.width,
            "filename": ref.uri.removeprefix(self.base).encode("utf-8", "surrogateescape"),
        }
        record = read.features
        values.update(ref.features or {} if record is None else self._features_of(record))
        label = None
        if ref.label is not None:
            label, name = classes[ref.label]
            values["label"] = label
            values["class_text"] = name
        parts = example.encode(self.schema, values)
        return Encoded(parts, info, image.data, label, image.kinds, read.stamp)
