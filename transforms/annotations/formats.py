"""Which format an `--annotations` has."""

from __future__ import annotations

import os

from imageshards.transforms import storage
from imageshards.transforms.annotations.captions import CocoCaptions
from imageshards.transforms.annotations.coco import Coco, CocoKeypoints
from imageshards.transforms.annotations.cvat import Cvat
from imageshards.transforms.annotations.labelme import LabelMe
from imageshards.transforms.annotations.panoptic import CocoPanoptic
from imageshards.transforms.annotations.source import AnnotationSource
from imageshards.transforms.annotations.tables import BoxTable
from imageshards.transforms.annotations.voc import Voc
from imageshards.transforms.annotations.yolo import Yolo
from imageshards.transforms.elements import UsageError

FORMATS: dict[str, type[AnnotationSource]] = {
    source.name: source
    for source in (
        CocoPanoptic, CocoCaptions, Coco, CocoKeypoints, BoxTable, Cvat, Voc, LabelMe, Yolo,
    )
}  # fmt: skip
"""Name of a format -> its class; the first one that recognizes a file is taken."""


def identify(text: str, name: str, masks: bool = False) -> AnnotationSource:
    """Returns an `--annotations` as an object of its format.

    Args:
      text: as the user wrote it.
      name: of the format, or `auto`.
      masks: whether to read the masks of objects.

    Raises:
      UsageError: there is no such file, or its format is not known, or has no masks.
    """
    uri = storage.normalize(text)
    if storage.is_local(uri) and not os.path.exists(uri):
        raise UsageError(f"--annotations {text}: no such file or folder")
    kinds = [FORMATS[name]] if name in FORMATS else list(FORMATS.values())
    try:
        for kind in kinds:
            if not kind.recognizes(uri):
                continue
            if masks and not kind.has_masks:
                raise UsageError(f"--object_masks: {text} is {kind.noun}, which has no masks")
            found = kind(uri, masks)
            found.check()
            return found
    except (OSError, storage.ReadError) as error:
        raise UsageError(f"--annotations {text} cannot be read: {error}") from error
    *nouns, last = (kind.noun for kind in kinds)
    known = f"{', '.join(nouns)} nor {last}" if nouns else last
    raise UsageError(f"--annotations {text} is {'neither' if nouns else 'not'} {known}")
