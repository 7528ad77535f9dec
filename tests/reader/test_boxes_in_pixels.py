"""Boxes that follow a crop are where the pixels are, in both readers."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from imageshards.reader.elements import windows
from imageshards.reader.elements.pixels import decode_window
from imageshards.reader.elements.windows import Window
from imageshards.reader.tensorflow.images import Placed

RED, BLUE = (240, 30, 20), (20, 60, 220)


def case(number: int) -> tuple[Image.Image, tuple[int, int, int, int], tuple[int, int], Window]:
    """An image with a red rectangle, its sides in pixels, a size, and a window of the image."""
    rng = np.random.default_rng(number)
    full = tuple(rng.integers(60, 500, 2).tolist())
    size = tuple(rng.integers(40, 120, 2).tolist())
    top, left = (int(rng.integers(0, side - 20)) for side in full)
    bottom, right = (
        int(rng.integers(first + 12, side + 1))
        for first, side in zip((top, left), full, strict=True)
    )
    pixels = np.full((*full, 3), BLUE, np.uint8)
    pixels[top:bottom, left:right] = RED
    if number % 2:
        window = windows.random(full, rng)
    else:
        window = windows.centered(full, size, float(rng.uniform(0.3, 1)))
    return Image.fromarray(pixels), (top, left, bottom, right), size, window


def fractions(image: Image.Image, sides: tuple[int, int, int, int]) -> np.ndarray:
    return np.array(sides)[:, None] / np.tile([image.height, image.width], 2)[:, None]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_box_is_where_the_rectangle_is(kind: str):
    seen = 0
    for number in range(200):
        image, sides, size, window = case(number)
        data = io.BytesIO()
        image.save(data, kind, quality=95)
        pixels, used = decode_window(data.getvalue(), lambda _, window=window: window, size, 3)
        assert used == window
        moved, share = window.boxes(fractions(image, sides))
        top, left, bottom, right = sides
        rows = min(bottom, window.top + window.height) - max(top, window.top)
        columns = min(right, window.left + window.width) - max(left, window.left)
        visible = max(rows, 0) * max(columns, 0) / ((bottom - top) * (right - left))
        assert share[0] == pytest.approx(visible, abs=1e-6)
        scale = [size[0] / window.height, size[1] / window.width]
        if min(rows * scale[0], columns * scale[1]) < 6:
            continue  # too few pixels to find its sides
        seen += 1
        is_red = pixels[..., 0].astype(int) > pixels[..., 2]
        found_rows, found_columns = np.flatnonzero(is_red.any(1)), np.flatnonzero(is_red.any(0))
        found = [found_rows[0], found_columns[0], found_rows[-1] + 1, found_columns[-1] + 1]
        # In pixels of the result: one of rounding, and of a JPEG half a block of chroma.
        blur = np.tile(np.maximum(scale, 1), 2) * (1.1 if kind == "PNG" else 2.6)
        assert (np.abs(moved[:, 0] * np.tile(size, 2) - found) <= blur).all(), (
            number,
            moved,
            found,
        )
    assert seen > 100


def test_both_readers_map_boxes_to_the_same_places():
    for number in range(40):
        image, sides, _, window = case(number)
        place = [window.top, window.left, window.height, window.width, *window.full]
        placed = Placed(tf.constant(place, tf.int32), tf.constant(window.mirrored))
        boxes = fractions(image, sides)
        moved, share = placed.boxes(tf.constant(boxes, tf.float32))
        expected, its_share = window.boxes(boxes)
        np.testing.assert_allclose(moved, expected, atol=2e-5)
        np.testing.assert_allclose(share, its_share, atol=1e-4)
