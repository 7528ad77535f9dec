"""PTransforms `EncodeExamples` and `WriteSplit` (`--writer=beam`): an image is the unit of work.

It suits expensive work per image and few shards. `WriteToTFRecord` groups all records by shard, so
the runner must have a shuffle that spills to disk. Beam chooses the shard of each record.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.tfrecordio import WriteToTFRecord
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP

from imageshards.transforms import metrics, storage
from imageshards.transforms.elements import (
    BuildError,
    ImageRef,
    Reject,
    ShardId,
)
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.containers import container_of
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.encoder import ImageEncoder, Rejected
from imageshards.transforms.shards.facts import Collector, Fact, facts_of_rejects
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.shards.rejects import write_rejects
from imageshards.transforms.shards.state import ShardResult
from imageshards.transforms.storage.beam import load_filesystem


@dataclass
class EncodeExamples(beam.PTransform):  # type: ignore[misc]
    """Encodes images in parallel: (split, RefBatch) -> (split, serialized Example).

    Further outputs are `rejects`: (split, Reject), `conversions`: (split, kinds of conversions) of
    each converted image, and `annotations`: ((split, kind of annotation), their number).

    Attributes:
      encoder: encodes a reference as a record.
      plan: side input, the one Plan.
    """

    encoder: ImageEncoder
    plan: beam.pvalue.AsSingleton

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, refs: beam.PCollection[tuple[str, RefBatch]]) -> beam.pvalue.DoOutputsTuple:
        """Takes (split, references of that split)."""
        return (
            refs
            | "Refs" >> beam.FlatMap(_refs)  # (split, reference)
            | "Distribute" >> beam.Reshuffle()
            | "Encode"
            >> beam.ParDo(_Encode(self.encoder), self.plan).with_outputs(
                "rejects", "conversions", "annotations", main="examples"
            )
        )


def _refs(element: tuple[str, RefBatch]) -> Iterator[tuple[str, ImageRef]]:
    split, batch = element
    for ref in batch.refs():
        yield split, ref


class _Encode(beam.DoFn):  # type: ignore[misc]
    def __init__(self, encoder: ImageEncoder) -> None:
        self._encoder = encoder

    def teardown(self) -> None:
        storage.close()

    def process(
        self, element: tuple[str, ImageRef], plan: Plan
    ) -> Iterator[tuple[str, bytes] | beam.pvalue.TaggedOutput]:
        split, ref = element
        begin = time.perf_counter()
        try:
            encoded = self._encoder.encode(ref, plan.class_of, plan.object_numbers)
        except Rejected as rejected:
            reject = Reject(ref.name, ref.uri, split, rejected.problem, ref.range)
            yield beam.pvalue.TaggedOutput("rejects", (split, reject))
            yield from _counted(split, rejected.annotations)
            return
        data = b"".join(encoded.parts)
        metrics.ENCODE_MS.update(round((time.perf_counter() - begin) * 1000))
        metrics.IMAGE_BYTES.update(len(data))
        if encoded.conversions:
            yield beam.pvalue.TaggedOutput("conversions", (split, encoded.conversions))
        yield from _counted(split, encoded.annotations)
        yield split, data

    def finish_bundle(self) -> None:
        metrics.count_usage()


def _counted(split: str, annotations: Mapping[str, int]) -> Iterator[beam.pvalue.TaggedOutput]:
    for kind, count in annotations.items():
        yield beam.pvalue.TaggedOutput("annotations", ((split, kind), count))


@dataclass
class WriteSplit(beam.PTransform):  # type: ignore[misc]
    """Writes the Examples of one split with `apache_beam.io.WriteToTFRecord`.

    Attributes:
      shard: the split's first shard.
      layout: paths of the data set.
      schema: schema of the records, to read the files back.
      conversions: side input, ((split, kinds), records). The shards of converted images are not
        known: the report of the split's first shard counts them all.
      annotation_counts: side input, ((split, kind of annotation), their number), counted likewise.
      plan: side input, the one Plan.
      sha256: whether to compute the SHA-256 of each shard.
    """

    shard: ShardId
    layout: Layout
    schema: Schema
    conversions: beam.pvalue.AsIter
    annotation_counts: beam.pvalue.AsIter
    plan: beam.pvalue.AsSingleton
    sha256: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, examples: beam.PCollection[bytes]) -> beam.PCollection[Fact]:
        """Returns the facts of the shards, read back from the files."""
        load_filesystem(self.layout.root)
        written = (
            examples
            | "WriteToTFRecord"
            >> WriteToTFRecord(
                storage.join(self.layout.root, self.shard.split),
                file_name_suffix=container_of(self.shard).suffix,
                num_shards=self.shard.num_shards,
                compression_type=CompressionTypes.GZIP
                if self.shard.compression
                else CompressionTypes.UNCOMPRESSED,
            )  # file name
            | "Timestamp" >> beam.Map(_from_the_beginning).with_output_types(str)
        )
        return (
            examples.pipeline
            | "Split" >> beam.Create([self.shard])
            | "Shards" >> beam.FlatMap(_shards_of_split, beam.pvalue.AsIter(written))
            | "Distribute" >> beam.Reshuffle()
            | "ReadBack"
            >> beam.ParDo(
                _ReadBack(self.layout, self.schema, self.sha256),
                self.conversions,
                self.annotation_counts,
                self.plan,
            )
        )


def _shards_of_split(first: ShardId, written: Iterable[str]) -> list[ShardId]:
    """Returns all shards of a split, after they have been written.

    Args:
      first: the split's first shard.
      written: side input, the files that WriteToTFRecord returns, which delays this until they
        exist. They may not be all: a retry returns only the files that it renames itself.
    """
    return [replace(first, index=index) for index in range(first.num_shards)]


def _from_the_beginning(file_name: str) -> TimestampedValue:
    """Moves a file name from the end of time, where Beam's writers put it, to the beginning.

    Prism does not finish with elements at the end of time: they do not hold back the watermark of
    the stage that processes them, so that nothing schedules the next stage for its output (Beam
    2.77, `updateWatermarks` in Prism's elementmanager.go; the error is "nothing in progress and no
    refreshes with non zero pending elements", as in apache/beam#31338). The smallest such graph:
    `[Create([0]) | Map(lambda x: TimestampedValue(x, MAX_TIMESTAMP))] | Flatten() | Map(print)`.
    """
    return TimestampedValue(file_name, MIN_TIMESTAMP)


class _ReadBack(beam.DoFn):  # type: ignore[misc]
    def __init__(self, layout: Layout, schema: Schema, sha256: bool) -> None:
        self._layout = layout
        self._schema = schema
        self._sha256 = sha256

    def process(
        self,
        shard: ShardId,
        conversions: Iterable[tuple[tuple[str, tuple[str, ...]], int]],
        annotations: Iterable[tuple[tuple[str, str], int]],
        plan: Plan,
    ) -> Iterator[Fact]:
        file_name = self._layout.shard(shard)
        of_split = [
            (kinds, records)
            for (split, kinds), records in conversions
            if (split, 0) == (shard.split, shard.index)
        ]
        counts = {
            kind: count
            for (split, kind), count in annotations
            if (split, 0) == (shard.split, shard.index)
        }
        try:
            report, index, digests = read_back.scan_shard(
                file_name, shard, self._schema, of_split, counts, self._sha256
            )
        except CorruptRecord as error:
            raise BuildError(f"{file_name}: {error}") from error
        if container_of(shard).has_index:
            self._layout.write(self._layout.index(shard), index)
        self._layout.write(self._layout.digests(shard), digests)
        collector = Collector(plan)
        result = ShardResult(report, None, digests=digests if len(plan.splits) > 1 else b"")
        yield from collector.add(result)
        yield from collector.flush()


class WriteRejects(beam.DoFn):  # type: ignore[misc]
    """Writes a split's part of rejects.jsonl: (split, [Reject, ...]) -> `Fact`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def process(self, element: tuple[str, Iterable[Reject]]) -> Iterator[Fact]:
        """Sorts the rejects, since the runner chooses their order."""
        split, rejects = element
        ordered = sorted(
            rejects, key=lambda reject: (reject.name, reject.uri, reject.problem.reason)
        )
        report = write_rejects(self._layout, split, split, ordered)
        if report:
            yield from facts_of_rejects(report)
