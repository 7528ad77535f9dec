"""The content of features.json, by which tensorflow_datasets reads a data set. Pure.

Format: core/proto/feature.proto of tensorflow_datasets, as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from imageshards.transforms.records.schemas import Feature, Schema

_TFDS = "tensorflow_datasets.core.features"


def features_json(schema: Schema, num_classes: int, num_object_classes: int = 0) -> dict[str, Any]:
    """Returns the content of features.json.

    Args:
      schema: the features.
      num_classes: number of classes, the background class included.
      num_object_classes: the same of the classes of annotated objects.
    """
    return {
        "pythonClassName": f"{_TFDS}.features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                feature.key: _tfds_feature(
                    feature, num_classes if feature.source == "label" else num_object_classes
                )
                for feature in sorted(schema.features, key=lambda feature: feature.key)
            }
        },
    }


def _tfds_feature(feature: Feature, num_classes: int) -> dict[str, Any]:
    if feature.tfds in ("Image", "Mask"):
        channels = "3" if feature.tfds == "Image" else "1"
        return {
            "pythonClassName": f"{_TFDS}.image_feature.Image",
            # Three channels for grey images too, so that all images of a batch have them.
            "image": {"shape": {"dimensions": ["-1", "-1", channels]}, "dtype": "uint8"},
        }
    if feature.tfds in ("ClassLabel", "ClassLabels"):
        label = {
            "pythonClassName": f"{_TFDS}.class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(num_classes)},
        }
        return _sequence(label) if feature.is_list else label
    if feature.tfds == "Boxes":
        return _sequence(
            {
                "pythonClassName": f"{_TFDS}.bounding_boxes.BBoxFeature",
                "boundingBox": {
                    "shape": {"dimensions": ["4"]},
                    "dtype": "float32",
                    "bboxFormat": "REL_YXYX",
                },
            }
        )
    if feature.tfds == "Text":
        return {"pythonClassName": f"{_TFDS}.text_feature.Text", "text": {}}
    if feature.array:
        # If the shape differs between records, tensorflow_datasets reads a flat array of pixels.
        shape = feature.array.shape or (-1,)
        return _tensor(feature.array.dtype, shape, "bytes")
    dtype = {"int64": "int64", "float": "float32", "bytes": "string"}[feature.kind]
    return _tensor(dtype, (-1,) if feature.is_list else (), "none")


def _sequence(feature: dict[str, Any]) -> dict[str, Any]:
    return {
        "pythonClassName": f"{_TFDS}.sequence_feature.Sequence",
        "sequence": {"feature": feature, "length": "-1"},
    }


def _tensor(dtype: str, shape: Sequence[int], encoding: str) -> dict[str, Any]:
    return {
        "pythonClassName": f"{_TFDS}.tensor_feature.Tensor",
        "tensor": {
            "shape": {"dimensions": [str(side) for side in shape]} if shape else {},
            "dtype": dtype,
            "encoding": encoding,
        },
    }
