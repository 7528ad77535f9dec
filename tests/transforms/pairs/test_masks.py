"""Masks follow the pixels of their images, and keep class numbers."""

import io
import random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from imageshards.transforms.images import headers
from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.geometry import Frame, Geometry
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.images.validate import ImageError
from imageshards.transforms.pairs.masks import Masks

SAME = Geometry((6, 4), (6, 4), (6, 4))
NUMBERS = np.arange(24, dtype=np.uint8).reshape(4, 6)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def paletted(numbers: np.ndarray) -> Image.Image:
    image = Image.frombytes("P", numbers.shape[::-1], numbers.tobytes())
    image.putpalette(random.Random(1).randbytes(768))
    return image


def read(data: bytes) -> np.ndarray:
    """The mask as TensorFlow decodes it."""
    return np.asarray(tf.io.decode_image(data, channels=1))[..., 0]


def rectangle(numbers: np.ndarray) -> tuple[int, int, int, int] | None:
    rows, columns = np.nonzero(numbers)
    if not len(rows):
        return None
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


RESIZES = ["", "short:40", "long:60", "32x48", "crop:40x40", "pad:50x70", "crop:100x100"]


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("exif", ["bake", "keep"])
def test_a_mask_covers_the_pixels_of_its_image(resize: str, exif: Any):
    """The rectangle of the mask is that of the written image, within a pixel."""
    policy = ImagePolicy(
        check="full", exif=exif, resize=Resize.parse(resize, enlarge=True) if resize else None
    )
    chosen = random.Random(f"{resize} {exif}")
    for orientation in range(1, 9):
        width, height = chosen.randint(60, 120), chosen.randint(60, 120)
        stored = np.zeros((height, width), np.uint8)
        left, top = chosen.randint(0, width // 2), chosen.randint(0, height // 2)
        stored[top : top + height // 3, left : left + width // 3] = 7
        pixels = np.where(stored[..., None] > 0, np.uint8([255, 0, 0]), np.uint8([0, 0, 255]))
        tag = {"exif": headers.exif_with_orientation(orientation)} if orientation > 1 else {}
        file = saved(Image.fromarray(pixels), **tag)
        shown = stored
        if exif == "bake":  # what a tool draws on that applies the orientation
            marked = Image.fromarray(stored)
            marked.getexif()[0x112] = orientation
            shown = np.asarray(ImageOps.exif_transpose(marked))
        written = convert(file, policy)
        red = tf.io.decode_image(written.data).numpy()
        is_object = (red[..., 0] > 128) & (red[..., 2] < 128)
        frames: dict[Frame, np.ndarray] = {"stored": stored}
        if exif == "bake":
            frames["upright"] = shown
        for frame, numbers in frames.items():
            mask = read(Masks(frame=frame).follow(saved(paletted(numbers)), written.geometry))
            assert mask.shape == red.shape[:2]
            assert set(np.unique(mask)) <= {0, 7, 255}
            assert (255 in mask) == (resize.startswith("pad") and (red.max(axis=2) == 0).any())
            found, expected = rectangle(mask == 7), rectangle(is_object)
            assert (found is None) == (expected is None)
            if found and expected:
                assert np.abs(np.subtract(found, expected)).max() <= 1


@pytest.mark.parametrize(
    "file",
    [
        saved(paletted(NUMBERS)),
        saved(paletted(NUMBERS), "GIF"),
        saved(paletted(NUMBERS), "BMP"),
        saved(paletted(NUMBERS), "TIFF"),
        saved(paletted(NUMBERS % 2), bits=1),
        saved(Image.fromarray(NUMBERS.astype(np.uint16))),
        saved(Image.fromarray(NUMBERS.astype(np.int32)), "TIFF"),
        saved(Image.fromarray(np.dstack([NUMBERS] * 3))),
        saved(Image.fromarray(np.dstack([NUMBERS] * 3 + [np.full_like(NUMBERS, 255)]))),
        saved(Image.fromarray(NUMBERS), "WEBP", lossless=True),
    ],
    ids=["P-PNG", "P-GIF", "P-BMP", "P-TIFF", "P1-PNG", "16-bit", "32-bit", "RGB", "RGBA", "WEBP"],
)
def test_class_numbers_are_what_tensorflow_reads(file: bytes, request: pytest.FixtureRequest):
    expected = NUMBERS % 2 if "P1" in request.node.name else NUMBERS
    written = Masks().follow(file, SAME)
    np.testing.assert_array_equal(read(written), expected)


def test_a_gray_png_is_unchanged():
    for image in (Image.fromarray(NUMBERS), Image.fromarray(NUMBERS > 3)):
        file = saved(image)
        written = Masks().follow(file, SAME)
        np.testing.assert_array_equal(read(written), np.asarray(image.convert("L")))
        assert (written is file) == (image.mode == "L")


@pytest.mark.parametrize(
    ("file", "kind", "message"),
    [
        (saved(Image.fromarray(NUMBERS), "JPEG"), "Lossy", "JPEG: lossy compression"),
        (saved(Image.fromarray(NUMBERS[:2])), "MaskSize", "6 x 2 pixels, and its image 6 x 4"),
        (saved(Image.fromarray(NUMBERS * np.uint16(300))), "Range", "from 0 to 6900"),
        (saved(Image.fromarray(np.dstack([NUMBERS, NUMBERS, NUMBERS + 1]))), "Colors", "colors"),
        (saved(Image.fromarray(np.dstack([NUMBERS] * 4))), "Transparent", "transparent"),
        (saved(Image.fromarray(NUMBERS))[:-20], "Truncated", "PNG"),
        (saved(paletted(NUMBERS)).replace(b"IDAT", b"IDAT\0", 1), "Corrupt", "PNG"),
        (b"<html>", "NotAnImage", "image"),
    ],
)  # fmt: skip
def test_what_is_no_mask_is_rejected(file: bytes, kind: str, message: str):
    with pytest.raises(ImageError, match=message) as caught:
        Masks().follow(file, SAME)
    assert caught.value.kind == kind


def test_a_mask_of_the_other_frame_names_the_option():
    rotated = Geometry((6, 4), (4, 6), (4, 6), from_stored=6)
    with pytest.raises(ImageError, match=r"image 6 x 4 before its EXIF .*upright"):
        Masks().follow(saved(Image.fromarray(NUMBERS.T.copy())), rotated)
    with pytest.raises(ImageError, match=r"image 4 x 6 after its EXIF .*stored"):
        Masks(frame="upright").follow(saved(Image.fromarray(NUMBERS)), rotated)
