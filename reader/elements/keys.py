"""The features that `keys` adds to the elements of a data set. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from imageshards.reader.files import Source
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.records.schemas import (
    AREA,
    BOX_SIDES,
    KEYPOINT,
    OBJECT,
    Feature,
    Schema,
)
from imageshards.transforms.shards.annotations import is_shape

BOXES = f"{OBJECT}bbox"
"""The key that selects the four sides of boxes as one array [boxes, 4]."""
SIDES = tuple(f"{BOXES}/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
"""Keys of the sides, in the order of TensorFlow's boxes."""
MIN_VISIBLE = 0.1
"""A box is dropped if a smaller fraction of its area is in the crop, as --min_box_visible does."""
LABEL = "label"


@dataclass(frozen=True)
class Keys:
    """The features of an element that is a dict.

    Attributes:
      content: the name of the image or text in the dict: `image` or `text`.
      features: key -> feature of the record. A list may have any number of values.
      boxes: whether the dict has the boxes as one array, under the key `BOXES`.
      parsed: the features to parse: also the sides of boxes, if these decide which values are kept.
      list_length: the number of values to which lists are padded or cut; None keeps all values.
    """

    content: str
    features: dict[str, Feature]
    boxes: bool
    parsed: dict[str, Feature]
    list_length: int | None

    @property
    def of_boxes(self) -> tuple[str, ...]:
        """Keys of lists with one value per box, which lose the values of dropped boxes."""
        return tuple(key for key in self.parsed if _is_of_boxes(self.parsed[key]))

    @property
    def follows(self) -> bool:
        """Whether any value has to follow a crop of the image."""
        return bool(self.of_boxes)

    @property
    def are_ragged(self) -> bool:
        """Whether values of the dict have any number of rows, which differs between records."""
        return bool(self.lists) and self.list_length is None

    @property
    def lists(self) -> tuple[str, ...]:
        """Keys of the dict whose values have any number of rows."""
        found = [key for key, feature in self.features.items() if feature.is_list]
        return (*found, *([BOXES] if self.boxes else []))


def find_keys(
    source: Source, schema: Schema, keys: Sequence[str], list_length: int | None, moved: bool
) -> Keys:
    """Finds the features that `keys` names.

    Args:
      source: the record files.
      schema: the features that are the content and the label.
      keys: keys of features, or `BOXES`.
      list_length: see `Keys`.
      moved: whether images are cropped or resized.

    Raises:
      UsageError: there is no such feature, or it cannot follow a crop.
    """
    content = "text" if schema.holds == "text" else "image"
    features: dict[str, Feature] = {}
    boxes = False
    for key in keys:
        if key == BOXES and not _is_other(source.feature(key)):
            features |= {side: _find(source, side) for side in SIDES if side not in keys}
            boxes = True
            continue
        if key in (content, LABEL):
            if key in (schema.key_of(schema.holds), schema.label_key):
                continue  # every element has it
            raise UsageError(
                f"invalid keys: {key!r} is the name of the element's {key}: read this feature with "
                f"{'label_key' if key == LABEL else 'image_key'}={key!r}"
            )
        feature = _find(source, key)
        if moved and _cannot_follow(feature):
            raise UsageError(
                f"keys {key!r}: it cannot follow the crop of the image: omit it, or omit image_size"
            )
        features[key] = feature
    parsed = dict(features)
    if moved and any(map(_is_of_boxes, features.values())):
        # Without boxes, the lists of objects are kept as they are.
        found = {side: source.feature(side) for side in SIDES}
        parsed |= {side: feature for side, feature in found.items() if feature}
    shown = {key: feature for key, feature in features.items() if key in keys}
    return Keys(content, shown, boxes, parsed, list_length)


def parsed_features(schema: Schema, keys: Keys | None) -> dict[str, Feature]:
    """Returns the features of a record that an element needs: key -> feature.

    Args:
      schema: the features of the record.
      keys: the features that the element has besides its content, its label and its mask.
    """
    named = {*map(schema.key_of, (schema.holds, "mask", "shape")), schema.label_key}
    found = {feature.key: feature for feature in schema.features if feature.key in named}
    # The content has precedence, and is also the value of its key in `keys`.
    return {**(keys.parsed if keys else {}), **found}


def _find(source: Source, key: str) -> Feature:
    feature = source.named(key, "keys")
    # As a "Scalar" or "Text", a value is read as it is stored: an image is not decoded.
    if feature.tfds in ("Image", "Array"):
        return replace(feature, tfds="Text", array=None)
    return feature


def _is_other(feature: Feature | None) -> bool:
    """Whether a feature under the key of boxes has other values than their sides."""
    return feature is not None and feature.tfds != "Boxes"


def _is_of_boxes(feature: Feature) -> bool:
    return feature.key.startswith(OBJECT) and feature.is_list


def _cannot_follow(feature: Feature) -> bool:
    if feature.key in BOX_SIDES:
        return False
    kind = {"int64": "int", "float": "float", "bytes": "bytes"}[feature.kind]
    suffix = "_list" if feature.is_list else ""
    column = FeatureColumn(feature.key, feature.key, kind + suffix)  # type: ignore[arg-type]
    return feature.key == AREA or feature.key.startswith(KEYPOINT) or is_shape(column)
