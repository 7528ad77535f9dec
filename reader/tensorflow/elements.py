"""Parses and decodes the records of `load` into the elements of its data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from imageshards.reader.elements.keys import LABEL, Keys, parsed_features
from imageshards.reader.options import ElementOptions
from imageshards.reader.parse import decode, spec_of
from imageshards.reader.tensorflow import features, images
from imageshards.transforms.records.schemas import Schema


@dataclass(frozen=True)
class Elements:
    """Converts serialized records to elements of the data set.

    Attributes:
      schema: the schema of the records; for files of other programs, the features to read.
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
    def batched_first(self) -> bool:
        """Whether records are batched before parsing, because images need no work one by one."""
        options, content = self.options, self.schema.content
        if options.features is not None or not options.decode or content is None:
            return True
        shape = content.array.shape if content.array else None
        fits = options.size in (None, shape[:2] if shape else None) and options.crop_fraction == 1
        return self.schema.holds == "text" or bool(shape and fits and not options.augment)

    def batch(self, serialized: tf.Tensor) -> Any:
        """Returns the element of a batch of records, or of one record; see `batched_first`.

        Args:
          serialized: string [] or [batch].
        """
        parsed = self._parse(serialized)
        if self.options.features is not None:
            return parsed
        if self.options.decode and self.schema.holds == "pixels":
            pixels = self._pixels(parsed)
            return self._element(parsed, self._as_dtype(pixels, pixels.dtype))
        return self._element(parsed, self._content(parsed))

    def element(self, position: tf.Tensor, serialized: tf.Tensor) -> Any:
        """Returns the element of one record with an image.

        Args:
          position: int64 [], the number of records before this one since the first epoch.
          serialized: string [].
        """
        parsed = self._parse(serialized)
        data = self._pixels(parsed) if self.schema.holds == "pixels" else self._content(parsed)
        encoded = data.dtype == tf.string
        placed = None
        if self.options.size:
            image, placed = self._resized(data, position, self.options.size)
        else:
            image = images.decode_image(data, self.options.channels) if encoded else data
        image = self._as_dtype(image, tf.uint8 if encoded else data.dtype)
        mask = None
        if self._mask_key and self.options.size:
            mask, _ = self._resized(
                parsed[self._mask_key], position, self.options.size, is_mask=True
            )
        elif self._mask_key:
            mask = images.decode_image(parsed[self._mask_key], 1)
        return self._element(parsed, image, placed, mask)

    @property
    def _mask_key(self) -> str | None:
        return self.schema.key_of("mask")

    def _parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = self.options.features
        if spec is None:
            wanted = parsed_features(self.schema, self.keys)
            spec = {key: spec_of(feature) for key, feature in wanted.items()}
        parse = tf.io.parse_example if serialized.shape.rank else tf.io.parse_single_example
        return parse(serialized, dict(spec))  # type: ignore[no-any-return]

    def _content(self, parsed: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return parsed[self.schema.key_of(self.schema.holds) or ""]

    def _pixels(self, parsed: Mapping[str, tf.Tensor]) -> tf.Tensor:
        pixels = self._content(decode(parsed, self.schema))
        return images.with_channels(pixels, self.options.channels)

    def _element(
        self,
        parsed: Mapping[str, tf.Tensor],
        content: tf.Tensor,
        placed: images.Placed | None = None,
        mask: tf.Tensor | None = None,
    ) -> Any:
        """Returns an element.

        Args:
          parsed: the features of the record.
          content: its image or text.
          placed: where the image is in the stored one.
          mask: its mask; None if there is none, or it is not decoded.
        """
        schema = self.schema
        label = parsed[schema.label_key] if schema.label_key else None
        if label is not None and schema.class_key:
            label = self._class(label)
        if self.keys is None:
            target = parsed[self._mask_key] if self._mask_key and mask is None else mask
            target = label if target is None else target
            return content if target is None else (content, target)
        values = {self.keys.content: content, **features.selected(parsed, self.keys, placed)}
        if label is not None:
            values[LABEL] = label
        if mask is not None:
            values[self._mask_key or ""] = mask
        return values

    def _class(self, label: tf.Tensor) -> tf.Tensor:
        """Returns the class, int32 []; of several float32 [classes], which is 1 for each."""
        feature = self.schema.feature_of("label")
        if feature is None or not feature.is_list:
            return tf.cast(label, tf.int32)
        if isinstance(label, tf.RaggedTensor):
            label = label.to_tensor(default_value=-1)
        found = tf.one_hot(label, self.num_classes)  # of -1 it is 0
        return tf.ensure_shape(tf.reduce_sum(found, -2), [*label.shape[:-1], self.num_classes])

    def _as_dtype(self, image: tf.Tensor, stored: tf.DType) -> tf.Tensor:
        """Converts an image to the dtype of `load`; `stored` is the dtype in the record."""
        wanted = tf.dtypes.as_dtype(self.options.dtype)
        if stored != tf.uint8:
            return tf.cast(image, wanted)
        if wanted == tf.uint8:
            return image if image.dtype == tf.uint8 else tf.cast(tf.round(image), tf.uint8)
        return tf.cast(tf.cast(image, tf.float32) / 255.0, wanted)

    def _resized(
        self,
        data: tf.Tensor,
        position: tf.Tensor,
        size: tuple[int, int],
        *,
        is_mask: bool = False,
    ) -> tuple[tf.Tensor, images.Placed]:
        """Returns the image, float32 [*size, channels], and where it is in the stored one.

        A mask, uint8 [*size, 1], has the window and the mirroring of its image. Its pixels are not
        mixed.
        """
        options = self.options
        channels = 1 if is_mask else options.channels
        method = "nearest" if is_mask else "bilinear"

        def seed(use: int) -> tf.Tensor:
            # The position makes the seed the same after a restart, and different in each epoch.
            return tf.stack([tf.cast(2 * self.seed + use, tf.int64), position])

        def window(shape: tf.Tensor) -> tf.Tensor:
            if options.augment:
                return images.random_window(shape, seed(0))
            return images.centered_window(shape, size, float(options.crop_fraction))

        image, place = images.decode_window(data, window, size, channels)
        image = tf.ensure_shape(tf.image.resize(image, size, method), [*size, channels])
        mirrored = tf.constant(False)
        if options.augment:
            mirrored = tf.random.stateless_uniform([], seed(1)) < 0.5
            image = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
        return image, images.Placed(place, mirrored)
