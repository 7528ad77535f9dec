"""Converts records to NumPy arrays, as `reader.tensorflow.elements` converts them to tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imageshards.reader.elements import windows
from imageshards.reader.elements.keys import (
    BOXES,
    LABEL,
    MIN_VISIBLE,
    SIDES,
    Keys,
    parsed_features,
)
from imageshards.reader.elements.pixels import decode_mask, decode_window
from imageshards.reader.elements.windows import Window
from imageshards.reader.options import ElementOptions
from imageshards.reader.parse import array_with_channels, decode_image
from imageshards.transforms.records.schemas import Kind, Schema

Array = npt.NDArray[Any]
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]
_LEVEL = np.float32(1 / 255)
_DTYPES: dict[Kind, Any] = {"int64": np.int64, "float": np.float32, "bytes": object}


@dataclass(frozen=True)
class ArrayElements:
    """Converts parsed records to elements.

    Attributes:
      schema: the features that are the content and the label.
      options: the options that determine an element.
      seed: the seed of the augmentation.
      keys: the features of elements that are dicts, or None.
      num_classes: the number of classes.
    """

    schema: Schema
    options: ElementOptions
    seed: int
    keys: Keys | None = None
    num_classes: int = 0

    @property
    def parsed(self) -> Schema:
        """The features that `element` needs."""
        wanted = parsed_features(self.schema, self.keys)
        return replace(self.schema, features=tuple(wanted.values()))

    def element(self, position: int, values: Mapping[str, Any]) -> Any:
        """Returns the element of a record; its decoded image is not yet of the dtype: see `batch`.

        Args:
          position: the number of the sample, which the augmentation depends on.
          values: the features of `parsed`, as `decode_record` returns them.
        """
        schema, options = self.schema, self.options
        content = values[schema.key_of(schema.holds) or ""]
        window = None
        if self._decodes:
            content, window = self._image(content, position)
        label_key, mask_key = schema.label_key, schema.key_of("mask")
        mask = values[mask_key] if mask_key else None
        if mask is not None and options.decode:
            mask = decode_mask(mask, window, options.size)
        if self.keys is None:
            if mask is not None:
                return content, mask
            return (content, self._label(values[label_key])) if label_key else content
        element = {self.keys.content: content, **selected(values, self.keys, window)}
        if label_key:
            element[LABEL] = self._label(values[label_key])
        if mask_key:
            element[mask_key] = mask
        return element

    def batch(self, elements: Sequence[Any], allocate: Allocate = np.empty) -> Any:
        """Returns a batch of elements: their leaves, stacked.

        Images are converted to the dtype as they are stacked. An array for each converted image
        would take more time than the conversion, to get its memory from the system.

        Args:
          elements: what `element` returns.
          allocate: creates the array of the images, given its shape and dtype.

        Raises:
          ValueError: the images differ in size.
        """
        first = elements[0]
        if isinstance(first, dict):
            return {
                key: self._images(values, allocate)
                if self.keys and key == self.keys.content
                else stacked(values)
                for key in first
                for values in [[element[key] for element in elements]]
            }
        if isinstance(first, tuple):
            images, others = zip(*elements, strict=True)
            return self._images(images, allocate), stacked(others)
        return self._images(elements, allocate)

    def single(self, element: Any) -> Any:
        """Returns an element whose image has the dtype."""
        if isinstance(element, dict):
            return {
                key: self._images([value])[0] if self.keys and key == self.keys.content else value
                for key, value in element.items()
            }
        if isinstance(element, tuple):
            return self._images(element[:1])[0], *element[1:]
        return self._images([element])[0]

    def _images(self, images: Sequence[Any], allocate: Allocate = np.empty) -> Any:
        if not self._decodes:
            return stacked(images)
        shape = images[0].shape
        if any(image.shape != shape for image in images):
            raise ValueError("the images of a batch differ in size: set image_size")
        batch = allocate((len(images), *shape), self._dtype)
        for image, row in zip(images, batch.view(np.ndarray), strict=True):
            if image.dtype != np.uint8 or batch.dtype == np.uint8:
                row[...] = image
            elif batch.dtype == np.float32:
                np.multiply(image, _LEVEL, out=row)
            else:
                row[...] = np.multiply(image, _LEVEL)
        return batch

    @property
    def _decodes(self) -> bool:
        return self.options.decode and self.schema.holds != "text"

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        name: Any = self.options.dtype
        if name == "bfloat16":
            import ml_dtypes

            name = ml_dtypes.bfloat16
        dtype: np.dtype[Any] = np.dtype(name)
        return dtype

    def _label(self, value: Any) -> Any:
        if isinstance(value, list):  # several classes
            several = np.zeros(self.num_classes, np.float32)
            several[value] = 1
            return several
        if self.schema.class_key:
            return np.int32(value)
        feature = next(f for f in self.schema.features if f.key == self.schema.label_key)
        return value if feature.kind == "bytes" else _DTYPES[feature.kind](value)

    def _image(self, data: bytes | Array, position: int) -> tuple[Array, Window | None]:
        options, size = self.options, self.options.size
        if not size:
            if isinstance(data, bytes):
                return decode_image(data, options.channels), None
            return array_with_channels(data, options.channels), None
        if options.augment:
            rng = np.random.default_rng([self.seed, position])
            return decode_window(
                data, lambda full: windows.random(full, rng), size, options.channels
            )
        fraction = float(options.crop_fraction)
        return decode_window(
            data, lambda full: windows.centered(full, size, fraction), size, options.channels
        )


def selected(values: Mapping[str, Any], keys: Keys, window: Window | None) -> dict[str, Any]:
    """Returns the features of an element that `keys` names, as numbers, bytes and arrays.

    Args:
      values: the features of a record.
      keys: the features to return.
      window: where the image is in the stored one; None if they are the same.
    """
    found: dict[str, Any] = {}
    for key, feature in keys.parsed.items():
        value, dtype = values[key], _DTYPES[feature.kind]
        if feature.is_list:
            found[key] = np.array(value, dtype)
        else:
            found[key] = value if feature.kind == "bytes" else dtype(value)
    if window is not None and keys.follows and found.keys() >= set(SIDES):
        _follow(found, keys, window)
    chosen = {key: found[key] for key in keys.features}
    if keys.boxes:
        chosen[BOXES] = np.stack([found[side] for side in SIDES], -1)
    if keys.list_length is not None:
        for key in keys.lists:
            chosen[f"{key}/size"] = np.int32(len(chosen[key]))
            chosen[key] = _padded(chosen[key], keys.list_length)
    return chosen


def _follow(found: dict[str, Any], keys: Keys, window: Window) -> None:
    boxes, share = window.boxes(np.stack([found[side] for side in SIDES]))
    kept = (share > 0) & (share >= MIN_VISIBLE)
    found.update(zip(SIDES, boxes, strict=True))
    for key in keys.of_boxes:
        # A list that is not one value per box, such as an empty one, is kept as it is.
        if len(found[key]) == len(kept):
            found[key] = found[key][kept]


def _padded(values: Array, length: int) -> Array:
    filler = b"" if values.dtype == object else 0
    padded = np.full((length, *values.shape[1:]), filler, values.dtype)
    padded[: len(values)] = values[:length]
    return padded


def stacked(elements: Sequence[Any]) -> Array:
    """Returns arrays, numbers or texts as one array."""
    if isinstance(elements[0], bytes):
        return np.array(elements, object)
    return np.stack(elements)


def empty(batch: Any) -> Any:
    """Returns a batch without elements, of the shapes and dtypes of another batch."""
    if isinstance(batch, dict):
        return {key: empty(values) for key, values in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(empty, batch))
    return batch[:0]


class ArraySpec(NamedTuple):
    """The shape and the dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def spec_of(element: Any) -> Any:
    """Returns an element with an `ArraySpec` in place of each array, number and text."""
    if isinstance(element, dict):
        return {key: spec_of(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return tuple(map(spec_of, element))
    if isinstance(element, bytes):
        return ArraySpec((), np.dtype(object))
    array = np.asarray(element)
    return ArraySpec(array.shape, array.dtype)
