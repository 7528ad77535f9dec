"""Compares the same build on each engine: whether it runs, its time, and whether bytes are equal.

    python -m benchmarks.engines DIR

DIR is a folder of images. Run `make engines` first. The benchmark starts a Flink cluster and stops
it at the end. Times are wall times of whole processes, one run each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = [sys.executable, "-m", "imageshards.launch.cli", "build"]


def main() -> None:
    """Runs the build on each engine, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    images = parser.parse_args().images
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = subprocess.Popen(
            [
                sys.executable, ROOT / "launch/flink/cluster.py", "run", "--folder", folder / "c",
                "--rest_port=0", "--job_port=0",
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert cluster.stdin
        assert cluster.stdout
        try:
            started = cluster.stdout.readline()
            engines = {
                "in process": ["--workers=1"],
                "2 processes": [
                    "--direct_running_mode=multi_processing", "--direct_num_workers=2",
                ],
                "Flink": json.loads(started)["options"] if started else None,
                "Prism": [
                    "--runner=PrismRunner", f"--prism_location={ROOT / '.engines/bin/prism'}",
                ],
            }  # fmt: skip
            print("| engine | ran | seconds | equal bytes |\n|---|---|---|---|")
            expected = None
            for engine, options in engines.items():
                out = folder / engine.replace(" ", "-")
                if options is None:
                    print(f"| {engine} | no: the cluster did not start | | |")
                    continue
                seconds, ran = _build(images, out, options)
                found = _contents(out)
                expected = found if expected is None else expected
                equal = "yes" if ran and found == expected else "no"
                print(f"| {engine} | {'yes' if ran else 'no'} | {seconds:.1f} | {equal} |")
        finally:
            cluster.stdin.close()
            cluster.wait()


def _build(images: Path, out: Path, options: list[str]) -> tuple[float, bool]:
    begin = time.perf_counter()
    done = subprocess.run(
        [*BUILD, "--input", images, "--output", out, "--name=x", "--num_shards=16", *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    return time.perf_counter() - begin, done.returncode == 0


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


if __name__ == "__main__":
    main()
