"""Sizes and pixels of resized images."""

import io

import numpy as np
import pytest
from pictures import assert_decodes, picture, pixels, saved, with_orientation
from PIL import Image, ImageOps

from imageshards.transforms.images import headers
from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.images.validate import ImageError

RESIZES = (
    # rule, enlarge, size before, size after
    ("short:10", False, (40, 20), (20, 10)),
    ("short:10", False, (20, 41), (10, 21)),
    ("short:10", False, (9, 90), (9, 90)),
    ("short:10", True, (5, 7), (10, 14)),
    ("long:10", False, (40, 20), (10, 5)),
    ("long:10", False, (3, 4000), (1, 10)),
    ("long:10", False, (8, 4), (8, 4)),
    ("long:10", True, (5, 2), (10, 4)),
    ("16x12", False, (40, 20), (16, 12)),
    ("16x12", False, (10, 20), (10, 12)),
    ("16x12", True, (10, 20), (16, 12)),
    ("crop:16x12", False, (40, 20), (16, 12)),
    ("crop:16x12", False, (17, 90), (16, 12)),
    ("crop:16x12", False, (10, 20), (10, 12)),
    ("crop:16x12", True, (10, 20), (16, 12)),
    ("pad:16x12", False, (40, 20), (16, 12)),
    ("pad:16x12", False, (3, 4), (16, 12)),
    ("pad:16x12", True, (3, 4), (16, 12)),
)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(("rule", "enlarge", "before", "after"), RESIZES)
def test_images_have_the_size_that_resize_sets(
    rule: str, enlarge: bool, before: tuple[int, int], after: tuple[int, int], kind: str
):
    data = saved(picture("RGB", before), kind)
    image = convert(data, ImagePolicy(resize=Resize.parse(rule, enlarge)))
    assert_decodes(image)
    assert (image.info.width, image.info.height) == after
    assert ("resized" in image.conversions) == (before != after)
    if before == after and kind != "WEBP":
        assert image.data is data


def test_resized_images_match_lanczos():
    big = picture("RGB", (800, 600))
    data = saved(big, "JPEG", quality=98)
    for rule, enlarge, size in (("short:60", False, (80, 60)), ("short:700", True, (933, 700))):
        found = pixels(convert(data, ImagePolicy(resize=Resize.parse(rule, enlarge))).data)
        expected = np.asarray(big.resize(size, Image.Resampling.LANCZOS)).astype(int)
        assert np.abs(found - expected).mean() < 1.5
    padded = pixels(convert(data, ImagePolicy(resize=Resize.parse("pad:80x80"))).data)
    assert padded[:8].max() < 8
    assert padded[-8:].max() < 8
    assert padded[40].max() > 100
    cropped = pixels(convert(data, ImagePolicy(resize=Resize.parse("crop:60x60"))).data)
    centre = np.asarray(big.resize((80, 60), Image.Resampling.LANCZOS))[:, 10:70].astype(int)
    assert np.abs(cropped - centre).mean() < 1.5


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_reduced_decoding_matches_full_decoding(orientation: int):
    """Sizes that no eighth divides, and edges at which a third of a pixel would be seen."""
    stripes = np.zeros((377, 501, 3), np.uint8)
    stripes[:, ::20] = stripes[:, 1::20] = stripes[::30] = stripes[1::30] = 255
    image = Image.fromarray(stripes).resize((501, 377), Image.Resampling.BICUBIC, reducing_gap=2)
    data = saved(image, "JPEG", quality=95, exif=headers.exif_with_orientation(orientation))
    whole = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    for side in (40, 64, 100):
        found = convert(data, ImagePolicy(convert="png", resize=Resize.parse(f"long:{side}")))
        expected = whole.resize((found.info.width, found.info.height), Image.Resampling.LANCZOS)
        error = ((pixels(found.data).astype(float) - np.asarray(expected)) ** 2).mean()
        assert 10 * np.log10(255**2 / error) > 30


def test_rotated_images_are_resized_as_they_are_shown():
    data = with_orientation(6, "JPEG")
    image = convert(data, ImagePolicy(resize=Resize.parse("crop:20x30")))
    assert (image.info.width, image.info.height) == (20, 30)
    assert image.conversions == ("exif-rotated", "resized")
    whole = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).resize((20, 34))
    expected = np.asarray(whole)[2:32].astype(int)
    assert np.abs(pixels(image.data) - expected).mean() < 3


@pytest.mark.parametrize(
    "text", ["short", "short:0", "256", "crop:12", "fit:3x4", "3x", "0x4", "70000x3", "short:-1"]
)
def test_an_invalid_resize_is_an_error(text: str):
    with pytest.raises(ValueError, match="--resize"):
        Resize.parse(text)


def test_a_strip_that_enlarging_makes_too_large_is_rejected():
    strip = saved(Image.new("L", (60_000, 1)), "PNG")
    with pytest.raises(ImageError, match="pixels, more than") as caught:
        convert(strip, ImagePolicy(resize=Resize.parse("short:256", enlarge=True)))
    assert caught.value.kind == "TooLarge"
