"""Headers of image files, parsed without decoding."""

import sys

import pytest
from odd_png import compressed_text, with_chunks
from pictures import HEIGHT, WIDTH, chunk, written

from imageshards.transforms.images import headers, validate


def test_malformed_exif_has_no_orientation():
    good = headers.exif_with_orientation(6)
    assert headers.orientation(good, b"") == 6
    for keep in range(len(good) - 5):
        assert headers.orientation(good[:keep], b"") in (1, 6)
    assert headers.orientation(headers.exif_with_orientation(9), b"") == 1
    assert headers.orientation(b"II*\0\xff\xff\xff\xff", b"") == 1


def test_jpeg_headers_match_the_files():
    for name, data in written().items():
        if name.startswith(("JPEG-", "MPO-")):
            header = headers.read_jpeg(data)
            assert header
            assert (header.height, header.width) == (HEIGHT, WIDTH)
            assert header.is_widely_supported
            for keep in range(0, len(data), 7):
                headers.read_jpeg(data[:keep])
    assert validate.detect_format(written()["MPO-RGB"]) == "JPEG"


def inflations(data: bytes) -> int:
    """How often reading the header of a PNG inflates a text."""
    count = 0

    def profile(_frame: object, event: str, function: object) -> None:
        nonlocal count
        count += event == "c_call" and getattr(function, "__name__", "") == "decompress"

    sys.setprofile(profile)
    try:
        assert headers.read_png(data)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("content", [b"<x/>" + bytes(99), b""], ids=["valid", "damaged"])
def test_texts_of_a_png_are_inflated_a_few_times(content: bytes):
    text = compressed_text(b"XML:com.adobe.xmp\0" + content)
    text = text if content else text[:-8] + bytes(8)
    assert 1 <= inflations(with_chunks(*[chunk(b"zTXt", text)] * 900)) <= 8
