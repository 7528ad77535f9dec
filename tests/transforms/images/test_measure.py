"""Measurements of images agree with their definitions, computed another way."""

import io

import numpy as np
import pytest
from helpers import image_bytes
from PIL import Image

from imageshards.transforms.images import measure
from imageshards.transforms.images.validate import inspect


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (24, 48), (47, 2)])
def test_an_image_is_measured_exactly(shape: tuple[int, int], channels: int):
    pixels = np.random.default_rng(1).integers(0, 256, (*shape, channels), dtype=np.uint8)
    found = measure.measure(pixels, 8)
    rgb = np.broadcast_to(pixels, (*shape, 3)).astype(float)
    assert found.moments.pixels == shape[0] * shape[1]
    assert found.moments.sums == tuple(rgb.sum((0, 1)))
    assert found.moments.squares == tuple((rgb**2).sum((0, 1)))
    luma = rgb @ [77, 150, 29] / 256
    differences = [np.diff(luma, axis=axis).ravel() ** 2 for axis in (0, 1)]
    sharpness = np.sqrt(np.concatenate(differences).mean()) if luma.size > 1 else 0
    assert found.brightness == int(luma.mean() * 16)
    assert abs(found.contrast - luma.std() * 16) <= 1
    assert abs(found.sharpness - sharpness * 16) <= 1
    assert found.reduction == 8


def test_every_nth_pixel_of_a_large_image_is_measured():
    pixels = np.random.default_rng(1).integers(0, 256, (200, 100, 3), dtype=np.uint8)
    assert measure.measure(pixels, 8) == measure.measure(pixels[::5, ::5].copy())._replace(
        reduction=40
    )


def test_the_full_check_of_every_format_measures_the_image_and_the_header_check_none():
    for kind in ("JPEG", "PNG", "BMP"):
        data = image_bytes(3, kind, (200, 100))
        found = inspect(data).appearance
        assert found is not None
        assert found.reduction == 8
        assert found.moments.pixels == 25 * 13
        decoded = np.asarray(Image.open(io.BytesIO(data)), dtype=float)
        means = np.array(found.moments.sums) / found.moments.pixels
        assert means == pytest.approx(decoded.mean((0, 1)), abs=2.5)
        assert inspect(data, "header").appearance is None


def test_pixels_and_files_are_decoded_alike():
    pixels = np.random.default_rng(2).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    floats = (pixels / np.float32(255)).astype("<f4")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    found = [
        measure.decode_file(file.getvalue()),
        measure.image_of_pixels(pixels.tobytes(), "uint8", 40, 30),
        measure.image_of_pixels(floats.tobytes(), "float32", 40, 30),
    ]
    for image in found:
        assert image
        assert np.array_equal(np.asarray(image), pixels)
        appearance = measure.measure_image(image)
        assert appearance.moments == measure.full_moments(image)
    assert measure.decode_file(b"no image") is None
    assert measure.decode_file(image_bytes(1)[:300]) is None


@pytest.mark.parametrize("mode", ["1", "L", "P", "P+tRNS", "RGBA", "I;16", "RGB+16"])
def test_every_kind_of_png_is_measured_as_tensorflow_decodes_it(mode: str):
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(3)
    rgb = Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    kind, _, extra = mode.partition("+")
    image, options = rgb.convert(kind if kind != "I;16" else "L"), {}
    if kind == "I;16":
        image = Image.fromarray(rng.integers(0, 65_536, (20, 30), dtype=np.uint16))
    if kind == "RGBA":
        image.putalpha(100)
    if extra == "tRNS":
        options["transparency"] = 3
    file = io.BytesIO()
    if extra == "16":
        samples = rng.integers(0, 65_536, (20, 30, 3), dtype=np.uint16)
        file.write(tf.io.encode_png(samples).numpy())
    else:
        image.save(file, "PNG", **options)
    expected = tf.io.decode_image(file.getvalue(), channels=3).numpy().astype(int)
    moments = (expected.sum((0, 1)).tolist(), (expected**2).sum((0, 1)).tolist())
    decoded = measure.decode_file(file.getvalue())
    assert decoded
    checked = inspect(file.getvalue()).appearance
    assert checked
    for found in (measure.full_moments(decoded), checked.moments):
        assert (list(found.sums), list(found.squares)) == moments
