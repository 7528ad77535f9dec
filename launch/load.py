"""Loading Beam, which is most of what a small build takes."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Beam imports these where it can, and does without them where it cannot. It imports some of its own
# that way too; without those, what comes after them in the same `try` is not imported either.
_NOT_FOR_LOCAL_FILES = (
    "apache_beam.io.gcp.bigquery",
    "apache_beam.io.gcp.gcsfilesystem",
    "apitools",
    "google.auth",
    "pymongo",
)


def load_beam(*, local: bool) -> None:
    """Imports Beam and the graph.

    Args:
      local: the job is not submitted to Google Cloud. Beam's import then goes without the clients
        of services, which takes 0.55 s instead of 1.0 and 40 MB less; what meets a gs:// URI loads
        them.
    """
    # Beam's modules are objects that stay: not looking through them for garbage, while they load
    # or later, saves 5 % of a build of 10,000 images.
    gc.disable()
    logging.disable()  # it would tell what it misses
    with hidden(_NOT_FOR_LOCAL_FILES if local else ()):
        import imageshards.pipeline.run  # noqa: F401
    logging.disable(logging.NOTSET)
    gc.freeze()
    gc.enable()


@contextmanager
def hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Makes modules that are not loaded look as if they were not installed."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in missing:
            if sys.modules.get(name) is None:
                sys.modules.pop(name, None)
