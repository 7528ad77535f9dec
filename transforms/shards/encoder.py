"""Encodes the image of a reference as a serialized Example, for both writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imageshards.transforms import storage
from imageshards.transforms.annotations.masks import write_masks
from imageshards.transforms.annotations.objects import (
    REJECTED,
    AnnotationError,
    add_computed,
    count_captions,
    count_objects,
    to_fractions,
)
from imageshards.transforms.elements import LABEL_SEPARATOR, ImageRef, Problem, to_bytes
from imageshards.transforms.images import validate
from imageshards.transforms.images.convert import Converted, convert, pixel_digest
from imageshards.transforms.images.geometry import Geometry
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.inputs.fetch import ImageReader
from imageshards.transforms.inputs.kind import Read
from imageshards.transforms.pairs.side_file import SideFile, SideFileError
from imageshards.transforms.records import example
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.records.schemas import COLUMN, SHAPE_STRUCT, Schema, Value
from imageshards.transforms.shards.annotations import Annotations


class Rejected(Exception):
    """An image that cannot be in the data set.

    Attributes:
      problem: the reason.
      stamp: stamp of the file when it was read; 0 if unknown.
      annotations: kind of annotation -> number of them; see `annotations.BOXES`.
      side_stamp: that of the side file.
    """

    def __init__(self, problem: Problem, stamp: int = 0) -> None:
        super().__init__(problem.reason)
        self.problem = problem
        self.stamp = stamp
        self.annotations: Mapping[str, int] = {}
        self.side_stamp = 0


@dataclass(frozen=True)
class Encoded:
    """An encoded record.

    Attributes:
      parts: bytes whose concatenation is the serialized Example.
      info: the image's format, and its height and width in pixels; for a text, its height is 1 and
        its width the length in bytes.
      content: the image file, the pixels or the text in the record.
      labels: numbers of the classes: one, none without labels, or any number.
      conversions: kinds of conversions that were applied to the image.
      stamp: stamp of the image's file when it was read; 0 if unknown.
      annotations: kind of annotation -> number of them; see `annotations.BOXES`.
      side_stamp: stamp of the side file when it was read; 0 if unknown.
    """

    parts: list[bytes]
    info: validate.ImageInfo
    content: bytes
    labels: tuple[int, ...]
    conversions: tuple[str, ...] = ()
    stamp: int = 0
    annotations: Mapping[str, int] = field(default_factory=dict)
    side_stamp: int = 0


class _Content(NamedTuple):
    """The image, pixels or text of a record, and the values that are computed from it."""

    values: dict[str, Value]
    info: validate.ImageInfo
    data: bytes
    kinds: tuple[str, ...] = ()
    geometry: Geometry | None = None


@dataclass(frozen=True)
class ImageEncoder:
    """Reads, checks, converts and encodes images, or texts.

    Attributes:
      schema: the features of a record.
      rules: how an image is checked and converted.
      reader: reads the bytes.
      columns: features whose values come from a manifest's columns or from a TFRecord input.
      unit_range: whether float pixels range from 0 to 1 instead of 0 to 255.
      class_texts: name of a class -> its `image/class/text`, if that differs from the name.
      annotations: maps the annotations among the columns; None if there are none.
      side: reads and converts the second file of each image; None if there is none.
    """

    schema: Schema
    rules: ImagePolicy
    reader: ImageReader = field(default_factory=ImageReader)
    columns: tuple[FeatureColumn, ...] = ()
    unit_range: bool = True
    class_texts: Mapping[bytes, bytes] = field(default_factory=dict)
    annotations: Annotations | None = None
    side: SideFile | None = None

    @property
    def check(self) -> validate.Check:
        """The validation level: `full` if every image is decoded to be converted anyway."""
        return "full" if self.rules.rewrites_all else self.rules.check

    def pixel_digest(self, ref: ImageRef) -> bytes | None:
        """Returns 16 bytes that are equal for images with equal pixels, in any format.

        None if `encode` rejects the image, so that its duplicates are kept: it cannot be read or
        decoded, or its annotations are invalid or cannot follow its pixels.
        """
        if ref.problem:
            return None
        try:
            self.rules.check_file_size(ref.size)
            read = self.reader.read_all(ref, self.rules.max_bytes)
            digest, geometry = pixel_digest(read.image, self.rules)
            values: dict[str, Value] = {}
            self._annotate(values, ref, read, geometry)
            self._add_side(values, ref, read, geometry)
        except (storage.ReadError, validate.ImageError, Rejected):
            return None
        return digest

    def _annotate(
        self, values: dict[str, Value], ref: ImageRef, read: Read, geometry: Geometry | None
    ) -> Mapping[str, int]:
        """Adds the values of the columns, with annotations of the written pixels.

        Args:
          values: source of a feature -> value; changed in place.
          ref: the image.
          read: its file, and the values that are stored with it.
          geometry: where the pixels of the file are in the written image; None for a text.

        Returns:
          Kind of annotation -> number of them.

        Raises:
          Rejected: the values are invalid or cannot follow the pixels.
        """
        record = read.features
        values.update(ref.features or {})
        if record is not None:
            values.update(self._features_of(record))
        captions = count_captions(values)
        if not self.annotations or not geometry:
            return captions
        try:
            to_fractions(values, geometry.size(self.annotations.frame))
            counts = self.annotations.follow(values, geometry)
            write_masks(values, geometry, self.annotations.frame)
            return {**captions, **counts}
        except AnnotationError as error:
            raise Rejected(Problem("features", error.kind, str(error)), read.stamp) from error

    def _add_side(
        self, values: dict[str, Value], ref: ImageRef, read: Read, geometry: Geometry | None
    ) -> tuple[Mapping[str, int], int]:
        """Adds the values that come from the side file, after those of the columns.

        Returns:
          Kind of annotation -> number of them, and the stamp of the side file.

        Raises:
          Rejected: the file cannot be read or used.
        """
        if not self.side or not geometry:
            return {}, 0
        try:
            found = self.side.read(ref, None if read.features is None else values)
            added = self.side.values(found, geometry)
        except SideFileError as error:
            raise Rejected(error.problem, read.stamp) from error
        values.update(added.values)
        return added.counts, found.stamp

    def _features_of(self, record: Mapping[str, list[Any]]) -> dict[str, Value]:
        try:
            return {
                column.source: column.of_record(record.get(column.column))
                for column in self.columns
            }
        except ValueError as error:
            raise Rejected(Problem("features", "NoFeature", str(error))) from error

    def encode(
        self,
        ref: ImageRef,
        classes: Mapping[str, tuple[int, bytes]],
        object_numbers: Mapping[bytes, int] = MappingProxyType({}),
    ) -> Encoded:
        """Returns the record of one image.

        Args:
          ref: the image.
          classes: label of a reference -> (number, name) of its class; empty without labels.
          object_numbers: name of a class of annotated objects -> its number; empty without them.

        Raises:
          Rejected: the image cannot be read, training could not decode it, or its annotations are
            invalid or cannot follow its pixels.
        """
        try:
            return self._encode(ref, classes, object_numbers)
        except Rejected as rejected:
            if objects := count_objects(ref.features or {}):
                rejected.annotations = {REJECTED: objects}
            if self.side and (uri := self.side.stamped_uri(ref)):
                rejected.side_stamp = storage.stat(uri)[1]
            raise

    def _encode(
        self,
        ref: ImageRef,
        classes: Mapping[str, tuple[int, bytes]],
        object_numbers: Mapping[bytes, int],
    ) -> Encoded:
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
        counts = self._annotate(values, ref, read, content.geometry)
        side_counts, side_stamp = self._add_side(values, ref, read, content.geometry)
        labels: list[int] = []
        if ref.label is not None:
            texts = ref.label.split(LABEL_SEPARATOR) if ref.label else []
            found = sorted(classes[text] for text in texts)
            labels, names = [number for number, _ in found], [name for _, name in found]
            shown = [self.class_texts.get(name, name) for name in names]
            values |= {"label": labels, "synset": names, "class_text": shown}
            if not self._has_many_classes:
                values |= {"label": labels[0], "synset": names[0], "class_text": shown[0]}
        label = None if self._has_many_classes or not labels else labels[0]
        add_computed(values, object_numbers)
        for source in self._open_sources:
            values.setdefault(source, _without_column(source, values, label))
        parts = example.encode(self.schema, values)
        return Encoded(
            parts, content.info, content.data, tuple(labels), content.kinds, read.stamp,
            {**counts, **side_counts}, side_stamp,
        )  # fmt: skip

    @cached_property
    def _has_many_classes(self) -> bool:
        feature = self.schema.feature_of("label")
        return feature is not None and feature.is_list

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
            "filename": to_bytes(ref.name),
            "channels": 3,
            "colorspace": b"RGB",
        }
        return _Content(values, info, image.data, image.conversions, image.geometry)

    def _pixels(self, image: Converted) -> _Content:
        array = self.schema.content.array if self.schema.content else None
        shape = (image.info.height, image.info.width, image.channels)
        if array and array.shape not in (None, shape):
            height, width, _ = array.shape or shape
            raise validate.ImageError(
                "WrongSize",
                f"{shape[1]} x {shape[0]} pixels after --resize, not {width} x {height}: set "
                "--enlarge to enlarge smaller images",
            )
        data, info = image.data, image.info
        if array and array.dtype == "float32":
            data = _float_levels(self.unit_range)[np.frombuffer(data, np.uint8)].tobytes()
            info = replace(info, format="float32")
        values: dict[str, Value] = {"pixels": data, "shape": SHAPE_STRUCT.pack(*shape)}
        return _Content(values, info, data, image.conversions, image.geometry)

    def _text(self, ref: ImageRef, data: bytes) -> _Content:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 at its byte {error.start}"
            raise validate.ImageError("NotText", reason) from error
        file = ref.range.uri if ref.range else ref.uri
        values: dict[str, Value] = {"text": data, "source": to_bytes(file[ref.root :])}
        return _Content(values, validate.ImageInfo("text", 1, len(data)), data)


@cache
def _float_levels(unit_range: bool) -> npt.NDArray[Any]:
    """Returns a table: uint8 level -> float32, little-endian."""
    levels = np.arange(256, dtype=np.float32)
    return np.divide(levels, np.float32(255 if unit_range else 1)).astype("<f4")


def _without_column(source: str, values: Mapping[str, Value], label: int | None) -> list[int]:
    """Returns the value of an open feature that no column fills."""
    if source != "bbox_labels" or label is None:
        return []
    boxes = values.get(f"{COLUMN}image/object/bbox/xmin", ())
    return [label] * (len(boxes) if isinstance(boxes, Sequence) else 0)
