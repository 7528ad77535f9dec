"""Files of every format are rejected, or become files that TensorFlow decodes."""

import io
import itertools
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from pictures import (
    HEIGHT,
    WIDTH,
    assert_decodes,
    corrupted,
    outcome,
    picture,
    pixels,
    saved,
    truncated,
    with_orientation,
    written,
)  # fmt: skip
from PIL import Image, ImageCms, ImageOps

from imageshards.transforms.images import headers
from imageshards.transforms.images.convert import Converted, convert
from imageshards.transforms.images.geometry import Geometry
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.images.validate import ImageError, ImageInfo

# Files that Pillow writes and cannot read itself.
UNREADABLE = {"ICNS-P", "TIFF-YCbCr"}


@pytest.mark.parametrize("name", sorted(written()))
def test_every_format_and_mode_becomes_what_tensorflow_decodes(name: str):
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
    again = convert(image.data, ImagePolicy())
    assert again == Converted(image.data, image.info, again.geometry)
    assert again.geometry.keeps_pixels("stored")
    for target in ("jpeg", "png"):
        forced = convert(data, ImagePolicy(convert=target))
        assert_decodes(forced)
        assert forced.info == ImageInfo(target.upper(), image.info.height, image.info.width)


def test_images_are_converted_alike_in_many_threads():
    files = [data for name, data in written().items() if name not in UNREADABLE]
    policy = ImagePolicy(resize=Resize.parse("long:12"))
    with ThreadPoolExecutor(8) as executor:
        beside = list(executor.map(convert, files, itertools.repeat(policy)))
    assert beside == [convert(data, policy) for data in files]


def test_the_sample_files_cover_many_formats_and_modes():
    assert len(written()) > 220
    assert len({name.split("-")[0] for name in written()}) > 25


@pytest.mark.parametrize("name", sorted(written()))
def test_corrupt_files_are_rejected_or_decode(name: str):
    data = written()[name]
    for broken in [*truncated(data), *corrupted(data)]:
        outcome(broken)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "AVIF", "QOI", "BMP"])
def test_truncated_files_are_rejected(kind: str):
    data = saved(picture("RGB", (64, 48)), kind)
    for broken in truncated(data, 20):
        assert outcome(broken) != "decodes"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_exif_orientation_is_applied_or_kept(orientation: int, kind: str, order: str):
    data = with_orientation(orientation, kind, order)
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


def test_the_orientation_of_a_tiff_is_always_applied():
    data = saved(picture(), "TIFF", tiffinfo={0x0112: 6})
    for exif in ("bake", "keep"):
        image = convert(data, ImagePolicy(exif=exif))
        assert (image.info.width, image.info.height) == (HEIGHT, WIDTH)
        assert image.conversions == ("tiff-to-png", "exif-rotated")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "AVIF", "TIFF"])
def test_several_frames_are_reduced_kept_or_rejected(kind: str):
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


def test_a_gif_is_kept_only_if_tensorflow_decodes_its_size():
    gif = bytearray(saved(picture(), "GIF", save_all=True, frames=3))
    assert outcome(bytes(gif), ImagePolicy(multi_frame="all")) == "decodes"
    gif[6:8] = struct.pack("<H", WIDTH + 1)  # its canvas; its frames are what they were
    assert outcome(bytes(gif), ImagePolicy(multi_frame="all")) == "Unsupported"
    assert outcome(bytes(gif)) == "decodes"


def test_an_image_too_long_for_jpeg_is_written_as_png():
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
def test_images_beyond_a_limit_are_rejected(kind: str, policy: ImagePolicy, error: str | None):
    data = saved(picture(), kind)
    if error:
        with pytest.raises(ImageError) as caught:
            convert(data, policy)
        assert caught.value.kind == error
    else:
        assert_decodes(convert(data, policy))


@pytest.mark.parametrize("kind", ["WEBP", "TIFF", "PPM", "TGA"])
def test_with_never_no_file_is_rewritten(kind: str):
    data = saved(picture(), kind)
    with pytest.raises(ImageError) as caught:
        convert(data, ImagePolicy(convert="never"))
    assert caught.value.kind in ("Unsupported", "NotAnImage")
    for known in ("JPEG", "PNG", "GIF", "BMP"):
        data = saved(picture(), known)
        size = (WIDTH, HEIGHT)
        assert convert(data, ImagePolicy(convert="never")) == Converted(
            data, ImageInfo(known, HEIGHT, WIDTH), Geometry(size, size, size)
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


def test_jpegs_are_written_with_full_chroma_and_the_given_quality():
    webp = saved(picture("RGB", (200, 200)), "WEBP")
    image = Image.open(io.BytesIO(convert(webp, ImagePolicy()).data))
    assert [(h, v) for _, h, v, _ in image.layer] == [(1, 1)] * 3
    assert (
        image.quantization
        == Image.open(io.BytesIO(saved(picture(), "JPEG", quality=95, subsampling=0))).quantization
    )
    assert len(convert(webp, ImagePolicy(quality=30)).data) < len(convert(webp, ImagePolicy()).data)


def test_metadata_of_rewritten_files_is_dropped():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    tiff = saved(picture(), "TIFF", icc_profile=profile, description="secret", dpi=(7, 7))
    image = Image.open(io.BytesIO(convert(tiff, ImagePolicy()).data))
    assert image.info == {}
    webp = saved(picture(), "WEBP", icc_profile=profile, exif=headers.exif_with_orientation(3))
    assert set(Image.open(io.BytesIO(convert(webp, ImagePolicy()).data)).info) <= {
        "jfif", "jfif_version", "jfif_unit", "jfif_density",
    }  # fmt: skip


def test_a_progressive_jpeg_of_a_thousand_scans_is_rejected():
    data = saved(picture(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="scans"):
        convert(data[:last] + data[last:-2] * 1000 + data[-2:], ImagePolicy())


def test_a_jpeg_with_arithmetic_coding_is_not_kept():
    data = bytearray(saved(picture(), "JPEG"))
    data[data.index(b"\xff\xc0") + 1] = 0xC9  # arithmetic coding
    assert outcome(bytes(data), ImagePolicy(convert="never")) == "Unsupported"
    assert outcome(bytes(data)) in ("Corrupt", "decodes")


def test_text_is_not_an_image():
    for text in (b"<html><body>404</body></html>\n", b"uri,label\na.jpg,b\n", bytes(1000)):
        with pytest.raises(ImageError) as caught:
            convert(text, ImagePolicy())
        assert caught.value.kind == "NotAnImage"
