"""Captions of images: texts with one caption per line. Pure but for `SideFile.read`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from imageshards.transforms.images.geometry import Geometry
from imageshards.transforms.pairs.side_file import SideData, SideFile, SideFileError, SideValues
from imageshards.transforms.records.schemas import CAPTION_SOURCE


@dataclass(frozen=True)
class Captions(SideFile):
    """The captions of each image: the lines of a text in UTF-8; empty lines are left out."""

    noun: ClassVar[str] = "file of captions"
    missing: ClassVar[str] = "MissingCaption"

    def values(self, found: SideData, geometry: Geometry) -> SideValues:
        """Returns the captions; see `SideFile.values`."""
        try:
            text = found.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            reason = f"its {self.noun} {found.uri}: not UTF-8 at its byte {error.start}"
            raise SideFileError("check", "BadCaption", reason) from error
        captions = [line.encode() for line in split_captions(text)]
        if not captions:
            reason = f"its {self.noun} {found.uri}: it has no caption"
            raise SideFileError("check", self.missing, reason)
        return SideValues({CAPTION_SOURCE: captions}, {})


def split_captions(text: str) -> list[str]:
    r"""Returns the lines of a text that are not empty.

    >>> split_captions("an owl\r\n\n at night ")
    ['an owl', 'at night']
    """
    # Other separators of str.splitlines, such as U+2028, are part of a caption.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [line.strip() for line in lines if line.strip()]
