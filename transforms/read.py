"""PTransform `ReadReferences`: inputs -> units of work -> batches of references by bucket.

Units are listed in parallel. A large unit, such as a bucket or a table, lists a part of itself and
yields units with the rest, which other workers list in the next step. Neither the number of units
nor their order affects the references.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import apache_beam as beam

from imageshards.transforms import metrics
from imageshards.transforms.elements import InputCount
from imageshards.transforms.failure import Failures
from imageshards.transforms.grouping import windowed
from imageshards.transforms.inputs.kind import (
    InputKind,
    ListingOptions,
    WorkUnit,
    list_references,
    list_unit,
    roots_of,
)
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.references.annotate import Annotator
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.order import partition, without_repeated
from imageshards.transforms.references.tally import Tally
from imageshards.transforms.runner import has_one_worker
from imageshards.transforms.storage import StoreError
from imageshards.transforms.storage.retry import Failure

FLUSH_ROWS = 1 << 16
"""References that a worker collects before it emits them: about 500 for each bucket."""
_UNITS_HELD = 1 << 14
"""Parts that a unit may have before the first of them are emitted."""
_ATTEMPTS = 3
"""How often a unit is listed before the runner is left to retry it."""
_TRIED_AGAIN = (Failure, FileNotFoundError)
"""Causes of errors that are not worth it: a request was retried for two minutes, or was refused."""
FLUSH_BYTES = 1 << 25
"""Bytes of the values of these references."""


class References(NamedTuple):
    """The references of all inputs.

    Attributes:
      batches: (bucket, references), in no particular order.
      tallies: counts of the listing, one for each unit of work, and for repeated references.
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
        others = self.tallies | "ExceptListed" >> beam.Map(Tally.without_listed)
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
        if has_one_worker(root.pipeline):
            # Between the steps of one worker, a Reshuffle would only take time.
            listed = units | "List" >> _list_with(self)
            return References(listed.batches, listed.tallies)
        kinds = [source for source in self.inputs if isinstance(source, InputKind)]
        divisions = max(source.divisions(self.options) for source in kinds)
        levels = []
        for level in range(divisions + 1):
            listed = (
                units
                | f"Distribute{level or ''}"
                >> (beam.Reshuffle() if level % 2 or not divisions else _Distribute())
                | f"List{level or ''}" >> _list_with(self, divide=level < divisions)
            )  # (bucket, references); tallies: one for each unit; units: parts of large ones
            levels.append(listed)
            units = listed.units
        if len(levels) == 1:
            return References(listed.batches, listed.tallies)
        return References(
            [listed.batches for listed in levels] | "AllBatches" >> beam.Flatten(),
            [listed.tallies for listed in levels] | "AllTallies" >> beam.Flatten(),
        )


class _Distribute(beam.PTransform):  # type: ignore[misc]
    """Distributes units among the workers, at random.

    Beam's runner for Flink ignores a Reshuffle of what another Reshuffle has distributed: all parts
    of a unit would stay on its worker (Beam 2.77). So every other step is this one, and not the
    step that distributes the parts of whole inputs: a Reshuffle gives each worker as many units.
    """

    def expand(self, units: beam.PCollection[WorkUnit]) -> beam.PCollection[WorkUnit]:
        """Takes and returns units."""
        return (
            units
            | "Key" >> beam.Map(_with_key)
            | "Group" >> beam.GroupByKey()
            | "Units" >> beam.FlatMap(_without_key)
        )


def _with_key(unit: WorkUnit) -> tuple[int, WorkUnit]:
    return random.getrandbits(32), unit


def _without_key(group: tuple[int, Iterable[WorkUnit]]) -> Iterable[WorkUnit]:
    return group[1]


def _count_listed(element: tuple[int, RefBatch]) -> Tally:
    return Tally(listed=len(element[1]), ref_bytes=element[1].value_bytes)


def _units(
    _: bytes, inputs: Sequence[InputKind], options: ListingOptions, failures: Failures
) -> Iterator[WorkUnit]:
    with failures.recording():
        for source in inputs:
            yield from source.units(options)


def _list_with(read: ReadReferences, divide: bool = False) -> beam.ParDo:
    """The step that lists units."""
    return beam.ParDo(_List(read, divide)).with_outputs("tallies", "units", main="batches")


_Output: TypeAlias = tuple[int, RefBatch] | beam.pvalue.TaggedOutput


class _List(beam.DoFn):  # type: ignore[misc]
    """Lists units of work. Small units of a bundle share batches.

    A unit that a store interrupts is listed again, and no other unit is.
    """

    def __init__(self, read: ReadReferences, divide: bool) -> None:
        self._annotator = read.annotator
        self._options = replace(read.options, divide=divide)
        self._failures = read.failures
        self._held: list[RefBatch] = []
        self._rows_held = self._bytes_held = 0
        self._rows_of_unit = 0

    def start_bundle(self) -> None:
        self._held = []
        self._rows_held = self._bytes_held = 0
        self._failures.check()

    def process(self, unit: WorkUnit) -> Iterator[_Output]:
        with self._failures.recording():
            for left in reversed(range(_ATTEMPTS)):
                flushed = False
                held = len(self._held)
                self._rows_of_unit = 0
                try:
                    for output in self._list(unit):
                        flushed = True
                        yield output
                    break
                except StoreError as error:
                    metrics.LISTED.add(-self._rows_of_unit)
                    # What has been emitted cannot be taken back: the runner retries the bundle.
                    if flushed or not left or isinstance(error.__cause__, _TRIED_AGAIN):
                        raise
                    del self._held[held:]
                    self._rows_held = sum(map(len, self._held))
                    self._bytes_held = sum(batch.value_bytes for batch in self._held)
                    metrics.RETRIES.inc()
        metrics.UNITS_LISTED.inc()

    def finish_bundle(self) -> Iterator[object]:
        yield from windowed(self._flush())
        metrics.count_usage()

    def _list(self, unit: WorkUnit) -> Iterator[_Output]:
        blank_lines = listed = left_out = below_base = ref_bytes = 0
        count = InputCount()
        label_sources = set()
        class_names: set[tuple[str, ...]] = set()
        unpacked = set()
        units: list[beam.pvalue.TaggedOutput] = []
        is_divided = False
        for found in (list_unit if self._options.divide else list_references)(unit, self._options):
            if isinstance(found, WorkUnit):
                units.append(beam.pvalue.TaggedOutput("units", found))
                is_divided = True
                if len(units) == _UNITS_HELD:
                    yield from units
                    units.clear()
                continue
            count += found.count
            blank_lines += found.blank_lines
            if names := found.class_names.get(self._annotator.labels.column or ""):
                class_names.add(names)
            if found.unpacked:
                unpacked.add(found.unpacked)
            if not len(found.refs):
                continue
            refs = self._annotator.select(found.refs)
            listed += len(found.refs)
            left_out += len(found.refs) - len(refs)
            if not len(refs):
                continue
            label_sources.add(self._annotator.label_source(refs))
            below_base += self._annotator.count_below_base(refs)
            self._held.append(self._annotator.annotate(refs))
            self._rows_of_unit += len(refs)
            metrics.LISTED.add(len(refs))
            value_bytes = self._held[-1].value_bytes
            ref_bytes += value_bytes
            self._rows_held += len(refs)
            self._bytes_held += value_bytes
            if self._rows_held >= FLUSH_ROWS or self._bytes_held >= FLUSH_BYTES:
                yield from self._flush()
        tally = Tally(
            listed=listed,
            below_base=below_base,
            passed_over=count.passed_over,
            label_sources=frozenset(label_sources),
            unpacked=frozenset(unpacked),
            class_names=frozenset(class_names),
            blank_lines=blank_lines,
            # A whole input without a reference has failed.
            inputs={unit.input.text: count} if unit.part or is_divided else {},
            ref_bytes=ref_bytes,
            left_out={"--where": left_out} if left_out else {},
        )
        metrics.IMAGES_LISTED.inc(listed)
        yield beam.pvalue.TaggedOutput("tallies", tally)
        yield from units

    def _flush(self) -> Iterator[_Output]:
        held, self._held = self._held, []
        self._rows_held = self._bytes_held = 0
        if not held:
            return
        batch = RefBatch.concat(held)
        distinct = without_repeated(batch)
        yield from partition(distinct)
        if repeated := len(batch) - len(distinct):
            yield beam.pvalue.TaggedOutput("tallies", Tally(duplicates=repeated))
