"""Reads a random sample of the planned images, as the build would (`--dry_run`)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from imageshards.pipeline.assembly import BuildSpec
from imageshards.transforms import storage
from imageshards.transforms.elements import ImageRef, counted, shortened
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.cores import cores
from imageshards.transforms.shards.encoder import Rejected
from imageshards.transforms.shards.workers import REMOTE_READS_IN_FLIGHT
from imageshards.transforms.shuffle import Group

_PER_GROUP = 2
_READ = 100
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class ReadSample:
    """What reading some images showed.

    Attributes:
      images: images that were read.
      rejected: those that the build would reject.
      rejects: the first of these: name, error type and reason.
      cpu_seconds: CPU time to read, check and encode an image, on average over the others; 0 if
        most were rejected.
    """

    images: int
    rejected: int
    rejects: tuple[tuple[str, str, str], ...]
    cpu_seconds: float

    def note(self, noun: str) -> str:
        """Returns a sentence for people."""
        text = f"{counted(self.images, noun)} read as a sample: {counted(self.rejected, 'reject')}"
        shown = [f"{name} ({error}: {reason})" for name, error, reason in self.rejects]
        return f"{text}, such as {'; '.join(shown)}" if shown else text


def sampled(group: Group, max_bytes: int) -> tuple[int, list[RefBatch]]:
    """Returns the number of a group and some of its references; their order is random."""
    number, splits = group
    rows = {name: np.flatnonzero(refs.acceptable(max_bytes)) for name, refs in splits.items()}
    return number, [refs.take(rows[name][:_PER_GROUP]) for name, refs in sorted(splits.items())]


def read_sample(
    spec: BuildSpec, plan: Plan, groups: Iterable[tuple[int, Sequence[RefBatch]]]
) -> ReadSample | None:
    """Reads some of the sampled references; those on web servers are not read.

    Returns:
      None if there is none to read.
    """
    refs = list(_readable(groups))
    refs = refs[:: -(-len(refs) // _READ) or 1]
    if not refs:
        return None
    is_local = all(storage.is_local(ref.range.uri if ref.range else ref.uri) for ref in refs)
    with ThreadPoolExecutor(cores() if is_local else REMOTE_READS_IN_FLIGHT) as threads:
        found = list(threads.map(partial(_read, spec, plan), refs))
    rejects = [
        (ref.name, problem.problem.error, shortened(problem.problem.reason))
        for ref, (problem, _) in zip(refs, found, strict=True)
        if problem
    ]
    seconds = [seconds for problem, seconds in found if not problem]
    return ReadSample(
        images=len(refs),
        rejected=len(rejects),
        rejects=tuple(rejects[:_SHOWN]),
        cpu_seconds=sum(seconds) / len(seconds) if 2 * len(seconds) >= len(refs) else 0.0,
    )


def _readable(groups: Iterable[tuple[int, Sequence[RefBatch]]]) -> Iterator[ImageRef]:
    for _, batches in sorted(groups, key=lambda group: group[0]):
        for batch in batches:
            for ref in batch.refs():
                if storage.can_list(ref.range.uri if ref.range else ref.uri):
                    yield ref


def _read(spec: BuildSpec, plan: Plan, ref: ImageRef) -> tuple[Rejected | None, float]:
    begin = time.thread_time()
    problem = None
    try:
        spec.encoder.encode(ref, plan.class_of, plan.object_numbers)
    except Rejected as rejected:
        problem = rejected
    return problem, time.thread_time() - begin
