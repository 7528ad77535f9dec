"""Turns off Pillow's messages in processes that only build, without loading Pillow."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import warnings
from contextlib import suppress


def silence_pillow() -> None:
    """Turns off Pillow's warnings and logs, and libtiff's messages, in this process.

    They would repeat for each image what the rejects file reports. A library must not change its
    host, so this is for the command's own process and for worker processes.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    _silence_libtiff()


def _silence_libtiff() -> None:
    # libtiff writes to stderr, without the name of the file. Pillow leaves its error handler alone.
    pillow = importlib.util.find_spec("PIL._imaging")
    if pillow and pillow.origin:
        # Some builds of Pillow have no libtiff, or hide it.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(pillow.origin).TIFFSetErrorHandler(None)
