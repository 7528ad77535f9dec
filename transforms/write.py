"""PTransform `WriteShards` (`--writer=shard`): the shard is the unit of work."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import apache_beam as beam
from apache_beam.metrics import Metrics

from imageshards.transforms import storage
from imageshards.transforms.batch import RefBatch
from imageshards.transforms.elements import RejectReport, ShardId, ShardReport
from imageshards.transforms.encoder import ImageEncoder
from imageshards.transforms.layout import Layout
from imageshards.transforms.plan import Plan
from imageshards.transforms.shard import ReadAhead, ShardResult, write_shard

REMOTE_READS_IN_FLIGHT = 32


class Written(NamedTuple):
    """What both writers hand to the finish."""

    reports: beam.PCollection[ShardReport]
    rejects: beam.PCollection[RejectReport]


@dataclass
class WriteShards(beam.PTransform):  # type: ignore[misc]
    """Each shard's references -> its file, written by one owner.

    Attributes:
      layout: where.
      encoder: reference -> record.
      settings: digest of all options that decide bytes.
      plan: side input, a singleton.
    """

    layout: Layout
    encoder: ImageEncoder
    settings: str
    plan: beam.pvalue.AsSingleton

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, slices: beam.PCollection[tuple[ShardId, tuple[int, RefBatch]]]) -> Written:
        """Takes slices of shards, in any order."""
        written = (
            slices  # (shard, (bucket, references))
            | "GroupByShard" >> beam.GroupByKey()  # (shard, [(bucket, references), ...])
            | "Write" >> beam.ParDo(_Write(self), self.plan).with_outputs("rejects", main="reports")
        )
        return Written(written.reports, written.rejects)


class _Write(beam.DoFn):  # type: ignore[misc]
    def __init__(self, write: WriteShards) -> None:
        self._layout = write.layout
        self._encoder = write.encoder
        self._settings = write.settings
        self._readers: Executor
        self._decoders: Executor
        self._counters = ShardCounters()

    def setup(self) -> None:
        self._readers = ThreadPoolExecutor(REMOTE_READS_IN_FLIGHT, "imageshards-read")
        self._decoders = ThreadPoolExecutor(os.cpu_count(), "imageshards-decode")

    def teardown(self) -> None:
        self._readers.shutdown()
        self._decoders.shutdown()

    def _ahead(self, local: bool) -> ReadAhead | None:
        if not local:
            return ReadAhead(self._readers, REMOTE_READS_IN_FLIGHT, images=1)
        if self._encoder.check == "header":
            return None
        return ReadAhead(self._decoders, 2 * (os.cpu_count() or 1), images=8)

    def process(
        self, element: tuple[ShardId, Iterable[tuple[int, RefBatch]]], plan: Plan
    ) -> Iterator[ShardReport | beam.pvalue.TaggedOutput]:
        shard, slices = element
        refs = RefBatch.concat(batch for _, batch in sorted(slices, key=lambda item: item[0]))
        result = write_shard(
            shard,
            refs,
            partial(self._encoder.encode, classes=plan.class_of),
            self._layout,
            self._ahead(all(map(storage.is_local, refs.uris))),
            settings=self._settings,
        )
        self._counters.add(result)
        yield result.report
        if result.rejects:
            yield beam.pvalue.TaggedOutput("rejects", result.rejects)


class ShardCounters:
    """Metrics of finished shards: attempts, not commits, on some runners."""

    def __init__(self) -> None:
        self._images = Metrics.counter("imageshards", "images_written")
        self._bytes = Metrics.counter("imageshards", "bytes_written")
        self._resumed = Metrics.counter("imageshards", "shards_resumed")

    def add(self, result: ShardResult) -> None:
        """Counts a shard."""
        if result.resumed:
            self._resumed.inc()
        else:
            self._images.inc(result.report.records)
            self._bytes.inc(result.report.bytes)
        for error, count in (result.rejects.errors if result.rejects else {}).items():
            Metrics.counter("imageshards", f"rejects/{error}").inc(count)
