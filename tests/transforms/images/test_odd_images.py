"""Odd images become what TensorFlow decodes, or are rejected for a reason.

tests/integration/test_odd_images.py builds data sets of them with all options.
"""

import io

import numpy as np
import pytest
import tensorflow as tf
from odd import DAMAGED, INTACT
from odd_images import may_reject, odd_images
from odd_png import with_chunks
from pictures import picture, pixels, saved
from PIL import Image

from imageshards.transforms.images.convert import Converted, convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.validate import ImageError, inspect

ODD = {name: odd for name, odd in odd_images().items() if not name.startswith("written")}


def attempt(data: bytes, policy: ImagePolicy) -> Converted | ImageError:
    """What becomes of a file; no other error may be raised."""
    try:
        return convert(data, policy)
    except ImageError as error:
        return error


def test_there_are_many_odd_images():
    assert len(odd_images()) >= 300
    assert sum(odd.state == INTACT for odd in odd_images().values()) > 300
    assert len({odd.data for odd in ODD.values()}) > 0.9 * len(ODD)


@pytest.mark.parametrize(
    "policy",
    [
        ImagePolicy(), ImagePolicy(check="header"), ImagePolicy(convert="never"),
        ImagePolicy(multi_frame="all"), ImagePolicy(convert="pixels"),
    ],
    ids=["default", "header", "never", "all", "pixels"],
)  # fmt: skip
def test_what_is_accepted_decodes_with_tensorflow_and_intact_images_are_accepted(
    policy: ImagePolicy,
):
    for name, odd in ODD.items():
        image = attempt(odd.data, policy)
        if isinstance(image, ImageError):
            assert may_reject(odd, image.kind, policy.convert, policy.multi_frame), (name, image)
            assert "\n" not in str(image), name
            continue
        if policy.check == "header" and odd.state == DAMAGED:
            continue
        if policy.convert == "pixels":
            assert len(image.data) == image.info.height * image.info.width * image.channels
            continue
        shape = pixels(image.data).shape
        assert shape[:2] == (image.info.height, image.info.width), name
        assert shape[2] in (1, 3, 4), name
        if image.info.format == "GIF":
            assert tf.io.decode_image(image.data).shape[1:] == shape, name


@pytest.mark.parametrize(
    "name",
    [
        "odd-adobe", "foreign-app14", "bad-icc", "odd-jfif", "bytes-before-marker", "stuffed-bytes",
        "many-warnings", "short-app14", "fill", "comment",
    ],
)  # fmt: skip
@pytest.mark.parametrize("check", ["full", "header"])
def test_damaged_metadata_of_a_jpeg_does_not_reject_it(name: str, check: str):
    plain, odd = odd_images()["jpeg/sampling-plain.jpg"].data, odd_images()[f"jpeg/{name}.jpg"].data
    np.testing.assert_array_equal(pixels(odd), pixels(plain))
    assert convert(odd, ImagePolicy(check=check)).data is odd
    # Its pixels are the same where it is decoded too.
    for policy in (ImagePolicy(convert="pixels"), ImagePolicy(convert="png")):
        assert convert(odd, policy) == convert(plain, policy)


@pytest.mark.parametrize("name", ["many-warnings", "odd-jfif", "bytes-before-marker"])
def test_damaged_pixels_behind_damaged_metadata_are_found(name: str):
    data = odd_images()[f"jpeg/{name}.jpg"].data
    scan = data.rindex(b"\xff\xda") + 20
    for broken in (data[: scan - 4] + data[-2:], data[: scan + 40] + bytes(20) + data[scan + 60 :]):
        with pytest.raises(ImageError) as caught:
            inspect(broken)
        assert caught.value.kind in ("Corrupt", "Truncated")


@pytest.mark.parametrize("extra", [b"\1\2", bytes(500), b"\xaa" * 30])
@pytest.mark.parametrize("progressive", [False, True])
def test_padding_after_a_scan_does_not_reject_a_jpeg(extra: bytes, progressive: bool):
    data = saved(picture(), "JPEG", progressive=progressive)
    if progressive and extra == b"\1\2":
        return  # It cannot be told from the data of a scan.
    padded = data[:-2] + extra + data[-2:]
    assert convert(padded, ImagePolicy()).data is padded
    np.testing.assert_array_equal(pixels(padded), pixels(data))


def test_entropy_coded_data_that_no_block_uses_are_damage():
    data = saved(picture("RGB", (200, 200)), "JPEG")
    for extra in (data[-300:-2], bytes(range(1, 200))):
        with pytest.raises(ImageError, match="extraneous bytes"):
            inspect(data[:-2] + extra + data[-2:])


def test_unusual_subsampling_decodes_as_tensorflow_decodes_it():
    for name, odd in odd_images().items():
        if name.startswith("jpeg/sampling"):
            found = convert(odd.data, ImagePolicy(convert="png"))
            difference = pixels(found.data).astype(int) - pixels(odd.data)
            assert np.abs(difference).max() <= 4, name


@pytest.mark.parametrize("name", ["long-icc", "long-ztxt", "long-text", "long-itxt", "bad-icc"])
@pytest.mark.parametrize("check", ["full", "header"])
def test_metadata_of_a_png_does_not_reject_it(name: str, check: str):
    plain, odd = with_chunks(), odd_images()[f"png/{name}.png"].data
    assert convert(odd, ImagePolicy(check=check)).data is odd
    np.testing.assert_array_equal(pixels(odd), pixels(plain))
    assert convert(odd, ImagePolicy(convert="jpeg")) == convert(plain, ImagePolicy(convert="jpeg"))


@pytest.mark.parametrize(
    "name",
    [
        "no-colours", "no-colours-in-second", "large-second", "small-first",
        "no-sub-blocks", "few-pixels", "index-without-colour", "code-size-12", "no-frame",
    ],
)  # fmt: skip
@pytest.mark.parametrize("policy", [ImagePolicy(convert="never"), ImagePolicy(multi_frame="all")])
def test_gifs_that_tensorflow_does_not_decode_are_not_kept(name: str, policy: ImagePolicy):
    data = odd_images()[f"gif/{name}.gif"].data
    try:
        shape = tf.io.decode_image(data).shape[1:3]
    except tf.errors.InvalidArgumentError:
        shape = None
    assert shape != (22, 37)
    image = attempt(data, policy)
    if isinstance(image, ImageError):
        assert image.kind in ("Unsupported", "Corrupt", "Truncated")
    else:
        assert image.data is not data
    with pytest.raises(ImageError):
        inspect(data)


@pytest.mark.parametrize("source", ["xmp{}.jpg", "xmp{}.png", "xmp{}.webp", "raw{}.png",
                                    "raw-compressed{}.png"])  # fmt: skip
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_orientation_in_xmp_or_in_a_raw_profile_is_applied(source: str, orientation: int):
    def found(number: int) -> bytes:
        return odd_images()["orientation/" + source.format(number)].data

    upright = Image.open(io.BytesIO(found(1))).convert("RGB")
    transposes = (None, 0, 3, 1, 5, 4, 6, 2)
    turn = transposes[orientation - 1]
    expected = upright if turn is None else upright.transpose(Image.Transpose(turn))
    image = convert(found(orientation), ImagePolicy(convert="png"))
    difference = pixels(image.data).astype(int) - np.asarray(expected)
    assert np.abs(difference).max() <= 8
    assert ("exif-rotated" in image.conversions) == (orientation != 1)
    kept = convert(found(orientation), ImagePolicy(exif="keep"))
    assert ("exif-kept" in kept.conversions) == (orientation != 1)


def test_exif_has_priority_over_xmp():
    from hand_jpeg import jpeg, segment
    from odd_jpeg import xmp

    from imageshards.transforms.images import headers

    exif = segment(0xE1, headers.exif_with_orientation(1))
    data = jpeg(extra=segment(0xE1, xmp(6)) + exif)
    assert convert(data, ImagePolicy()).data is data


@pytest.mark.parametrize(
    "name", ["dos.eps", "stars.fits", "placed.wmf", "bare.wmf", "drawing.emf", "flash.fpx"]
)
def test_formats_without_a_decoder_are_unsupported(name: str):
    for policy in (ImagePolicy(), ImagePolicy(convert="never")):
        with pytest.raises(ImageError) as caught:
            convert(odd_images()[f"none/{name}"].data, policy)
        assert caught.value.kind == "Unsupported"
