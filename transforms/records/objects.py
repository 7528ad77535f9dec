"""The features of objects and captions, by the format of the annotation file. Pure.

The keys are those of the TF Object Detection API.
"""

from __future__ import annotations

from collections.abc import Mapping

from imageshards.transforms.records.schemas import (
    AREA,
    BOX_SIDES,
    CAPTION_KEY,
    COLUMN,
    KEYPOINT,
    OBJECT,
    Feature,
)

NO_FORMAT = "auto"
"""The value of `--annotation_format` in a build without `--annotations`."""

LABEL = f"{OBJECT}class/label"
"""Key of the numbers of the objects' classes, from 1; 0 is the background."""
TEXT = f"{OBJECT}class/text"
"""Key of the names of the objects' classes."""
BOXES = f"{OBJECT}bbox"
"""Key of ymin, xmin, ymax and xmax of every box, in the order of TensorFlow Datasets."""
CROWD = f"{OBJECT}is_crowd"
IS_THING = f"{OBJECT}is_thing"
"""Key of panoptic segments: 1 if their class is of things, which can be counted, 0 if of stuff."""
KEYPOINT_SIDES = (f"{KEYPOINT}x", f"{KEYPOINT}y")
VISIBILITY = f"{KEYPOINT}visibility"
KEYPOINTS = f"{KEYPOINT}num"
KEYPOINT_NAMES = f"{KEYPOINT}text"
DIFFICULT = f"{OBJECT}difficult"
TRUNCATED = f"{OBJECT}truncated"
VIEW = f"{OBJECT}view"
OCCLUDED = f"{OBJECT}occluded"
GROUP = f"{OBJECT}group_of"
DEPICTION = f"{OBJECT}depiction"
MASK = f"{OBJECT}mask"
"""Key of the masks of objects: a PNG with 1 in the object for each of them."""
SEGMENTATION = "@segmentation"
"""Name of the column of references with the polygons or the run lengths that masks are made of."""
_MASKS = f"{MASK}={SEGMENTATION}:bytes_list"
FACTS = f"{COLUMN}@objects"
"""Not a feature, but a column of references: the number of an image's objects; then, if the sides
of their boxes are in pixels, the width and the height that these refer to: 0, 0 if unknown."""

_SIDES = tuple(f"{key}:float_list" for key in BOX_SIDES)
_KEYPOINTS = (
    *(f"{key}:float_list" for key in KEYPOINT_SIDES), f"{VISIBILITY}:int_list",
    f"{KEYPOINTS}:int_list", f"{KEYPOINT_NAMES}:bytes_list",
)  # fmt: skip
_OF_COCO = (*_SIDES, f"{TEXT}:bytes_list", f"{CROWD}:int_list", f"{AREA}:float_list")

OBJECT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "coco": _OF_COCO,
    "coco_keypoints": (*_OF_COCO, *_KEYPOINTS),
    "coco_panoptic": (*_OF_COCO, f"{IS_THING}:int_list"),
    "coco_captions": (f"{CAPTION_KEY}:bytes_list",),
    "voc": (
        *_SIDES, f"{TEXT}:bytes_list", f"{DIFFICULT}:int_list", f"{TRUNCATED}:int_list",
        f"{VIEW}:bytes_list",
    ),
    "yolo": (*_SIDES, f"{TEXT}:bytes_list"),
    "yolo_keypoints": (*_SIDES, f"{TEXT}:bytes_list", *_KEYPOINTS),
    "csv": (
        *_SIDES, f"{TEXT}:bytes_list", f"{OCCLUDED}:int_list", f"{TRUNCATED}:int_list",
        f"{GROUP}:int_list", f"{DEPICTION}:int_list",
    ),
    "labelme": (*_SIDES, f"{TEXT}:bytes_list"),
    "cvat": (*_SIDES, f"{TEXT}:bytes_list", f"{OCCLUDED}:int_list"),
    "hub_xywh": _OF_COCO,
    "hub_xyxy": _OF_COCO,
}  # fmt: skip
"""Format of annotations -> the features that its files fill, as `--features_from` has them."""

CAPTION_FORMATS = frozenset({"coco_captions"})
"""Formats of captions, which have no objects."""


def object_columns(name: str, masks: bool) -> tuple[str, ...]:
    """Returns the features that annotations of a format fill, as `--features_from` has them.

    Args:
      name: of the format; empty for one without annotations.
      masks: whether there are masks, too.
    """
    columns = OBJECT_COLUMNS.get(name, ())
    return (*columns, _MASKS) if columns and masks else columns


COMPUTED = (
    Feature(LABEL, "int64", "object_labels", "ClassLabels", repeats=False),
    Feature(BOXES, "float", "object_boxes", "Boxes", repeats=False),
)
"""The features that the encoder computes from them."""
