"""The measured constants of all estimates. Written by `make rates`: do not edit.

`make bench IMAGES=DIR` measures them on this machine, and `make rates` writes them.
"""

# ruff: noqa: E501

from __future__ import annotations

from typing import NamedTuple


class Measured(NamedTuple):
    """A measured constant.

    Attributes:
      value: the value; `rates` has its unit.
      date: when it was measured.
      source: what was measured, and on which machine.
    """

    value: float
    date: str
    source: str


MEASURED = {
    "check_fixed": Measured(
        value=0.00015,
        date="2026-11-21",
        source="50,000 JPEGs of 2 kB, header check",
    ),
    "check_full": Measured(
        value=0.00185,
        date="2026-11-21",
        source="benchmarks/RESULTS.md",
    ),
    "check_header": Measured(
        value=0.0001,
        date="2026-11-21",
        source="benchmarks/RESULTS.md",
    ),
    "digest": Measured(
        value=1.45e-06,
        date="2026-11-22",
        source="python benchmarks/copies.py digests 1000000; 2 busy cores of Intel Xeon",
    ),
    "process_memory": Measured(
        value=250000000.0,
        date="2026-11-21",
        source="benchmarks/RESULTS.md, 10,000 images",
    ),
    "read_fixed": Measured(
        value=0.000736,
        date="2026-11-22",
        source="python -m benchmarks.gcs, 32 reads in flight, 2 kB and 108 kB; 2 busy cores of Intel Xeon",
    ),
    "read_sized": Measured(
        value=7.46e-05,
        date="2026-11-22",
        source="python -m benchmarks.gcs, 32 reads in flight, 2 kB and 108 kB; 2 busy cores of Intel Xeon",
    ),
    "reference": Measured(
        value=5.1e-06,
        date="2026-11-21",
        source="benchmarks/RESULTS.md, 1,000,000 references",
    ),
}
"""Name of a constant -> its measurement."""
