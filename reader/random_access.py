"""Random access to records by their number, without TensorFlow.

`open` returns a sequence of (image, label). It is a data source for Grain and a map-style data set
for PyTorch; `reader.torch` has an iterable-style one.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload

import numpy as np
import numpy.typing as npt

from imageshards.reader.elements.pixels import decode_mask, decode_window
from imageshards.reader.elements.windows import Window, centered
from imageshards.reader.files import Source, find, read_indexes
from imageshards.reader.options import OpenOptions, OpenSettings, check_integer, check_names
from imageshards.reader.ordering.blocks import make_blocks
from imageshards.reader.parse import array_with_channels, decode_image, decode_numpy
from imageshards.reader.splits import Span, share_of, take
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records import example
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.example import CorruptExample
from imageshards.transforms.records.schemas import Schema

_CHUNK_BYTES = 1 << 20


def open(
    place: str | os.PathLike[str], split: str | None = None, **options: Unpack[OpenOptions]
) -> Records:
    """Opens the records of a split for random access. Does not import TensorFlow.

    >>> records = open("dataset", "train")
    >>> image, label = records[7]
    >>> image.dtype, records.classes[label] in ("class00", "class01")
    (dtype('uint8'), True)
    >>> open("dataset", "train", image_size=32)[7][0].shape
    (32, 32, 3)

    Args:
      place: the folder of a data set that imageshards built, or a glob pattern of record files.
      split: the split, as in `load`. None selects the only split.
      decode: whether to decode encoded images, and to convert pixels to `channels`. Default: True.
      channels: the number of channels of decoded images and of pixels: 3, 1, or 0 to keep each
        image's own. Default: 3.
      image_size: the size to which images are resized, a number or (height, width), after they are
        cropped to the largest centered window of that aspect ratio. Default: None, no resizing.
      transform: a function that is called with each image, or text; its result is returned instead.
        Default: None.
      image_key: the feature that is the image, as in `load`.
      label_key: the feature that is the label, as in `load`.
      check: whether to verify the checksum of each record that is read. Default: True.

    Returns:
      A sequence of (image, label).

    Raises:
      BuildError: there is no such data set, or it is damaged.
      UsageError: an argument has an invalid value.
    """
    check_names("open", options, OpenOptions.__annotations__)
    settings = OpenSettings(**options)
    source = find(place)
    schema = source.schema_with(settings.image_key, settings.label_key)
    return Records(source, source.spans(split), schema, settings)


class Records(Sequence[Any]):
    """A sequence of (image, label), or of images if there are no labels. Made by `open`.

    An image is a uint8 array [height, width, channels], or of the schema's dtype; a text is bytes.
    A label is an int. Records can be pickled and sliced, and several threads and processes can read
    them at a time.

    >>> records = open("dataset", "train")
    >>> half = records[: len(records) // 2]
    >>> sum(len(half.share(num_hosts=2, host=host)) for host in range(2)) == len(half)
    True
    >>> image, label = next(half.shuffled(seed=1, epoch=0))

    Attributes:
      classes: names in label order; empty if unknown.
    """

    def __init__(
        self,
        source: Source,
        spans: Sequence[Span],
        schema: Schema,
        settings: OpenSettings,
    ) -> None:
        self.classes = list(source.classes)
        self._source = source
        self._spans = tuple(spans)
        self._schema = schema
        self._settings = settings
        self._mask_key = schema.key_of("mask")
        self._target_key = schema.target_key
        named = (schema.holds, "mask", "shape")
        wanted = (*map(schema.key_of, named), schema.target_key)
        kept = tuple(f for f in schema.features if f.key in wanted)
        self._read = replace(schema, features=kept)
        self._content_key = schema.key_of(schema.holds) or ""
        self._ends = np.cumsum([span.records for span in self._spans])

    def __repr__(self) -> str:
        # Grain stores this text in its checkpoints and compares it when it resumes.
        spans = ", ".join(f"{s.file}:{s.begin}-{s.end}" for s in self._spans)
        return f"<{len(self):,} records of {self._source.place}, {spans}>"

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._spans else 0

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Returns a record, or `Records` of consecutive ones.

        Raises:
          CorruptRecord: the record is damaged or not a tf.train.Example.
          IndexError: there is no such record.
        """
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            if step != 1:
                raise UsageError(f"records[::{step}]: slices must be consecutive; omit the step")
            return self._with(take(self._spans, begin, end))
        return self._element(*self._raw(index))

    def __iter__(self) -> Iterator[Any]:
        """Yields all records in order, reading about a megabyte at a time."""
        for data, where in self._in_order(self._spans):
            yield self._element(data, where)

    def serialized(self, index: int) -> bytes:
        """Returns the bytes of a record: a serialized tf.train.Example."""
        return self._raw(index)[0]

    def features(self, index: int) -> dict[str, Any]:
        """Returns all features: key -> int, float, bytes, list or array. Images are not decoded."""
        data, where = self._raw(index)
        if self._source.described:
            return self._parsed(data, where, self._source.schema)
        try:
            values = example.decode(data)
        except CorruptExample as error:
            raise CorruptRecord(self._message(where, error)) from error
        return {key: value[0] if len(value) == 1 else value for key, value in values.items()}

    def made(self, index: int, schema: Schema, make: Callable[[dict[str, Any]], Any]) -> Any:
        """Returns what a function makes of the features of a record.

        Args:
          index: the number of the record.
          schema: the features to read.
          make: a function of key -> value, as `decode_numpy` returns them.

        Raises:
          CorruptRecord: the record is damaged, or `make` raises an error.
        """
        data, where = self._raw(index)
        values = self._parsed(data, where, schema)
        try:
            return make(values)
        except Exception as error:  # Pillow raises many types of errors for damaged images
            raise CorruptRecord(self._message(where, error)) from error

    def read_indexes(self, numbers: npt.NDArray[np.int64]) -> None:
        """Reads the indexes of the remote files of some records, several at a time."""
        spans = np.unique(np.searchsorted(self._ends, numbers, side="right"))
        read_indexes(self._source.files[self._spans[span].file] for span in spans.tolist())

    def share(self, num_hosts: int, host: int) -> Records:
        """Returns the records for one of `num_hosts` hosts; together they read each record once."""
        num_hosts, host = check_integer("num_hosts", num_hosts, 1), check_integer("host", host)
        return self._with(share_of(self._spans, num_hosts, host))

    def shuffled(self, seed: int = 0, epoch: int = 0, window: int | None = None) -> Iterator[Any]:
        """Yields all records in an order that is a function of seed and epoch.

        Files are read in blocks of consecutive records.

        Args:
          seed: 0 or more.
          epoch: 0 or more.
          window: the number of records that are held in memory and shuffled together; None for as
            many as fit in 128 MB, from 16 to 65,536. A compressed file is always held as a whole.
        """
        seed, epoch = check_integer("seed", seed), check_integer("epoch", epoch)
        if window is not None:
            window = check_integer("window", window, 1)
        return self._shuffled(seed, epoch, window)

    def _shuffled(self, seed: int, epoch: int, window: int | None) -> Iterator[Any]:
        if not len(self):
            return
        rng = np.random.default_rng([seed, epoch])
        blocks = make_blocks(self._source.files, self._spans, window)
        order = rng.permutation(len(blocks.spans))
        for begin in range(0, len(order), blocks.per_window):
            mine = [blocks.spans[at] for at in order[begin : begin + blocks.per_window]]
            held = list(self._in_order(mine))
            for at in rng.permutation(len(held)):
                yield self._element(*held[at])

    def _with(self, spans: Sequence[Span]) -> Records:
        return Records(self._source, spans, self._schema, self._settings)

    def _raw(self, index: int) -> tuple[bytes, tuple[int, int]]:
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            valid = f"from {-len(self)} to {len(self) - 1}" if len(self) else "none: it is empty"
            raise IndexError(f"record {index} is out of range: valid indices are {valid}")
        at = int(np.searchsorted(self._ends, number, side="right"))
        span = self._spans[at]
        row = span.end - int(self._ends[at]) + number
        data = self._source.files[span.file].record(row, check=self._settings.check)
        return data, (span.file, row)

    def _in_order(self, spans: Sequence[Span]) -> Iterator[tuple[bytes, tuple[int, int]]]:
        """Yields the data of each record, and (position of its file, number in the file)."""
        for span in spans:
            file = self._source.files[span.file]
            sizes = file.index.sizes
            begin = span.begin
            while begin < span.end:
                end = begin + 1
                size = int(sizes[begin])
                while end < span.end and size + int(sizes[end]) <= _CHUNK_BYTES:
                    size += int(sizes[end])
                    end += 1
                for row, data in enumerate(
                    file.data(begin, end, check=self._settings.check), begin
                ):
                    yield data, (span.file, row)
                begin = end

    def _message(self, where: tuple[int, int], error: Exception) -> str:
        file = self._source.files[where[0]]
        return f"{file.uri}: record at byte {file.index.offset(where[1])}: {error}"

    def _parsed(self, data: bytes, where: tuple[int, int], schema: Schema) -> dict[str, Any]:
        try:
            return decode_numpy(data, schema)
        except CorruptExample as error:
            raise CorruptRecord(self._message(where, error)) from error

    def _element(self, data: bytes, where: tuple[int, int]) -> Any:
        values = self._parsed(data, where, self._read)
        content = values[self._content_key]
        settings = self._settings
        target = values[self._target_key] if self._target_key else None
        if settings.decode and self._schema.holds != "text":
            try:
                content, window = self._image(content)
                if self._mask_key:
                    target = decode_mask(values[self._mask_key], window, settings.size)
            except Exception as error:  # Pillow raises many types of errors for damaged images
                raise CorruptRecord(self._message(where, error)) from error
        if isinstance(content, np.ndarray) and not content.flags.writeable:
            content = content.copy()  # PyTorch requires writable arrays
        if settings.transform is not None:
            content = settings.transform(content)
        return content if target is None else (content, target)

    def _image(self, data: bytes | npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Window | None]:
        channels, size = self._settings.channels, self._settings.size
        if size:
            return decode_window(data, lambda full: centered(full, size), size, channels)
        if isinstance(data, bytes):
            return decode_image(data, channels), None
        return array_with_channels(data, channels), None
