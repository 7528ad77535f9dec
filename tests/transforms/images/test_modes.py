"""Every mode of Pillow's becomes 8-bit grey or RGB."""

import io
import struct

import numpy as np
import pytest
from pictures import MODES, picture, pixels, saved
from PIL import Image, ImageCms

from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.modes import to_grey_or_rgb
from imageshards.transforms.images.policy import ImagePolicy


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_grey_or_rgb_as_pillow_sees_it(mode: str):
    image, _ = to_grey_or_rgb(picture(mode))
    assert image.mode in ("L", "RGB")
    assert image.info == {}
    if mode in ("RGB", "RGBX", "YCbCr", "LAB", "HSV", "P", "1", "L"):
        expected = np.asarray(picture(mode if mode in ("1", "L") else "RGB").convert(image.mode))
        assert np.abs(np.asarray(image).astype(int) - expected).max() <= {"P": 60, "LAB": 40}.get(
            mode, 8
        )


@pytest.mark.parametrize(
    ("values", "grey"),
    [
        (np.array([[0, 255, 256, 65535]], np.uint16), [0, 0, 1, 255]),
        (np.array([[0, 255, 256, 65535]], np.int32), [0, 0, 1, 255]),
        (np.array([[0, 7, 100, 255]], np.int32), [0, 7, 100, 255]),
        (np.array([[-1000, 0, 1000]], np.int32), [0, 128, 255]),
        (np.array([[5, 5]], np.int32), [5, 5]),
        (np.array([[-5, -5]], np.int32), [0, 0]),
        (np.array([[0, 0.5, 1]], np.float32), [0, 128, 255]),
        (np.array([[0, 0.6, 200.4]], np.float32), [0, 1, 200]),
        (np.array([[-1, 0, 3]], np.float32), [0, 64, 255]),
        (np.array([[np.nan, 1, np.inf]], np.float32), [0, 255, 0]),
        (np.array([[np.nan]], np.float32), [0]),
        (np.array([[-3e38, 3e38]], np.float32), [0, 255]),
    ],
)
def test_values_of_more_than_8_bits_are_scaled_to_8(values: np.ndarray, grey: list[int]):
    image, kinds = to_grey_or_rgb(Image.fromarray(values))
    assert np.asarray(image).tolist() == [grey]
    assert len(kinds) == 1


def test_16_bits_are_reduced_as_tensorflow_does():
    wide = picture("I;16")
    png = saved(wide, "PNG")
    tiff = convert(saved(wide, "TIFF"), ImagePolicy())
    np.testing.assert_array_equal(pixels(tiff.data), pixels(png))
    assert convert(png, ImagePolicy()).data is png


def test_transparency_becomes_white_except_in_png():
    clear = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
    clear.paste((200, 0, 0, 255), (0, 0, 4, 8))
    for kind in ("TIFF", "WEBP", "TGA"):
        found = pixels(convert(saved(clear, kind, lossless=True), ImagePolicy()).data)
        assert found[0, 0].tolist() == [200, 0, 0]
        assert found[0, 7].tolist() == [255, 255, 255]
    png = saved(clear, "PNG")
    assert convert(png, ImagePolicy()).data is png
    assert pixels(png).shape == (8, 8, 4)


def test_cmyk_without_a_profile_is_converted_by_formula():
    cmyk = picture("CMYK")
    data = saved(cmyk, "JPEG", quality=100, subsampling=0)
    image = convert(data, ImagePolicy(convert="png"))
    assert image.conversions == ("jpeg-to-png", "cmyk-to-rgb")
    stored = Image.open(io.BytesIO(data))
    np.testing.assert_array_equal(pixels(image.data), np.asarray(stored.convert("RGB")))
    # The inversion that Adobe's files have is undone.
    found = pixels(convert(data, ImagePolicy()).data).astype(int)
    assert np.abs(found - np.asarray(cmyk.convert("RGB"))).max() < 24


INKS = {
    # C, M, Y, K -> L, a, b of the test's own press: not the colours that the formula gives.
    (0, 0, 0, 0): (255, 128, 128),
    (255, 0, 0, 0): (170, 112, 115),
    (0, 255, 0, 0): (150, 155, 125),
    (0, 0, 255, 0): (220, 122, 160),
    (0, 0, 0, 255): (120, 128, 128),
}


def cmyk_profile() -> bytes:
    """An ICC profile whose table has the corners of CMYK (ICC.1:2001-04, lut8Type)."""
    identity = struct.pack(">9i", *(65536 * (n % 4 == 0) for n in range(9)))
    ramp = bytes(range(256))
    corners = b"".join(
        bytes(INKS.get(tuple(255 * (n >> bit & 1) for bit in (3, 2, 1, 0)), (30, 128, 128)))
        for n in range(16)
    )
    table = b"mft1\0\0\0\0\4\3\2\0" + identity + ramp * 4 + corners + ramp * 3
    size = 128 + 4 + 12 + len(table)
    head = struct.pack(
        ">I4sI4s4s4s12s4s4sI4s4s8sI3i", size, b"lcms", 0x02400000, b"prtr", b"CMYK", b"Lab ",
        bytes(12), b"acsp", bytes(4), 0, bytes(4), bytes(4), bytes(8), 0, 63190, 65536, 54061,
    ).ljust(128, b"\0")  # fmt: skip
    return head + struct.pack(">I4sII", 1, b"A2B0", 144, len(table)) + table


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
@pytest.mark.parametrize("ink", INKS)
def test_cmyk_is_converted_by_its_profile(ink: tuple[int, ...], kind: str):
    options = {"quality": 100} if kind == "JPEG" else {}
    data = saved(Image.new("CMYK", (16, 16), ink), kind, icc_profile=cmyk_profile(), **options)
    to_rgb = ImageCms.buildTransform(
        ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB"
    )
    # Pillow has the a and b of LAB as signed bytes.
    level, a, b = INKS[ink]
    lab = Image.frombytes("LAB", (1, 1), bytes([level, a ^ 128, b ^ 128]))
    expected = ImageCms.applyTransform(lab, to_rgb).getpixel((0, 0))
    image = convert(data, ImagePolicy(convert="png"))
    assert "cmyk-to-rgb" in image.conversions
    assert np.abs(pixels(image.data)[8, 8].astype(int) - expected).max() <= 5


@pytest.mark.parametrize("profile", [b"no profile", None])
def test_an_invalid_profile_is_ignored(profile: bytes | None):
    profile = profile or ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    plain = convert(saved(picture("CMYK"), "JPEG"), ImagePolicy())
    assert convert(saved(picture("CMYK"), "JPEG", icc_profile=profile), ImagePolicy()) == plain
