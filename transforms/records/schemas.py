"""Feature schemas: the keys of a record, their types and where their values come from. Pure.

Each schema is declared once, below. The encoder, features.json, `verify`, `imageshards features`
and `imageshards.reader.parse` all use this declaration.
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
    "bbox_labels": "number of the class, once per box; or a column of --features_from",
    "channels": "3, as in TF-slim: the channels to decode to",
    "class_text": "name of the class; for imagenet, its text in --class_names",
    "colorspace": "RGB, as in TF-slim",
    "encoded": "the image file, unchanged or converted",
    "filename": "the image's name: its path below the input",
    "format": "JPEG, PNG, GIF or BMP: the format of the image in the record",
    "height": "pixels",
    "label": "number of the class",
    "mask": "a gray PNG of the image's size: the numbers of the classes",
    "mask_format": "PNG: the format of the mask",
    "object_boxes": "ymin, xmin, ymax and xmax of each box, as in TensorFlow Datasets",
    "object_labels": "numbers of the objects' classes, from 1",
    "pixels": "the decoded pixels, row by row, channels last",
    "shape": "height, width and channels of the image",
    "source": "the path of the text's file below the input",
    "synset": "name of the class, such as n01440764",
    "text": "a line or a paragraph in UTF-8, without its line end",
    "width": "pixels",
}
"""Source of a feature's values -> its description."""

SHAPE_STRUCT = struct.Struct("<3i")
"""The bytes of the source "shape": height, width and channels, little-endian int32."""

COLUMN = "feature:"
"""Prefix of the sources that are columns of manifests, or features of TFRecord inputs."""


@dataclass(frozen=True)
class Array:
    """An array stored as raw bytes: little-endian, in C order (last dimension fastest).

    Attributes:
      dtype: the type of an element.
      shape: the array's shape; None if the build's options or another feature of the record set it.
    """

    dtype: Literal["uint8", "int32", "float32"]
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Feature:
    """One key of an Example.

    Attributes:
      key: such as `image/height`.
      kind: the list of tf.train.Feature that contains the value.
      source: where the value comes from: a key of `SOURCES`, or `COLUMN` and a key.
      tfds: the feature's type in tensorflow_datasets: "Image", "Mask" for an image of one channel,
        "ClassLabel", "Text", "Scalar", "Array" for raw bytes; for any number of values "List",
        "ClassLabels" or "Boxes", which have four each.
      repeats: whether many records have the same value, so that its encoding is cached.
      array: the array in the raw bytes of an "Array".
    """

    key: str
    kind: Kind
    source: str
    tfds: Literal[
        "Image", "Mask", "ClassLabel", "Text", "Scalar", "Array", "List", "ClassLabels", "Boxes"
    ]
    repeats: bool = True
    array: Array | None = None

    @property
    def is_list(self) -> bool:
        """Whether a record can have any number of values."""
        return self.tfds in ("List", "ClassLabels", "Boxes")

    @property
    def is_open(self) -> bool:
        """Whether a column of the same key can set its values; without one it is an empty list."""
        return self.source in (COLUMN + self.key, "bbox_labels")


_DESCRIBES_IMAGE = frozenset(
    f"image/{key}"
    for key in (
        "channels", "class/label", "class/synset", "class/text", "colorspace", "encoded",
        "filename", "format", "height", "width",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Schema:
    """The features of a record.

    Attributes:
      name: the value of `--features`.
      features: one for each key.
      holds: the source of a record's main feature: an image file, pixels, or a text.
      use: what the schema is for, in a few words.
      fixed: whether all images have the same size, which `--resize` sets.
      label_offset: the smallest `--label_offset`.
      image_format: the only format of the image files, as `--convert` names it; empty: any.
      has_class_texts: whether a line of `--class_names` may have a description after a tab.
      not_copied: keys of TFRecord inputs that `--features_from auto` does not copy, besides the
        schema's own: they describe the image as it was before conversion.
      value_key: the key of the number that is the label, if it is no class; empty: it is a class.
      side: what comes from a second file of each image, or a column; empty: nothing.
      has_labels: whether images have classes if `--labels` is not set.
    """

    name: str
    features: tuple[Feature, ...]
    holds: Literal["encoded", "pixels", "text"] = "encoded"
    use: str = ""
    fixed: bool = False
    label_offset: int = 0
    image_format: Literal["", "jpeg", "png"] = ""
    has_class_texts: bool = False
    not_copied: frozenset[str] = _DESCRIBES_IMAGE
    value_key: str = ""
    side: Literal["", "mask", "captions"] = ""
    has_labels: bool = True

    def without_labels(self) -> Schema:
        """Returns the schema without the features that need classes."""
        kept = tuple(f for f in self.features if f.source not in _OF_CLASSES)
        return replace(self, features=kept)

    def with_classes(self) -> Schema:
        """Returns the schema with any number of classes for each image."""

        def many(feature: Feature) -> Feature:
            if feature.source not in _OF_CLASSES:
                return feature
            kind: Literal["ClassLabels", "List"] = (
                "ClassLabels" if feature.source == "label" else "List"
            )
            return replace(feature, tfds=kind, repeats=False)

        return replace(self, features=tuple(map(many, self.features)))

    def with_value(self) -> Schema:
        """Returns the schema with a number as the label, under the key of the class."""
        key = self.class_key
        if key is None:
            raise ValueError(f"the schema {self.name} has no label")
        value = Feature(key, "float", COLUMN + key, "Scalar", repeats=False)
        return replace(self.without_labels().with_features([value]), value_key=key)

    def with_features(self, features: Iterable[Feature]) -> Schema:
        """Returns the schema with more features, which replace existing ones of the same key."""
        more = tuple(features)
        keys = {feature.key for feature in more}
        kept = tuple(f for f in self.features if f.key not in keys)
        return replace(self, features=(*kept, *more))

    def with_shape(self, shape: tuple[int, int, int]) -> Schema:
        """Returns the schema with this shape of pixels: (height, width, channels)."""

        def shaped(feature: Feature) -> Feature:
            if not feature.array or feature.source != "pixels":
                return feature
            return replace(feature, array=replace(feature.array, shape=shape))

        return replace(self, features=tuple(map(shaped, self.features)))

    def feature_of(self, source: str) -> Feature | None:
        """Returns the feature with a source, or None."""
        return next((f for f in self.features if f.source == source), None)

    def feature_with(self, key: str | None) -> Feature | None:
        """Returns the feature with a key, or None."""
        return next((f for f in self.features if f.key == key), None)

    def key_of(self, source: str) -> str | None:
        """Returns the key of the feature with a source, or None."""
        feature = self.feature_of(source)
        return feature.key if feature else None

    @cached_property
    def in_order(self) -> tuple[Feature, ...]:
        """The features in the order of a serialized Example: sorted by key."""
        # protobuf's Python implementation (upb) sorts "a" after "ab", not before it.
        return tuple(sorted(self.features, key=lambda feature: feature.key.encode() + b"\xff"))

    @property
    def content(self) -> Feature | None:
        """The main feature of a record: the image file, the pixels or the text."""
        return self.feature_of(self.holds)

    @property
    def class_key(self) -> str | None:
        """The key of the number of the class, or None."""
        return self.key_of("label")

    @property
    def label_key(self) -> str | None:
        """The key of the label, a class or another number; or None."""
        return self.class_key or self.value_key or None

    @property
    def target_key(self) -> str | None:
        """The key of what is learned from the content: the mask or the label; or None."""
        return (self.key_of(self.side) if self.side else None) or self.label_key

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
    not_copied=frozenset(),
)
"""The keys of TF-slim (tf_slim/data/tfexample_decoder.py), which most readers support."""


OBJECT = "image/object/"
"""Prefix of the keys of annotations: lists with a value for each object in the image."""

BOX_SIDES = tuple(f"{OBJECT}bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
"""Keys of boxes: fractions of the image's width and height."""

AREA = f"{OBJECT}area"
"""Key of the areas of objects, in pixels."""

KEYPOINT = f"{OBJECT}keypoint/"
"""Prefix of the keys of keypoints; x and y are fractions of the image's width and height."""


def _box_side(key: str) -> Feature:
    return Feature(key, "float", COLUMN + key, "List", repeats=False)


IMAGENET = Schema(
    "imagenet",
    (
        *SLIM.features,
        Feature("image/channels", "int64", "channels", "Scalar"),
        Feature("image/class/synset", "bytes", "synset", "Text"),
        Feature("image/colorspace", "bytes", "colorspace", "Text"),
        Feature("image/object/bbox/label", "int64", "bbox_labels", "List", repeats=False),
        *map(_box_side, BOX_SIDES),
    ),
    use="ImageNet's TPU code: all of TF-slim's keys, only JPEGs, label 0 for the background",
    label_offset=1,
    image_format="jpeg",  # TPU code for ImageNet decodes nothing else
    has_class_texts=True,
)
"""The keys of TF-slim's ImageNet (datasets/build_imagenet_data.py)."""

_LABEL = Feature("label", "int64", "label", "ClassLabel")


def _pixels(dtype: Literal["uint8", "float32"]) -> Feature:
    return Feature("image", "bytes", "pixels", "Array", repeats=False, array=Array(dtype))


SEGMENTATION = Schema(
    "segmentation",
    (
        *SLIM.features,
        Feature("image/channels", "int64", "channels", "Scalar"),
        Feature("image/segmentation/class/encoded", "bytes", "mask", "Mask", repeats=False),
        Feature("image/segmentation/class/format", "bytes", "mask_format", "Text"),
    ),
    use="images with masks (--masks): TF-slim's keys and DeepLab's, without labels",
    side="mask",
    has_labels=False,
)
"""The keys of DeepLab (research/deeplab/datasets/build_data.py)."""

CAPTION_KEY = "image/caption"
"""Key of the captions of an image, in UTF-8: one or more."""
CAPTION_SOURCE = COLUMN + CAPTION_KEY

CAPTION = Schema(
    "caption",
    (
        *SLIM.features,
        Feature(CAPTION_KEY, "bytes", CAPTION_SOURCE, "List", repeats=False),
    ),
    use="images with captions (--captions), one or more: TF-slim's keys, without labels",
    side="captions",
    has_labels=False,
)
"""The keys of TF-slim, and that of captions of COCO (im2txt's build_mscoco_data.py)."""

RAW = Schema(
    "raw",
    (_pixels("float32"), _LABEL),
    holds="pixels",
    use="small images of one size as float32, read without decoding",
    fixed=True,
)

PIXELS = Schema(
    "pixels",
    (_pixels("uint8"), _LABEL),
    holds="pixels",
    use="small images of one size as uint8, such as CIFAR's, read without decoding",
    fixed=True,
)

SHAPE = Schema(
    "shape",
    (
        _pixels("uint8"),
        _LABEL,
        Feature("shape", "bytes", "shape", "Array", array=Array("int32", (3,))),
    ),
    holds="pixels",
    use="pixels of any size as uint8, with their shape",
)

TEXT = Schema(
    "text",
    (
        _LABEL,
        Feature("source", "bytes", "source", "Text"),
        Feature("text", "bytes", "text", "Text", repeats=False),
    ),
    holds="text",
    use="the lines or paragraphs of text files",
)

SCHEMAS = {
    schema.name: schema
    for schema in (SLIM, IMAGENET, SEGMENTATION, CAPTION, RAW, PIXELS, SHAPE, TEXT)
}
