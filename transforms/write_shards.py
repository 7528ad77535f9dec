"""PTransform `WriteShards` (`--writer=shard`): the shard is the unit of work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from imageshards.transforms import metrics
from imageshards.transforms.elements import RejectReport, ShardId, ShardReport
from imageshards.transforms.failure import Failures
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.encoder import ImageEncoder
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.shards.state import ShardResult
from imageshards.transforms.shards.workers import InProcess, WorkerPool, choose_workers
from imageshards.transforms.shards.write import ShardJob


class Written(NamedTuple):
    """The output of both writers: a report of each shard, and of each part of rejects.jsonl."""

    reports: beam.PCollection[ShardReport]
    rejects: beam.PCollection[RejectReport]


@dataclass
class WriteShards(beam.PTransform):  # type: ignore[misc]
    """Writes shards, each by one worker: (ShardId, (bucket, RefBatch)) -> `Written`.

    Attributes:
      layout: paths of the data set.
      encoder: encodes a reference as a record.
      settings: digest of the options that affect the shards' bytes.
      plan: side input, the one Plan.
      workers: processes that each worker of the runner starts; None: as many as save time. Set 1
        for a runner with several workers.
      failures: where an error that a retry cannot mend is recorded.
    """

    layout: Layout
    encoder: ImageEncoder
    settings: str
    plan: beam.pvalue.AsSingleton
    workers: int | None = 1
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, slices: beam.PCollection[tuple[ShardId, tuple[int, RefBatch]]]) -> Written:
        """Takes the slices of each shard, in any order."""
        written = (
            slices  # (shard, (bucket, references))
            | "GroupByShard" >> beam.GroupByKey()  # (shard, [(bucket, references), ...])
            | "Write" >> beam.ParDo(_Write(self), self.plan).with_outputs("rejects", main="reports")
        )
        return Written(written.reports, written.rejects)


_Output: TypeAlias = ShardReport | beam.pvalue.TaggedOutput


class _Write(beam.DoFn):  # type: ignore[misc]
    """Writes shards, and counts them as `metrics`."""

    def __init__(self, write: WriteShards) -> None:
        self._layout = write.layout
        self._encoder = write.encoder
        self._settings = write.settings
        self._workers = write.workers
        self._failures = write.failures
        self._writers: InProcess | WorkerPool | None = None

    def teardown(self) -> None:
        if self._writers:
            self._writers.shutdown()

    def process(
        self, element: tuple[ShardId, Iterable[tuple[int, RefBatch]]], plan: Plan
    ) -> Iterator[_Output]:
        shard, slices = element
        refs = RefBatch.concat(batch for _, batch in sorted(slices, key=lambda item: item[0]))
        if self._writers is None:
            processes = choose_workers(self._workers, plan.images, len(plan.shards))
            self._writers = WorkerPool(processes) if processes > 1 else InProcess()
        classes = {
            label: plan.class_of[label] for label in refs.labels_found() & plan.class_of.keys()
        }
        job = ShardJob(
            shard,
            refs,
            classes,
            self._layout,
            self._encoder,
            self._settings,
            digests=len(plan.splits) > 1,
        )
        self._failures = self._failures.of(plan)
        with self._failures.recording():
            for result in self._writers.write(job):
                yield from self._outputs(result)

    def finish_bundle(self) -> Iterator[object]:
        in_window = GlobalWindows.windowed_value
        with self._failures.recording():
            for result in self._writers.rest() if self._writers else ():
                for output in self._outputs(result):
                    if isinstance(output, beam.pvalue.TaggedOutput):
                        yield beam.pvalue.TaggedOutput(output.tag, in_window(output.value))
                    else:
                        yield in_window(output)
        metrics.count_usage()

    def _outputs(self, result: ShardResult) -> Iterator[_Output]:
        if result.resumed:
            metrics.SHARDS_RESUMED.inc()
        else:
            metrics.SHARDS_WRITTEN.inc()
            metrics.IMAGES_WRITTEN.inc(result.report.records)
            metrics.BYTES_WRITTEN.inc(result.report.bytes)
        metrics.count_usage(result.used)
        yield result.report
        if result.rejects:
            for error, count in result.rejects.errors.items():
                metrics.count_rejects(error, count)
            yield beam.pvalue.TaggedOutput("rejects", result.rejects)
