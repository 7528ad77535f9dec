"""The tf.data pipeline of `load`, which can start at any record. This module imports TensorFlow.

    epochs -> windows -> blocks -> records -> shuffled windows -> parsed and decoded -> batches

The order of the records is a function of the seed and the epoch, and is computed in TensorFlow.
Starting after n records is therefore arithmetic; at most one window of records is read again.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from imageshards.reader.files import RecordFile
from imageshards.reader.options import Batching, Decoding, Reading, check_integer
from imageshards.reader.order import Blocks
from imageshards.reader.parse import (
    centred_window,
    decode,
    decode_image_tensor,
    decode_window,
    parse_spec,
    with_channels,
)
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.schemas import Schema

_READ_BUFFER_BYTES = 1 << 18
_STRING = tf.TensorSpec([], tf.string)
# The traced functions have no Python control flow, and AutoGraph takes a second to find that out.
_untransformed = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Elements:
    """Makes an element of the data set from a serialized record.

    Attributes:
      schema: the schema of the records; for other writers' files, of the features that are read.
      features: feature key -> parsing, instead of the schema; the elements are then dicts.
      decoding: the size, dtype and channels of the images.
      seed: the seed of the augmentation.
    """

    schema: Schema
    features: Mapping[str, Any] | None
    decoding: Decoding
    seed: int

    @property
    def batched_first(self) -> bool:
        """Whether records are batched before they are parsed: images need no work one by one."""
        decoding, content = self.decoding, self.schema.content
        if self.features is not None or not decoding.decode or content is None:
            return True
        shape = content.array.shape if content.array else None
        fits = decoding.size in (None, shape[:2] if shape else None) and decoding.crop_fraction == 1
        return self.schema.holds == "text" or bool(shape and fits and not decoding.augment)

    def spec(self) -> dict[str, Any]:
        """Returns feature key -> parsing, for tf.io.parse_example."""
        if self.features is not None:
            return dict(self.features)
        schema = self.schema
        wanted = {schema.key_of(source) for source in (schema.holds, "label", "shape")}
        return {key: value for key, value in parse_spec(schema).items() if key in wanted}

    def batch(self, serialized: tf.Tensor) -> Any:
        """Returns the element of a batch of records, or of one record; see `batched_first`.

        Args:
          serialized: string [] or [batch].
        """
        parse = tf.io.parse_example if serialized.shape.rank else tf.io.parse_single_example
        parsed = parse(serialized, self.spec())
        if self.features is not None:
            return parsed
        if self.decoding.decode and self.schema.holds == "pixels":
            pixels = self._pixels(parsed)
            return self._with_label(parsed, self._as_dtype(pixels, pixels.dtype))
        return self._with_label(parsed, self._content(parsed))

    def element(self, position: tf.Tensor, serialized: tf.Tensor) -> Any:
        """Returns the element of one record with an image.

        Args:
          position: int64 [], the number of records before this one since the first epoch.
          serialized: string [].
        """
        parsed = tf.io.parse_single_example(serialized, self.spec())
        holds_pixels = self.schema.holds == "pixels"
        data = self._pixels(parsed) if holds_pixels else self._content(parsed)
        if self.decoding.size:
            image = self._resized(data, position, self.decoding.size)
        elif data.dtype == tf.string:
            image = decode_image_tensor(data, self.decoding.channels)
        else:
            image = data
        dtype = tf.uint8 if data.dtype == tf.string else data.dtype
        return self._with_label(parsed, self._as_dtype(image, dtype))

    def _content(self, parsed: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return parsed[self.schema.key_of(self.schema.holds) or ""]

    def _pixels(self, parsed: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return with_channels(self._content(decode(parsed, self.schema)), self.decoding.channels)

    def _with_label(self, parsed: Mapping[str, tf.Tensor], content: tf.Tensor) -> Any:
        if not self.schema.label_key:
            return content
        return content, tf.cast(parsed[self.schema.label_key], tf.int32)

    def _as_dtype(self, image: tf.Tensor, stored: tf.DType) -> tf.Tensor:
        """Converts an image to the dtype of `load`; `stored` is the dtype in the record."""
        wanted = tf.dtypes.as_dtype(self.decoding.dtype)
        if stored != tf.uint8:
            return tf.cast(image, wanted)
        if wanted == tf.uint8:
            return image if image.dtype == tf.uint8 else tf.cast(tf.round(image), tf.uint8)
        return tf.cast(tf.cast(image, tf.float32) / 255.0, wanted)

    def _resized(self, data: tf.Tensor, position: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
        image = decode_window(
            data, lambda shape: self._window(shape, position, size), size, self.decoding.channels
        )
        image = tf.image.resize(image, size)
        image = tf.ensure_shape(image, [*size, self.decoding.channels])
        if self.decoding.augment:
            image = tf.image.stateless_random_flip_left_right(image, self._seed(position, 1))
        return image

    def _seed(self, position: tf.Tensor, use: int) -> tf.Tensor:
        # The position makes the seed the same after a restart, and different in each epoch.
        return tf.stack([tf.cast(2 * self.seed + use, tf.int64), position])

    def _window(self, shape: tf.Tensor, position: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
        """Returns the crop window of an image: int32 (top, left, height, width)."""
        if self.decoding.augment:
            begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
                tf.stack([shape[0], shape[1], 3]),
                tf.zeros([1, 0, 4]),
                self._seed(position, 0),
                min_object_covered=0.0,
                aspect_ratio_range=(3 / 4, 4 / 3),
                area_range=(0.08, 1.0),
                max_attempts=10,
                use_image_if_no_bounding_boxes=True,
            )
            return tf.concat([begin[:2], extent[:2]], 0)
        return centred_window(shape, size, float(self.decoding.crop_fraction))


@dataclass(frozen=True)
class Recipe:
    """Describes a pipeline completely; see the options of `load`.

    Attributes:
      files: the TFRecord files that the blocks refer to.
      blocks: the blocks of this host.
      elements: makes an element from a record.
      batching: the size of a batch.
      reading: the order of the records.
      parallel_reads: the number of blocks that are read at the same time.
      least_records: the records in an epoch of the host that has the fewest.
    """

    files: Sequence[RecordFile]
    blocks: Blocks
    elements: Elements
    batching: Batching
    reading: Reading
    parallel_reads: int
    least_records: int

    @property
    def drop_remainder(self) -> bool:
        """Whether an incomplete last batch is dropped."""
        drop = self.batching.drop_remainder
        return self.reading.repeat if drop is None else drop

    @property
    def steps_per_epoch(self) -> int:
        """See `ImageDataset`."""
        size, records = self.batching.batch_size or 1, self.blocks.records
        if self.reading.repeat:
            return max(self.least_records // size, 1)
        return records // size if self.drop_remainder else -(-records // size)

    @cached_property
    def digest(self) -> str:
        """Identifies the order of the records, and the files."""
        reading = self.reading
        return self.blocks.digest(self.files, shuffle=bool(reading.shuffle), seed=reading.seed)

    def permutation(self, epoch: int | tf.Tensor) -> tf.Tensor:
        """Returns the order of the blocks in an epoch: int64 [blocks]."""
        blocks = tf.range(len(self.blocks.table), dtype=tf.int64)
        if not self.reading.shuffle:
            return blocks
        seed = tf.stack([tf.cast(self.reading.seed, tf.int64), tf.cast(epoch, tf.int64)])
        # TensorFlow chooses the algorithm by the device unless it is set.
        return tf.random.experimental.stateless_shuffle(blocks, seed, alg="philox")

    def records(self) -> tf.data.Dataset:
        """Returns the serialized records, string []."""
        blocks, reading = self.blocks, self.reading
        first_epoch, skipped = divmod(reading.start, blocks.records)
        first_window = 0
        if reading.shuffle:
            first_window, skipped = blocks.seek(self.permutation(first_epoch).numpy(), skipped)
        # Column 0 becomes an index into the files of this host alone.
        numbers, used = np.unique(blocks.table[:, 0], return_inverse=True)
        table = np.column_stack([used, blocks.table[:, 1:]])
        read_all = self._block_reader([self.files[number] for number in numbers.tolist()])

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            rows = tf.gather(table, self.permutation(number))
            if not reading.shuffle:
                return read_all(rows)
            begin = tf.where(number == first_epoch, tf.constant(first_window, tf.int64), 0)

            def window(at: tf.Tensor) -> tf.data.Dataset:
                of_window = rows[at * blocks.per_window : (at + 1) * blocks.per_window]
                # Dataset.shuffle would also depend on the program's tf.random.set_seed.
                variant = tf.raw_ops.ShuffleDataset(
                    input_dataset=tf.data.experimental.to_variant(read_all(of_window)),
                    buffer_size=blocks.per_window * blocks.largest,
                    seed=tf.constant(reading.seed, tf.int64),
                    seed2=number * blocks.windows + at + 1,
                    output_types=[tf.string],
                    output_shapes=[[]],
                    reshuffle_each_iteration=False,
                )
                return tf.data.experimental.from_variant(variant, _STRING)

            return tf.data.Dataset.range(begin, blocks.windows).flat_map(_untransformed(window))

        last = tf.int64.max if reading.repeat else max(first_epoch, 1)
        data = tf.data.Dataset.range(first_epoch, last).flat_map(_untransformed(epoch))
        if skipped:
            data = data.skip(skipped)
        left = max(blocks.records - reading.start, 0)
        left = tf.data.INFINITE_CARDINALITY if reading.repeat else left
        return data.apply(tf.data.experimental.assert_cardinality(left))

    def _block_reader(self, files: Sequence[RecordFile]) -> Callable[[Any], tf.data.Dataset]:
        """Returns a function from rows of a table of blocks, int64 [n, 4], to their records."""
        uris = tf.constant([file.uri for file in files])
        compression = files[0].compression
        remote = not storage.is_local(files[0].uri)

        def read(row: tf.Tensor) -> tf.data.Dataset:
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=tf.gather(uris, row[:1]),
                compression_type=compression,
                # Each read of a remote file is a request: one for each block.
                buffer_size=row[3] if remote else tf.constant(_READ_BUFFER_BYTES, tf.int64),
                byte_offsets=row[1:2],
            )
            return tf.data.experimental.from_variant(variant, _STRING).take(row[2])

        def read_all(rows: tf.Tensor) -> tf.data.Dataset:
            # With block_length, a block is delivered completely before the next one.
            return tf.data.Dataset.from_tensor_slices(rows).interleave(
                _untransformed(read),
                cycle_length=self.parallel_reads,
                block_length=self.blocks.largest,
                num_parallel_calls=self.parallel_reads,
                deterministic=self.reading.deterministic,
            )

        return read_all

    def dataset(self) -> tf.data.Dataset:
        """Returns the elements, in batches if so requested."""
        # One window is read while the window before it is decoded.
        data = self.records().prefetch(self.blocks.per_window * self.blocks.largest)
        auto, deterministic = tf.data.AUTOTUNE, self.reading.deterministic

        def batched(data: tf.data.Dataset) -> tf.data.Dataset:
            size = self.batching.batch_size
            return data.batch(size, self.drop_remainder) if size else data

        if self.elements.batched_first:
            parse = _untransformed(self.elements.batch)
            data = batched(data).map(parse, auto, deterministic=deterministic)
        else:
            parse = _untransformed(self.elements.element)
            data = data.enumerate(self.reading.start).map(parse, auto, deterministic=deterministic)
            data = batched(data)
        options = tf.data.Options()
        options.deterministic = deterministic
        return without_auto_sharding(data.prefetch(auto).with_options(options))

    def corrupt_record(self, error: tf.errors.DataLossError) -> CorruptRecord | None:
        """Returns the error with the file's name, of which TensorFlow reports only the offset."""
        match = re.search(r"record at (\d+)", str(error))
        if not match:
            return None
        for number in np.unique(self.blocks.table[:, 0]).tolist():
            file = self.files[number]
            row = int(np.searchsorted(file.index[:, 0], int(match[1]), side="right")) - 1
            problem = file.problem(row)
            if problem:
                return CorruptRecord(
                    f"{file.uri}: record at byte {file.index[row, 0]}: {problem} (to check the "
                    "whole data set, run imageshards verify)"
                )
        return None


def without_auto_sharding(data: tf.data.Dataset) -> tf.data.Dataset:
    """Keeps tf.distribute from sharding a data set that is the share of one host already."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.with_options(options)


class ImageDataset(tf.data.Dataset):  # type: ignore[misc]
    """A tf.data.Dataset that knows its length and can start at any record.

    Attributes:
      records: the records in an epoch of this host.
      least_records: the records in an epoch of the host that has the fewest; equal on all hosts.
      steps_per_epoch: with `repeat`, the complete batches in `least_records`, at least 1, so that
        all hosts take as many steps; otherwise the number of batches of this host.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._data = recipe.dataset()
        self.records = recipe.blocks.records
        self.least_records = recipe.least_records
        self.steps_per_epoch = recipe.steps_per_epoch
        super().__init__(tf.data.experimental.to_variant(self._data))

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._data]

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of the elements."""
        return self._data.element_spec

    def __iter__(self) -> Iterator[Any]:
        return _Iterator(self, self._recipe)

    def starting_at(self, records: int) -> ImageDataset:
        """Returns the same data set without its first records.

        Args:
          records: the number of records to skip, counted from the start of the first epoch.
        """
        reading = replace(self._recipe.reading, start=records)
        return ImageDataset(replace(self._recipe, reading=reading))

    def iterator(self) -> StatefulIterator:
        """Returns an iterator whose state can be saved and restored."""
        return StatefulIterator(self)


class _Iterator(OwnedIterator):  # type: ignore[misc]
    """TensorFlow's iterator, but outside of a tf.function its errors name the corrupt file.

    It is a subclass because Keras, tf.function and tf.train.Checkpoint require TensorFlow's class.
    """

    def __init__(self, data: tf.data.Dataset, recipe: Recipe) -> None:
        super().__init__(data)
        self._recipe = recipe

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except tf.errors.DataLossError as error:
            raise self._recipe.corrupt_record(error) or error from None


class StatefulIterator(tf.train.experimental.PythonState):  # type: ignore[misc]
    """An iterator that resumes at the next record after a restart.

    `state()` is a small JSON value. It counts the records that were delivered, not those that were
    read ahead. `tf.train.Checkpoint(iterator=...)` saves the same state.

    >>> from imageshards.reader import load
    >>> train = load("dataset", "train", batch_size=8, image_size=64)
    >>> iterator = train.iterator()
    >>> images, labels = next(iterator)
    >>> state = iterator.state()
    >>> state["records"]
    8
    >>> iterator = train.iterator()
    >>> iterator.restore(state)

    Attributes:
      records: the number of records delivered since the start of the first epoch.
    """

    def __init__(self, data: ImageDataset) -> None:
        self._recipe = data._recipe
        self.records = self._recipe.reading.start
        self._data = data
        self._iterator: Iterator[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next record, from 0."""
        return self.records // self._recipe.blocks.records

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> Any:
        """Returns the next element; see `load`.

        Raises:
          CorruptRecord: the CRC of a record is wrong. The message names the file and the offset.
        """
        if self._iterator is None:
            self._iterator = iter(self._data)
        element = next(self._iterator)
        batched = self._recipe.batching.batch_size
        self.records += int(tf.nest.flatten(element)[0].shape[0]) if batched else 1
        return element

    def state(self) -> dict[str, Any]:
        """Returns the position of the iterator, a dict that json.dumps accepts."""
        if not self._recipe.reading.deterministic:
            raise UsageError("with deterministic=False the iterator has no state")
        return {"records": self.records, "order": self._recipe.digest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Moves to the position of a state.

        Raises:
          UsageError: `state` is not a state, or it belongs to other files or to another split,
            seed, shuffling or host.
        """
        if not isinstance(state, Mapping) or not {"records", "order"} <= state.keys():
            raise UsageError(
                f"{reprlib.repr(state)} is not a state: pass the dict that state() returned"
            )
        if state.get("order") != self._recipe.digest:
            raise UsageError(
                "the state belongs to another order of records: use the files, split, seed, "
                "shuffle, num_hosts and host with which it was saved"
            )
        records = check_integer("records of the state", state["records"])
        self._data, self._iterator = self._data.starting_at(records), None
        self.records = records

    def serialize(self) -> str:
        """Returns the state for tf.train.Checkpoint."""
        return json.dumps(self.state())

    def deserialize(self, text: str) -> None:
        """Restores the state from tf.train.Checkpoint."""
        self.restore(json.loads(text))
