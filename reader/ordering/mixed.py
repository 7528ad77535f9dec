"""Mixtures of data sets, and weights of classes: what a `Mixture` needs of the files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from imageshards.reader.files import Source, find
from imageshards.reader.options import ReadOptions
from imageshards.reader.ordering.mixture import Mixture
from imageshards.reader.ordering.of_files import fingerprint, global_batch_of
from imageshards.reader.ordering.permutation import Numbers
from imageshards.reader.ordering.weights import weights_of
from imageshards.reader.splits import Span
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import Schema

_THREADS = 8
_RECORDS_AT_ONCE = 64


def find_all(
    places: Sequence[str | os.PathLike[str]], split: str | None
) -> tuple[Source, list[Span], list[int]]:
    """Returns data sets as one, the records of a split of all, and the number of records of each.

    Raises:
      BuildError: there is no such data set.
      UsageError: the data sets differ in their features or in their classes.
    """
    sources = [find(place) for place in places]
    whole = sources[0]
    spans = whole.spans(split)
    sizes = [sum(span.records for span in spans)]
    for source in sources[1:]:
        for what, mine, theirs in (
            ("features", whole.schema, source.schema),
            ("classes", list(whole.classes), list(source.classes)),
        ):
            if mine != theirs:
                raise UsageError(
                    f"{source.place} and {whole.place} differ in their {what}: build them with the "
                    "same ones"
                )
        first = len(whole.files)
        its = [Span(span.file + first, span.begin, span.end) for span in source.spans(split)]
        spans += its
        sizes.append(sum(span.records for span in its))
        splits = {
            f"{name} of {source.place}": [first + number for number in numbers]
            for name, numbers in source.splits.items()
        }
        named = {f"{name} of {source.place}": both for name, both in source.sizes.items()}
        whole = replace(
            whole,
            files=[*whole.files, *source.files],
            splits={**whole.splits, **splits},
            sizes={**whole.sizes, **named},
        )
    return whole, spans, sizes


def mixture_of(
    source: Source,
    spans: Sequence[Span],
    options: ReadOptions,
    weights: Mapping[str, Any],
    sizes: Sequence[int],
) -> Mixture:
    """Returns the order of a mixture of data sets.

    Args:
      source: all data sets as one.
      spans: the records of all data sets.
      options: the batch of a host, the number of hosts and the seed.
      weights: for each data set, its weight; see `weights_of`.
      sizes: the number of records of each data set.
    """
    names = [str(place) for place in weights]
    return Mixture(
        weights_of(list(weights.values()), names, sizes), global_batch_of(options), options.seed,
        fingerprint(source.files, spans),
    )  # fmt: skip


def balanced(
    source: Source, spans: Sequence[Span], schema: Schema, options: ReadOptions
) -> Mixture:
    """Returns the order of `balance`: classes with equal or with given weights.

    Raises:
      UsageError: there are no labels, records have several, or a weight names no class.
    """
    balance = options.balance
    if not schema.class_key:
        raise UsageError(f"balance requires class labels, and {source.place} has none")
    if any(feature.key == schema.class_key and feature.is_list for feature in schema.features):
        raise UsageError(f"balance requires one class for each record: {source.place} has several")
    labels = _labels(source, spans, schema.class_key)
    known = source.classes or [str(label) for label in range(int(labels.max()) + 1)]
    if labels.max() >= len(known):
        raise UsageError(f"{source.place}: label {labels.max()} has no class: verify the data set")
    sizes = np.bincount(labels, minlength=len(known))
    if balance == "class":
        weights: list[Any] = [int(size > 0) for size in sizes]
    else:
        named = balance if isinstance(balance, Mapping) else {}
        missing = [name for name in named if name not in known]
        if missing:
            close = difflib.get_close_matches(str(missing[0]), known, 1)
            hint = f"did you mean {close[0]!r}?" if close else "imageshards inspect lists them"
            raise UsageError(f"balance: {source.place} has no class {missing[0]!r}: {hint}")
        weights = [named.get(name, 0) for name in known]
    return Mixture(
        weights_of(weights, known, sizes.tolist()), global_batch_of(options), options.seed,
        fingerprint(source.files, spans), np.argsort(labels, kind="stable"),
    )  # fmt: skip


def _labels(source: Source, spans: Sequence[Span], key: str) -> Numbers:
    """Reads all records, and returns their labels: int64 [records]."""

    def of_span(span: Span) -> Numbers:
        file = source.files[span.file]
        found: list[int] = []
        for begin in range(span.begin, span.end, _RECORDS_AT_ONCE):
            end = min(begin + _RECORDS_AT_ONCE, span.end)
            for row, data in enumerate(file.data(begin, end), begin):
                values = example.decode(data).get(key)
                if not values or not isinstance(values[0], int) or values[0] < 0:
                    raise BuildError(f"{file.uri}: record {row} has no label {key!r}")
                found.append(values[0])
        return np.array(found, np.int64)

    with ThreadPoolExecutor(_THREADS) as executor:
        return np.concatenate(list(executor.map(of_span, spans)))
