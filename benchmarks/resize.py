"""Compares resizing with Pillow and libvips: python -m benchmarks.resize IMAGES [--rounds 3].

Every contender resizes the same JPEG files to a shorter side of 256 pixels, and encodes them as
JPEGs of quality 95 with 4:4:4 chroma, in one thread. They take turns; the medians are printed.
Runs in the environment of imageshards; libvips gets an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import environments
from benchmarks.scratch import find_images

_HERE = Path(__file__).resolve().parent
_SIDE = 256
# Name -> (program, environment that runs it; None: the environment of imageshards).
_CONTENDERS = {
    "imageshards": ("resize_imageshards.py", None),
    "Pillow": ("resize_pillow.py", None),
    "pyvips": ("resize_pyvips.py", "vips"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison, and prints it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resize", description=__doc__)
    parser.add_argument("images", type=Path, metavar="IMAGES", help="a folder of JPEG files")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default 3")
    parser.add_argument("--side", type=int, default=_SIDE, metavar="PIXELS", help="default 256")
    args = parser.parse_args(arguments)
    paths = find_images(args.images)
    if not paths:
        print(f"benchmarks.resize: no JPEG file below {args.images}", file=sys.stderr)
        return 2
    listing = "".join(f"{path}\n" for path in paths)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in _CONTENDERS}
    for _ in range(args.rounds):
        for name, (program, environment) in _CONTENDERS.items():
            python = Path(sys.executable)
            if environment:
                made = environments.ensure(environment)
                if made.error:
                    print(f"{name}: {made.error}", file=sys.stderr)
                    continue
                python = made.python
            done = subprocess.run(
                [python, _HERE / "peers" / program, str(args.side)],
                input=listing,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            runs[name].append(json.loads(done.stdout))
    print(f"{len(paths):,} files to short:{args.side}, one thread, medians of {args.rounds} rounds")
    print(f"{'':14}{'images/s':>10}{'peak MB':>10}{'halfway MB':>13}{'MB out':>9}  right size")
    for name, results in runs.items():
        if not results:
            continue
        rate = median(len(paths) / result["seconds"] for result in results)
        peak, half, out = (
            median(result[key] for result in results) / 1e6 for key in ("peak", "half", "bytes")
        )
        right = min(result["right"] for result in results)
        print(f"{name:14}{rate:10.0f}{peak:10.0f}{half:13.0f}{out:9.1f}  {right:,}")
    return 0 if all(runs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
