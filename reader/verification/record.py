"""Checks one record: its features, its image, pixels or text, its boxes and its labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from imageshards.reader import parse
from imageshards.reader.verification.problems import BadBoxes, Problem, Unsuitable
from imageshards.transforms import extras
from imageshards.transforms.elements import counted, quoted
from imageshards.transforms.images import validate
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import BOX_SIDES, Schema
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.annotations import box_problem
from imageshards.transforms.shards.read_back import Record

Decoder = Literal["build", "tensorflow"]

Inspect = Callable[[bytes], validate.ImageInfo]
"""Decodes an image file, and returns its format and size; raises an `ImageError`."""


def inspect_with(decoder: Decoder, level: validate.Level) -> Inspect:
    """Returns the function that decodes images.

    Args:
      decoder: see `verify`.
      level: how closely the decoder of a build looks at images.

    Raises:
      UsageError: TensorFlow is not installed.
    """
    if decoder == "build":
        return partial(validate.inspect, check=level)
    extras.require("train", "--decoder tensorflow", ["tensorflow"])
    from imageshards.reader.tensorflow.images import inspect

    return inspect


def record_problem(
    schema: Schema, classes: Sequence[str], inspect: Inspect, record: Record
) -> Problem | None:
    """Returns what is wrong with a record, or None.

    Args:
      schema: of the data set.
      classes: class names in label order.
      inspect: decodes images.
      record: the record.
    """
    missing = [f.key for f in schema.features if f.key not in record.values]
    if missing:
        return Problem(f"does not have {', '.join(missing)}")
    if problem := _content_problem(record, schema, inspect):
        return problem
    if record.values.keys() >= set(BOX_SIDES) and (wrong := box_problem(record.values)):
        return BadBoxes(wrong)
    label_key = schema.key_of("label")
    if not label_key:
        return None
    labels = record.values[label_key]
    text_key = schema.key_of("synset") or schema.key_of("class_text")
    texts = record.values[text_key] if text_key else []
    if text_key and len(texts) != len(labels):
        return Problem(f"{len(labels)} labels, but {len(texts)} names of classes")
    for at, label in enumerate(labels):
        if not 0 <= label < len(classes):
            return Problem(f"label {label} of {counted(len(classes), 'class')}")
        # With synsets, the class text may be longer than the name.
        if text_key:
            text = texts[at].decode("utf-8", "replace")
            if text != classes[label]:
                name = quoted(classes[label])
                return Problem(f"its class is called {quoted(text)}, but class {label} is {name}")
    return None


def _content_problem(record: Record, schema: Schema, inspect: Inspect) -> Problem | None:
    """Returns what is wrong with the image, the pixels or the text of a record, or None."""
    data = record.first(schema.key_of(schema.holds), b"")
    if schema.holds == "text":
        try:
            data.decode()
        except UnicodeDecodeError as error:
            return Problem(f"its text is not UTF-8 at byte {error.start}")
        return None
    if schema.holds == "pixels":
        try:
            parse.decode_record(record.values, schema)
        except example.CorruptExample as error:
            return Problem(f"its pixels: {error}")
        return None
    try:
        info = inspect(data)
        declared = read_back.info_of(record, schema)
    except validate.ImageError as error:
        return Unsuitable(f"does not decode: {error}")
    if declared != info:
        return Problem(f"declares {declared}, but its image is {info}")
    if mask_key := schema.key_of("mask"):
        return _mask_problem(record.first(mask_key, b""), info, inspect)
    return None


def _mask_problem(data: bytes, image: validate.ImageInfo, inspect: Inspect) -> Problem | None:
    """Returns what is wrong with the mask of an image, or None."""
    try:
        mask = inspect(data)
    except validate.ImageError as error:
        return Unsuitable(f"its mask does not decode: {error}")
    if (mask.height, mask.width) != (image.height, image.width):
        return Problem(
            f"its mask is {mask.width} x {mask.height} pixels, and its image {image.width} x "
            f"{image.height}"
        )
    return None
