"""COCO's panoptic files: JSON with the segments of each image, and a PNG of their pixels.

See https://cocodataset.org/#format-data. The color of a pixel is the id of its segment.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.annotations.coco import (
    CocoFile,
    box_values,
    class_of,
    fault_of_object,
)
from imageshards.transforms.annotations.masks import PNG, SEGMENT
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.objects import IS_THING, MASK, TEXT
from imageshards.transforms.storage.protocol import Match


class CocoPanoptic(CocoFile):
    """A file whose annotations have `segments_info`: each segment becomes an object.

    The PNGs are in a folder next to it that has its name without `.json`, as those of COCO are.
    They are read for masks only.
    """

    name = "coco_panoptic"
    noun = "a JSON file of COCO with panoptic segments"
    marker = "segments_info"
    has_masks = True

    @property
    def _pngs(self) -> str:
        """The folder of the PNGs."""
        return self.uri[: self.uri.lower().rindex(".json")]

    def check(self) -> None:
        """Checks that there are PNGs, if they are needed.

        Raises:
          UsageError: there are none.
        """
        if self.masks and not storage.match_first(self._pattern):
            raise UsageError(
                f"--object_masks: {self._pngs} has no PNG of {self.uri}: move the folder of the "
                "PNGs there, or omit --object_masks"
            )

    @property
    def _pattern(self) -> str:
        return storage.join(glob.escape(self._pngs), "**/*.[pP][nN][gG]")

    def files_in(self) -> Iterator[Match]:
        """Yields the file, and the PNGs if they are read."""
        yield from super().files_in()
        if self.masks:
            yield from storage.match(self._pattern)

    def _objects(self, item: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        name, found = item.get("file_name"), item.get("segments_info")
        if not isinstance(name, str) or not isinstance(found, list):
            return (item,)  # an object that has no box
        png = {PNG: storage.join(self._pngs, name)}
        return [{**segment, **png} if isinstance(segment, dict) else segment for segment in found]

    def _values(
        self, item: Mapping[str, Any], categories: Mapping[Any, Any]
    ) -> dict[str, Sequence[Any]]:
        category = class_of(item, categories)
        values = {
            **box_values(item),
            TEXT: [category.name.encode()],
            IS_THING: [category.is_thing],
        }
        if self.masks:
            found = {PNG: item[PNG], SEGMENT: int(item["id"])}
            values[MASK] = [json.dumps(found).encode()]
        return values

    def _fault(self, item: Any, error: Exception) -> str:
        if isinstance(item, dict) and ("segments_info" in item or "category_id" not in item):
            return "no file_name of a PNG, or no list segments_info"
        return fault_of_object(item, error)
