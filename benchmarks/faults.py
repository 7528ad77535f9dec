"""Print what builds make of the faults of Cloud Storage, as a table.

    python -m benchmarks.faults [PATTERN]

Each row is a build of 61 images, on the tests' server in this process, whose clients give up after
4 s instead of 2 minutes: the fault, how often requests meet it, the outcome, seconds and requests.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import faults


def main() -> None:
    """Builds once for each row of `faults.TABLE` that matches the pattern, and prints the row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="")
    pattern = parser.parse_args().pattern
    print("| fault | requests that meet it | times | outcome | seconds | requests | failed |")
    print("|---|---|---|---|---|---|---|")
    with faults.running() as server, redirect_stdout(io.StringIO()):
        faults.put_large(server)
        clean = faults.run("whole")
        assert clean.code == 0, clean.lines
        requests = server.requests.total()
        _print(f"| none | | | | {clean.seconds:.1f} | {requests} | 0 |")
        whole = server.contents("whole")
        for row in faults.TABLE:
            if not re.search(pattern, row.name):
                continue
            found = faults.measure(server, row, whole)
            times = "always" if row.times == faults.ALWAYS else row.times
            requests = row.requests.replace("|", "\\|")
            _print(
                f"| {row.instruction} | `{requests}` | {times} | {found.outcome} "
                f"| {found.seconds:.1f} | {found.requests} | {found.failed} |"
            )


def _print(line: str) -> None:
    print(line, file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
