"""The measured constants of all estimates. Written by `make rates`: do not edit.

`make bench IMAGES=DIR` measures them on this machine, and `make rates` writes them.
"""

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
        value=2e-06,
        date="2026-11-22",
        source="assumed: like a reference without its name",
    ),
    "finish": Measured(
        value=0.0003,
        date="2026-11-22",
        source="the goal of benchmarks/finish.py: 1,000,000 shards in 5 minutes",
    ),
    "finish_memory": Measured(
        value=1000000000.0,
        date="2026-11-22",
        source="the goal of benchmarks/finish.py",
    ),
    "process_memory": Measured(
        value=250000000.0,
        date="2026-11-21",
        source="benchmarks/RESULTS.md, 10,000 images",
    ),
    "read_fixed": Measured(
        value=0.0003,
        date="2026-11-21",
        source="divided by hand: 0.5 ms for an object of 108 kB",
    ),
    "read_sized": Measured(
        value=0.0002,
        date="2026-11-21",
        source="divided by hand: 0.5 ms for an object of 108 kB",
    ),
    "reference": Measured(
        value=5.1e-06,
        date="2026-11-21",
        source="benchmarks/RESULTS.md, 1,000,000 references",
    ),
}
"""Name of a constant -> its measurement."""
