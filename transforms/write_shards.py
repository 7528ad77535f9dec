"""PTransform `WriteShards` (`--writer=shard`): the shard is the unit of work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import apache_beam as beam

from imageshards.transforms import metrics
from imageshards.transforms.elements import ShardId
from imageshards.transforms.failure import Failures
from imageshards.transforms.grouping import windowed
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.references.stored import Piece
from imageshards.transforms.shards.encoder import ImageEncoder
from imageshards.transforms.shards.facts import Collector, Fact
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.shards.state import ShardResult
from imageshards.transforms.shards.workers import InProcess, WorkerPool, choose_workers
from imageshards.transforms.shards.write import ShardJob


@dataclass
class WriteShards(beam.PTransform):  # type: ignore[misc]
    """Writes shards, each by one worker: (ShardId, (group, `Piece`)) -> `Fact`.

    Attributes:
      layout: paths of the data set.
      encoder: encodes a reference as a record.
      settings: digest of the options that affect the shards' bytes.
      plan: side input, the one Plan.
      workers: processes that each worker of the runner starts; None: as many as save time. Set 1
        for a runner with several workers.
      failures: where an error that a retry cannot mend is recorded.
      sha256: whether to compute the SHA-256 of each shard.
      retries_rejects: whether finished shards with rejected images are written again.
    """

    layout: Layout
    encoder: ImageEncoder
    settings: str
    plan: beam.pvalue.AsSingleton
    workers: int | None = 1
    failures: Failures = field(default_factory=Failures)
    sha256: bool = False
    retries_rejects: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def expand(
        self, slices: beam.PCollection[tuple[ShardId, tuple[int, Piece]]]
    ) -> beam.PCollection[Fact]:
        """Takes the references of each shard in pieces, which are in any order."""
        return (
            slices  # (shard, (group, references))
            | "GroupByShard" >> beam.GroupByKey()  # (shard, [(group, references), ...])
            | "Write" >> beam.ParDo(_Write(self), self.plan).with_output_types(Fact)
        )


class _Write(beam.DoFn):  # type: ignore[misc]
    """Writes shards, and counts them as `metrics`."""

    def __init__(self, write: WriteShards) -> None:
        self._layout = write.layout
        self._encoder = write.encoder
        self._settings = write.settings
        self._workers = write.workers
        self._sha256 = write.sha256
        self._retries_rejects = write.retries_rejects
        self._failures = write.failures
        self._writers: InProcess | WorkerPool | None = None
        self._collector: Collector | None = None

    def start_bundle(self) -> None:
        self._collector = None

    def teardown(self) -> None:
        if self._writers:
            self._writers.shutdown()

    def process(
        self, element: tuple[ShardId, Iterable[tuple[int, Piece]]], plan: Plan
    ) -> Iterator[Fact]:
        shard, slices = element
        pieces, classes = _in_order(slices, plan)
        if self._collector is None:
            self._collector = Collector(plan)
        if self._writers is None:
            processes = choose_workers(self._workers, plan.images, plan.num_shards)
            self._writers = WorkerPool(processes) if processes > 1 else InProcess()
        job = ShardJob(
            shard,
            pieces,
            classes,
            self._layout,
            self._encoder,
            self._settings,
            digests=len(plan.splits) > 1,
            sha256=self._sha256,
            object_numbers=plan.object_numbers,
            retries_rejects=self._retries_rejects,
        )
        self._failures = self._failures.of(plan)
        with self._failures.recording():
            for result in self._writers.write(job):
                yield from self._add(result, self._collector)

    def finish_bundle(self) -> Iterator[object]:
        if self._writers is None or self._collector is None:
            return
        with self._failures.recording():
            for result in self._writers.rest():
                yield from windowed(self._add(result, self._collector))
        yield from windowed(self._collector.flush())
        metrics.count_usage()

    def _add(self, result: ShardResult, collector: Collector) -> Iterator[Fact]:
        if result.resumed:
            metrics.SHARDS_RESUMED.inc()
        else:
            metrics.SHARDS_WRITTEN.inc()
            metrics.IMAGES_WRITTEN.inc(result.report.records)
            metrics.BYTES_WRITTEN.inc(result.report.bytes)
        metrics.count_usage(result.used)
        for error, count in result.rejects.errors.items() if result.rejects else ():
            metrics.count_rejects(error, count)
        yield from collector.add(result)


def _in_order(
    slices: Iterable[tuple[int, Piece]], plan: Plan
) -> tuple[Sequence[Piece], Mapping[str, tuple[int, bytes]]]:
    """Returns the references of a shard in order, and the classes of its labels."""
    pieces = [piece for _, piece in sorted(slices, key=itemgetter(0))]
    batches = [piece for piece in pieces if isinstance(piece, RefBatch)]
    if len(batches) < len(pieces):
        return pieces, plan.class_of
    refs = RefBatch.concat(batches)
    labels = refs.labels_found() & plan.class_of.keys()
    return [refs], {label: plan.class_of[label] for label in labels}
