"""An image reference -> the parts of its Example, or a reject. Pure but for reading the image.

The one encoder of both writers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imageshards.transforms import storage
from imageshards.transforms.elements import ImageRef, Problem
from imageshards.transforms.images import validate
from imageshards.transforms.images.convert import Converted, convert, pixel_digest
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.inputs.fetch import ImageReader
from imageshards.transforms.records import example
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.records.schemas import COLUMN, Schema, Value


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
      info: format and size in pixels of the image; of a text 1 and its length in bytes.
      content: the bytes of the image, the pixels or the text in it.
      label: label number, or None.
      conversions: kinds of what was done to the image.
      stamp: of the file that is the image, as it was read, or 0.
    """

    parts: list[bytes]
    info: validate.ImageInfo
    content: bytes
    label: int | None
    conversions: tuple[str, ...] = ()
    stamp: int = 0


class _Content(NamedTuple):
    """What a record is made of: the values that are its own, and what is told of it."""

    values: dict[str, Value]
    info: validate.ImageInfo
    data: bytes
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageEncoder:
    """Reads, checks, converts and encodes images, or texts.

    Attributes:
      schema: the features of a record.
      rules: how an image is checked and converted.
      base: what `image/filename` leaves out of the beginning of a URI.
      reader: gets the bytes.
      columns: features that come with the reference or, of records of TFRecord files, stand there.
      unit: whether float pixels are from 0 to 1, and not to 255.
      class_texts: name of a class -> what `image/class/text` says of it, where that is another.
    """

    schema: Schema
    rules: ImagePolicy
    base: str = ""
    reader: ImageReader = field(default_factory=ImageReader)
    columns: tuple[FeatureColumn, ...] = ()
    unit: bool = True
    class_texts: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def check(self) -> validate.Check:
        """How closely images are looked at: where all are written anew, all are decoded."""
        return "full" if self.rules.rewrites_all else self.rules.check

    def pixel_digest(self, ref: ImageRef) -> bytes | None:
        """16 bytes that are equal for images whose pixels are, whatever their formats.

        None for an image that cannot be had or is no image: `encode` will tell.
        """
        if ref.problem:
            return None
        try:
            self.rules.check_file_size(ref.size)
            return pixel_digest(self.reader.read(ref, self.rules.max_bytes), self.rules)
        except (storage.ReadError, validate.ImageError):
            return None

    def _features_of(self, record: Mapping[str, list[Any]]) -> dict[str, Value]:
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
            self.rules.check_file_size(ref.size)
            read = self.reader.read_all(ref, self.rules.max_bytes)
        except storage.ReadError as error:
            raise Rejected(Problem("read", error.kind, str(error))) from error
        except validate.ImageError as error:
            raise Rejected(Problem("check", error.kind, str(error))) from error
        try:
            content = self._content(ref, read.image)
        except validate.ImageError as error:
            raise Rejected(Problem("check", error.kind, str(error)), read.stamp) from error
        values = content.values
        record = read.features
        values.update(ref.features or {} if record is None else self._features_of(record))
        label = None
        if ref.label is not None:
            label, name = classes[ref.label]
            values["label"] = label
            values["class_text"] = values["synset"] = name
            if self.class_texts:
                values["class_text"] = self.class_texts.get(name, name)
        for source in self._open_sources:
            values.setdefault(source, _without_column(source, values, label))
        parts = example.encode(self.schema, values)
        return Encoded(parts, content.info, content.data, label, content.kinds, read.stamp)

    @cached_property
    def _open_sources(self) -> tuple[str, ...]:
        return tuple(feature.source for feature in self.schema.features if feature.is_open)

    def _content(self, ref: ImageRef, data: bytes) -> _Content:
        if self.schema.holds == "text":
            return self._text(ref, data)
        image = convert(data, self.rules)
        if self.schema.holds == "pixels":
            return self._pixels(image)
        info = image.info
        values: dict[str, Value] = {
            "encoded": image.data,
            "format": info.format.encode(),
            "height": info.height,
            "width": info.width,
            "filename": ref.uri.removeprefix(self.base).encode("utf-8", "surrogateescape"),
            "channels": 3,
            "colorspace": b"RGB",
        }
        return _Content(values, info, image.data, image.conversions)

    def _pixels(self, image: Converted) -> _Content:
        array = self.schema.content.array if self.schema.content else None
        shape = (image.info.height, image.info.width, image.channels)
        if array and array.shape not in (None, shape):
            height, width, _ = array.shape or shape
            raise validate.ImageError(
                "WrongSize",
                f"{shape[1]} x {shape[0]} pixels after --resize, which does not enlarge, not "
                f"{width} x {height} (--enlarge lets it)",
            )
        data, info = image.data, image.info
        if array and array.dtype == "float32":
            data = _as_floats(data, self.unit)
            info = replace(info, format="float32")
        return _Content(
            {"pixels": data, "shape": _SHAPE.pack(*shape)}, info, data, image.conversions
        )

    def _text(self, ref: ImageRef, data: bytes) -> _Content:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 at its byte {error.start}"
            raise validate.ImageError("NotText", reason) from error
        source = (ref.range.uri if ref.range else ref.uri).removeprefix(self.base)
        values: dict[str, Value] = {
            "text": data,
            "source": source.encode("utf-8", "surrogateescape"),
        }
        return _Content(values, validate.ImageInfo("text", 1, len(data)), data)


_SHAPE = struct.Struct("<3i")


@cache
def _levels(unit: bool) -> npt.NDArray[Any]:
    """Grey level -> float32, little-endian."""
    levels = np.arange(256, dtype=np.float32)
    return np.divide(levels, np.float32(255 if unit else 1)).astype("<f4")


def _as_floats(pixels: bytes, unit: bool) -> bytes:
    return _levels(unit)[np.frombuffer(pixels, np.uint8)].tobytes()


def _without_column(source: str, values: Mapping[str, Value], label: int | None) -> list[int]:
    """The value of a feature that no column fills."""
    if source != "bbox_labels" or label is None:
        return []
    boxes = values.get(f"{COLUMN}image/object/bbox/xmin", ())
    return [label] * (len(boxes) if isinstance(boxes, Sequence) else 0)
