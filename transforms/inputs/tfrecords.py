"""TFRecord files of tf.train.Example as inputs: every record is a reference. No TensorFlow.

Listing reads each file once, from its beginning to its end: where a record begins is written
nowhere else, and labels and names stand in the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, BinaryIO, cast

from imageshards.transforms import storage
from imageshards.transforms.elements import LOST, BuildError, Problem, to_text
from imageshards.transforms.inputs import listing
from imageshards.transforms.inputs.fetch import IMAGE_KEY
from imageshards.transforms.inputs.listing import Listing, Source
from imageshards.transforms.records import example
from imageshards.transforms.records.tfrecord import RawRecord, scan_records
from imageshards.transforms.storage import MAX_BYTES

# The endings in use, and numbered files without one, as tensorflow_datasets has them too. What
# stands beside a shard under its name and another ending (an index, a checksum) is none.
_NAME = re.compile(
    r".*\.tfrecords?|.+-\d{5,}-of-\d{5,}|(?P<compressed>.*\.tfrecords?\.(gz|gzip|zlib))",
    re.IGNORECASE | re.DOTALL,
)
_LONGEST_RECORD = 2 * MAX_BYTES
_LABEL_KEYS = ("image/class/text", "image/class/label")


@dataclass(frozen=True)
class RecordKeys:
    """Which features of a record are what.

    Attributes:
      image: the encoded image.
      label: its class, a text or a number; empty: `image/class/text`, else `image/class/label`.
      name: what the record is called instead of FILE/NUMBER; empty: nothing.
    """

    image: str = IMAGE_KEY
    label: str = ""
    name: str = ""


def is_records(uri: str) -> bool:
    """Whether a URI is that of a TFRecord file, by its name."""
    return _NAME.fullmatch(uri.rpartition("/")[2]) is not None


_SAMPLED = 1000


def sample(uri: str) -> Iterator[dict[str, list[Any]]]:
    """Yields the features of the first records of a TFRecord file, of those that can be read.

    Raises:
      BuildError: it cannot be read at all.
    """
    try:
        with storage.open_read(uri) as file:
            for record in islice(_scan(file), _SAMPLED):
                with suppress(example.CorruptExample):
                    if not record.problem:
                        yield example.decode(record.data)
    except OSError as error:
        raise BuildError(f"{uri}: cannot be read: {error.strerror or 'no such file'}") from error


def list_records(
    source: Source,
    stamp: int,
    root_length: int,
    keys: RecordKeys,
    required: Sequence[str],
    optional: Sequence[str],
) -> Iterator[Listing]:
    """Lists a TFRecord file.

    Args:
      source: a TFRecord file, or what it was found by.
      stamp: changes with its content, or 0.
      root_length: of the URI, what stands before the path by which folders are splits.
      keys: which features are what.
      required: columns that must be there: `label`, or names of features.
      optional: columns that are taken where they are.

    Raises:
      BuildError: it cannot be read at all, or has no such features.
    """
    uri = source.uri
    try:
        with storage.open_read(uri) as file:
            name = _NAME.fullmatch(uri.rpartition("/")[2])
            if (name and name["compressed"]) or file.read(2) == b"\x1f\x8b":
                raise BuildError(
                    f"{uri}: a compressed TFRecord file cannot be read at random: gunzip it first"
                )
            file.seek(0)
            columns = _columns(uri, _first(file), keys, required, optional)
            file.seek(0)
            chunk = _new_chunk(uri, columns)
            for number, record in enumerate(_scan(file)):
                _add(chunk, number, record, stamp, root_length, keys, columns)
                if len(chunk.uris) == listing.CHUNK_ROWS:
                    yield chunk
                    chunk = _new_chunk(uri, columns)
            if chunk.uris:
                yield chunk
    except OSError as error:
        raise BuildError(f"{uri}: cannot be read: {error.strerror or 'no such file'}") from error


def _scan(file: IO[bytes]) -> Iterator[RawRecord]:
    return scan_records(cast(BinaryIO, file), longest=_LONGEST_RECORD)


_Values = dict[str, list[Any]]


def _first(file: IO[bytes]) -> _Values:
    """The features of the first record that has any; none if none has."""
    for record in _scan(file):
        if not record.problem:
            with suppress(example.CorruptExample):
                if values := example.decode(record.data):
                    return values
    return {}


def _columns(
    uri: str, first: _Values, keys: RecordKeys, required: Sequence[str], optional: Sequence[str]
) -> dict[str, str]:
    """Column -> the feature that fills it.

    Raises:
      BuildError: the first record has not what every record must have.
    """
    there = f"its first record has {', '.join(sorted(first))}"
    if first and keys.image not in first:
        raise BuildError(f"{uri}: no feature {keys.image!r} (--image_key names another); {there}")
    if first and keys.name and keys.name not in first:
        raise BuildError(f"{uri}: no feature {keys.name!r} for --name_key; {there}")
    columns = {}
    for column in dict.fromkeys((*required, *optional)):
        choices: tuple[str, ...] = (column,)
        if column == "label":
            choices = (keys.label,) if keys.label else _LABEL_KEYS
        key = next((key for key in choices if key in first), None)
        if key:
            columns[column] = key
        elif first and column == "label" and (column in required or keys.label or not keys.name):
            raise BuildError(
                f"{uri}: no feature {' or '.join(choices)} for the label (--label_key names "
                f"another, --labels none goes without); {there}"
            )
        elif first and column in required:
            raise BuildError(f"{uri}: no feature {column!r}; {there}")
    return columns


def _new_chunk(uri: str, columns: Iterable[str]) -> Listing:
    return Listing(container=uri, codec="example", columns={column: [] for column in columns})


def _add(
    chunk: Listing,
    number: int,
    record: RawRecord,
    stamp: int,
    root_length: int,
    keys: RecordKeys,
    columns: dict[str, str],
) -> None:
    """Appends a record to a chunk."""
    values: _Values = {}
    image = b""
    problem = None
    if record.problem:
        rest = "; nothing behind it can be found" if record.lost else ""
        kind = LOST if record.lost else "Corrupt"
        problem = Problem("read", kind, f"at byte {record.offset}: {record.problem}{rest}")
    else:
        try:
            values = example.decode(record.data)
            image = values[keys.image][0]
        except example.CorruptExample as error:
            problem = Problem("read", "Corrupt", f"at byte {record.offset}: {error}")
        except (KeyError, IndexError):
            problem = Problem("read", "Missing", f"the record has no feature {keys.image!r}")
    name = _text(values, keys.name) if keys.name else None
    if not name or "\0" in name:
        name = f"{chunk.container}/{number}"
    for column, key in columns.items():
        chunk.columns[column].append(_text(values, key))
    chunk.add_range(
        name, min(root_length, len(name)) if name.startswith(chunk.container) else 0,
        len(image), stamp, record.data_offset, record.length, problem,
    )  # fmt: skip


def _text(values: _Values, key: str) -> str | None:
    """The first value of a feature as a text; None where there is nothing."""
    value = next(iter(values.get(key, ())), None)
    if isinstance(value, bytes):
        return to_text(value) or None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None else str(value)
