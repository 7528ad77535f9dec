"""The loop of the programs of benchmarks/resize.py, with its time and memory.

Standard library only.
"""

import json
import resource
import struct
import sys
import time
from collections.abc import Callable


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Returns (width, height) of a JPEG."""
    at = 2
    while True:
        marker, length = struct.unpack_from(">HH", data, at)
        if 0xFFC0 <= marker <= 0xFFC2:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + length


def peak() -> int:
    """Returns the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(resize: Callable[[bytes, int], bytes]) -> None:
    """Resizes the files listed on stdin to a shorter side of argv[1]; prints time and memory."""
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
        # Smaller images are not enlarged.
        right += min(jpeg_size(out)) == min(side, *jpeg_size(data))
        size += len(out)
        if number == len(paths) // 2:
            half = peak()
    print(
        json.dumps(
            {"seconds": seconds, "half": half, "peak": peak(), "right": right, "bytes": size}
        )
    )
