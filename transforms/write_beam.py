"""PTransform `EncodeExamples` (`--writer=beam`): an image is the unit of work.

For heavy work per image on few shards. `WriteToTFRecord` groups the whole payload by shard, so
this needs a runner whose shuffle spills to disk, and which record lands in which shard is
Beam's choice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.tfrecordio import WriteToTFRecord
from apache_beam.metrics import Metrics

from imageshards.transforms import storage
from imageshards.transforms.elements import (
    BuildError,
    ImageRef,
    Reject,
    RejectReport,
    ShardReport,
)
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.records.tfrecord import CorruptRecord, parse_shard_name, suffix_of
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.encoder import ImageEncoder, Rejected
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.shards.write import write_rejects
from imageshards.transforms.storage.beam import load_filesystem


@dataclass
class EncodeExamples(beam.PTransform):  # type: ignore[misc]
    """(split, references) -> (split, serialized Example); rejects: Reject; conversions: kinds.

    Attributes:
      encoder: reference -> record.
      plan: side input, a singleton.
    """

    encoder: ImageEncoder
    plan: beam.pvalue.AsSingleton

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, refs: beam.PCollection[tuple[str, RefBatch]]) -> beam.pvalue.DoOutputsTuple:
        """Takes batches of references of one split each."""
        return (
            refs
            | "Refs" >> beam.FlatMap(_refs)  # (split, reference)
            | "Distribute" >> beam.Reshuffle()
            | "Encode"
            >> beam.ParDo(_Encode(self.encoder), self.plan).with_outputs(
                "rejects", "conversions", main="examples"
            )
        )


def _refs(element: tuple[str, RefBatch]) -> Iterator[tuple[str, ImageRef]]:
    split, batch = element
    for ref in batch.refs():
        yield split, ref


class _Encode(beam.DoFn):  # type: ignore[misc]
    def __init__(self, encoder: ImageEncoder) -> None:
        self._encoder = encoder
        self._images = Metrics.counter("imageshards", "images_encoded")
        self._milliseconds = Metrics.distribution("imageshards", "encode_ms")
        self._bytes = Metrics.distribution("imageshards", "image_bytes")

    def teardown(self) -> None:
        storage.close()

    def process(
        self, element: tuple[str, ImageRef], plan: Plan
    ) -> Iterator[tuple[str, bytes] | beam.pvalue.TaggedOutput]:
        split, ref = element
        begin = time.perf_counter()
        try:
            encoded = self._encoder.encode(ref, plan.class_of)
        except Rejected as rejected:
            reject = Reject(ref.uri, split, rejected.problem)
            yield beam.pvalue.TaggedOutput("rejects", (split, reject))
            return
        data = b"".join(encoded.parts)
        self._milliseconds.update(round((time.perf_counter() - begin) * 1000))
        self._bytes.update(len(data))
        self._images.inc()
        if encoded.conversions:
            yield beam.pvalue.TaggedOutput("conversions", (split, encoded.conversions))
        yield split, data


@dataclass
class WriteSplit(beam.PTransform):  # type: ignore[misc]
    """Examples of one split -> its files, by `apache_beam.io.WriteToTFRecord`.

    Attributes:
      split: which.
      num_shards: files.
      layout: where.
      schema: of the records, to read the files again.
      conversions: side input, ((split, kinds), records), which the files do not tell. Which shard
        has them is not known: the report of the first counts those of the whole split.
      compression: of the files, "gzip" or empty.
    """

    split: str
    num_shards: int
    layout: Layout
    schema: Schema
    conversions: beam.pvalue.AsIter
    compression: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, examples: beam.PCollection[bytes]) -> beam.PCollection[ShardReport]:
        """Returns the reports of the files, read back from them."""
        load_filesystem(self.layout.root)
        return (
            examples
            | "WriteToTFRecord"
            >> WriteToTFRecord(
                f"{self.layout.root}/{self.split}",
                file_name_suffix=suffix_of(self.compression),
                num_shards=self.num_shards,
                compression_type=CompressionTypes.GZIP
                if self.compression
                else CompressionTypes.UNCOMPRESSED,
            )  # file name
            | "Distribute" >> beam.Reshuffle()
            | "ReadBack" >> beam.ParDo(_ReadBack(self.layout, self.schema), self.conversions)
        )


class _ReadBack(beam.DoFn):  # type: ignore[misc]
    def __init__(self, layout: Layout, schema: Schema) -> None:
        self._layout = layout
        self._schema = schema

    def process(
        self, file_name: str, conversions: Iterable[tuple[tuple[str, tuple[str, ...]], int]]
    ) -> Iterator[ShardReport]:
        shard = parse_shard_name(file_name.rpartition("/")[2])
        if shard is None:
            raise ValueError(f"{file_name}: not the name of a shard")
        of_split = [
            (kinds, records)
            for (split, kinds), records in conversions
            if (split, 0) == (shard.split, shard.index)
        ]
        try:
            report, index, digests = read_back.scan_shard(file_name, shard, self._schema, of_split)
        except CorruptRecord as error:
            raise BuildError(f"{file_name}: {error}") from error
        if not shard.compression:
            self._layout.write(self._layout.index(shard), index.encode())
        self._layout.write(self._layout.digests(shard), digests)
        yield report


class WriteRejects(beam.DoFn):  # type: ignore[misc]
    """(split, [Reject, ...]) -> the report of the part of rejects.jsonl that holds them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def process(self, element: tuple[str, Iterable[Reject]]) -> Iterator[RejectReport]:
        """Sorts them: their order is the runner's."""
        split, rejects = element
        ordered = sorted(rejects, key=lambda reject: (reject.uri, reject.problem.reason))
        report = write_rejects(self._layout, split, split, ordered)
        if report:
            yield report
