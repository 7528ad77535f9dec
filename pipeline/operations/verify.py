"""Verifies a data set on many workers: each checks some of the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any

from imageshards.pipeline.operations.operation import Operation, Run, run_here
from imageshards.reader.dataset import open_dataset
from imageshards.reader.verification.checks import Checks, Part, parts_of
from imageshards.reader.verification.decoders import Decoders
from imageshards.reader.verification.findings import Findings
from imageshards.reader.verification.record import Decoder
from imageshards.reader.verification.verdict import Verdict, verdict_of
from imageshards.transforms.shards.cores import cores


def verify(
    folder: str, sample: int = 0, decoder: Decoder = "build", run: Run = run_here
) -> Verdict:
    """Reads a data set and compares it with its metadata.

    Args:
      folder: see `reader.verify.verify`.
      sample: see there.
      decoder: see there.
      run: where to do it: `run_here`, or `run_on_beam` with a runner.

    Raises:
      BuildError: there is no complete data set.
      UsageError: TensorFlow is not installed.
      JobError: the runner's job failed.
    """
    begin = perf_counter()
    dataset = open_dataset(folder)
    checks = Checks.of(dataset, sample, decoder)
    outcome = run(Verification(checks))
    first = [(part, position, line) for part, position, line in outcome.pop("first")]
    return verdict_of(dataset, checks, Findings(**outcome, first=first), perf_counter() - begin)


@dataclass(frozen=True)
class Verification(Operation[Part, Findings]):
    """Checks each part of a data set: the shards, and the other files."""

    checks: Checks

    def parts(self) -> Iterator[Part]:
        """Yields the shards and the other files."""
        return parts_of(open_dataset(self.checks.layout.root))

    @contextmanager
    def worker(self) -> Iterator[Callable[[Part], Findings]]:
        """Yields the function that checks a part. All threads share those that decode images."""
        with Decoders(cores()) as executor:
            yield partial(self.checks.check, executor=executor)

    def empty(self) -> Findings:
        """Returns the findings in no part."""
        return Findings()

    def finish(self, result: Findings) -> dict[str, Any]:
        """Returns the findings."""
        return asdict(result)
