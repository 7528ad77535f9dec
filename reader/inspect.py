"""Describes a data set or a record file as text for the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from imageshards.reader.dataset import Dataset, open_dataset
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, counted, human_bytes
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.containers import is_record_file
from imageshards.transforms.records.example import CorruptExample
from imageshards.transforms.records.schemas import Feature
from imageshards.transforms.shards import read_back

_CLASSES_SHOWN = 12
_TEXT_SHOWN = 60
_KEY_WIDTH = 23


def inspect(place: str, records: int = 3) -> str:
    """Returns a description of a data set, or of any record file of Examples.

    Args:
      place: the folder of a data set, or a record file.
      records: the number of records to show, starting with the first.

    Raises:
      BuildError: there is no such data set or file.
      CorruptRecord: a record to show is damaged.

    >>> print(inspect("dataset", records=0))
    /.../dataset
      dataset: 40 records in 3 shards, ...
    """
    uri = storage.folder_uri(place) if place else ""
    if os.path.isfile(uri) or is_record_file(uri):
        lines = _shard_lines(uri, records)
    else:
        lines = _dataset_lines(open_dataset(place), records)
    return "\n".join(lines)


def _dataset_lines(dataset: Dataset, records: int) -> Iterator[str]:
    build = dataset.build
    counts = build["counts"]
    yield f"{dataset.layout.root}"
    yield (
        f"  {build['name']}: {counted(counts['records'], 'record')} in "
        f"{counted(len(dataset.shards), 'shard')}, {human_bytes(counts['bytes'])}; "
        f"{counted(counts['rejects'], 'reject')}, {counted(counts['duplicates'], 'duplicate')}, "
        f"{counted(counts['passed_over'], 'file')} skipped"
    )
    yield ""
    for name, split in build["splits"].items():
        share = split["records"] / max(counts["records"], 1)
        small, large = split["smallest"], split["largest"]
        formats = ", ".join(f"{count:,} {kind}" for kind, count in split["formats"].items())
        yield (
            f"  {name:<12}{counted(split['records'], 'record'):>20} {share:>6.1%}"
            f"{counted(split['shards'], 'shard'):>14}{human_bytes(split['bytes']):>15}   "
            f"{formats}, "
            + (
                f"{small[1]:,} to {large[1]:,} bytes"
                if dataset.schema.holds == "text"
                else f"{small[1]}x{small[0]} to {large[1]}x{large[0]}"
            )
        )
    yield ""
    yield "  features"
    width = _width(feature.key for feature in dataset.schema.features)
    for feature in dataset.schema.features:
        yield f"    {feature.key:<{width}} {feature.kind:<8}{feature.tfds}{_array_text(feature)}"
    if dataset.classes:
        yield ""
        yield from _class_lines(dataset)
    if records and dataset.shards:
        yield ""
        yield from _record_lines(dataset.shards[0].uri, records)


def _array_text(feature: Feature) -> str:
    if not feature.array:
        return ""
    shape = feature.array.shape
    return f" of {feature.array.dtype} " + (str(list(shape)) if shape else "in the feature shape")


def _class_lines(dataset: Dataset) -> Iterator[str]:
    splits = dataset.build["splits"]
    classes = dataset.classes
    shown = counted(len(classes), "class")
    if len(classes) > _CLASSES_SHOWN:
        shown += f", the first {_CLASSES_SHOWN}"
    yield f"  {shown:<26}" + "".join(f"{n:>12}" for n in splits)
    for number, name in islice(enumerate(classes), _CLASSES_SHOWN):
        counts = "".join(f"{s['labels'].get(str(number), 0):>12,}" for s in splits.values())
        yield f"    {number:>5} {_short(name, 18):<18}{counts}"


def _shard_lines(uri: str, records: int) -> Iterator[str]:
    size = storage.size(uri)
    if size < 0:
        raise BuildError(f"{uri}: no such file")
    count = 0
    try:
        for _ in read_back.read_shard(uri):
            count += 1
    except (CorruptRecord, CorruptExample) as error:
        if not count:
            raise BuildError(f"{uri}: not a record file of Examples: {error}") from error
        yield f"{uri}: {counted(count, 'sound record')}, then: {error}"
    else:
        yield f"{uri}: {counted(count, 'record')}, {human_bytes(size)}"
    yield from _record_lines(uri, min(records, count))


def _record_lines(uri: str, records: int) -> Iterator[str]:
    try:
        shown = list(islice(read_back.read_shard(uri), records))
    except (CorruptRecord, CorruptExample) as error:
        raise CorruptRecord(f"{uri}: {error}") from error
    for number, record in enumerate(shown):
        yield f"  record {number} at byte {record.offset:,} of {uri.rpartition('/')[2]}"
        width = _width(map(_short, record.values))
        for key in sorted(record.values):
            yield f"    {_short(key):<{width}} {_value_text(record.values[key])}"


def _width(keys: Iterable[str]) -> int:
    """The width of a column of keys."""
    return max(_KEY_WIDTH, *map(len, keys), 0)


def _value_text(values: list[Any]) -> str:
    if len(values) != 1:
        return _short(f"{len(values):,} values: {values!r}")
    value = values[0]
    if isinstance(value, bytes):
        if len(value) > 1000 or b"\0" in value:
            return f"{len(value):,} bytes, {value[:8]!r}..."
        return _short(value.decode("utf-8", "backslashreplace"))
    return str(value)


def _short(text: str, length: int = _TEXT_SHOWN) -> str:
    text = "".join(c if c.isprintable() else c.encode("unicode-escape").decode() for c in text)
    return text if len(text) <= length else text[: length - 3] + "..."
