"""imageshards' own function: see benchmarks/resize.py."""

from resize_loop import run

from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize


def resize(data: bytes, side: int) -> bytes:
    """With the checks that a build makes."""
    return convert(data, ImagePolicy(resize=Resize("short", side, side))).data


run(resize)
