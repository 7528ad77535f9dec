"""TFRecord files of tf.train.Example as inputs: every record is a reference. No TensorFlow.

Listing reads the whole file, because the offsets, labels and names of the records are nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from imageshards.transforms import storage
from imageshards.transforms.elements import (
    LOST,
    BuildError,
    ImageRef,
    Problem,
    enumerated,
    to_text,
)
from imageshards.transforms.inputs import ranges
from imageshards.transforms.inputs.kind import (
    FileKind,
    ListingOptions,
    Read,
    RecordKeys,
    RecordSample,
    real_folder,
    register,
)
from imageshards.transforms.inputs.listed import Listed, ListedRows
from imageshards.transforms.records import example
from imageshards.transforms.records.tfrecord import RawRecord, scan_records
from imageshards.transforms.references.annotate import Columns
from imageshards.transforms.storage import MAX_BYTES

if TYPE_CHECKING:
    from imageshards.transforms.inputs.fetch import ImageReader

# The suffixes in use, and numbered files without one, which tensorflow_datasets reads too. A file
# next to a shard, with its name and another suffix (an index, a checksum), does not match.
_NAME = re.compile(
    r".*\.tfrecords?|.+-\d{5,}-of-\d{5,}|(?P<compressed>.*\.tfrecords?\.(gz|gzip|zlib))",
    re.IGNORECASE | re.DOTALL,
)
_LONGEST_RECORD = 2 * MAX_BYTES
_LABEL_KEYS = ("image/class/text", "image/class/label")

_Values = dict[str, list[Any]]


@register
class TFRecordFile(FileKind):
    """A TFRecord file of tf.train.Example, from any program."""

    noun = "a TFRecord file"
    codecs = ("example",)

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a URI has the name of a TFRecord file."""
        return _NAME.fullmatch(uri.rpartition("/")[2]) is not None

    def holds(self, folder: str) -> bool:
        """Whether it is a file of the folder: `--overwrite` would delete it before it is read."""
        return real_folder(self.root) == real_folder(folder)

    @classmethod
    def read(cls, ref: ImageRef, limit: int, reader: ImageReader) -> Read:
        """Reads the image of a record, and all its features."""
        assert ref.range
        return Read(*ranges.read_record(ref.range, ref.stamp, reader.image_key))

    def sample(self) -> RecordSample:
        """This file, and its records without the damaged ones."""
        return RecordSample(self.uri, self._first_records)

    def _first_records(self, count: int) -> Iterator[_Values]:
        try:
            with storage.open_read(self.uri) as file:
                yield from _decoded(islice(_scan(file), count))
        except OSError as error:
            raise self.unreadable(error) from error

    def list_file(
        self, root_length: int, size: int, stamp: int, options: ListingOptions
    ) -> Iterator[Listed]:
        """Lists the records."""
        self.check_regular()
        try:
            with storage.open_read(self.uri) as file:
                match = _NAME.fullmatch(self.uri.rpartition("/")[2])
                if (match and match["compressed"]) or file.read(2) == b"\x1f\x8b":
                    raise BuildError(
                        f"{self.uri}: a compressed TFRecord file cannot be read at random: "
                        "decompress it first"
                    )
                ranges.check_readable(self.uri, stamp)
                file.seek(0)
                first = next(filter(None, _decoded(_scan(file))), {})
                columns = self._columns(first, options.record_keys, options.columns)
                file.seek(0)
                rows = ListedRows(self.uri, "example", columns=columns)
                for number, record in enumerate(_scan(file)):
                    values, image_size, problem = _image_of(record, options.record_keys.image)
                    for column, key in columns.items():
                        text = _text(values, key)
                        rows.columns[column].append(text)
                        rows.held_bytes += len(text or "")
                    name = self._name(values, options.record_keys)
                    uri, root = (name, 0) if name else (f"{self.uri}/{number}", root_length)
                    rows.add(
                        uri, root, image_size, stamp, record.data_offset, record.length, problem
                    )
                    if rows.is_full:
                        yield rows.take()
                if rows:
                    yield rows.take()
        except OSError as error:
            raise self.unreadable(error) from error

    def _name(self, values: _Values, keys: RecordKeys) -> str:
        """The name that a feature gives a record; empty if there is none."""
        name = _text(values, keys.name) if keys.name else None
        return name if name and "\0" not in name else ""

    def _columns(self, first: _Values, keys: RecordKeys, columns: Columns) -> dict[str, str]:
        """Column -> the key of the feature that fills it.

        Args:
          first: features of the first record that has any; empty if none has.
          keys: the meaning of the features.
          columns: the columns to list.

        Raises:
          BuildError: the first record does not have a feature that every record must have.
        """
        found = f"its first record has {enumerated(sorted(first))}"
        if first and keys.image not in first:
            raise BuildError(
                f"{self.uri}: no feature {keys.image!r} (--image_key specifies another one); "
                f"{found}"
            )
        if first and keys.name and keys.name not in first:
            raise BuildError(f"{self.uri}: no feature {keys.name!r} for --name_key; {found}")
        filled = {}
        for column in dict.fromkeys((*columns.required, *columns.optional)):
            choices: tuple[str, ...] = (column,)
            if column == "label":
                choices = (keys.label,) if keys.label else _LABEL_KEYS
            required = column in columns.required
            key = next((key for key in choices if key in first), None)
            if key:
                filled[column] = key
            elif first and column == "label" and (required or keys.label or not keys.name):
                raise BuildError(
                    f"{self.uri}: no feature {' or '.join(choices)} for the label (--label_key "
                    f"specifies another one, --labels none builds without labels); {found}"
                )
            elif first and required:
                raise BuildError(
                    f"{self.uri}: no feature {column!r}{columns.origin(column)}; {found}"
                )
        return filled


def _scan(file: IO[bytes]) -> Iterator[RawRecord]:
    return scan_records(cast(BinaryIO, file), longest=_LONGEST_RECORD)


def _decoded(records: Iterator[RawRecord]) -> Iterator[_Values]:
    """Yields the features of the records that can be decoded."""
    for record in records:
        with suppress(example.CorruptExample):
            if not record.problem:
                yield example.decode(record.data)


def _image_of(record: RawRecord, image_key: str) -> tuple[_Values, int, Problem | None]:
    """The features of a record, bytes of its image, and why it has no image, or None."""
    if record.problem:
        rest = "; nothing behind it can be found" if record.lost else ""
        kind = LOST if record.lost else "Corrupt"
        reason = f"at byte {record.offset}: {record.problem}{rest}"
        return {}, 0, Problem("read", kind, reason)
    values: _Values = {}
    try:
        values = example.decode(record.data)
        return values, len(values[image_key][0]), None
    except example.CorruptExample as error:
        return values, 0, Problem("read", "Corrupt", f"at byte {record.offset}: {error}")
    except (KeyError, IndexError):
        return values, 0, Problem("read", "Missing", f"the record has no feature {image_key!r}")


def _text(values: _Values, key: str) -> str | None:
    """The first value of a feature as a text; None if there is no value."""
    value = next(iter(values.get(key, ())), None)
    if isinstance(value, bytes):
        return to_text(value) or None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None else str(value)
