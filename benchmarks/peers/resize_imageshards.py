"""Resizes with imageshards: see benchmarks/resize.py."""

from resize_loop import run

from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize


def resize(data: bytes, side: int) -> bytes:
    """Validates, resizes and encodes as a build does."""
    return convert(data, ImagePolicy(resize=Resize("short", side, side))).data


run(resize)
