"""Parts of splits such as `train[:80%]` or `train[10%:20%]+validation`, and folds. Pure.

The syntax is that of tensorflow_datasets (core/tfrecords_reader.py). A bound is a number of
records, a percentage that is rounded to the closest record, or a number of shards (`2shard`). A
negative bound counts from the end. Unlike there, percentages may have decimals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from imageshards.transforms.elements import UsageError, counted

_BOUND = r"-?[0-9][0-9_]*(?:\.[0-9]+)?(?:%|shard)?"
_PART = re.compile(rf"(?P<name>[^\[\]+]*)(?:\[(?P<lower>{_BOUND})?:(?P<upper>{_BOUND})?\])?")
_HELP = "write a split such as train, train[:80%], train[1000:2000] or train+validation"
_UNEVEN = 0.05
"""Hosts read whole files only if these differ by at most this fraction of the largest one."""


@dataclass(frozen=True)
class Span:
    """The records [begin, end) of a file; `file` is its index in a list of files."""

    file: int
    begin: int
    end: int

    @property
    def records(self) -> int:
        """The number of records."""
        return self.end - self.begin


@dataclass(frozen=True)
class Part:
    """One term of a sum such as `train[:10%]+test`: a split, or its records between two bounds."""

    name: str
    lower: str = ""
    upper: str = ""

    def cut(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Returns the records [begin, end) of a split.

        Args:
          lengths: the number of records of each of its shards.

        Raises:
          UsageError: a bound is outside of the split.
        """
        begin = _position(self.lower, lengths) if self.lower else 0
        end = _position(self.upper, lengths) if self.upper else sum(lengths)
        return begin, max(begin, end)


def parse_split(text: str) -> list[Part]:
    """Returns the terms of a split such as `train[:10%]+test`.

    Raises:
      UsageError: the text is not a split.
    """
    if not isinstance(text, str):
        raise UsageError(f"invalid split {text!r}: {_HELP}")
    parts = []
    for piece in text.split("+"):
        match = _PART.fullmatch(piece.strip())
        if not match:
            raise UsageError(f"invalid split {text!r} at {piece.strip()!r}: {_HELP}")
        parts.append(Part(match["name"], match["lower"] or "", match["upper"] or ""))
    return parts


def _position(bound: str, lengths: Sequence[int]) -> int:
    """Returns the number of records before a bound."""
    records = sum(lengths)
    number = Fraction(bound.rstrip("%shard").replace("_", ""))
    if bound.endswith("%"):
        if abs(number) > 100:
            raise UsageError(f"invalid split bound {bound}: a percentage is at most 100")
        # Lower and upper bounds are rounded alike, so that [:p%] and [p%:] are disjoint.
        position = round(records * number / 100)
    elif number.denominator != 1:
        raise UsageError(f"invalid split bound {bound}: must be an integer or a percentage")
    elif bound.endswith("shard"):
        shards = int(number) + (len(lengths) if number < 0 else 0)
        if not 0 <= shards <= len(lengths):
            raise UsageError(
                f"invalid split bound {bound}: the split has {counted(len(lengths), 'shard')}"
            )
        return sum(lengths[:shards])
    else:
        position = int(number)
    if bound.startswith("-"):
        position += records
    if not 0 <= position <= records:
        raise UsageError(f"invalid split bound {bound}: the split has {counted(records, 'record')}")
    return position


def spans_of(text: str, splits: Mapping[str, Mapping[int, int]]) -> list[Span]:
    """Returns the records of a split, in order.

    Args:
      text: the split, such as `train[:80%]`.
      splits: name of a split -> index of each of its files -> number of records in the file.

    Raises:
      UsageError: there is no such split, or it has no records.
    """
    spans = []
    for part in parse_split(text):
        if part.name not in splits:
            if list(splits) == [""]:
                raise UsageError(
                    f"invalid split {text!r}: the files of a pattern have no named splits: omit "
                    "the split, or write a part such as [:80%]"
                )
            names = ", ".join(name or "(unnamed)" for name in splits)
            raise UsageError(
                f"invalid split {text!r}: there is no {part.name!r}; there are {names}"
            )
        files = splits[part.name]
        begin, end = part.cut(list(files.values()))
        first = 0
        for file, records in files.items():
            span = Span(file, max(begin - first, 0), min(end - first, records))
            if span.records > 0:
                spans.append(span)
            first += records
    if not spans:
        raise UsageError(f"invalid split {text!r}: it has no records")
    return spans


def folds(split: str, k: int) -> list[tuple[str, str]]:
    """Returns the splits of a k-fold cross-validation.

    >>> folds("train", 2)
    [('train[50%:]', 'train[0%:50%]'), ('train[:50%]', 'train[50%:100%]')]

    Args:
      split: the name of a split.
      k: the number of folds.

    Returns:
      For each fold (the split to train on, the split to test on). Each record is in one of the
      splits to test on.

    Raises:
      UsageError: `k` is below 2, or `split` is only a part of a split.
    """
    if k < 2:
        raise UsageError(f"invalid number of folds {k}: must be at least 2")
    if not re.fullmatch(r"[^\[\]+]+", split):
        raise UsageError(f"invalid split {split!r}: folds require a whole split, such as train")
    bounds = [f"{float(Fraction(100 * i, k)):.10g}%" for i in range(k + 1)]
    result = []
    for lower, upper in pairwise(bounds):
        rest = [f"{split}[:{lower}]"] * (lower != bounds[0])
        rest += [f"{split}[{upper}:]"] * (upper != bounds[-1])
        result.append(("+".join(rest), f"{split}[{lower}:{upper}]"))
    return result


def share_of(spans: Sequence[Span], num_hosts: int, host: int) -> list[Span]:
    """Returns the records that one of several hosts reads. The hosts' shares are disjoint.

    A host reads whole spans if their number is a multiple of `num_hosts` and they are about equal,
    as the files of a split are. Otherwise the hosts' numbers of records differ by at most one.

    Raises:
      UsageError: `host` is not below `num_hosts`, or there are fewer records than hosts.
    """
    if num_hosts < 1 or not 0 <= host < num_hosts:
        raise UsageError(f"invalid host {host} of {num_hosts}: must be from 0 to num_hosts - 1")
    lengths = [span.records for span in spans]
    records = sum(lengths)
    if records < num_hosts:
        raise UsageError(f"{counted(records, 'record')} for {num_hosts:,} hosts: use fewer hosts")
    if len(spans) % num_hosts == 0 and max(lengths) - min(lengths) <= _UNEVEN * max(lengths):
        each = len(spans) // num_hosts
        return list(spans[host * each : (host + 1) * each])
    begin, end = host * records // num_hosts, (host + 1) * records // num_hosts
    return take(spans, begin, end)


def take(spans: Sequence[Span], begin: int, end: int) -> list[Span]:
    """Returns the records [begin, end) of the records of all spans, in order."""
    taken = []
    first = 0
    for span in spans:
        lower = span.begin + max(begin - first, 0)
        upper = span.begin + min(end - first, span.records)
        if lower < upper:
            taken.append(Span(span.file, lower, upper))
        first += span.records
    return taken
