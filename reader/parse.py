"""Records -> the values of which they were made, with TensorFlow or without.

    schema = schema_of("dataset")                          # or "slim", or a Schema
    spec = parse_spec(schema)
    data = records.map(lambda record: decode(tf.io.parse_single_example(record, spec), schema))

Values keep the keys of their features. Which is what, the schema says: `schema.content.key` is the
image or the text, `schema.label_key` the number of the class.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
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
"""Of red, green and blue: as tf.image.rgb_to_grayscale has it."""
_OWN_SIZES = "images have sizes of their own: decode before batching"
_DTYPES: dict[Kind, str] = {"bytes": "string", "int64": "int64", "float": "float32"}


def schema_of(source: str | Schema) -> Schema:
    """A schema by its name, or that of a data set by its folder.

    Args:
      source: a name of `--features`, the folder of a data set that imageshards built, or of any
        data set with a features.json of tensorflow_datasets; a Schema is returned as it is.

    Raises:
      BuildError: it is none of them.
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
    """The schema of records of which there is only a features.json.

    Args:
      features: its contents, a FeaturesDict of Image, ClassLabel, Text, Scalar and Tensor, or of
        further FeaturesDicts.

    Raises:
      ValueError: it holds what no schema here can say.
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
    """What `tf.io.parse_single_example` and `tf.io.parse_example` are to find in a record.

    Returns:
      key -> tf.io.FixedLenFeature, or of lists tf.io.RaggedFeature, which gives a tensor for one
      record and a tf.RaggedTensor for a batch.
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
    """The values of which a record was made, of one record or of a batch.

    Raw pixels of a fixed shape are decoded in batches as well as one by one. Encoded images, and
    those of the schema `shape`, have sizes of their own: they are decoded before they are batched.

    Args:
      parsed: by `parse_spec`: features of shape [], or of shape [batch].
      schema: of the records.
      channels: of encoded images: 1 or 3, 4 for PNGs with alpha, 0 for what each has. Raw pixels
        stay as they are: `with_channels` makes others of them.

    Returns:
      key -> value. An encoded image is uint8 [height, width, channels], a GIF's first frame; raw
      pixels are of the dtype and shape that the schema says; all else is as it was parsed.

    Raises:
      ValueError: a batch of images that have sizes of their own.
    """
    schema = schema_of(schema)
    values = dict(parsed)
    for feature in schema.features:
        if feature.key not in parsed:
            continue
        if feature.tfds == "Image":
            if parsed[feature.key].shape.rank:
                raise ValueError(f"{feature.key!r}: {_OWN_SIZES}")
            values[feature.key] = decode_image_tensor(parsed[feature.key], channels)
        elif feature.array:
            values[feature.key] = _decode_array(parsed, feature, feature.array, schema)
    return values


def decode_numpy(data: bytes, schema: str | Schema) -> dict[str, Any]:
    """The values of which a record was made, without TensorFlow.

    Args:
      data: a serialized tf.train.Example.
      schema: of the record.

    Returns:
      key -> int, float or bytes, a list of them for features of any length, a numpy array for raw
      pixels and their shape. Encoded images stay bytes: `decode_image` decodes them. Keys that the
      schema does not have are left out.

    Raises:
      CorruptExample: data is no such message, lacks a feature, or has too many or few pixels.
    """
    return decode_record(example.decode(data), schema)


def decode_record(found: Mapping[str, list[Any]], schema: str | Schema) -> dict[str, Any]:
    """The same of a record that is parsed: key -> list of its values, as `example.decode` has it.

    Raises:
      CorruptExample: it lacks a feature, or has too many or few pixels.
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
            told = values.get(shape_key) if shape_key else None
            values[feature.key] = array_of(values[feature.key], feature.array, told)
    return values


def array_of(
    data: bytes, array: Array, shape: bytes | npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """Raw bytes as numbers.

    Args:
      data: as the record has them.
      array: what they are.
      shape: the record's own shape, int32, or its bytes, where `array` does not say it.

    Raises:
      CorruptExample: there are more or fewer bytes than the shape wants.
    """
    dtype = np.dtype(array.dtype).newbyteorder("<")
    size = array.shape
    if size is None and shape is not None:
        told = np.frombuffer(shape, "<i4") if isinstance(shape, bytes) else shape
        size = tuple(told.tolist())
    if size is None:
        size = (-1,)
    try:
        return np.frombuffer(data, dtype).reshape(size).astype(array.dtype, copy=False)
    except ValueError as error:
        raise example.CorruptExample(f"{len(data):,} bytes, not {size} {array.dtype}") from error


def decode_image(data: bytes, channels: int = 3) -> npt.NDArray[np.uint8]:
    """An encoded image, with the pixels that `tf.io.decode_image` gives, and of a GIF Pillow's.

    Grey that is made of a PNG's colours may differ from TensorFlow's by one level.

    Args:
      data: the file.
      channels: 1 or 3; 0 for 1 where the image is grey and has no alpha channel, else 3.

    Returns:
      uint8 [height, width, channels].
    """
    import simplejpeg
    from PIL import Image

    if data.startswith(b"\xff\xd8"):
        grey = channels == 1 or (
            channels == 0 and simplejpeg.decode_jpeg_header(data)[2].lower() == "gray"
        )
        # TensorFlow takes the fast DCT: on photographs some levels from the accurate one.
        pixels = simplejpeg.decode_jpeg(data, "GRAY" if grey else "RGB", fastdct=True)
        return cast("npt.NDArray[np.uint8]", pixels)
    with Image.open(io.BytesIO(data)) as image:
        deep = image.mode.startswith(
            "I;16"
        )  # grey of 16 bits, which Pillow clips and does not scale
        grey = channels == 1 or (channels == 0 and (deep or image.mode in ("1", "L")))
        levels = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if deep else image
        pixels = np.asarray(levels.convert("L" if grey else "RGB"))
    return pixels[..., None] if grey else pixels


def decode_image_tensor(value: tf.Tensor, channels: int) -> tf.Tensor:
    """An encoded image, a scalar string, as uint8 [height, width, channels]."""
    import tensorflow as tf

    def decoded(channels: int) -> tf.Tensor:
        return tf.io.decode_image(value, channels=channels, expand_animations=False)

    if channels == 1:
        # Of BMPs and GIFs TensorFlow makes no grey.
        in_colour = tf.strings.regex_full_match(tf.strings.substr(value, 0, 2), "BM|GI")
        image = tf.cond(
            in_colour, lambda: tf.image.rgb_to_grayscale(decoded(3)), lambda: decoded(1)
        )
    else:
        image = decoded(channels)
    return tf.ensure_shape(image, [None, None, channels or None])


def with_channels(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Raw pixels as grey or colours.

    Args:
      image: [height, width, 1 or 3], or a batch of them.
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
    """The same of arrays; what is grey of 8 bits may differ from TensorFlow's by one level."""
    if channels in (0, image.shape[-1]):
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=-1)
    grey = image @ np.array(_GREY, np.float32)
    if image.dtype == np.uint8:
        grey = np.rint(grey)
    return grey.astype(image.dtype)[..., None]


def _decode_array(
    parsed: Mapping[str, tf.Tensor], feature: Feature, array: Array, schema: Schema
) -> tf.Tensor:
    import tensorflow as tf

    value = parsed[feature.key]
    numbers = tf.io.decode_raw(value, tf.dtypes.as_dtype(array.dtype), little_endian=True)
    if array.shape is not None:
        # [batch, numbers] or [numbers]: what stands before the numbers stays.
        shape = tf.concat([tf.shape(value), array.shape], 0)
        result = tf.reshape(numbers, shape)
        result.set_shape(value.shape.concatenate(array.shape))
        return result
    shape_key = schema.key_of("shape")
    if shape_key is None:
        return numbers
    if value.shape.rank:
        raise ValueError(f"{feature.key!r}: {_OWN_SIZES}")
    result = tf.reshape(numbers, tf.io.decode_raw(parsed[shape_key], tf.int32))
    result.set_shape([None, None, None])
    return result


def _is_pixels(feature: Feature) -> bool:
    return bool(feature.array and feature.array.shape and len(feature.array.shape) == 3)


_TFDS_DTYPES: dict[str, Kind] = {"string": "bytes", "float32": "float", "int64": "int64"}


def _features_in(prefix: str, node: Mapping[str, Any]) -> list[Feature]:
    """The features of a node of features.json, of which `prefix` is the key."""
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
    raise ValueError(f"{prefix!r} is a feature of the class {name}, which is not known here")


def _tensor(key: str, tensor: Mapping[str, Any]) -> Feature:
    shape = tuple(int(side) for side in tensor.get("shape", {}).get("dimensions", ()))
    dtype = tensor["dtype"]
    if tensor.get("encoding") == "bytes":
        if dtype not in ("uint8", "int32", "float32"):
            raise ValueError(f"{key!r} is an array of {dtype}, which is not known here")
        return Feature(
            key, "bytes", key, "Array", array=Array(dtype, None if -1 in shape else shape)
        )
    if tensor.get("encoding", "none") != "none":
        raise ValueError(f"{key!r} is compressed by {tensor['encoding']}, which is not known here")
    kind: Kind = "int64" if dtype.startswith(("int", "uint", "bool")) else "float"
    kind = _TFDS_DTYPES.get(dtype, kind)
    return Feature(key, kind, key, "List" if shape else "Scalar")
