"""PTransform: what `--input` names -> batches of references by bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import apache_beam as beam
from apache_beam.metrics import Metrics

from imageshards.transforms.inputs.listing import TextUnit
from imageshards.transforms.inputs.sources import identify, list_source
from imageshards.transforms.inputs.tfrecords import RecordKeys
from imageshards.transforms.references.annotate import Annotator
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.order import partition
from imageshards.transforms.references.plan import Tally

FLUSH_ROWS = 1 << 16
"""References that one listing holds before it passes them on, some 500 to a bucket."""


class Listed(NamedTuple):
    """What was listed."""

    batches: beam.PCollection[tuple[int, RefBatch]]
    tallies: beam.PCollection[Tally]


@dataclass
class ReadReferences(beam.PTransform):  # type: ignore[misc]
    """Lists all inputs in parallel.

    Attributes:
      inputs: folders, patterns, manifests.
      annotator: labels, splits, keys.
      uri_column: of manifests.
      include_all: take files whatever their name.
      exclude: a folder not to walk into.
      scratch: the folder in which compressed tars are unpacked.
      keys: which features of the records of TFRecord files are what.
      unit: what of a text file is a record, where inputs are texts; None: they are images.
    """

    inputs: tuple[str, ...]
    annotator: Annotator
    uri_column: str = "uri"
    include_all: bool = False
    exclude: str = ""
    scratch: str = ""
    keys: RecordKeys = field(default_factory=RecordKeys)
    unit: TextUnit | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, root: beam.pvalue.PBegin) -> Listed:
        """Returns batches in no order, and the tallies of what has no reference."""
        listed = (
            root
            # Beam deals out what it creates: each input may be listed by another worker.
            | "Inputs" >> beam.Create(list(dict.fromkeys(self.inputs)))
            | "List" >> beam.ParDo(_List(self)).with_outputs("tallies", main="batches")
        )
        return Listed(listed.batches, listed.tallies)


class _List(beam.DoFn):  # type: ignore[misc]
    def __init__(self, read: ReadReferences) -> None:
        self._annotator = read.annotator
        self._uri_column = read.uri_column
        self._include_all = read.include_all
        self._exclude = read.exclude
        self._scratch = read.scratch
        self._keys = read.keys
        self._unit = read.unit
        self._listed = Metrics.counter("imageshards", "images_listed")

    def process(self, text: str) -> Iterator[tuple[int, RefBatch] | beam.pvalue.TaggedOutput]:
        # -> (bucket, references), ... ; tallies: one
        passed_over = blank = 0
        label_sources = set()
        unpacked = set()
        base = self._annotator.base
        held: list[RefBatch] = []
        rows = listed = below_base = 0
        for listing in list_source(
            identify(text, self._unit),
            uri_column=self._uri_column,
            required=self._annotator.required_columns,
            optional=self._annotator.optional_columns,
            features=self._annotator.feature_columns,
            include_all=self._include_all,
            exclude=self._exclude,
            scratch=self._scratch,
            keys=self._keys,
            unit=self._unit,
        ):
            if listing.unpacked:
                unpacked.add(listing.unpacked)
            passed_over += listing.passed_over
            blank += listing.blank
            if listing.uris:
                label_sources.add(self._annotator.label_source(listing))
            held.append(self._annotator.annotate(listing))
            rows += len(held[-1])
            listed += len(held[-1])
            below_base += sum(uri.startswith(base) for uri in listing.uris) if base else 0
            self._listed.inc(len(held[-1]))
            if rows >= FLUSH_ROWS:
                yield from partition(RefBatch.concat(held))
                held, rows = [], 0
        if rows:
            yield from partition(RefBatch.concat(held))
        tally = Tally(
            listed=listed,
            below_base=below_base,
            passed_over=passed_over,
            label_sources=frozenset(label_sources),
            unpacked=frozenset(unpacked),
            blank=blank,
        )
        yield beam.pvalue.TaggedOutput("tallies", tally)
