"""Crops of images, and positions in them, without TensorFlow. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_ATTEMPTS = 10
_AREA, _ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Window:
    """A part of an image, in pixels of the stored image; perhaps mirrored.

    Attributes:
      top: the first row.
      left: the first column.
      height: the number of rows.
      width: the number of columns.
      full: height and width of the stored image.
      mirrored: whether the part is mirrored, left to right.
    """

    top: int
    left: int
    height: int
    width: int
    full: tuple[int, int]
    mirrored: bool = False

    def boxes(
        self, boxes: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """Maps boxes to the window.

        >>> window = Window(top=0, left=50, height=100, width=50, full=(100, 100))
        >>> moved, share = window.boxes(np.array([[0.0], [0.25], [1.0], [0.75]]))
        >>> moved[:, 0].tolist(), share.tolist()
        ([0.0, 0.0, 1.0, 0.5], [0.5])

        Args:
          boxes: [4, boxes]: ymin, xmin, ymax and xmax, fractions of the stored image.

        Returns:
          The boxes as fractions of the window, clipped to it, float32 [4, boxes]; and the fraction
          of each box's area that is in the window.
        """
        full = np.tile(np.array(self.full, np.float64), 2)[:, None]
        offset = np.array([self.top, self.left] * 2)[:, None]
        size = np.array([self.height, self.width] * 2)[:, None]
        moved = (boxes * full - offset) / size
        placed = moved.clip(0, 1)
        length, remains = moved[2:] - moved[:2], placed[2:] - placed[:2]
        # A line or a point has no area: it is in the window or not.
        is_line = length <= 0
        share = np.where(
            is_line, moved[:2] == placed[:2], remains / np.where(is_line, 1, length)
        ).prod(axis=0)
        if self.mirrored:
            placed[[1, 3]] = 1 - placed[[3, 1]]
        return placed.astype(np.float32), share


def centered(full: tuple[int, int], size: tuple[int, int], fraction: float = 1.0) -> Window:
    """Returns the largest centered window with the aspect ratio of `size`, times a fraction.

    >>> centered((100, 200), (50, 50))
    Window(top=0, left=50, height=100, width=100, full=(100, 200), mirrored=False)

    Args:
      full: height and width of the image.
      size: height and width.
      fraction: of the sides of that window; above 0 and at most 1.
    """
    scale = fraction * min(full[0] / size[0], full[1] / size[1])
    height, width = (
        min(max(round(scale * side), 1), most) for side, most in zip(size, full, strict=True)
    )
    return Window((full[0] - height) // 2, (full[1] - width) // 2, height, width, full)


def random(full: tuple[int, int], rng: np.random.Generator) -> Window:
    """Returns a random window, half of them mirrored, as is usual for training on ImageNet.

    It has 8 to 100 % of the image's area, and an aspect ratio from 3/4 to 4/3.
    """
    mirrored = bool(rng.random() < 0.5)
    rows, columns = full
    for _ in range(_ATTEMPTS):
        area = rng.uniform(*_AREA) * rows * columns
        aspect = rng.uniform(*_ASPECT)
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < width <= columns and 0 < height <= rows:
            top = int(rng.integers(rows - height + 1))
            left = int(rng.integers(columns - width + 1))
            return Window(top, left, height, width, full, mirrored)
    return Window(0, 0, rows, columns, full, mirrored)
