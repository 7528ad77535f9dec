"""PTransform `ReadReferences`: inputs -> batches of references by bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.metrics import Metrics

from imageshards.transforms.failure import Failures
from imageshards.transforms.inputs.kind import (
    InputKind,
    ListingOptions,
    WorkUnit,
    list_references,
    roots_of,
)
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.references.annotate import Annotator
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.order import partition
from imageshards.transforms.references.plan import Tally

FLUSH_ROWS = 1 << 16
"""References that a worker collects before it emits them: about 500 for each bucket."""
FLUSH_BYTES = 1 << 25
"""Bytes of the values of these references."""


class References(NamedTuple):
    """The references of all inputs.

    Attributes:
      batches: (bucket, references), in no particular order.
      tallies: counts of the listing, one for each unit of work.
    """

    batches: beam.PCollection[tuple[int, RefBatch]]
    tallies: beam.PCollection[Tally]

    def apply(self, fn: beam.DoFn) -> References:
        """Applies a DoFn that drops references, or changes some of their columns.

        Args:
          fn: takes and yields (bucket, references). It must not add references, or change the
            bucket, the key or the split of a reference.

        Returns:
          The remaining references, counted again: the build ignores the dropped ones.
        """
        batches = self.batches | "Apply" >> beam.ParDo(fn)
        others = self.tallies | "ExceptListed" >> beam.Map(replace, listed=0, ref_bytes=0)
        remaining = batches | "CountAgain" >> beam.Map(_count_listed)
        return References(batches, (others, remaining) | "AllTallies" >> beam.Flatten())


@dataclass
class ReadReferences(beam.PTransform):  # type: ignore[misc]
    """Lists all inputs in parallel.

    Attributes:
      inputs: folders, glob patterns, manifests, archives, TFRecord files and images, as texts or as
        `identify` returns them. The constructor identifies texts, and drops repeated inputs.
      annotator: adds labels, splits and keys. The constructor adds the roots of the inputs.
      options: how to list; `columns` is replaced by the columns of the annotator.
      failures: where an error that a retry cannot mend is recorded.

    Raises:
      BuildError: an input does not exist.

    >>> from imageshards.transforms.references.rules import GroupRule, LabelRule, SplitRule
    >>> labels, splits = LabelRule.parse("dirname"), SplitRule.parse("train=0.8,test=0.2")
    >>> annotator = Annotator(0, labels, splits, GroupRule.parse("uri"))
    >>> with beam.Pipeline(runner="FnApiRunner") as pipeline:
    ...     refs = pipeline | ReadReferences(["photos"], annotator)
    ...     counts = refs.batches | beam.MapTuple(lambda bucket, batch: len(batch))
    ...     _ = counts | beam.CombineGlobally(sum) | beam.Map(print)
    40
    """

    inputs: Sequence[str | InputKind]
    annotator: Annotator
    options: ListingOptions = field(default_factory=ListingOptions)
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        super().__init__()
        self.options = replace(self.options, columns=self.annotator.columns)
        sources: dict[str, InputKind] = {}
        for item in self.inputs:
            source = identify(item, self.options.text_unit) if isinstance(item, str) else item
            sources.setdefault(source.uri, source)
        self.inputs = list(sources.values())
        roots = roots_of(sources.values(), self.annotator.roots.base)
        self.annotator = replace(self.annotator, roots=roots)

    def expand(self, root: beam.pvalue.PBegin) -> References:
        """Adds the transform to the root of a pipeline."""
        units = (
            root
            | "Once" >> beam.Impulse()
            | "Units"
            >> beam.FlatMap(_units, self.inputs, self.options, self.failures)  # unit of work
        )
        if len(self.inputs) > 1:
            units |= "Distribute" >> beam.Reshuffle()
        listed = units | "List" >> beam.ParDo(_List(self)).with_outputs(
            "tallies", main="batches"
        )  # (bucket, references); tallies: one for each unit
        return References(listed.batches, listed.tallies)


def _count_listed(element: tuple[int, RefBatch]) -> Tally:
    return Tally(listed=len(element[1]), ref_bytes=element[1].value_bytes)


def _units(
    _: bytes, inputs: Sequence[InputKind], options: ListingOptions, failures: Failures
) -> Iterator[WorkUnit]:
    with failures.recording():
        for source in inputs:
            yield from source.units(options)


_Output: TypeAlias = tuple[int, RefBatch] | beam.pvalue.TaggedOutput


class _List(beam.DoFn):  # type: ignore[misc]
    def __init__(self, read: ReadReferences) -> None:
        self._annotator = read.annotator
        self._options = read.options
        self._failures = read.failures
        self._images_listed = Metrics.counter("imageshards", "images_listed")

    def start_bundle(self) -> None:
        self._failures.check()

    def process(self, unit: WorkUnit) -> Iterator[_Output]:
        with self._failures.recording():
            yield from self._list(unit)

    def _list(self, unit: WorkUnit) -> Iterator[_Output]:
        passed_over = blank_lines = listed = below_base = ref_bytes = held_bytes = 0
        label_sources = set()
        unpacked = set()
        held: list[RefBatch] = []
        for found in list_references(unit, self._options):
            passed_over += found.passed_over
            blank_lines += found.blank_lines
            if found.unpacked:
                unpacked.add(found.unpacked)
            if not len(found.refs):
                continue
            label_sources.add(self._annotator.label_source(found.refs))
            below_base += self._annotator.count_below_base(found.refs)
            held.append(self._annotator.annotate(found.refs))
            listed += len(found.refs)
            self._images_listed.inc(len(found.refs))
            held_bytes += held[-1].value_bytes
            if sum(map(len, held)) >= FLUSH_ROWS or held_bytes >= FLUSH_BYTES:
                yield from partition(RefBatch.concat(held))
                ref_bytes += held_bytes
                held, held_bytes = [], 0
        if held:
            yield from partition(RefBatch.concat(held))
        tally = Tally(
            listed=listed,
            below_base=below_base,
            passed_over=passed_over,
            label_sources=frozenset(label_sources),
            unpacked=frozenset(unpacked),
            blank_lines=blank_lines,
            ref_bytes=ref_bytes + held_bytes,
        )
        yield beam.pvalue.TaggedOutput("tallies", tally)
