import contextlib
import struct

import numpy as np
import pytest
import tensorflow as tf
from helpers import image_bytes
from pictures import chunk, pixels, saved
from PIL import Image

from imageshards.transforms.images import validate

KINDS = ("JPEG", "PNG", "GIF", "BMP")


def tensorflow_size(data: bytes) -> tuple[int, int] | None:
    try:
        shape = pixels(data).shape
    except tf.errors.InvalidArgumentError:
        return None
    return shape[0], shape[1]


@pytest.mark.parametrize("check", ["full", "header"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_the_one_that_tensorflow_decodes(kind: str, check: validate.Check):
    data = image_bytes(1, kind, (37, 21))
    info = validate.inspect(data, check)
    assert info == validate.ImageInfo(kind, 21, 37)
    assert tensorflow_size(data) == (21, 37)


def modes() -> list[tuple[str, str, dict]]:
    unwritable = {("JPEG", "P"), ("JPEG", "RGBA"), ("JPEG", "LA"), ("BMP", "LA")}
    every = [
        (kind, mode, {})
        for kind in KINDS
        for mode in ("RGB", "L", "1", "P", "RGBA", "LA")
        if (kind, mode) not in unwritable  # Pillow does not write these
    ]
    return [
        *every,
        ("JPEG", "CMYK", {}),
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "RGB", {"subsampling": 0, "quality": 100}),
        ("PNG", "I;16", {}),
        ("PNG", "RGB", {"interlace": 1}),
        ("GIF", "RGB", {"save_all": True, "append_images": [Image.new("RGB", (9, 9), "red")]}),
    ]


@pytest.mark.parametrize(("kind", "mode", "options"), modes())
def test_valid_images_decode_in_training(kind: str, mode: str, options: dict):
    noise = np.random.default_rng(0).integers(0, 255, (12, 20, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    image = (
        Image.fromarray(noise[..., 0].astype("uint16") * 257)
        if mode == "I;16"
        else (image.convert(mode))
    )
    data = saved(image, kind, **options)
    try:
        info = validate.inspect(data)
    except validate.ImageError as error:
        refused = (error.kind, kind, "" if kind == "BMP" else mode)
        assert refused in (("Unsupported", "BMP", ""), ("Unsupported", "PNG", "LA"))
    else:
        assert tensorflow_size(data) == (info.height, info.width) == (12, 20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", ["full", "header"])
def test_every_truncation_is_found(kind: str, check: validate.Check):
    data = image_bytes(2, kind, (64, 48))
    for keep in range(0, len(data) - 2, max(len(data) // 40, 1)):
        with pytest.raises(validate.ImageError) as caught:
            validate.inspect(data[:keep], check)
        assert caught.value.kind in ("Empty", "NotAnImage", "Truncated", "Corrupt")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_corrupt_images_are_rejected_or_decode_to_their_size(kind: str):
    """The full check accepts nothing that TensorFlow rejects, and never crashes."""
    data = image_bytes(3, kind, (64, 48))
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(150):
        broken = bytearray(data)
        for at in rng.integers(0, len(data), 4):
            broken[at] = rng.integers(0, 256)
        try:
            info = validate.inspect(bytes(broken))
        except validate.ImageError:
            rejected += 1
        else:
            assert tensorflow_size(bytes(broken)) == (info.height, info.width)
    assert rejected > 10 or kind == "BMP"


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"", "Empty", "empty"),
        (b"<html><body>404", "NotAnImage", "an HTML page, not an image"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "Unsupported", "WebP"),
        (b"II*\0\x08\0\0\0", "Unsupported", "TIFF"),
        (b"\0\0\0\x18ftypheic", "Unsupported", "HEIC"),
        (b"\xff\xd8\xff", "Truncated", "JPEG"),
    ],
)
def test_the_reason_says_what_is_wrong(data: bytes, kind: str, reason: str):
    with pytest.raises(validate.ImageError, match=reason) as caught:
        validate.inspect(data)
    assert caught.value.kind == kind


def test_a_decompression_bomb_is_rejected_by_its_header():
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b"")
    with pytest.raises(validate.ImageError, match="50000 x 50000") as caught:
        validate.inspect(png)
    assert caught.value.kind == "TooLarge"


def test_bytes_after_the_end_of_a_jpeg_are_accepted():
    data = image_bytes(4) + b"camera's own trailer"
    assert validate.inspect(data, "header") == validate.inspect(data, "full")
    assert tensorflow_size(data) == (16, 24)


@pytest.mark.parametrize(
    ("name", "is_image"),
    [
        ("a/b.JPEG", True), ("x.jpg", True), ("x.webp", True), ("x.txt", False), ("jpg", False),
        ("a.jpg/readme", False), (".hidden.png", False), ("._photo.jpg", False),
        ("x.jpg.txt", False),
    ],
)  # fmt: skip
def test_image_files_are_recognised_by_their_suffix(name: str, is_image: bool):
    assert validate.is_image_name(name) is is_image


@pytest.mark.parametrize("check", ["full", "header"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extra", [b"\r\n", bytes(5000)])
def test_padding_after_the_end_is_accepted_if_tensorflow_accepts_it(
    kind: str, check: validate.Check, extra: bytes
):
    data = image_bytes(5, kind, (30, 20)) + extra
    if tensorflow_size(data) == (20, 30):
        assert validate.inspect(data, check) == validate.ImageInfo(kind, 20, 30)
    else:
        with pytest.raises(validate.ImageError, match="bytes after its pixels"):
            validate.inspect(data, check)


def test_a_frame_larger_than_memory_is_rejected():
    gif = bytearray(image_bytes(6, "GIF", (30, 20)))
    frame = gif.index(b",\0\0\0\0" + bytes([30, 0, 20, 0]))
    gif[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    with pytest.raises(validate.ImageError) as caught:
        validate.inspect(bytes(gif))
    assert caught.value.kind in ("TooLarge", "Corrupt")


@pytest.mark.parametrize("kind", KINDS)
def test_corrupt_bytes_raise_only_image_errors(kind: str):
    data = image_bytes(7, kind, (40, 40))
    rng = np.random.default_rng(int.from_bytes(kind.encode(), "big") % 1000)
    for _ in range(1500):
        broken = bytearray(data)
        for at in rng.integers(0, min(len(data), 200), rng.integers(1, 6)):
            broken[at] = rng.integers(0, 256)
        with contextlib.suppress(validate.ImageError):
            validate.inspect(bytes(broken))
