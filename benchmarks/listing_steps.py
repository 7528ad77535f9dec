"""Steps that record where and when `benchmarks.listing` lists; workers import this module."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam

from imageshards.transforms.inputs.kind import InputKind, ListingOptions, WorkUnit
from imageshards.transforms.inputs.listed import Listed
from imageshards.transforms.references.batch import RefBatch


class Clock(InputKind):
    """An input without units, which writes the time at which the inputs are divided."""

    def units(self, options: ListingOptions) -> Iterator[WorkUnit]:
        """Writes the time into the folder that is its text."""
        Path(self.text, "begin").write_text(str(time.time()))
        return iter(())

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed | WorkUnit]:
        """Never called."""
        return iter(())


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
