"""Divides a data set into parts, and checks one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from imageshards.reader.dataset import Dataset, Shard, open_dataset
from imageshards.reader.verification.decoders import Decoders
from imageshards.reader.verification.findings import Findings
from imageshards.reader.verification.metadata import metadata_problems
from imageshards.reader.verification.problems import Missing
from imageshards.reader.verification.record import Decoder, inspect_with, record_problem
from imageshards.reader.verification.shards import sample_problems, shard_problems
from imageshards.transforms.images import validate
from imageshards.transforms.records.containers import container_of
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.shards.layout import Layout


@dataclass(frozen=True)
class Part:
    """A part of a data set that one worker checks: a shard, or all files but the shards.

    Attributes:
      number: 0 for the other files; the number of a shard in the data set, from 1.
      shard: the shard; None for the other files.
      begin: the number of records in all shards before it.
    """

    number: int = 0
    shard: Shard | None = None
    begin: int = 0


@dataclass(frozen=True)
class Checks:
    """How a data set is verified: all that a worker needs to check any part.

    Attributes:
      layout: the paths of the data set.
      schema: of its records.
      classes: class names in label order.
      level: how images are decoded; see `Verdict`.
      decoder: see `verify`.
      records: the number of records in all shards, according to build.json.
      sample: see `verify`.
    """

    layout: Layout
    schema: Schema
    classes: tuple[str, ...]
    level: validate.Level
    decoder: Decoder
    records: int
    sample: int

    @classmethod
    def of(cls, dataset: Dataset, sample: int, decoder: Decoder) -> Checks:
        """Returns the checks of a data set; see `verify` for the arguments."""
        level = _level_of(dataset)
        inspect_with(decoder, level)  # raises an error here, and not in a worker
        records = sum(shard.records for shard in dataset.shards)
        classes = tuple(dataset.classes)
        return cls(dataset.layout, dataset.schema, classes, level, decoder, records, sample)

    def check(self, part: Part, executor: Decoders) -> Findings:
        """Checks a part; `executor` decodes images."""
        findings = Findings()
        if part.shard is None:
            for problem in metadata_problems(open_dataset(self.layout.root)):
                findings.add(part.number, problem)
            return findings
        shard = part.shard
        inspect = inspect_with(self.decoder, self.level)
        check = partial(record_problem, self.schema, self.classes, inspect)
        numbers = self._chosen(part.begin, shard)
        sampled = self.sample and container_of(shard.id).has_index
        problems = sample_problems if sampled else shard_problems
        records = 0
        try:
            for found in problems(self.layout, shard, numbers, check, executor):
                if found is None:
                    records += 1
                else:
                    findings.add(part.number, found.within(shard.uri))
        except FileNotFoundError:
            findings.add(part.number, Missing(f"{shard.uri}: missing"))
            return findings
        findings.records, findings.bytes = records, shard.bytes
        return findings

    def _chosen(self, begin: int, shard: Shard) -> Sequence[int]:
        """Returns the numbers of the records of a shard to check, in order.

        Args:
          begin: the number of records in all shards before it.
          shard: the shard.
        """
        if not self.sample or not self.records:
            return range(shard.records)
        # Of all records, those with the numbers n * total // count are checked.
        total, count = self.records, min(self.sample, self.records)
        first, last = (-(-end * count // total) for end in (begin, begin + shard.records))
        return [n * total // count - begin for n in range(first, last)]


def parts_of(dataset: Dataset) -> Iterator[Part]:
    """Yields the parts of a data set that can be checked independently."""
    yield Part()
    begin = 0
    for number, shard in enumerate(dataset.shards, 1):
        yield Part(number, shard, begin)
        begin += shard.records


def _level_of(dataset: Dataset) -> validate.Level:
    """Returns the validation level at which the images of a data set decode."""
    return "lenient" if dataset.build["options"].get("check") == "header" else "full"
