"""TensorFlow operations that decode, crop and convert images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from imageshards.transforms.images import validate

_RATIOS = (1, 2, 4)
"""Ratios by which JPEGs are decoded smaller. A ratio of 8 would shift the window by 7 pixels."""


@dataclass(frozen=True)
class Placed:
    """Where an image is in the stored one.

    Attributes:
      place: int32 [6]: top, left, height and width of the crop, height and width of the image.
      mirrored: bool [], whether the crop is mirrored.
    """

    place: tf.Tensor
    mirrored: tf.Tensor

    def boxes(self, boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Maps boxes to the crop.

        Args:
          boxes: float32 [4, boxes]: ymin, xmin, ymax and xmax, fractions of the stored image.

        Returns:
          The boxes as fractions of the crop, clipped to it; and float32 [boxes], the fraction of
          each box's area that is in the crop.
        """
        top, left, height, width, full_height, full_width = tf.unstack(
            tf.cast(self.place, tf.float32)
        )
        offset = tf.stack([top, left, top, left])[:, None]
        window = tf.stack([height, width, height, width])[:, None]
        full = tf.stack([full_height, full_width, full_height, full_width])[:, None]
        moved = (boxes * full - offset) / window
        placed = tf.clip_by_value(moved, 0.0, 1.0)
        # A line or a point has no area: it is in the crop or not.
        length, remains = moved[2:] - moved[:2], placed[2:] - placed[:2]
        is_line = length <= 0
        kept = tf.cast(moved[:2] == placed[:2], tf.float32)
        share = tf.where(is_line, kept, remains / tf.where(is_line, 1.0, length))
        ymin, xmin, ymax, xmax = tf.unstack(placed)
        left, right = tf.cond(self.mirrored, lambda: (1 - xmax, 1 - xmin), lambda: (xmin, xmax))
        return tf.stack([ymin, left, ymax, right]), tf.reduce_prod(share, 0)


def decode_image(value: tf.Tensor, channels: int) -> tf.Tensor:
    """Decodes an image file, a scalar string, to uint8 [height, width, channels]."""

    def decoded(channels: int) -> tf.Tensor:
        return tf.io.decode_image(value, channels=channels, expand_animations=False)

    if channels == 1:
        # TensorFlow does not convert BMPs and GIFs to grayscale.
        in_color = tf.strings.regex_full_match(tf.strings.substr(value, 0, 2), "BM|GI")
        image = tf.cond(in_color, lambda: tf.image.rgb_to_grayscale(decoded(3)), lambda: decoded(1))
    else:
        image = decoded(channels)
    return tf.ensure_shape(image, [None, None, channels or None])


def inspect(data: bytes) -> validate.ImageInfo:
    """Decodes an image file with TensorFlow, and returns its format and size.

    Raises:
      ImageError: TensorFlow does not decode it, or to 2 channels.
    """
    try:
        height, width, channels = tf.io.decode_image(data, expand_animations=False).shape
    except tf.errors.OpError as error:
        reason = str(error.message).partition("}} ")[2].partition(" [Op:")[0] or error.message
        raise validate.ImageError("Corrupt", f"TensorFlow: {' '.join(reason.split())}") from None
    if channels == 2:
        raise validate.ImageError("Unsupported", "TensorFlow decodes it to 2 channels")
    return validate.ImageInfo(validate.detect_format(data), height, width)


def decode_window(
    data: tf.Tensor,
    window_of: Callable[[tf.Tensor], tf.Tensor],
    size: tuple[int, int],
    channels: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes the part of an image that is inside a window.

    Args:
      data: an image file as a scalar string, or pixels [height, width, channels].
      window_of: a function from the image's shape to (top, left, height, width), int32.
      size: the height and width to which the part will be resized. A JPEG that is much larger is
        decoded to a half or a quarter of its size.
      channels: 1 or 3.

    Returns:
      The part, uint8 [height, width, channels], and int32 [6], its `Placed.place`.
    """

    def crop_jpeg() -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.io.extract_jpeg_shape(data)
        window = window_of(shape)

        def at(ratio: int) -> Callable[[], tf.Tensor]:
            return lambda: tf.io.decode_and_crop_jpeg(
                data, window // ratio, channels=channels, ratio=ratio
            )

        least = 2 * tf.constant(size)
        enough = [tf.reduce_all(window[2:] // ratio >= least) for ratio in _RATIOS[1:]]
        part = tf.switch_case(
            tf.reduce_sum(tf.cast(enough, tf.int32)), [at(ratio) for ratio in _RATIOS]
        )
        return part, tf.concat([window, shape[:2]], 0)

    def crop(image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.shape(image)
        window = window_of(shape)
        top, left, height, width = tf.unstack(window)
        part = image[top : top + height, left : left + width]
        return part, tf.concat([window, shape[:2]], 0)

    if data.dtype != tf.string:
        return crop(data)
    image, place = tf.cond(
        tf.io.is_jpeg(data), crop_jpeg, lambda: crop(decode_image(data, channels))
    )
    return tf.ensure_shape(image, [None, None, channels]), place


def random_window(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns a random window, as is usual for training on ImageNet: (top, left, height, width).

    Args:
      shape: int32, the height and width of the image first.
      seed: int64 [2].
    """
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.stack([shape[0], shape[1], 3]),
        tf.zeros([1, 0, 4]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], 0)


def centered_window(shape: tf.Tensor, size: tuple[int, int], fraction: float) -> tf.Tensor:
    """Returns a centered window with the aspect ratio of `size`: (top, left, height, width).

    Args:
      shape: int32, the height and width of the image first.
      size: height and width.
      fraction: 1 for the largest such window; less for a smaller one.
    """
    height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
    scale = fraction * tf.minimum(height / size[0], width / size[1])
    rows = tf.clip_by_value(tf.cast(tf.round(scale * size[0]), tf.int32), 1, shape[0])
    columns = tf.clip_by_value(tf.cast(tf.round(scale * size[1]), tf.int32), 1, shape[1])
    return tf.stack([(shape[0] - rows) // 2, (shape[1] - columns) // 2, rows, columns])


def with_channels(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Converts raw pixels to grayscale or RGB.

    Args:
      image: [height, width, 1 or 3], or a batch of such images.
      channels: 1 or 3.

    Returns:
      The same dtype, [..., channels].
    """
    if image.shape[-1] == channels:
        return image
    if channels == 3:
        shape = tf.concat([tf.shape(image)[:-1], [3]], 0)
        return tf.ensure_shape(tf.broadcast_to(image, shape), [*image.shape[:-1], 3])
    gray = tf.cond(
        tf.shape(image)[-1] == 1, lambda: image, lambda: tf.image.rgb_to_grayscale(image)
    )
    return tf.ensure_shape(gray, [*image.shape[:-1], 1])
