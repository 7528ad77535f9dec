"""Turns off Pillow's warnings and logs in processes that only build. Standard library only."""

from __future__ import annotations

import logging
import warnings


def silence_pillow() -> None:
    """Turns off Pillow's warnings and logs in this process.

    They would repeat for each image what the rejects file reports. A library must not change its
    host, so this is for the command's own process and for worker processes.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
