"""What the programs of benchmarks/resize.py share: the loop, the clock, the memory.

Standard library only.
"""

import json
import resource
import struct
import sys
import time
from collections.abc import Callable


def jpeg_size(data: bytes) -> tuple[int, int]:
    """(width, height) of a JPEG."""
    at = 2
    while True:
        marker, length = struct.unpack_from(">HH", data, at)
        if 0xFFC0 <= marker <= 0xFFC2:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + length


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(resize: Callable[[bytes, int], bytes]) -> None:
    """Resizes the files that stdin names to a short side of argv[1], and tells how it went."""
    side = int(sys.argv[1])
    paths = sys.stdin.read().splitlines()
    seconds = 0.0
    half = right = size = 0
    for number, path in enumerate(paths):
        with open(path, "rb") as file:
            data = file.read()
        begin = time.perf_counter()
        out = resize(data, side)
        seconds += time.perf_counter() - begin
        # What is smaller stays as it is: that is right, too.
        right += min(jpeg_size(out)) == min(side, *jpeg_size(data))
        size += len(out)
        if number == len(paths) // 2:
            half = peak()
    print(
        json.dumps(
            {"seconds": seconds, "half": half, "peak": peak(), "right": right, "bytes": size}
        )
    )
