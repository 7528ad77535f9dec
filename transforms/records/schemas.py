"""Feature schemas: which keys a record has, of which types, what fills and what reads them. Pure.

A schema is declared once, below, and everything else follows it: the encoder, features.json,
`verify`, `imageshards features` and `imageshards.reader.parse`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

Kind = Literal["bytes", "int64", "float"]
Value = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]

SOURCES = {
    "bbox_labels": "number of the class, once a box; or a column of --features_from",
    "channels": "3, as TF-slim has it: what decoders are asked for",
    "class_text": "name of the class, or of imagenet what --class_names says of it",
    "colorspace": "RGB, as TF-slim has it",
    "encoded": "the file as it was, or what it was converted to",
    "filename": "the URI, or what of it is below --base_uri",
    "format": "JPEG, PNG, GIF or BMP: of what is written",
    "height": "pixels",
    "label": "number of the class",
    "pixels": "the decoded pixels, row by row, channels last",
    "shape": "height, width and channels of the image",
    "source": "the URI of the text's file, or what of it is below --base_uri",
    "synset": "name of the class, such as n01440764",
    "text": "a line or a paragraph, UTF-8, without the line end behind it",
    "width": "pixels",
}
"""What can fill a feature, as the encoder has it -> what that is."""

SHAPE_STRUCT = struct.Struct("<3i")
"""The bytes of the source "shape": height, width and channels, little-endian int32."""

COLUMN = "feature:"
"""Begins the sources that are columns of manifests, or features of TFRecord inputs."""


@dataclass(frozen=True)
class Array:
    """Numbers that stand in a feature as raw bytes, little-endian, the last dimension fastest.

    Attributes:
      dtype: of one number.
      shape: of all; None where the options of a build tell it, or another feature of the record.
    """

    dtype: Literal["uint8", "int32", "float32"]
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Feature:
    """One key of an Example.

    Attributes:
      key: such as `image/height`.
      kind: which list of tf.train.Feature holds it.
      source: what fills it: of `SOURCES`, or a column.
      tfds: what the feature is to tensorflow_datasets: "Image", "ClassLabel", "Text", "Scalar",
        "Array" for raw bytes, or "List" for any number of values.
      repeats: whether many records share a value.
      array: what the raw bytes are, of an "Array".
    """

    key: str
    kind: Kind
    source: str
    tfds: Literal["Image", "ClassLabel", "Text", "Scalar", "Array", "List"]
    repeats: bool = True
    array: Array | None = None

    @property
    def is_open(self) -> bool:
        """Whether a column of the same key may fill it; without one it is an empty list."""
        return self.source in (COLUMN + self.key, "bbox_labels")


@dataclass(frozen=True)
class Schema:
    """The features of a record.

    Attributes:
      name: as `--features` has it.
      features: one for each key.
      holds: what a record is made of: an image file, the pixels of one, or a text.
      use: what it is for, in a few words.
      fixed: whether all images have one size, which `--resize` tells.
      label_offset: the least that `--label_offset` may be.
    """

    name: str
    features: tuple[Feature, ...]
    holds: Literal["encoded", "pixels", "text"] = "encoded"
    use: str = ""
    fixed: bool = False
    label_offset: int = 0

    def without_labels(self) -> Schema:
        """The same without what a data set without classes cannot fill."""
        return replace(
            self, features=tuple(f for f in self.features if f.source not in _OF_CLASSES)
        )

    def with_features(self, features: Iterable[Feature]) -> Schema:
        """The same with more features; those of open keys take the place of what is there."""
        more = tuple(features)
        keys = {feature.key for feature in more}
        kept = tuple(f for f in self.features if f.key not in keys)
        return replace(self, features=(*kept, *more))

    def with_shape(self, shape: tuple[int, int, int]) -> Schema:
        """The same whose pixels have this height, width and number of channels."""
        return replace(
            self,
            features=tuple(
                replace(f, array=replace(f.array, shape=shape))
                if f.array and f.source == "pixels"
                else f
                for f in self.features
            ),
        )

    def feature_of(self, source: str) -> Feature | None:
        """The feature that is filled from a source, if there is one."""
        return next((f for f in self.features if f.source == source), None)

    def key_of(self, source: str) -> str | None:
        """The key that is filled from a source, if there is one."""
        feature = self.feature_of(source)
        return feature.key if feature else None

    @cached_property
    def in_order(self) -> tuple[Feature, ...]:
        """The features as a serialized Example has them: sorted by their keys."""
        # protobuf's Python implementation (upb) puts a key behind those that begin with it.
        return tuple(sorted(self.features, key=lambda feature: feature.key.encode() + b"\xff"))

    @property
    def content(self) -> Feature | None:
        """The feature that is the image or the text itself."""
        return self.feature_of(self.holds)

    @property
    def label_key(self) -> str | None:
        """The key of the label number, if there is one."""
        return self.key_of("label")

    @property
    def noun(self) -> str:
        """What one record is, for messages."""
        return "text" if self.holds == "text" else "image"


_OF_CLASSES = ("label", "class_text", "synset")

SLIM = Schema(
    "slim",
    (
        Feature("image/class/label", "int64", "label", "ClassLabel"),
        Feature("image/class/text", "bytes", "class_text", "Text"),
        Feature("image/encoded", "bytes", "encoded", "Image", repeats=False),
        Feature("image/filename", "bytes", "filename", "Text", repeats=False),
        Feature("image/format", "bytes", "format", "Text"),
        Feature("image/height", "int64", "height", "Scalar"),
        Feature("image/width", "int64", "width", "Scalar"),
    ),
    use="TF-slim, Keras, TensorFlow Datasets (default)",
)
"""The keys of TF-slim (tf_slim/data/tfexample_decoder.py), which most readers know."""


def _box_side(side: str) -> Feature:
    key = f"image/object/bbox/{side}"
    return Feature(key, "float", COLUMN + key, "List", repeats=False)


IMAGENET = Schema(
    "imagenet",
    (
        *SLIM.features,
        Feature("image/channels", "int64", "channels", "Scalar"),
        Feature("image/class/synset", "bytes", "synset", "Text"),
        Feature("image/colorspace", "bytes", "colorspace", "Text"),
        Feature("image/object/bbox/label", "int64", "bbox_labels", "List", repeats=False),
        *map(_box_side, ("xmax", "xmin", "ymax", "ymin")),
    ),
    use="ImageNet's TPU code: all of TF-slim's keys, JPEGs alone, label 0 for the background",
    label_offset=1,
)
"""The keys of TF-slim's ImageNet (datasets/build_imagenet_data.py)."""

RAW = Schema(
    "raw",
    (
        Feature("image", "bytes", "pixels", "Array", repeats=False, array=Array("float32")),
        Feature("label", "int64", "label", "ClassLabel"),
    ),
    holds="pixels",
    use="small images of one size as float32, read without decoding",
    fixed=True,
)

PIXELS = Schema(
    "pixels",
    (
        Feature("image", "bytes", "pixels", "Array", repeats=False, array=Array("uint8")),
        Feature("label", "int64", "label", "ClassLabel"),
    ),
    holds="pixels",
    use="small images of one size as uint8, such as CIFAR's, read without decoding",
    fixed=True,
)

SHAPE = Schema(
    "shape",
    (
        Feature("image", "bytes", "pixels", "Array", repeats=False, array=Array("uint8")),
        Feature("label", "int64", "label", "ClassLabel"),
        Feature("shape", "bytes", "shape", "Array", array=Array("int32", (3,))),
    ),
    holds="pixels",
    use="pixels of any size as uint8, with their shape",
)

TEXT = Schema(
    "text",
    (
        Feature("label", "int64", "label", "ClassLabel"),
        Feature("source", "bytes", "source", "Text"),
        Feature("text", "bytes", "text", "Text", repeats=False),
    ),
    holds="text",
    use="the lines or paragraphs of text files",
)

SCHEMAS = {schema.name: schema for schema in (SLIM, IMAGENET, RAW, PIXELS, SHAPE, TEXT)}
