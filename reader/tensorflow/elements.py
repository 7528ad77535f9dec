"""Parses and decodes the records of `load` into the elements of its data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from imageshards.reader.options import ElementOptions
from imageshards.reader.parse import decode, parse_spec
from imageshards.reader.tensorflow import images
from imageshards.transforms.records.schemas import Schema


@dataclass(frozen=True)
class Elements:
    """Converts serialized records to elements of the data set.

    Attributes:
      schema: the schema of the records; for files of other programs, the features to read.
      options: the options that determine an element.
      seed: the seed of the augmentation.
    """

    schema: Schema
    options: ElementOptions
    seed: int

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
            return self._with_label(parsed, self._as_dtype(pixels, pixels.dtype))
        if self._mask_key:
            return self._content(parsed), parsed[self._mask_key]
        return self._with_label(parsed, self._content(parsed))

    def element(self, position: tf.Tensor, serialized: tf.Tensor) -> Any:
        """Returns the element of one record with an image.

        Args:
          position: int64 [], the number of records before this one since the first epoch.
          serialized: string [].
        """
        parsed = self._parse(serialized)
        data = self._pixels(parsed) if self.schema.holds == "pixels" else self._content(parsed)
        encoded = data.dtype == tf.string
        if self.options.size:
            image = self._resized(data, position, self.options.size)
        else:
            image = images.decode_image(data, self.options.channels) if encoded else data
        image = self._as_dtype(image, tf.uint8 if encoded else data.dtype)
        if self._mask_key:
            mask = parsed[self._mask_key]
            if self.options.size:
                return image, self._resized(mask, position, self.options.size, is_mask=True)
            return image, images.decode_image(mask, 1)
        return self._with_label(parsed, image)

    @property
    def _mask_key(self) -> str | None:
        return self.schema.key_of("mask")

    def _parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = self.options.features
        if spec is None:
            schema = self.schema
            wanted = {schema.key_of(schema.holds), schema.target_key, schema.key_of("shape")}
            spec = {key: value for key, value in parse_spec(schema).items() if key in wanted}
        parse = tf.io.parse_example if serialized.shape.rank else tf.io.parse_single_example
        return parse(serialized, dict(spec))  # type: ignore[no-any-return]

    def _content(self, parsed: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return parsed[self.schema.key_of(self.schema.holds) or ""]

    def _pixels(self, parsed: Mapping[str, tf.Tensor]) -> tf.Tensor:
        pixels = self._content(decode(parsed, self.schema))
        return images.with_channels(pixels, self.options.channels)

    def _with_label(self, parsed: Mapping[str, tf.Tensor], content: tf.Tensor) -> Any:
        if not self.schema.label_key:
            return content
        label = parsed[self.schema.label_key]
        return content, label if label.dtype == tf.float32 else tf.cast(label, tf.int32)

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
    ) -> tf.Tensor:
        options = self.options
        # A mask has the same window and flip as its image. Its pixels are not mixed.
        channels = 1 if is_mask else options.channels
        method = "nearest" if is_mask else "bilinear"

        def seed(use: int) -> tf.Tensor:
            # The position makes the seed the same after a restart, and different in each epoch.
            return tf.stack([tf.cast(2 * self.seed + use, tf.int64), position])

        def window(shape: tf.Tensor) -> tf.Tensor:
            if options.augment:
                return images.random_window(shape, seed(0))
            return images.centered_window(shape, size, float(options.crop_fraction))

        image = images.decode_window(data, window, size, channels)
        image = tf.ensure_shape(tf.image.resize(image, size, method), [*size, channels])
        if options.augment:
            image = tf.image.stateless_random_flip_left_right(image, seed(1))
        return image
