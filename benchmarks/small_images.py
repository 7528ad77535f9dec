"""Writes small JPEG files: python benchmarks/small_images.py FOLDER COUNT SIDE.

They are FOLDER/CLASS/NAME.jpg, of 100 classes, with different pixels. Runs in the environment of
imageshards.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image


def make(folder: Path, count: int, side: int) -> None:
    """Writes `count` files of SIDE x SIDE pixels."""
    generator = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class{number % 100:02}" / f"{number:07}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(path, quality=60)


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
