"""Turns records back into the values from which they were built, with or without TensorFlow.

    schema = schema_of("dataset")                          # or "slim", or a Schema
    spec = parse_spec(schema)
    data = records.map(lambda record: decode(tf.io.parse_single_example(record, spec), schema))

The keys of the values are those of the record's features: `schema.content.key` is the key of the
image or the text, and `schema.label_key` the key of the class index.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from imageshards.reader.dataset import open_dataset
from imageshards.reader.features_json import schema_from_features
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import SCHEMAS, Array, Feature, Kind, Schema

if TYPE_CHECKING:
    import tensorflow as tf

_GRAY = (0.2989, 0.587, 0.114)
"""The weights of red, green and blue in tf.image.rgb_to_grayscale."""
_DIFFERENT_SIZES = "the images differ in size: decode before batching"
_DTYPES: dict[Kind, str] = {"bytes": "string", "int64": "int64", "float": "float32"}


def schema_of(source: str | Schema) -> Schema:
    """Returns a schema by its name, or the schema of a data set by its folder.

    >>> schema = schema_of("slim")
    >>> schema.content.key, schema.label_key
    ('image/encoded', 'image/class/label')

    Args:
      source: a value of `--features`, for its default `--labels`; or the folder of a data set that
        imageshards built or that has a features.json of tensorflow_datasets; or a Schema, which is
        returned unchanged.

    Raises:
      BuildError: `source` is none of these.
    """
    if isinstance(source, Schema):
        return source
    if source in SCHEMAS:
        schema = SCHEMAS[source]
        return schema if schema.has_labels else schema.without_labels()
    root = storage.folder_uri(source)
    if storage.exists(storage.join(root, "metadata", "build.json")):
        return open_dataset(source).schema
    features = storage.join(root, "features.json")
    try:
        with storage.open_read(features) as file:
            return schema_from_features(json.load(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BuildError(
            f"{source}: neither a data set nor a schema; there are {', '.join(SCHEMAS)}"
        ) from error
    except ValueError as error:
        raise BuildError(f"{features} is damaged: {error}") from error


def parse_spec(schema: str | Schema) -> dict[str, Any]:
    """Returns the `features` argument of tf.io.parse_single_example and tf.io.parse_example.

    Returns:
      key -> tf.io.FixedLenFeature; for lists tf.io.RaggedFeature, which parses to a tensor for one
      record and to a tf.RaggedTensor for a batch.
    """
    return {feature.key: spec_of(feature) for feature in schema_of(schema).features}


def spec_of(feature: Feature) -> Any:
    """Returns the value of `parse_spec` for one feature."""
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(_DTYPES[feature.kind])
    if feature.is_list:
        return tf.io.RaggedFeature(dtype)
    return tf.io.FixedLenFeature([], dtype)


def decode(
    parsed: Mapping[str, tf.Tensor], schema: str | Schema, *, channels: int = 3
) -> dict[str, tf.Tensor]:
    """Decodes the parsed features of one record or of a batch.

    Raw pixels of a fixed shape are decoded one by one or in batches. Encoded images, and images of
    the schema `shape`, differ in size and must be decoded before they are batched.

    Args:
      parsed: features parsed with `parse_spec`, of shape [] or [batch].
      schema: the schema of the records.
      channels: the channels of encoded images: 1 or 3, 4 for PNGs with alpha, 0 for the image's
        own. Raw pixels keep their channels.

    Returns:
      key -> value. An encoded image is uint8 [height, width, channels], the first frame of a GIF;
      raw pixels have the dtype and shape of the schema; other features are unchanged.

    Raises:
      ValueError: `parsed` is a batch of images that differ in size.
    """
    from imageshards.reader.tensorflow import images

    schema = schema_of(schema)
    values = dict(parsed)
    for feature in schema.features:
        if feature.key not in parsed:
            continue
        if feature.tfds in ("Image", "Mask") and parsed[feature.key].shape.rank:
            raise ValueError(f"{feature.key!r}: {_DIFFERENT_SIZES}")
        if feature.tfds == "Image":
            values[feature.key] = images.decode_image(parsed[feature.key], channels)
        elif feature.tfds == "Mask":
            values[feature.key] = images.decode_image(parsed[feature.key], 1)
        elif feature.array:
            values[feature.key] = _decode_array(parsed, feature, feature.array, schema)
    return values


def decode_numpy(data: bytes, schema: str | Schema) -> dict[str, Any]:
    """Decodes a record without TensorFlow.

    >>> from imageshards import reader
    >>> record = reader.open("dataset", "train").serialized(0)
    >>> values = decode_numpy(record, "slim")
    >>> values["image/height"], values["image/width"]
    (16, 24)

    Args:
      data: a serialized tf.train.Example.
      schema: the schema of the record.

    Returns:
      key -> int, float or bytes; a list of them for features of any length; a numpy array for raw
      pixels and for their shape. Encoded images stay bytes; see `decode_image`. Keys that are not
      in the schema are left out.

    Raises:
      CorruptExample: `data` is not a tf.train.Example, or it does not match the schema.
    """
    return decode_record(example.decode(data), schema)


def decode_record(found: Mapping[str, list[Any]], schema: str | Schema) -> dict[str, Any]:
    """Decodes a record that `example.decode` has parsed to key -> list of values.

    Raises:
      CorruptExample: a feature is missing, or the number of pixels is wrong.
    """
    schema = schema_of(schema)
    values: dict[str, Any] = {}
    for feature in schema.features:
        items = found.get(feature.key)
        if feature.is_list:
            values[feature.key] = items or []
        elif not items:
            raise example.CorruptExample(f"the record has no feature {feature.key!r}")
        else:
            values[feature.key] = items[0]
    shape_key = schema.key_of("shape")
    for feature in schema.features:
        if feature.array:
            shape = values.get(shape_key) if shape_key else None
            values[feature.key] = _to_array(values[feature.key], feature.array, shape)
    return values


def _to_array(
    data: bytes, array: Array, shape: bytes | npt.NDArray[Any] | None
) -> npt.NDArray[Any]:
    """Returns raw bytes as an array; `shape` is the record's own, int32 or its bytes."""
    dtype = np.dtype(array.dtype).newbyteorder("<")
    size = array.shape
    if size is None and shape is not None:
        sides = np.frombuffer(shape, "<i4") if isinstance(shape, bytes) else shape
        size = tuple(sides.tolist())
    if size is None:
        size = (-1,)
    try:
        return np.frombuffer(data, dtype).reshape(size).astype(array.dtype, copy=False)
    except ValueError as error:
        raise example.CorruptExample(f"{len(data):,} bytes, not {size} {array.dtype}") from error


def decode_image(data: bytes, channels: int = 3) -> npt.NDArray[np.uint8]:
    """Decodes an image file to the same pixels as `tf.io.decode_image`; a GIF as Pillow does.

    A PNG that is converted from RGB to grayscale may differ from TensorFlow by one level.

    Args:
      data: the content of the file.
      channels: 1 or 3; 0 for 1 if the image is grayscale without alpha, else 3.

    Returns:
      uint8 [height, width, channels].
    """
    from PIL import Image

    from imageshards.transforms.images import headers, jpeg

    if data.startswith(b"\xff\xd8"):
        header = headers.read_jpeg(data) if channels == 0 else None
        gray = channels == 1 or (header is not None and header.components == 1)
        # TensorFlow uses the fast DCT; on photographs it differs from the accurate one.
        return jpeg.decode(data, strict=False, colorspace="GRAY" if gray else "RGB", fastdct=True)
    if data.startswith(b"\x89PNG"):
        data = headers.png_without_metadata(data)
    with Image.open(io.BytesIO(data)) as image:
        # Pillow clips 16-bit grayscale to 8 bits, where TensorFlow scales it.
        deep = image.mode.startswith("I;16")
        gray = channels == 1 or (channels == 0 and (deep or image.mode in ("1", "L")))
        levels = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if deep else image
        pixels = np.asarray(levels.convert("L" if gray else "RGB"))
    return pixels[..., None] if gray else pixels


def array_with_channels(image: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Converts pixels to grayscale or RGB; 0 channels keep the image's own.

    8-bit grayscale may differ from the result of TensorFlow by one level.
    """
    if channels in (0, image.shape[-1]):
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=-1)
    gray = image @ np.array(_GRAY, np.float32)
    if image.dtype == np.uint8:
        gray = np.rint(gray)
    return gray.astype(image.dtype)[..., None]


def to_uint8(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns pixels for display. Floats are from 0 to 1, or from 0 to 255 if any is above 1."""
    if pixels.dtype == np.uint8:
        return pixels
    scale = 255.0 if pixels.max(initial=0) <= 1 else 1.0
    return np.clip(pixels * scale, 0, 255).round().astype(np.uint8)


def _decode_array(
    parsed: Mapping[str, tf.Tensor], feature: Feature, array: Array, schema: Schema
) -> tf.Tensor:
    import tensorflow as tf

    value = parsed[feature.key]
    numbers = tf.io.decode_raw(value, tf.dtypes.as_dtype(array.dtype), little_endian=True)
    if array.shape is not None:
        # `numbers` is [numbers] or [batch, numbers].
        shape = tf.concat([tf.shape(value), array.shape], 0)
        result = tf.reshape(numbers, shape)
        result.set_shape(value.shape.concatenate(array.shape))
        return result
    shape_key = schema.key_of("shape")
    if shape_key is None:
        return numbers
    if value.shape.rank:
        raise ValueError(f"{feature.key!r}: {_DIFFERENT_SIZES}")
    result = tf.reshape(numbers, tf.io.decode_raw(parsed[shape_key], tf.int32))
    result.set_shape([None, None, None])
    return result
