"""A rectangle in an image is where the box of its record says, whatever happens to its pixels."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from imageshards.transforms.elements import ImageRef
from imageshards.transforms.images import headers
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.records import example
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.records.schemas import BOX_SIDES, COLUMN, SHAPE, SLIM, Schema
from imageshards.transforms.shards.annotations import Annotations
from imageshards.transforms.shards.encoder import ImageEncoder

COLUMNS = tuple(FeatureColumn(key, key, "float_list") for key in BOX_SIDES)
FORMATS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "JPEG": {"quality": 100, "subsampling": 0},
    "TIFF": {},
    "WEBP": {"lossless": True},
    "AVIF": {"quality": 100, "subsampling": "4:4:4", "speed": 10},
    "HEIF": {"quality": 100, "chroma": 444},
}
TURNS = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: lambda pixels: np.rot90(pixels),
}
"""EXIF orientation -> what it does to an array of pixels (Exif 2.32, tag 0x0112)."""


def found(pixels: np.ndarray) -> tuple[int, int, int, int] | None:
    """The red rectangle in some pixels: left, top, right, bottom."""
    red = (pixels[..., 0] > 128) & (pixels[..., 2] < 128)
    columns, rows = (np.flatnonzero(red.any(axis=axis)) for axis in (0, 1))
    if not len(columns):
        return None
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def fractions(pixels: np.ndarray) -> list[float]:
    left, top, right, bottom = found(pixels) or (0, 0, 0, 0)
    height, width = pixels.shape[:2]
    return [left / width, top / height, right / width, bottom / height]


def file_of(pixels: np.ndarray, kind: str, orientation: int) -> bytes:
    if kind == "HEIF":
        pillow_heif.register_heif_opener()
    out = io.BytesIO()
    exif = {"exif": headers.exif_with_orientation(orientation)} if orientation != 1 else {}
    if kind == "TIFF" and exif:
        exif = {"tiffinfo": {0x0112: orientation}}
    Image.fromarray(pixels).save(out, kind, **FORMATS[kind], **exif)
    return out.getvalue()


def box_and_pixels(
    path: Path, schema: Schema, policy: ImagePolicy, annotations: Annotations, box: list[float]
) -> tuple[list[list[float]], np.ndarray, dict[str, int]]:
    """Encodes a file, and returns the boxes, the pixels and the counts of its record."""
    encoder = ImageEncoder(
        schema.without_labels().with_features(column.feature for column in COLUMNS),
        policy, columns=COLUMNS, annotations=annotations,
    )  # fmt: skip
    features = {COLUMN + key: [value] for key, value in zip(BOX_SIDES, box, strict=True)}
    encoded = encoder.encode(ImageRef(str(path), features=features), {})
    values = example.decode(b"".join(encoded.parts))
    boxes = list(zip(*(values[key] for key in BOX_SIDES), strict=True))
    if schema is SHAPE:
        shape = np.frombuffer(values["shape"][0], "<i4")
        pixels = np.frombuffer(values["image"][0], np.uint8).reshape(shape)
    else:  # Pillow and TensorFlow leave an EXIF orientation to the caller
        pixels = np.asarray(Image.open(io.BytesIO(values["image/encoded"][0])).convert("RGB"))
    return boxes, pixels, dict(encoded.annotations)


@st.composite
def pictures(draw: st.DrawFn) -> np.ndarray:
    """A red rectangle on blue, of at least 8 x 8 pixels; it may touch the edges."""
    width, height = draw(st.integers(24, 90)), draw(st.integers(24, 90))
    left, top = draw(st.integers(0, width - 8)), draw(st.integers(0, height - 8))
    right, bottom = draw(st.integers(left + 8, width)), draw(st.integers(top + 8, height))
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:] = (20, 60, 220)
    pixels[top:bottom, left:right] = (240, 30, 20)
    return pixels


sides = st.integers(16, 120)
rules = st.one_of(
    st.none(),
    st.builds("{}:{}".format, st.sampled_from(["short", "long"]), sides),
    st.builds("{}{}x{}".format, st.sampled_from(["", "crop:", "pad:"]), sides, sides),
)


@pytest.mark.parametrize("orientation", range(1, 9))
@settings(max_examples=30, derandomize=True)
@given(
    pixels=pictures(),
    kind=st.sampled_from(sorted(FORMATS)),
    rule=rules,
    enlarge=st.booleans(),
    frame=st.sampled_from(["stored", "upright"]),
    written=st.sampled_from(["auto", "keep", "jpeg", "png", "pixels"]),
)
def test_a_box_is_where_its_rectangle_is(
    tmp_path_factory: pytest.TempPathFactory,
    orientation: int,
    pixels: np.ndarray,
    kind: str,
    rule: str | None,
    enlarge: bool,
    frame: Any,
    written: Any,
):
    path = tmp_path_factory.getbasetemp() / f"box{orientation}"
    path.write_bytes(file_of(pixels, kind, orientation))
    seen = pixels
    # Every reader of these formats applies their rotation.
    if frame == "upright" or kind in ("AVIF", "HEIF"):
        seen = TURNS[orientation](pixels)
    policy = ImagePolicy(
        convert="auto" if written == "keep" else written,
        exif="keep" if written == "keep" else "bake",
        resize=Resize.parse(rule, enlarge) if rule else None,
        quality=100,
        channels=3 if written == "pixels" else 0,
    )
    schema = SHAPE if written == "pixels" else SLIM
    boxes, result, counts = box_and_pixels(
        path, schema, policy, Annotations(COLUMNS, frame), fractions(seen)
    )
    place = found(result)
    height, width = result.shape[:2]
    if not boxes:
        left, top, right, bottom = found(seen) or (0, 0, 0, 0)
        scaled = policy.resize.plan((seen.shape[1], seen.shape[0])).scaled if policy.resize else ()
        whole = (right - left) * (bottom - top) * np.prod(scaled) / np.prod(seen.shape[:2])
        visible = (place[2] - place[0]) * (place[3] - place[1]) if place else 0
        assert visible <= 0.1 * whole + width + height
        assert counts == {"dropped": 1}
        return
    (box,) = boxes
    assert place is not None
    assert np.abs(np.array(box) * [width, height, width, height] - place).max() <= 1
    cut = rule is not None and rule.startswith("crop:")
    assert counts in ([{"boxes": 1}, {"boxes": 1, "clipped": 1}] if cut else [{"boxes": 1}])
