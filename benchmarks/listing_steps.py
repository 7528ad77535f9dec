"""Steps that record where and when `benchmarks.listing` lists; workers import this module."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam

from imageshards.transforms import storage
from imageshards.transforms.inputs.kind import InputKind, ListingOptions, WorkUnit
from imageshards.transforms.inputs.listed import Listed
from imageshards.transforms.references.batch import RefBatch

_START_SECONDS = 120


@dataclass(frozen=True)
class Clock(InputKind):
    """An input without units, which writes the time at which the inputs are divided.

    Attributes:
      workers: how many workers it waits for; see `Ready`.
    """

    workers: int = 0

    def units(self, options: ListingOptions) -> Iterator[WorkUnit]:
        """Writes the time into the folder that is its text."""
        folder = Path(self.text)
        until = time.monotonic() + _START_SECONDS
        while len(list(folder.glob("ready-*"))) < self.workers:
            if time.monotonic() > until:
                raise TimeoutError(f"fewer than {self.workers} workers have started")
            time.sleep(0.05)
        (folder / "begin").write_text(str(time.time()))
        return iter(())

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed | WorkUnit]:
        """Never called."""
        return iter(())


class Ready(beam.DoFn):  # type: ignore[misc]
    """Shows that a worker has started, and has imported what it needs to list."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, number: int) -> None:
        """Writes the number of the process; the files that do not exist are never read."""
        storage.stat("gs://bucket/none")
        Path(self._folder, f"ready-{os.getpid()}").touch()


class Watch(beam.DoFn):  # type: ignore[misc]
    """Writes, for each worker, when its last batch was listed, and the number of references.

    It runs in the workers that list, because runners fuse it with the listing.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: Path | None = None
        self._references = 0

    def process(self, element: tuple[int, RefBatch]) -> None:
        """Counts the references of a batch."""
        self._references += len(element[1])

    def finish_bundle(self) -> None:
        """Writes the counts of this instance."""
        if not self._references:
            return
        name = f"worker-{os.getpid()}-{uuid.uuid4().hex}"
        self._file = self._file or Path(self._folder, name)
        self._file.write_text(json.dumps([time.time(), self._references]))
