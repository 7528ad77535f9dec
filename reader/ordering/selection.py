"""The records that `load` and `grain` read, and their order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imageshards.reader.files import Source
from imageshards.reader.options import ElementOptions, ReadOptions
from imageshards.reader.ordering.global_order import Order
from imageshards.reader.ordering.mixed import balanced, find_all, mixture_of
from imageshards.reader.ordering.of_files import order_of
from imageshards.reader.splits import Span
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.schemas import Schema

_CONVERT = "imageshards reshard DIR NEW --file_format array_record"


@dataclass(frozen=True)
class Selection:
    """The records of a split of one data set or of several.

    Attributes:
      source: the record files.
      spans: the records, as ranges in the files.
      schema: the features that are the content and the label.
      order: the order of the records.
    """

    source: Source
    spans: Sequence[Span]
    schema: Schema
    order: Order


def select(
    place: str | os.PathLike[str] | Mapping[str, Any],
    split: str | None,
    elements: ElementOptions,
    options: ReadOptions,
    *,
    permuted: bool = False,
) -> Selection:
    """Finds the records of a split, and computes their order.

    Args:
      place: a data set, or data set -> weight.
      split: the split.
      elements: its keys of the content and of the label.
      options: the batch of a host, the hosts, the seed, and how records are drawn.
      permuted: whether an order that is not by weight is a permutation of single records; else
        blocks of files that are read sequentially.

    Raises:
      BuildError: there is no such data set, or it is damaged.
      UsageError: the options exclude each other, or the files do not allow the order.
    """
    weights = place if isinstance(place, Mapping) else None
    _check_weights(weights, options)
    source, spans, sizes = find_all([place] if weights is None else list(weights), split)  # type: ignore[list-item]
    by_weight = weights is not None or options.balance is not None
    if not all(source.files[span.file].container.random_access for span in spans):
        if by_weight:
            raise UsageError(
                f"{source.place}: compressed files cannot be read by weight: convert them with "
                f"{_CONVERT}"
            )
        if permuted:
            raise UsageError(
                f"{source.place}: compressed files have no random access: read them with "
                f"reader.load, or convert them: {_CONVERT}"
            )
    schema = source.schema_with(elements.image_key, elements.label_key)
    order: Order
    if weights is not None:
        order = mixture_of(source, spans, options, weights, sizes)
    elif options.balance is not None:
        order = balanced(source, spans, schema, options)
    else:
        order = order_of(source.files, spans, options, permuted)
    return Selection(source, spans, schema, order)


def _check_weights(weights: Mapping[str, Any] | None, options: ReadOptions) -> None:
    """Raises a UsageError if options exclude a mixture or weights."""
    if weights is None and options.balance is None:
        return
    what = "balance" if weights is None else "a mixture"
    if weights is not None and not weights:
        raise UsageError("a mixture without data sets: name at least one")
    if weights is not None and options.balance is not None:
        raise UsageError("balance is for one data set, not for a mixture")
    if not options.repeat or not options.shuffle:
        raise UsageError(f"{what} requires repeat=True and shuffle: records are drawn by weight")
