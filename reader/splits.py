"""Sub-splits: `train[:80%]`, `train[10%:20%]+validation`, folds. Pure.

The language is that of tensorflow_datasets (core/tfrecords_reader.py): a bound is a number of
records, a percentage rounded to the closest record, or `shard`s; negative ones count from the end.
Percentages may have decimals here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from imageshards.transforms.elements import UsageError

_BOUND = r"-?[0-9][0-9_]*(?:\.[0-9]+)?(?:%|shard)?"
_PART = re.compile(rf"(?P<name>[^\[\]+]*)(?:\[(?P<lower>{_BOUND})?:(?P<upper>{_BOUND})?\])?")
_HELP = "write a split such as train, train[:80%], train[1000:2000] or train+validation"


# Rejects leave shards that differ by so much at most, or one host would wait for another.
_UNEVEN = 0.05


@dataclass(frozen=True)
class Span:
    """Records [begin, end) of a file, of which `file` is the place in a list."""

    file: int
    begin: int
    end: int

    @property
    def records(self) -> int:
        """How many."""
        return self.end - self.begin


@dataclass(frozen=True)
class Part:
    """One summand of a split: all of a split, or what is between two bounds."""

    name: str
    lower: str = ""
    upper: str = ""

    def cut(self, lengths: Sequence[int]) -> tuple[int, int]:
        """The records [begin, end) of a split whose shards have these lengths.

        Raises:
          UsageError: there are not so many.
        """
        begin = _position(self.lower, lengths) if self.lower else 0
        end = _position(self.upper, lengths) if self.upper else sum(lengths)
        return begin, max(begin, end)


def parse_split(text: str) -> list[Part]:
    """The summands of a split.

    Raises:
      UsageError: it is none.
    """
    if not isinstance(text, str):
        raise UsageError(f"split {text!r}: {_HELP}")
    parts = []
    for piece in text.split("+"):
        match = _PART.fullmatch(piece.strip())
        if not match:
            raise UsageError(f"split {text!r}: what is {piece.strip()!r}? {_HELP}")
        parts.append(Part(match["name"], match["lower"] or "", match["upper"] or ""))
    return parts


def _position(bound: str, lengths: Sequence[int]) -> int:
    """The record at which a bound is."""
    records = sum(lengths)
    number = Fraction(bound.rstrip("%shard").replace("_", ""))
    if bound.endswith("%"):
        if abs(number) > 100:
            raise UsageError(f"split bound {bound}: percentages end at 100")
        # The same text is the same record, wherever it stands: [:p%] and [p%:] never overlap.
        place = round(records * number / 100)
    elif number.denominator != 1:
        raise UsageError(f"split bound {bound}: write a whole number, or a percentage")
    elif bound.endswith("shard"):
        shards = int(number) + (len(lengths) if number < 0 else 0)
        if not 0 <= shards <= len(lengths):
            raise UsageError(f"split bound {bound}: there are {len(lengths):,} shards")
        return sum(lengths[:shards])
    else:
        place = int(number)
    if bound.startswith("-"):
        place += records
    if not 0 <= place <= records:
        raise UsageError(f"split bound {bound}: there are {records:,} records")
    return place


def spans_of(text: str, splits: Mapping[str, Mapping[int, int]]) -> list[Span]:
    """The records of a split.

    Args:
      text: the split.
      splits: name -> place of a file -> its records, in order.

    Raises:
      UsageError: there is no such split, or nothing in it.
    """
    spans = []
    for part in parse_split(text):
        if part.name not in splits:
            if list(splits) == [""]:
                raise UsageError(
                    f"split {text!r}: the files of a pattern have no named splits: leave split "
                    "out, or take a part of them, such as [:80%]"
                )
            names = ", ".join(name or "(none)" for name in splits)
            raise UsageError(f"split {text!r}: there is no {part.name!r}; there are {names}")
        files = splits[part.name]
        begin, end = part.cut(list(files.values()))
        first = 0
        for file, records in files.items():
            span = Span(file, max(begin - first, 0), min(end - first, records))
            if span.records > 0:
                spans.append(span)
            first += records
    if not spans:
        raise UsageError(f"split {text!r}: there is no record in it")
    return spans


def folds(split: str, k: int) -> list[tuple[str, str]]:
    """Splits for cross-validation.

    Args:
      split: the name of a split.
      k: into how many folds it is cut.

    Returns:
      For every fold (the split without it, the fold): every record is in one fold.

    Raises:
      UsageError: fewer than two folds, or a split that is a part already.
    """
    if k < 2:
        raise UsageError(f"{k} folds: take 2 or more")
    if not re.fullmatch(r"[^\[\]+]+", split):
        raise UsageError(f"split {split!r}: folds are made of whole splits, such as train")
    bounds = [f"{float(Fraction(100 * i, k)):.10g}%" for i in range(k + 1)]
    result = []
    for lower, upper in pairwise(bounds):
        rest = [f"{split}[:{lower}]"] * (lower != bounds[0])
        rest += [f"{split}[{upper}:]"] * (upper != bounds[-1])
        result.append(("+".join(rest), f"{split}[{lower}:{upper}]"))
    return result


def share_of(spans: Sequence[Span], num_hosts: int, host: int) -> list[Span]:
    """The records that one of the hosts reads.

    Whole spans where their number divides and they are about equal, as the files of a split are;
    else as many records for each as for the next, or one more. Shares are disjoint, and complete.

    Raises:
      UsageError: there is no such host, or nothing for it.
    """
    if num_hosts < 1 or not 0 <= host < num_hosts:
        raise UsageError(f"host {host} of {num_hosts}: hosts count from 0 to num_hosts - 1")
    lengths = [span.records for span in spans]
    records = sum(lengths)
    if records < num_hosts:
        raise UsageError(f"{records:,} records for {num_hosts:,} hosts: take fewer hosts")
    if len(spans) % num_hosts == 0 and max(lengths) - min(lengths) <= _UNEVEN * max(lengths):
        each = len(spans) // num_hosts
        return list(spans[host * each : (host + 1) * each])
    begin, end = host * records // num_hosts, (host + 1) * records // num_hosts
    return take(spans, begin, end)


def take(spans: Sequence[Span], begin: int, end: int) -> list[Span]:
    """Records [begin, end) of what the spans are in order."""
    taken = []
    first = 0
    for span in spans:
        lower = span.begin + max(begin - first, 0)
        upper = span.begin + min(end - first, span.records)
        if lower < upper:
            taken.append(Span(span.file, lower, upper))
        first += span.records
    return taken
