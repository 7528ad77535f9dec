"""Whatever comes in: bytes that TensorFlow decodes to the stated size, or a reject."""

import io
import itertools
import struct
import subprocess
import sys
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from helpers import image_bytes
from pictures import (
    HEIGHT,
    MODES,
    WIDTH,
    chunk,
    garbled,
    picture,
    saved,
    truncated,
    written,
)  # fmt: skip
from PIL import Image, ImageCms, ImageOps

from imageshards.transforms.images import headers, validate
from imageshards.transforms.images.convert import Converted, convert
from imageshards.transforms.images.modes import to_grey_or_rgb
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.images.validate import ImageError, ImageInfo

# Files that Pillow writes and cannot read itself.
UNREADABLE = {"ICNS-P", "TIFF-YCbCr"}
REASONS = {"Empty", "NotAnImage", "Unsupported", "TooLarge", "TooSmall", "Truncated", "Corrupt"}


def pixels(data: bytes) -> np.ndarray:
    return tf.io.decode_image(data, expand_animations=False).numpy()


def assert_decodes(image: Converted) -> None:
    shape = pixels(image.data).shape
    assert shape[:2] == (image.info.height, image.info.width)
    assert shape[2] in (1, 3) or (shape[2] == 4 and image.info.format == "PNG")
    assert image.info.format == Image.open(io.BytesIO(image.data)).format.replace("MPO", "JPEG")


def outcome(data: bytes, policy: ImagePolicy | None = None) -> str:
    """What became of some bytes: "decodes" or the kind of its reject. Nothing else may happen."""
    try:
        image = convert(data, policy or ImagePolicy())
    except ImageError as caught:
        error = caught
    else:
        assert_decodes(image)
        return "decodes"
    assert str(error)
    assert "\n" not in str(error)
    assert error.kind in REASONS
    return error.kind


def census() -> dict[str, Counter[str]]:
    """Outcomes of all whole, truncated and garbled files."""
    files = written()
    return {
        "whole": Counter(outcome(data) for data in files.values()),
        "truncated": Counter(outcome(b) for data in files.values() for b in truncated(data)),
        "garbled": Counter(outcome(b) for data in files.values() for b in garbled(data)),
    }


@pytest.mark.parametrize("name", sorted(written()))
def test_every_format_and_mode(name: str):
    data = written()[name]
    if name in UNREADABLE:
        assert outcome(data) in ("Truncated", "Corrupt")
        return
    image = convert(data, ImagePolicy())
    assert_decodes(image)
    assert convert(data, ImagePolicy()) == image
    if not name.startswith(("ICO", "ICNS", "XPM-RGB", "PPM-plain")):
        assert (image.info.width, image.info.height) == (WIDTH, HEIGHT)
    if not image.conversions:
        assert image.data is data
    # Written again, it is what it was: nothing is left to be done.
    assert convert(image.data, ImagePolicy()) == Converted(image.data, image.info)
    for target in ("jpeg", "png"):
        forced = convert(data, ImagePolicy(convert=target))
        assert_decodes(forced)
        assert forced.info == ImageInfo(target.upper(), image.info.height, image.info.width)


def test_threads_do_not_disturb_each_other():
    files = [data for name, data in written().items() if name not in UNREADABLE]
    policy = ImagePolicy(resize=Resize.parse("long:12"))
    with ThreadPoolExecutor(8) as executor:
        beside = list(executor.map(convert, files, itertools.repeat(policy)))
    assert beside == [convert(data, policy) for data in files]


def test_there_are_many_formats_and_modes():
    assert len(written()) > 220
    assert len({name.split("-")[0] for name in written()}) > 25


@pytest.mark.parametrize("name", sorted(written()))
def test_broken_files_are_rejects_or_decode(name: str):
    data = written()[name]
    for broken in [*truncated(data), *garbled(data)]:
        outcome(broken)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "AVIF", "QOI", "BMP"])
def test_what_is_cut_off_is_a_reject(kind: str):
    data = saved(picture("RGB", (64, 48)), kind)
    for broken in truncated(data, 20):
        assert outcome(broken) != "decodes"


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
def test_wide_values_become_8_bits(values: np.ndarray, grey: list[int]):
    image, kinds = to_grey_or_rgb(Image.fromarray(values))
    assert np.asarray(image).tolist() == [grey]
    assert len(kinds) == 1


def test_16_bits_are_what_tensorflow_makes_of_them():
    wide = picture("I;16")
    png = saved(wide, "PNG")
    tiff = convert(saved(wide, "TIFF"), ImagePolicy())
    np.testing.assert_array_equal(pixels(tiff.data), pixels(png))
    assert convert(png, ImagePolicy()).data is png


def test_transparency_becomes_white_and_the_alpha_of_png_stays():
    clear = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
    clear.paste((200, 0, 0, 255), (0, 0, 4, 8))
    for kind in ("TIFF", "WEBP", "TGA"):
        found = pixels(convert(saved(clear, kind, lossless=True), ImagePolicy()).data)
        assert found[0, 0].tolist() == [200, 0, 0]
        assert found[0, 7].tolist() == [255, 255, 255]
    png = saved(clear, "PNG")
    assert convert(png, ImagePolicy()).data is png
    assert pixels(png).shape == (8, 8, 4)


def test_cmyk_without_a_profile():
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
def test_cmyk_by_its_profile(ink: tuple[int, ...], kind: str):
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
def test_a_profile_that_does_not_fit_is_passed_over(profile: bytes | None):
    profile = profile or ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    plain = convert(saved(picture("CMYK"), "JPEG"), ImagePolicy())
    assert convert(saved(picture("CMYK"), "JPEG", icc_profile=profile), ImagePolicy()) == plain


def turned(orientation: int, kind: str, order: str = "big") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "A camera"
    blob = exif.tobytes()
    if order == "big":
        blob = headers.exif_with_orientation(orientation)
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {"lossless": True}
    return saved(picture(), kind, exif=blob, **options)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientations(orientation: int, kind: str, order: str):
    data = turned(orientation, kind, order)
    baked = convert(data, ImagePolicy(quality=100))
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert (baked.info.width, baked.info.height) == upright.size
    difference = pixels(baked.data).astype(int) - np.asarray(upright)
    assert np.abs(difference).max() <= (8 if kind == "JPEG" else 0)
    assert ("exif-rotated" in baked.conversions) == (orientation != 1)
    kept = convert(data, ImagePolicy(exif="keep"))
    assert (kept.info.width, kept.info.height) == (WIDTH, HEIGHT)
    assert ("exif-kept" in kept.conversions) == (orientation != 1)
    assert (kept.data is data) == (kind != "WEBP")
    for image in (kept, convert(data, ImagePolicy(exif="keep", resize=Resize.parse("short:9")))):
        assert Image.open(io.BytesIO(image.data)).getexif().get(0x0112, 1) == orientation
    if kind != "WEBP":
        never = convert(data, ImagePolicy(convert="never"))
        assert never.data is data
        assert never.conversions == (("exif-kept",) if orientation != 1 else ())


def test_broken_exif_is_no_orientation():
    good = headers.exif_with_orientation(6)
    assert headers.exif_orientation(good) == 6
    for keep in range(len(good) - 5):
        assert headers.exif_orientation(good[:keep]) in (1, 6)
    assert headers.exif_orientation(headers.exif_with_orientation(9)) == 1
    assert headers.exif_orientation(b"II*\0\xff\xff\xff\xff") == 1


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "AVIF", "TIFF"])
def test_more_frames_than_one(kind: str):
    one = saved(picture(), kind)
    three = saved(picture(), kind, save_all=True, frames=3)
    for multi_frame in ("first", "all", "reject"):
        assert outcome(one, ImagePolicy(multi_frame=multi_frame)) == "decodes"
    first = convert(three, ImagePolicy())
    if kind == "PNG":
        assert first.data is three
        resized = convert(three, ImagePolicy(resize=Resize.parse("short:10")))
        assert resized.conversions == ("first-frame", "resized")
    else:
        assert "first-frame" in first.conversions
        np.testing.assert_allclose(
            pixels(first.data).astype(int),
            pixels(convert(one, ImagePolicy()).data),
            atol={"AVIF": 40, "WEBP": 20}.get(kind, 0),
        )
    with pytest.raises(ImageError, match="more than one frame") as caught:
        convert(three, ImagePolicy(multi_frame="reject"))
    assert caught.value.kind == "MultiFrame"
    if kind == "GIF":
        whole = convert(three, ImagePolicy(multi_frame="all"))
        assert whole.data is three
        assert tf.io.decode_image(three).shape == (3, HEIGHT, WIDTH, 3)
    else:
        with pytest.raises(ImageError, match="GIFs only"):
            convert(three, ImagePolicy(multi_frame="all"))


def test_a_gif_passes_only_if_tensorflow_sees_its_size():
    gif = bytearray(saved(picture(), "GIF", save_all=True, frames=3))
    assert outcome(bytes(gif), ImagePolicy(multi_frame="all")) == "decodes"
    gif[6:8] = struct.pack("<H", WIDTH + 1)  # its canvas; its frames are what they were
    assert outcome(bytes(gif), ImagePolicy(multi_frame="all")) == "Unsupported"
    assert outcome(bytes(gif)) == "decodes"


def test_a_tiff_whose_strips_do_not_cover_it_is_a_reject():
    data = bytearray(saved(picture(), "TIFF"))
    at = next(n for n in range(8, len(data)) if struct.unpack_from("<H", data, n) == (257,))
    data[at + 2 : at + 12] = struct.pack("<HII", 4, 1, 4_000_000)
    with pytest.raises(ImageError, match="do not cover"):
        convert(bytes(data), ImagePolicy())


RULES = (
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
@pytest.mark.parametrize(("rule", "enlarge", "before", "after"), RULES)
def test_sizes_after_resizing(
    rule: str, enlarge: bool, before: tuple[int, int], after: tuple[int, int], kind: str
):
    data = saved(picture("RGB", before), kind)
    image = convert(data, ImagePolicy(resize=Resize.parse(rule, enlarge)))
    assert_decodes(image)
    assert (image.info.width, image.info.height) == after
    assert ("resized" in image.conversions) == (before != after)
    if before == after and kind != "WEBP":
        assert image.data is data


def test_resizing_looks_as_it_should():
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
def test_reduced_decoding_is_not_seen(orientation: int):
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


def test_resizing_turned_images():
    data = turned(6, "JPEG")
    image = convert(data, ImagePolicy(resize=Resize.parse("crop:20x30")))
    assert (image.info.width, image.info.height) == (20, 30)
    assert image.conversions == ("exif-rotated", "resized")
    whole = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).resize((20, 34))
    expected = np.asarray(whole)[2:32].astype(int)
    assert np.abs(pixels(image.data) - expected).mean() < 3


@pytest.mark.parametrize(
    "text", ["short", "short:0", "256", "crop:12", "fit:3x4", "3x", "0x4", "70000x3", "short:-1"]
)
def test_bad_rules_for_resizing(text: str):
    with pytest.raises(ValueError, match="--resize"):
        Resize.parse(text)


def test_a_strip_that_would_be_enlarged_beyond_all_measure_is_a_reject():
    strip = saved(Image.new("L", (60_000, 1)), "PNG")
    with pytest.raises(ImageError, match="pixels, more than") as caught:
        convert(strip, ImagePolicy(resize=Resize.parse("short:256", enlarge=True)))
    assert caught.value.kind == "TooLarge"


def test_what_is_longer_than_a_jpeg_can_be_is_a_png():
    long = saved(Image.new("RGB", (70_000, 2), "red"), "JPEG2000", irreversible=True)
    assert convert(long, ImagePolicy()).info == ImageInfo("PNG", 2, 70_000)
    with pytest.raises(ImageError, match="the limit of JPEG"):
        convert(long, ImagePolicy(convert="jpeg"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (ImagePolicy(min_size=HEIGHT), None),
        (ImagePolicy(min_size=HEIGHT + 1), "TooSmall"),
        (ImagePolicy(max_pixels=WIDTH * HEIGHT), None),
        (ImagePolicy(max_pixels=WIDTH * HEIGHT - 1), "TooLarge"),
        (ImagePolicy(max_bytes=20), "TooLarge"),
    ],
)
def test_limits(kind: str, policy: ImagePolicy, error: str | None):
    data = saved(picture(), kind)
    if error:
        with pytest.raises(ImageError) as caught:
            convert(data, policy)
        assert caught.value.kind == error
    else:
        assert_decodes(convert(data, policy))


@pytest.mark.parametrize("kind", ["WEBP", "TIFF", "PPM", "TGA"])
def test_never_rewrites_nothing(kind: str):
    data = saved(picture(), kind)
    with pytest.raises(ImageError) as caught:
        convert(data, ImagePolicy(convert="never"))
    assert caught.value.kind in ("Unsupported", "NotAnImage")
    for known in ("JPEG", "PNG", "GIF", "BMP"):
        data = saved(picture(), known)
        assert convert(data, ImagePolicy(convert="never")) == Converted(
            data, ImageInfo(known, HEIGHT, WIDTH)
        )


def test_lossy_becomes_jpeg_and_lossless_png():
    cases = {
        "WEBP": ({"lossless": True}, {"lossless": False}),
        "JPEG2000": ({}, {"irreversible": True, "quality_layers": [10]}),
        "TIFF": ({"compression": "tiff_lzw"}, {"compression": "jpeg"}),
    }
    for kind, options in cases.items():
        formats = [convert(saved(picture(), kind, **o), ImagePolicy()).info.format for o in options]
        assert formats == ["PNG", "JPEG"]
        lossless = convert(saved(picture(), kind, **options[0]), ImagePolicy())
        np.testing.assert_array_equal(pixels(lossless.data), np.asarray(picture()))


def test_jpegs_are_written_with_full_colour_and_the_quality_told():
    webp = saved(picture("RGB", (200, 200)), "WEBP")
    image = Image.open(io.BytesIO(convert(webp, ImagePolicy()).data))
    assert [(h, v) for _, h, v, _ in image.layer] == [(1, 1)] * 3
    assert (
        image.quantization
        == Image.open(io.BytesIO(saved(picture(), "JPEG", quality=95, subsampling=0))).quantization
    )
    assert len(convert(webp, ImagePolicy(quality=30)).data) < len(convert(webp, ImagePolicy()).data)


def test_nothing_of_the_file_but_its_pixels_is_written():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    tiff = saved(picture(), "TIFF", icc_profile=profile, description="secret", dpi=(7, 7))
    image = Image.open(io.BytesIO(convert(tiff, ImagePolicy()).data))
    assert image.info == {}
    webp = saved(picture(), "WEBP", icc_profile=profile, exif=headers.exif_with_orientation(3))
    assert set(Image.open(io.BytesIO(convert(webp, ImagePolicy()).data)).info) <= {
        "jfif", "jfif_version", "jfif_unit", "jfif_density",
    }  # fmt: skip


def bombs() -> dict[str, bytes]:
    """50,000 x 50,000 pixels, by their headers; those that Pillow would give memory first too."""
    side = 50_000
    ihdr = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    body = zlib.compress(bytes(10_000))
    png = b"\x89PNG\r\n\x1a\n" + ihdr + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    jpeg = bytearray(image_bytes(1))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", side, side)
    vp8x = struct.pack("<4sIB3x", b"VP8X", 10, 0) + 2 * (side - 1).to_bytes(3, "little")
    webp = b"RIFF\0\0\0\0WEBP" + vp8x + saved(picture(), "WEBP")[12:]
    jp2 = bytearray(saved(picture(), "JPEG2000", no_jp2=True))
    jp2[8:16] = struct.pack(">II", side, side)
    tiff = bytearray(saved(picture(), "TIFF"))
    for tag in (256, 257):
        at = next(n for n in range(8, len(tiff)) if struct.unpack_from("<H", tiff, n) == (tag,))
        tiff[at + 2 : at + 12] = struct.pack("<HII", 4, 1, side)
    ico = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(png), 22) + png
    return {
        "PNG": png,
        "JPEG": bytes(jpeg),
        "GIF": b"GIF89a" + struct.pack("<HH", side, side) + saved(picture(), "GIF")[10:],
        "WEBP": webp,
        "JPEG2000": bytes(jp2),
        "TIFF": bytes(tiff),
        "ICO": ico,
        "PPM": b"P6\n50000 50000\n255\n" + bytes(100),
        "PSD": struct.pack(">4sH6xHIIHH", b"8BPS", 1, 3, side, side, 8, 3) + bytes(14),
    }


_MEASURE = """
import resource, sys
from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.validate import ImageError
convert(open(sys.argv[1], "rb").read(), ImagePolicy())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kinds = []
for name in sys.argv[2:]:
    try:
        convert(open(name, "rb").read(), ImagePolicy())
    except ImageError as error:
        kinds.append(error.kind)
print(*kinds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_decompression_bombs_cost_nothing(tmp_path):
    paths = []
    good = {"good.tif": saved(picture(), "TIFF")}
    for name, data in (good | bombs()).items():
        (tmp_path / name).write_bytes(data)
        paths.append(str(tmp_path / name))
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *paths], capture_output=True, text=True, check=True
    )
    *kinds, kilobytes = done.stdout.split()
    assert kinds == ["TooLarge"] * len(bombs())
    assert int(kilobytes) < 20_000


def test_no_other_program_is_ever_asked():
    postscript = saved(picture(), "EPS")
    with pytest.raises(ImageError, match="PostScript") as caught:
        convert(postscript, ImagePolicy())
    assert caught.value.kind == "Unsupported"


def test_heic_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    heic = written()["HEIF-RGB"]
    assert convert(heic, ImagePolicy()).conversions == ("heif-to-jpeg",)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError, match=r"imageshards\[heic\]"):
        convert(heic, ImagePolicy())


def test_a_progressive_jpeg_of_a_thousand_scans_is_a_reject():
    data = saved(picture(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="scans"):
        convert(data[:last] + data[last:-2] * 1000 + data[-2:], ImagePolicy())


def test_a_jpeg_of_another_process_is_not_passed_on():
    data = bytearray(saved(picture(), "JPEG"))
    data[data.index(b"\xff\xc0") + 1] = 0xC9  # arithmetic coding
    assert outcome(bytes(data), ImagePolicy(convert="never")) == "Unsupported"
    assert outcome(bytes(data)) in ("Corrupt", "decodes")


def test_text_is_no_image():
    for text in (b"<html><body>404</body></html>\n", b"uri,label\na.jpg,b\n", bytes(1000)):
        with pytest.raises(ImageError) as caught:
            convert(text, ImagePolicy())
        assert caught.value.kind == "NotAnImage"


def test_headers_of_jpegs_are_those_of_the_decoder():
    for name, data in written().items():
        if name.startswith(("JPEG-", "MPO-")):
            header = headers.read_jpeg(data)
            assert header
            assert (header.height, header.width) == (HEIGHT, WIDTH)
            assert header.is_widely_supported
            for keep in range(0, len(data), 7):
                headers.read_jpeg(data[:keep])
    assert validate.detect_format(written()["MPO-RGB"]) == "JPEG"
