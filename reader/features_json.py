"""Reads the features.json files of tensorflow_datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from imageshards.transforms.records.schemas import Array, Feature, Kind, Schema

_SOURCES = {"Image": "encoded", "ClassLabel": "label", "Text": "text"}
_KINDS: dict[str, Kind] = {"string": "bytes", "float32": "float", "int64": "int64"}


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
    named: list[Feature] = []
    for feature in found:
        source = _SOURCES.get(feature.tfds, feature.key)
        if feature is image:
            source = holds
        # Only the first feature of a kind is the content or the label.
        taken = any(other.source == source for other in named)
        if taken or (source == "text" and holds != "text"):
            source = feature.key
        named.append(replace(feature, source=source))
    return Schema("features.json", tuple(named), holds=holds)  # type: ignore[arg-type]


def _is_pixels(feature: Feature) -> bool:
    return bool(feature.array and feature.array.shape and len(feature.array.shape) == 3)


def _features_in(key: str, node: Mapping[str, Any]) -> Iterator[Feature]:
    """Yields the features of a node of features.json; `key` is the node's key."""
    name: Any = str(node["pythonClassName"]).rpartition(".")[2]
    if name == "FeaturesDict":
        for child_key, child in node["featuresDict"]["features"].items():
            yield from _features_in(f"{key}/{child_key}" if key else child_key, child)
    elif name in ("Image", "Text"):
        yield Feature(key, "bytes", key, name)
    elif name == "ClassLabel":
        yield Feature(key, "int64", key, name)
    elif name == "BBoxFeature":
        yield Feature(key, "float", key, "Boxes")
    elif name == "Sequence":
        yield from _sequence(key, node["sequence"]["feature"])
    elif name in ("Tensor", "Scalar"):
        yield _tensor(key, node["tensor"])
    else:
        raise ValueError(f"{key!r} is a feature of the class {name}, which is not supported")


def _sequence(key: str, node: Mapping[str, Any]) -> Iterator[Feature]:
    for item in _features_in(key, node):
        if item.tfds == "ClassLabel":
            yield replace(item, tfds="ClassLabels")
        elif item.tfds == "Boxes":
            yield item
        elif item.tfds in ("Text", "Scalar"):
            yield replace(item, tfds="List")
        else:
            raise ValueError(f"{key!r} is a sequence of {item.tfds}, which is not supported")


def _tensor(key: str, tensor: Mapping[str, Any]) -> Feature:
    shape = tuple(int(side) for side in tensor.get("shape", {}).get("dimensions", ()))
    dtype = tensor["dtype"]
    if tensor.get("encoding") == "bytes":
        if dtype not in ("uint8", "int32", "float32"):
            raise ValueError(f"{key!r} is an array of {dtype}, which is not supported")
        array = Array(dtype, None if -1 in shape else shape)
        return Feature(key, "bytes", key, "Array", array=array)
    if tensor.get("encoding", "none") != "none":
        raise ValueError(f"{key!r} is compressed by {tensor['encoding']}, which is not supported")
    kind: Kind = "int64" if dtype.startswith(("int", "uint", "bool")) else "float"
    return Feature(key, _KINDS.get(dtype, kind), key, "List" if shape else "Scalar")
