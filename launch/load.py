"""Imports Beam in the command's own process. Importing takes most of the time of a small build."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from imageshards.launch.terminal import interrupted

# Beam imports these if they are installed. Some are modules of Beam itself, whose failed import
# would otherwise skip later imports in the same `try` block.
_OPTIONAL_CLIENTS = (
    "apache_beam.io.aws.s3filesystem",
    "apache_beam.io.azure.blobstoragefilesystem",
    "apache_beam.io.gcp.bigquery",
    "apache_beam.io.gcp.gcsfilesystem",
    "apitools",
    "azure",
    "google.auth",
    "google.cloud.dataflow",
    "pymongo",
)

WORKER_SETTINGS = "--beam_plugins=imageshards.launch.worker_settings"
"""The option by which Beam's worker processes import their settings."""


def load_beam(*, lean: bool, resumes: bool = True) -> None:
    """Imports Beam and the pipeline, and makes Arrow return freed memory to the system.

    Only for a process that runs one command: it changes the garbage collector and Arrow.

    Args:
      lean: whether to hide the clients of cloud services, for a build on local files in this
        process. Importing then takes 0.55 s instead of 1.0 s, and 40 MB less memory. Beam then has
        no BigQuery; a gs:// URI imports its client later.
      resumes: see `terminal.interrupted`.
    """
    # Beam's modules are never freed. Not collecting them saves 5 % of a build of 10,000 images.
    gc.disable()
    try:
        optional = hidden(_OPTIONAL_CLIENTS if lean else ())
        with without_logs(), optional, _left_by_interrupt(resumes=resumes):
            import imageshards.pipeline.run  # noqa: F401
        from imageshards.pipeline.job.local_memory import reduce_memory
        from imageshards.transforms.references.batch import use_system_allocator

        use_system_allocator()
        reduce_memory()
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def _left_by_interrupt(*, resumes: bool = True) -> Iterator[None]:
    """Ends this process when it is interrupted, while nothing has been written.

    Modules that are being imported may catch a KeyboardInterrupt, and the build would go on.
    """

    def leave(*_: object) -> None:
        os._exit(interrupted(resumes=resumes))

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def without_logs() -> Iterator[None]:
    """Discards logs, such as those of Beam when it is imported: which clients are missing."""
    level = logging.root.manager.disable
    logging.disable()
    # Without a handler, logging.warning() would configure the root logger, even if it is disabled.
    nothing = logging.NullHandler()
    logging.root.addHandler(nothing)
    try:
        yield
    finally:
        logging.root.removeHandler(nothing)
        logging.disable(level)


@contextmanager
def hidden(names: Sequence[str]) -> Iterator[None]:
    """Makes importing these modules fail, unless they are loaded, as if they were not installed."""
    finder = _HidingFinder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _HidingFinder:
    """A finder for sys.meta_path; importing importlib.abc for its base class would take 30 ms."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in self._names:
            # With its `name` set, `from package import module` would raise another error.
            raise ModuleNotFoundError(f"{fullname} is hidden")
