"""COCO's JSON files of captions: https://cocodataset.org/#format-data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imageshards.transforms.annotations.coco import CocoFile
from imageshards.transforms.elements import quoted
from imageshards.transforms.records.schemas import CAPTION_KEY


class CocoCaptions(CocoFile):
    """A file with a caption in each annotation, and several for an image."""

    name = "coco_captions"
    noun = "a JSON file of COCO with captions"
    marker = "caption"

    def _values(self, item: Mapping[str, Any], categories: object) -> dict[str, list[bytes]]:
        text = item["caption"]
        if not isinstance(text, str) or not text.strip():
            raise ValueError
        return {CAPTION_KEY: [text.strip().encode("utf-8", "replace")]}

    def _fault(self, item: Any, error: Exception) -> str:
        return f"the caption {quoted(item.get('caption'))}, which is no text"

    def _size_of(self, image: object) -> None:
        """Returns None: captions do not refer to pixels."""
