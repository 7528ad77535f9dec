"""imageshards' own function: see benchmarks/resize.py."""

from resize_loop import run

from imageshards.transforms.images.convert import Rules, convert
from imageshards.transforms.images.resize import Resize


def resize(data: bytes, side: int) -> bytes:
    """With the checks that a build makes."""
    return convert(data, Rules(resize=Resize("short", side, side))).data


run(resize)
