"""An odd image file, and what is known of it."""

from __future__ import annotations

from typing import NamedTuple

INTACT, DAMAGED, EXOTIC = "intact", "damaged", "exotic"
"""EXOTIC files are valid, and some or all decoders do not support them."""


class Odd(NamedTuple):
    """A file, and whether it is intact."""

    data: bytes
    state: str = INTACT
