"""Features as tensorflow_datasets describes them. Pure.

Format: core/proto/feature.proto of tensorflow_datasets, as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imageshards.transforms.records.schemas import Feature, Schema

_TFDS = "tensorflow_datasets.core.features"


def features_json(schema: Schema, num_classes: int) -> dict[str, Any]:
    """The features as tensorflow_datasets describes them."""
    return {
        "pythonClassName": f"{_TFDS}.features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                feature.key: _tfds_feature(feature, num_classes)
                for feature in sorted(schema.features, key=lambda feature: feature.key)
            }
        },
    }


def _tfds_feature(feature: Feature, num_classes: int) -> dict[str, Any]:
    if feature.tfds == "Image":
        return {
            "pythonClassName": f"{_TFDS}.image_feature.Image",
            # Three channels whatever the file has: grey levels are then repeated, and a batch
            # has one shape.
            "image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"},
        }
    if feature.tfds == "ClassLabel":
        return {
            "pythonClassName": f"{_TFDS}.class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(num_classes)},
        }
    if feature.tfds == "Text":
        return {"pythonClassName": f"{_TFDS}.text_feature.Text", "text": {}}
    if feature.array:
        # Of images that tell their shape themselves, tensorflow_datasets knows the pixels in a row.
        shape = feature.array.shape or (-1,)
        return _tensor(feature.array.dtype, shape, "bytes")
    dtype = {"int64": "int64", "float": "float32", "bytes": "string"}[feature.kind]
    return _tensor(dtype, (-1,) if feature.tfds == "List" else (), "none")


def _tensor(dtype: str, shape: Sequence[int], encoding: str) -> dict[str, Any]:
    return {
        "pythonClassName": f"{_TFDS}.tensor_feature.Tensor",
        "tensor": {
            "shape": {"dimensions": [str(side) for side in shape]} if shape else {},
            "dtype": dtype,
            "encoding": encoding,
        },
    }
