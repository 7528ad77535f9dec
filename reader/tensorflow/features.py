"""The features that `keys` adds to an element, as tensors."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from imageshards.reader.elements.keys import BOXES, MIN_VISIBLE, SIDES, Keys
from imageshards.reader.tensorflow.images import Placed


def selected(
    parsed: Mapping[str, tf.Tensor], keys: Keys, placed: Placed | None
) -> dict[str, tf.Tensor]:
    """Returns the features of an element, or of a batch of elements.

    Args:
      parsed: features of the records. Lists are [values], or tf.RaggedTensors of a batch.
      keys: the features to return.
      placed: where the image of one element is in the stored image; None if they are the same.
    """
    values = {key: parsed[key] for key in keys.parsed}
    if placed is not None and keys.follows and values.keys() >= set(SIDES):
        values = _followed(values, keys, placed)
    found = {key: values[key] for key in keys.features}
    if keys.boxes:
        found[BOXES] = _stacked([values[side] for side in SIDES])
    if keys.list_length is not None:
        for key in keys.lists:
            found[f"{key}/size"] = _sizes(found[key])
            found[key] = _padded(found[key], keys.list_length)
    return found


def _followed(values: Mapping[str, tf.Tensor], keys: Keys, placed: Placed) -> dict[str, tf.Tensor]:
    """Returns the features with boxes of the crop, and without the values of dropped boxes."""
    boxes, share = placed.boxes(tf.stack([values[side] for side in SIDES]))
    kept = (share > 0) & (share >= MIN_VISIBLE)
    mapped = {**values, **dict(zip(SIDES, tf.unstack(boxes), strict=True))}

    def chosen(value: tf.Tensor) -> tf.Tensor:
        # A list that is not one value per box, such as an empty one, is kept as it is.
        return tf.cond(
            tf.size(value) == tf.size(kept),
            lambda: tf.boolean_mask(value, tf.reshape(kept, [tf.size(value)])),
            lambda: value,
        )

    return {key: chosen(value) if key in keys.of_boxes else value for key, value in mapped.items()}


def _stacked(sides: list[tf.Tensor]) -> tf.Tensor:
    """Returns the sides of boxes, [boxes] each, as [boxes, 4]; also of a batch."""
    if not isinstance(sides[0], tf.RaggedTensor):
        return tf.stack(sides, -1)
    return sides[0].with_flat_values(tf.stack([side.flat_values for side in sides], -1))


def _sizes(values: tf.Tensor) -> tf.Tensor:
    sizes = values.row_lengths() if isinstance(values, tf.RaggedTensor) else tf.shape(values)[0]
    return tf.cast(sizes, tf.int32)


def _padded(values: tf.Tensor, length: int) -> tf.Tensor:
    """Returns a list of a record, or lists of a batch, padded or cut to `length` rows."""
    if isinstance(values, tf.RaggedTensor):
        return values.to_tensor(shape=[None, length, *values.shape[2:]])
    row = tf.RaggedTensor.from_row_lengths(values, tf.shape(values, tf.int64)[:1])
    return row.to_tensor(shape=[1, length, *values.shape[1:]])[0]
