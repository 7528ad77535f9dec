"""Maps positions in the image of a file to positions in the image that is written for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from imageshards.transforms.images.headers import UPRIGHT
from imageshards.transforms.images.resize import Size, crop_corner

Frame = Literal["stored", "upright"]
"""The pixels that annotations refer to: as the file stores them, which is what a reader sees that
ignores the EXIF orientation; or after the orientation is applied."""

_Array = npt.NDArray[np.float64]

# EXIF orientation -> (whether x and y are swapped, then x is mirrored, then y is mirrored).
_TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}


def oriented(size: Size, orientation: int) -> Size:
    """Returns the size of an image after an EXIF orientation is applied to it.

    >>> oriented((640, 480), 6)
    (480, 640)
    """
    return size[::-1] if _TURNS[orientation][0] else size


def inverse(orientation: int) -> int:
    """Returns the EXIF orientation that undoes another one.

    >>> inverse(6), inverse(5)
    (8, 5)
    """
    return {6: 8, 8: 6}.get(orientation, orientation)


@dataclass(frozen=True)
class Geometry:
    """How the pixels of a written image follow from those of its file.

    An orientation is applied to the pixels, they are scaled, and then cropped or padded around
    their centre. Positions are fractions of an image's width and height.

    Attributes:
      stored: (width, height) of the pixels in the file. For HEIC and AVIF, whose rotation every
        reader applies, the size after it.
      scaled: the size after orientation and scaling.
      final: the size of the written image, after cropping or padding.
      from_stored: the EXIF orientation, 1 to 8, that turns the stored pixels into the written ones.
      from_upright: the one that turns the upright pixels into the written ones. It is 1, unless the
        orientation is kept in the metadata of the written image.

    >>> rotated = Geometry((400, 200), scaled=(100, 200), final=(100, 100), from_stored=6)
    >>> rotated.boxes(np.array([[0.5], [0.0], [0.625], [0.25]]), "stored").tolist()
    [[0.75], [0.5], [1.0], [0.75]]
    """

    stored: Size
    scaled: Size
    final: Size
    from_stored: int = UPRIGHT
    from_upright: int = UPRIGHT

    def turn(self, frame: Frame) -> int:
        """Returns the EXIF orientation that turns a frame's pixels into the written ones."""
        return self.from_stored if frame == "stored" else self.from_upright

    def size(self, frame: Frame) -> Size:
        """Returns the (width, height) of the pixels that annotations refer to."""
        turned = oriented(self.stored, self.from_stored)
        return self.stored if frame == "stored" else oriented(turned, self.from_upright)

    def keeps_fractions(self, frame: Frame) -> bool:
        """Whether every position keeps its fractions: there is no rotation, crop or padding."""
        return self.turn(frame) == UPRIGHT and self.scaled == self.final

    def keeps_pixels(self, frame: Frame) -> bool:
        """Whether every position keeps its pixel."""
        return self.keeps_fractions(frame) and self.size(frame) == self.final

    @property
    def area_scale(self) -> float:
        """The area in the written image of one pixel of the file, in pixels."""
        (width, height), (scaled_width, scaled_height) = self.stored, self.scaled
        return scaled_width * scaled_height / (width * height)

    def points(self, x: _Array, y: _Array, frame: Frame) -> tuple[_Array, _Array]:
        """Maps points.

        Args:
          x: fractions of the width of the frame's pixels, of any shape.
          y: fractions of their height, of the same shape.
          frame: the pixels that the points refer to.

        Returns:
          x and y as fractions of the written image; outside of 0 to 1 if the point is cropped.
        """
        swapped, mirrored_x, mirrored_y = _TURNS[self.turn(frame)]
        if swapped:
            x, y = y, x
        if mirrored_x:
            x = 1 - x
        if mirrored_y:
            y = 1 - y
        if self.scaled != self.final:
            left, top = crop_corner(self.scaled, self.final)
            x = (x * self.scaled[0] - left) / self.final[0]
            y = (y * self.scaled[1] - top) / self.final[1]
        return x, y

    def boxes(self, boxes: npt.NDArray[Any], frame: Frame) -> _Array:
        """Maps boxes; see `points`.

        Args:
          boxes: xmin, ymin, xmax and ymax, of the shape (4, number of boxes).
          frame: the pixels that the boxes refer to.
        """
        x, y = self.points(boxes[0::2], boxes[1::2], frame)
        return np.stack([x.min(axis=0), y.min(axis=0), x.max(axis=0), y.max(axis=0)])
