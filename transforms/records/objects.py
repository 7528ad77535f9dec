"""The features of annotated objects, by the format of the file that they come from. Pure.

The keys are those of the TF Object Detection API.
"""

from __future__ import annotations

from collections.abc import Mapping

from imageshards.transforms.records.schemas import AREA, BOX_SIDES, COLUMN, OBJECT, Feature

NO_FORMAT = "auto"
"""The value of `--annotation_format` in a build without `--annotations`."""

LABEL = f"{OBJECT}class/label"
"""Key of the numbers of the objects' classes, from 1; 0 is the background."""
TEXT = f"{OBJECT}class/text"
"""Key of the names of the objects' classes."""
BOXES = f"{OBJECT}bbox"
"""Key of ymin, xmin, ymax and xmax of every box, in the order of TensorFlow Datasets."""
CROWD = f"{OBJECT}is_crowd"
SIZE = f"{COLUMN}@size"
"""Not a feature: (width, height) of the image that an annotation file's pixels refer to; (0, 0) if
the file has no sizes, and nothing if the sides of boxes are fractions."""

_SIDES = tuple(f"{key}:float_list" for key in BOX_SIDES)

OBJECT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "coco": (*_SIDES, f"{TEXT}:bytes_list", f"{CROWD}:int_list", f"{AREA}:float_list"),
}
"""Format of annotations -> the features that its files fill, as `--features_from` has them."""

COMPUTED = (
    Feature(LABEL, "int64", "object_labels", "ClassLabels", repeats=False),
    Feature(BOXES, "float", "object_boxes", "Boxes", repeats=False),
)
"""The features that the encoder computes from them."""
