"""Headers of image files, parsed without decoding."""

from pictures import HEIGHT, WIDTH, written

from imageshards.transforms.images import headers, validate


def test_malformed_exif_has_no_orientation():
    good = headers.exif_with_orientation(6)
    assert headers.exif_orientation(good) == 6
    for keep in range(len(good) - 5):
        assert headers.exif_orientation(good[:keep]) in (1, 6)
    assert headers.exif_orientation(headers.exif_with_orientation(9)) == 1
    assert headers.exif_orientation(b"II*\0\xff\xff\xff\xff") == 1


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
