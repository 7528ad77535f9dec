"""Checks the options of elements against the features of a data set. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from imageshards.reader.elements.keys import Keys, find_keys
from imageshards.reader.files import Source
from imageshards.reader.options import ElementOptions
from imageshards.reader.splits import Span
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.schemas import Schema


def check_elements(
    source: Source, spans: Sequence[Span], schema: Schema, options: ElementOptions, batched: bool
) -> Keys | None:
    """Checks the options that determine an element.

    Args:
      source: the record files.
      spans: the records that are read.
      schema: the features that are the content and the label.
      options: the options of an element.
      batched: whether elements are batched, which requires equal shapes.

    Returns:
      The features that `keys` names, or None.

    Raises:
      UsageError: an option does not fit the data set.
    """
    _check_dtype(source, schema, options)
    keys = _keys(source, schema, options, batched)
    if batched:
        _check_sizes(source, spans, schema, options)
    return keys


def _keys(source: Source, schema: Schema, options: ElementOptions, batched: bool) -> Keys | None:
    """Returns the features that `keys` names, or None.

    Raises:
      UsageError: a key is invalid, or images of unknown size are batched with lists.
    """
    if options.keys is None:
        return None
    is_image = schema.holds != "text" and options.decode
    moved = is_image and options.size is not None
    keys = find_keys(source, schema, options.keys, options.list_length, moved)
    array = schema.content.array if schema.content else None
    unknown = is_image and options.size is None and not (array and array.shape)
    if batched and unknown and keys.are_ragged:
        raise UsageError(
            f"keys {keys.lists[0]!r}: batches of lists of any length require images of a known "
            "size: set image_size or list_length"
        )
    return keys


def _check_dtype(source: Source, schema: Schema, options: ElementOptions) -> None:
    """Raises a UsageError if the stored pixels cannot have the dtype."""
    array = schema.content.array if schema.content else None
    if options.dtype == "uint8" and array and array.dtype != "uint8":
        raise UsageError(f"invalid dtype 'uint8': the images of {source.place} are {array.dtype}")


def _check_sizes(
    source: Source, spans: Sequence[Span], schema: Schema, options: ElementOptions
) -> None:
    """Raises a UsageError if the decoded images differ in size and so cannot be batched."""
    encoded = schema.holds == "encoded" and options.features is None
    if not encoded or options.size or not options.decode:
        return
    files = {span.file for span in spans}
    sizes = {
        size
        for split, smallest_and_largest in source.sizes.items()
        if files & set(source.splits.get(split, ()))
        for size in smallest_and_largest
    }
    if len(sizes) > 1:
        small, large = min(sizes), max(sizes)
        raise UsageError(
            f"{source.place}: the images are from {small[1]}x{small[0]} to {large[1]}x{large[0]} "
            "pixels, and a batch requires one size: set image_size, or omit batch_size"
        )
