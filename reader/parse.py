"""Turns records back into the values from which they were built, with or without TensorFlow.

    schema = schema_of("dataset")                          # or "slim", or a Schema
    spec = parse_spec(schema)
    data = records.map(lambda record: decode(tf.io.parse_single_example(record, spec), schema))

The values have the keys of the record's features. The schema says what each key holds:
`schema.content.key` is the image or the text, `schema.label_key` the class index.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from imageshards.reader.dataset import open_dataset
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import SCHEMAS, Array, Feature, Kind, Schema

if TYPE_CHECKING:
    import tensorflow as tf

_GREY = (0.2989, 0.587, 0.114)
"""The weights of red, green and blue in tf.image.rgb_to_grayscale."""
_RATIOS = (1, 2, 4)
"""Ratios by which JPEGs are decoded smaller. A ratio of 8 would shift the window by 7 pixels."""
_DIFFERENT_SIZES = "the images differ in size: decode before batching"
_DTYPES: dict[Kind, str] = {"bytes": "string", "int64": "int64", "float": "float32"}


def schema_of(source: str | Schema) -> Schema:
    """Returns a schema by its name, or the schema of a data set by its folder.

    >>> schema = schema_of("slim")
    >>> schema.content.key, schema.label_key
    ('image/encoded', 'image/class/label')

    Args:
      source: a value of `--features`; or the folder of a data set that imageshards built or that
        has a features.json of tensorflow_datasets; or a Schema, which is returned unchanged.

    Raises:
      BuildError: `source` is none of these.
    """
    if isinstance(source, Schema):
        return source
    if source in SCHEMAS:
        return SCHEMAS[source]
    root = storage.normalize(source)
    if storage.exists(storage.join(root, "metadata", "build.json")):
        return open_dataset(source).schema
    try:
        with storage.open_read(storage.join(root, "features.json")) as file:
            return schema_from_features(json.load(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BuildError(
            f"{source}: neither a data set nor a schema; there are {', '.join(SCHEMAS)}"
        ) from error
    except ValueError as error:
        raise BuildError(f"{root}/features.json is damaged: {error}") from error


def schema_from_features(features: Mapping[str, Any]) -> Schema:
    """Returns the schema that a features.json of tensorflow_datasets describes.

    Args:
      features: the parsed file, a FeaturesDict of Image, ClassLabel, Text, Scalar and Tensor, or
        of nested FeaturesDicts.

    Raises:
      ValueError: a feature has no equivalent in a Schema.
    """
    found = list(_features_in("", features))
    image = next((f for f in found if f.tfds == "Image" or _is_pixels(f)), None)
    if image:
        holds = "encoded" if image.tfds == "Image" else "pixels"
    else:
        holds = "text" if any(f.tfds == "Text" for f in found) else "encoded"
    sources = {"Image": "encoded", "ClassLabel": "label", "Text": "text"}
    named: list[Feature] = []
    for feature in found:
        source = "pixels" if feature is image and holds == "pixels" else sources.get(feature.tfds)
        if source is None or (source == "text" and holds != "text"):
            source = feature.key
        if any(other.source == source for other in named):
            source = feature.key
        named.append(Feature(feature.key, feature.kind, source, feature.tfds, array=feature.array))
    return Schema("features.json", tuple(named), holds=holds)  # type: ignore[arg-type]


def parse_spec(schema: str | Schema) -> dict[str, Any]:
    """Returns the `features` argument of tf.io.parse_single_example and tf.io.parse_example.

    Returns:
      key -> tf.io.FixedLenFeature; for lists tf.io.RaggedFeature, which parses to a tensor for one
      record and to a tf.RaggedTensor for a batch.
    """
    import tensorflow as tf

    return {
        feature.key: tf.io.RaggedFeature(tf.dtypes.as_dtype(_DTYPES[feature.kind]))
        if feature.tfds == "List"
        else tf.io.FixedLenFeature([], tf.dtypes.as_dtype(_DTYPES[feature.kind]))
        for feature in schema_of(schema).features
    }


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
        own. Raw pixels keep their channels; `with_channels` converts them.

    Returns:
      key -> value. An encoded image is uint8 [height, width, channels], of a GIF the first frame;
      raw pixels have the dtype and shape of the schema; other features are unchanged.

    Raises:
      ValueError: `parsed` is a batch of images that differ in size.
    """
    schema = schema_of(schema)
    values = dict(parsed)
    for feature in schema.features:
        if feature.key not in parsed:
            continue
        if feature.tfds == "Image":
            if parsed[feature.key].shape.rank:
                raise ValueError(f"{feature.key!r}: {_DIFFERENT_SIZES}")
            values[feature.key] = decode_image_tensor(parsed[feature.key], channels)
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
        if feature.tfds == "List":
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
    """Decodes an image file to the pixels of `tf.io.decode_image`, a GIF to those of Pillow.

    A PNG that is converted from RGB to greyscale may differ from TensorFlow by one level.

    Args:
      data: the content of the file.
      channels: 1 or 3; 0 for 1 if the image is greyscale without alpha, else 3.

    Returns:
      uint8 [height, width, channels].
    """
    import simplejpeg
    from PIL import Image

    if data.startswith(b"\xff\xd8"):
        grey = channels == 1 or (
            channels == 0 and simplejpeg.decode_jpeg_header(data)[2].lower() == "gray"
        )
        # TensorFlow uses the fast DCT; on photographs it differs from the accurate one.
        pixels = simplejpeg.decode_jpeg(data, "GRAY" if grey else "RGB", fastdct=True)
        return cast("npt.NDArray[np.uint8]", pixels)
    with Image.open(io.BytesIO(data)) as image:
        # Pillow clips 16-bit greyscale to 8 bits, where TensorFlow scales it.
        deep = image.mode.startswith("I;16")
        grey = channels == 1 or (channels == 0 and (deep or image.mode in ("1", "L")))
        levels = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if deep else image
        pixels = np.asarray(levels.convert("L" if grey else "RGB"))
    return pixels[..., None] if grey else pixels


def decode_image_tensor(value: tf.Tensor, channels: int) -> tf.Tensor:
    """Decodes an image file, a scalar string, to uint8 [height, width, channels]."""
    import tensorflow as tf

    def decoded(channels: int) -> tf.Tensor:
        return tf.io.decode_image(value, channels=channels, expand_animations=False)

    if channels == 1:
        # TensorFlow does not convert BMPs and GIFs to greyscale.
        in_colour = tf.strings.regex_full_match(tf.strings.substr(value, 0, 2), "BM|GI")
        image = tf.cond(
            in_colour, lambda: tf.image.rgb_to_grayscale(decoded(3)), lambda: decoded(1)
        )
    else:
        image = decoded(channels)
    return tf.ensure_shape(image, [None, None, channels or None])


def decode_window(
    data: tf.Tensor,
    window_of: Callable[[tf.Tensor], tf.Tensor],
    size: tuple[int, int],
    channels: int,
) -> tf.Tensor:
    """Returns the part of an image that is inside a window.

    Args:
      data: an image file as a scalar string, or pixels [height, width, channels].
      window_of: a function from the image's shape to (top, left, height, width), int32.
      size: the height and width to which the part will be resized. A JPEG that is much larger is
        decoded to a half or a quarter of its size.
      channels: 1 or 3.
    """
    import tensorflow as tf

    def crop_jpeg() -> tf.Tensor:
        window = window_of(tf.io.extract_jpeg_shape(data))

        def at(ratio: int) -> Callable[[], tf.Tensor]:
            return lambda: tf.io.decode_and_crop_jpeg(
                data, window // ratio, channels=channels, ratio=ratio
            )

        least = 2 * tf.constant(size)
        enough = [tf.reduce_all(window[2:] // ratio >= least) for ratio in _RATIOS[1:]]
        return tf.switch_case(
            tf.reduce_sum(tf.cast(enough, tf.int32)), [at(ratio) for ratio in _RATIOS]
        )

    def crop(image: tf.Tensor) -> tf.Tensor:
        top, left, height, width = tf.unstack(window_of(tf.shape(image)))
        return image[top : top + height, left : left + width]

    if data.dtype != tf.string:
        return crop(data)
    image = tf.cond(
        tf.io.is_jpeg(data), crop_jpeg, lambda: crop(decode_image_tensor(data, channels))
    )
    return tf.ensure_shape(image, [None, None, channels])


def centred_window(shape: tf.Tensor, size: tuple[int, int], fraction: float) -> tf.Tensor:
    """Returns a centred window with the aspect ratio of `size`: (top, left, height, width).

    Args:
      shape: int32, the height and width of the image first.
      size: height and width.
      fraction: 1 for the largest such window; less for a smaller one.
    """
    import tensorflow as tf

    height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
    scale = fraction * tf.minimum(height / size[0], width / size[1])
    rows = tf.clip_by_value(tf.cast(tf.round(scale * size[0]), tf.int32), 1, shape[0])
    columns = tf.clip_by_value(tf.cast(tf.round(scale * size[1]), tf.int32), 1, shape[1])
    return tf.stack([(shape[0] - rows) // 2, (shape[1] - columns) // 2, rows, columns])


def with_channels(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Converts raw pixels to greyscale or RGB.

    Args:
      image: [height, width, 1 or 3], or a batch of such images.
      channels: 1 or 3.

    Returns:
      The same dtype, [..., channels].
    """
    import tensorflow as tf

    if image.shape[-1] == channels:
        return image
    if channels == 3:
        shape = tf.concat([tf.shape(image)[:-1], [3]], 0)
        return tf.ensure_shape(tf.broadcast_to(image, shape), [*image.shape[:-1], 3])
    grey = tf.cond(
        tf.shape(image)[-1] == 1, lambda: image, lambda: tf.image.rgb_to_grayscale(image)
    )
    return tf.ensure_shape(grey, [*image.shape[:-1], 1])


def array_with_channels(image: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Does the same for arrays; greyscale of 8 bits may differ from TensorFlow by one level."""
    if channels in (0, image.shape[-1]):
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=-1)
    grey = image @ np.array(_GREY, np.float32)
    if image.dtype == np.uint8:
        grey = np.rint(grey)
    return grey.astype(image.dtype)[..., None]


def to_uint8(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns pixels for display. Floats are taken as 0 to 1, or as 0 to 255 if one is above 1."""
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


def _is_pixels(feature: Feature) -> bool:
    return bool(feature.array and feature.array.shape and len(feature.array.shape) == 3)


_TFDS_DTYPES: dict[str, Kind] = {"string": "bytes", "float32": "float", "int64": "int64"}


def _features_in(prefix: str, node: Mapping[str, Any]) -> list[Feature]:
    """Returns the features of a node of features.json; `prefix` is the node's key."""
    name = str(node["pythonClassName"]).rpartition(".")[2]
    if name == "FeaturesDict":
        found = []
        for key, child in node["featuresDict"]["features"].items():
            found += _features_in(f"{prefix}/{key}" if prefix else key, child)
        return found
    if name == "Image":
        return [Feature(prefix, "bytes", prefix, "Image")]
    if name == "ClassLabel":
        return [Feature(prefix, "int64", prefix, "ClassLabel")]
    if name == "Text":
        return [Feature(prefix, "bytes", prefix, "Text")]
    if name in ("Tensor", "Scalar"):
        return [_tensor(prefix, node["tensor"])]
    raise ValueError(f"{prefix!r} is a feature of the class {name}, which is not supported")


def _tensor(key: str, tensor: Mapping[str, Any]) -> Feature:
    shape = tuple(int(side) for side in tensor.get("shape", {}).get("dimensions", ()))
    dtype = tensor["dtype"]
    if tensor.get("encoding") == "bytes":
        if dtype not in ("uint8", "int32", "float32"):
            raise ValueError(f"{key!r} is an array of {dtype}, which is not supported")
        return Feature(
            key, "bytes", key, "Array", array=Array(dtype, None if -1 in shape else shape)
        )
    if tensor.get("encoding", "none") != "none":
        raise ValueError(f"{key!r} is compressed by {tensor['encoding']}, which is not supported")
    kind: Kind = "int64" if dtype.startswith(("int", "uint", "bool")) else "float"
    kind = _TFDS_DTYPES.get(dtype, kind)
    return Feature(key, kind, key, "List" if shape else "Scalar")
