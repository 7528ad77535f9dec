"""Without TensorFlow, images of records decode to what TensorFlow decodes."""

import numpy as np
from odd import DAMAGED
from odd_images import odd_images
from pictures import pixels

from imageshards.reader.parse import decode_image
from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.validate import ImageError


def test_every_jpeg_and_png_that_a_build_accepts_is_read():
    found = 0
    for name, odd in odd_images().items():
        if not name.startswith(("jpeg", "png", "orientation")) or odd.state == DAMAGED:
            continue
        try:
            data = convert(odd.data, ImagePolicy()).data
        except ImageError:
            continue
        expected = pixels(data)
        image = decode_image(data, channels=0)
        assert image.shape[:2] == expected.shape[:2], name
        if expected.shape[2] == 4:
            continue  # TensorFlow returns alpha; the reader drops it.
        difference = np.abs(image.astype(int) - expected)
        # Pillow decodes JPEGs with an unusual subsampling, by the accurate DCT.
        assert difference.max() <= (4 if name.startswith("jpeg") else 1), name
        found += 1
    assert found > 150
