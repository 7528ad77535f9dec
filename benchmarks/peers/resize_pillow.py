"""Resizes with Pillow (draft, resize, save): see benchmarks/resize.py."""

import io

from PIL import Image
from resize_loop import run


def resize(data: bytes, side: int) -> bytes:
    """Resizes with Lanczos, after decoding to at least twice the target size."""
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    short = min(width, height)
    if short <= side:
        return data
    size = (round(width * side / short), round(height * side / short))
    image.draft("RGB", (2 * size[0], 2 * size[1]))
    small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=95, subsampling=0)
    return out.getvalue()


run(resize)
