"""Resizes with pyvips (thumbnail): see benchmarks/resize.py."""

import os

os.environ["VIPS_CONCURRENCY"] = "1"  # read when libvips is loaded

import pyvips
from resize_loop import run

_FAR = 10_000_000


def resize(data: bytes, side: int) -> bytes:
    """Resizes with Lanczos after shrink-on-load, the defaults of libvips."""
    image = pyvips.Image.new_from_buffer(data, "")
    short = min(image.width, image.height)
    if short <= side:
        return data
    width, height = (side, _FAR) if image.width == short else (_FAR, side)
    small = pyvips.Image.thumbnail_buffer(data, width, height=height, no_rotate=True)
    return small.jpegsave_buffer(Q=95, subsample_mode="off", strip=True)


run(resize)
