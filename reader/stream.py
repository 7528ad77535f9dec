"""Records as a tf.data pipeline whose place is a number. The one module that imports TensorFlow.

    epochs -> windows -> blocks -> records -> shuffled in windows -> parsed, decoded -> batches

Everything before the decoding is a function of (seed, epoch) and runs inside TensorFlow; to go on
behind n records is arithmetic, and reads again at most one window of records.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from imageshards.reader.files import RecordFile
from imageshards.reader.order import Blocks, whole
from imageshards.reader.parse import decode, decode_image_tensor, parse_spec, with_channels
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.schemas import Schema

_READ_BUFFER_BYTES = 1 << 18
_STRING = tf.TensorSpec([], tf.string)
_RATIOS = (1, 2, 4)
"""By which the JPEG decoder shrinks; by 8 it could too, but windows would be off by 7 pixels."""
# There is no Python control flow in what is traced, and looking for it takes a second.
_as_is = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Elements:
    """What is made of a record; the arguments of `load` of the same names.

    Attributes:
      schema: of the records; of others' files, of what is read of them.
    """

    schema: Schema
    features: Mapping[str, Any] | None
    image_size: tuple[int, int] | None
    dtype: str
    channels: int
    crop_fraction: float
    augment: bool
    decode: bool
    seed: int

    @property
    def whole_batches(self) -> bool:
        """Whether a batch is parsed at once, since nothing in it has a size of its own."""
        content = self.schema.content
        if self.features is not None or not self.decode or content is None:
            return True
        shape = content.array.shape if content.array else None
        fits = self.image_size in (None, shape[:2] if shape else None) and self.crop_fraction == 1
        return self.schema.holds == "text" or bool(shape and fits and not self.augment)

    def spec(self) -> dict[str, Any]:
        """What is parsed."""
        if self.features is not None:
            return dict(self.features)
        schema = self.schema
        wanted = {schema.key_of(source) for source in (schema.holds, "label", "shape")}
        return {key: value for key, value in parse_spec(schema).items() if key in wanted}

    def batch(self, serialized: tf.Tensor) -> Any:
        """A batch of records, or one, in which no image has a size of its own."""
        parse = tf.io.parse_example if serialized.shape.rank else tf.io.parse_single_example
        parsed = parse(serialized, self.spec())
        if self.features is not None:
            return parsed
        if self.decode and self.schema.holds == "pixels":
            content = self._pixels(parsed)
            return self._arrange(parsed, self._numbers(content, content.dtype))
        return self._arrange(parsed, self._content(parsed))

    def element(self, place: tf.Tensor, serialized: tf.Tensor) -> Any:
        """One record with its image; `place` is how many came before."""
        parsed = tf.io.parse_single_example(serialized, self.spec())
        holds_pixels = self.schema.holds == "pixels"
        data = self._pixels(parsed) if holds_pixels else self._content(parsed)
        if self.image_size is not None:
            image = self._resized(data, place)
        elif data.dtype == tf.string:
            image = decode_image_tensor(data, self.channels)
        else:
            image = data
        dtype = tf.uint8 if data.dtype == tf.string else data.dtype
        return self._arrange(parsed, self._numbers(image, dtype))

    def _content(self, parsed: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return parsed[self.schema.key_of(self.schema.holds) or ""]

    def _pixels(self, parsed: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return with_channels(self._content(decode(parsed, self.schema)), self.channels)

    def _arrange(self, parsed: Mapping[str, tf.Tensor], content: tf.Tensor) -> Any:
        if not self.schema.label_key:
            return content
        return content, tf.cast(parsed[self.schema.label_key], tf.int32)

    def _numbers(self, image: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """An image as it was asked for; `dtype` is that of the record, which tells its range."""
        wanted = tf.dtypes.as_dtype(self.dtype)
        if dtype != tf.uint8:
            return tf.cast(image, wanted)
        if wanted == tf.uint8:
            return image if image.dtype == tf.uint8 else tf.cast(tf.round(image), tf.uint8)
        return tf.cast(tf.cast(image, tf.float32) / 255.0, wanted)

    def _resized(self, data: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
        assert self.image_size is not None
        image = tf.image.resize(self._cropped(data, place), self.image_size)
        image = tf.ensure_shape(image, [*self.image_size, self.channels])
        if self.augment:
            image = tf.image.stateless_random_flip_left_right(image, self._seed(place, 1))
        return image

    def _seed(self, place: tf.Tensor, use: int) -> tf.Tensor:
        # A function of the record's place in the run: the same after a restart, another each epoch.
        return tf.stack([tf.cast(2 * self.seed + use, tf.int64), place])

    def _cropped(self, data: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
        def jpeg() -> tf.Tensor:
            # Rows and columns outside are not made to colours, and of what is to shrink to a
            # quarter or less, the decoder itself makes half of the sides, or a quarter.
            window = self._window(tf.io.extract_jpeg_shape(data), place)

            def at(ratio: int) -> Callable[[], tf.Tensor]:
                return lambda: tf.io.decode_and_crop_jpeg(
                    data, window // ratio, channels=self.channels, ratio=ratio
                )

            least = 2 * tf.constant(self.image_size)
            enough = [tf.reduce_all(window[2:] // ratio >= least) for ratio in _RATIOS[1:]]
            return tf.switch_case(
                tf.reduce_sum(tf.cast(enough, tf.int32)), [at(ratio) for ratio in _RATIOS]
            )

        def other(image: tf.Tensor) -> tf.Tensor:
            top, left, height, width = tf.unstack(self._window(tf.shape(image), place))
            return image[top : top + height, left : left + width]

        if data.dtype != tf.string:
            return other(data)
        image = tf.cond(
            tf.io.is_jpeg(data), jpeg, lambda: other(decode_image_tensor(data, self.channels))
        )
        return tf.ensure_shape(image, [None, None, self.channels])

    def _window(self, shape: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
        """(top, left, height, width) of what is cut out of an image."""
        if self.augment:
            begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
                tf.stack([shape[0], shape[1], 3]),
                tf.zeros([1, 0, 4]),
                self._seed(place, 0),
                min_object_covered=0.0,
                aspect_ratio_range=(3 / 4, 4 / 3),
                area_range=(0.08, 1.0),
                max_attempts=10,
                use_image_if_no_bounding_boxes=True,
            )
            return tf.concat([begin[:2], size[:2]], 0)
        assert self.image_size is not None
        height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
        scale = self.crop_fraction * tf.minimum(
            height / self.image_size[0], width / self.image_size[1]
        )
        rows = tf.clip_by_value(
            tf.cast(tf.round(scale * self.image_size[0]), tf.int32), 1, shape[0]
        )
        columns = tf.clip_by_value(
            tf.cast(tf.round(scale * self.image_size[1]), tf.int32), 1, shape[1]
        )
        return tf.stack([(shape[0] - rows) // 2, (shape[1] - columns) // 2, rows, columns])


@dataclass(frozen=True)
class Recipe:
    """All that makes a pipeline; the arguments of `load` of the same names.

    Attributes:
      files: the TFRecord files that the blocks are of.
      blocks: of this host.
      elements: what is made of a record.
      least: records an epoch of the host that has the fewest.
    """

    files: Sequence[RecordFile]
    blocks: Blocks
    elements: Elements
    batch_size: int | None
    shuffle: bool
    seed: int
    repeat: bool
    drop_remainder: bool
    deterministic: bool
    parallel_reads: int
    least: int

    @property
    def steps_per_epoch(self) -> int:
        """As `ImageDataset` says it."""
        size = self.batch_size or 1
        if self.repeat:
            return max(self.least // size, 1)
        return (
            self.blocks.records // size if self.drop_remainder else -(-self.blocks.records // size)
        )

    @cached_property
    def digest(self) -> str:
        """Of the order of the records."""
        return self.blocks.digest(self.files, shuffle=self.shuffle, seed=self.seed)

    def permutation(self, epoch: int | tf.Tensor) -> tf.Tensor:
        """The order of the blocks in an epoch: int64 [blocks]."""
        blocks = tf.range(len(self.blocks.table), dtype=tf.int64)
        if not self.shuffle:
            return blocks
        seed = tf.stack([tf.cast(self.seed, tf.int64), tf.cast(epoch, tf.int64)])
        # The generator is named, or its choice would depend on the device.
        return tf.random.experimental.stateless_shuffle(blocks, seed, alg="philox")

    def records(self, start: int) -> tf.data.Dataset:
        """Serialized records from a place on."""
        blocks = self.blocks
        first_epoch, record = divmod(start, blocks.records)
        first_window, skipped = 0, record
        if self.shuffle:
            first_window, skipped = blocks.seek(self.permutation(first_epoch).numpy(), record)
        used, places = tf.unique(blocks.table[:, 0])
        uris = tf.constant([self.files[int(place)].uri for place in used.numpy()])
        compression = next(iter({self.files[int(place)].compression for place in used.numpy()}))
        table = tf.concat([tf.cast(places, tf.int64)[:, None], blocks.table[:, 1:]], 1)

        remote = not storage.is_local(uris[0].numpy().decode())

        def read(row: tf.Tensor) -> tf.data.Dataset:
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=tf.gather(uris, row[:1]),
                compression_type=compression,
                # Elsewhere than on a disk, a read of a buffer is a request: one for each block.
                buffer_size=row[3] if remote else tf.constant(_READ_BUFFER_BYTES, tf.int64),
                byte_offsets=row[1:2],
            )
            return tf.data.experimental.from_variant(variant, _STRING).take(row[2])

        def read_all(rows: tf.Tensor) -> tf.data.Dataset:
            # A block comes out whole before the next: the order is that of the rows.
            return tf.data.Dataset.from_tensor_slices(rows).interleave(
                _as_is(read),
                cycle_length=self.parallel_reads,
                block_length=blocks.largest,
                num_parallel_calls=self.parallel_reads,
                deterministic=self.deterministic,
            )

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            rows = tf.gather(table, self.permutation(number))
            if not self.shuffle:
                return read_all(rows)
            begin = tf.where(number == first_epoch, tf.constant(first_window, tf.int64), 0)

            def window(at: tf.Tensor) -> tf.data.Dataset:
                mine = rows[at * blocks.per_window : (at + 1) * blocks.per_window]
                # Not Dataset.shuffle: the seed that a program sets for all of TensorFlow would
                # change the order.
                variant = tf.raw_ops.ShuffleDataset(
                    input_dataset=tf.data.experimental.to_variant(read_all(mine)),
                    buffer_size=blocks.per_window * blocks.largest,
                    seed=tf.constant(self.seed, tf.int64),
                    seed2=number * blocks.windows + at + 1,
                    output_types=[tf.string],
                    output_shapes=[[]],
                    reshuffle_each_iteration=False,
                )
                return tf.data.experimental.from_variant(variant, _STRING)

            return tf.data.Dataset.range(begin, blocks.windows).flat_map(_as_is(window))

        last = tf.int64.max if self.repeat else max(first_epoch, 1)
        data = tf.data.Dataset.range(first_epoch, last).flat_map(_as_is(epoch))
        if skipped:
            data = data.skip(skipped)
        left = tf.data.INFINITE_CARDINALITY if self.repeat else max(blocks.records - start, 0)
        return data.apply(tf.data.experimental.assert_cardinality(left))

    def dataset(self, start: int) -> tf.data.Dataset:
        """Elements from a place on."""
        data = self.records(start)
        # A window is read while the one before it is decoded.
        data = data.prefetch(self.blocks.per_window * self.blocks.largest)
        auto = tf.data.AUTOTUNE
        if self.elements.whole_batches:
            if self.batch_size:
                data = data.batch(self.batch_size, self.drop_remainder)
            data = data.map(_as_is(self.elements.batch), auto, deterministic=self.deterministic)
        else:
            data = data.enumerate(start).map(
                _as_is(self.elements.element), auto, deterministic=self.deterministic
            )
            if self.batch_size:
                data = data.batch(self.batch_size, self.drop_remainder)
        options = tf.data.Options()
        options.deterministic = self.deterministic
        # Hosts have their shares already.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return data.prefetch(auto).with_options(options)

    def culprit(self, error: tf.errors.DataLossError) -> CorruptRecord | None:
        """The file and the record of which TensorFlow tells the offset alone."""
        match = re.search(r"record at (\d+)", str(error))
        if not match:
            return None
        for place in sorted(set(self.blocks.table[:, 0].tolist())):
            file = self.files[place]
            row = int(np.searchsorted(file.index[:, 0], int(match[1]), side="right")) - 1
            problem = file.problem(row)
            if problem:
                return CorruptRecord(
                    f"{file.uri}: record at byte {file.index[row, 0]}: {problem} (imageshards "
                    "verify tells all that is wrong with a data set)"
                )
        return None


class ImageDataset(tf.data.Dataset):  # type: ignore[misc]
    """A tf.data.Dataset that knows how long it is, and can begin anywhere.

    Attributes:
      records: of this host, in an epoch.
      least_records: of the host that has the fewest, which all hosts know.
      steps_per_epoch: with `repeat`, the whole batches of the host that has the fewest records, so
        that all hosts take as many steps, and 1 at least; else all batches of this host.
    """

    def __init__(self, recipe: Recipe, start: int = 0) -> None:
        if start and not recipe.deterministic:
            raise UsageError(
                f"start {start}: with deterministic=False the order is not known, and begins at 0"
            )
        self._recipe = recipe
        self._start = start
        self._data = recipe.dataset(start)
        self.records = recipe.blocks.records
        self.least_records = recipe.least
        self.steps_per_epoch = recipe.steps_per_epoch
        super().__init__(tf.data.experimental.to_variant(self._data))

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._data]

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of the elements."""
        return self._data.element_spec

    def __iter__(self) -> Iterator[Any]:
        """TensorFlow's own iterator; outside of a tf.function it names the file of a bad record."""
        iterator: Any = super().__iter__()
        base: Any = type(iterator)
        iterator.__class__ = _naming(base)
        iterator.recipe = self._recipe
        return iterator  # type: ignore[no-any-return]

    def starting_at(self, records: int) -> ImageDataset:
        """The same behind so many delivered records, counted from the beginning of the run."""
        return ImageDataset(self._recipe, whole("start", records))

    def iterator(self) -> StatefulIterator:
        """An iterator that knows how far it is."""
        return StatefulIterator(self._recipe, self._start, self)


@cache
def _naming(base: Any) -> type:
    """A class of iterators whose errors are those of `Recipe.culprit`."""

    class NamingIterator(base):  # type: ignore[misc]
        recipe: Recipe

        def __next__(self) -> Any:
            try:
                return super().__next__()
            except tf.errors.DataLossError as error:
                raise self.recipe.culprit(error) or error from None

    return NamingIterator


class StatefulIterator(tf.train.experimental.PythonState):  # type: ignore[misc]
    """Iterates, and goes on at the very record after a restart.

    `state()` is a small JSON value that counts the records which were delivered, not those which
    were read ahead. `tf.train.Checkpoint(iterator=...)` saves the same.

    Attributes:
      records: delivered since the beginning of the run.
    """

    def __init__(self, recipe: Recipe, start: int, data: ImageDataset) -> None:
        self._recipe = recipe
        self.records = start
        self._data = data
        self._iterator: Iterator[Any] | None = None

    @property
    def epoch(self) -> int:
        """Of the next record, from 0."""
        return self.records // self._recipe.blocks.records

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> Any:
        """The next element, as `load` describes it.

        Raises:
          CorruptRecord: a record whose CRC is wrong; says where.
        """
        if self._iterator is None:
            self._iterator = iter(self._data)
        element = next(self._iterator)
        self.records += int(tf.nest.flatten(element)[0].shape[0]) if self._recipe.batch_size else 1
        return element

    def state(self) -> dict[str, Any]:
        """Where it is: JSON."""
        if not self._recipe.deterministic:
            raise UsageError("deterministic=False: the order is not known, and has no state")
        return {"records": self.records, "order": self._recipe.digest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes to where a state was taken.

        Raises:
          UsageError: it is of other files, another split, seed, shuffling or host, or no state.
        """
        if not isinstance(state, Mapping) or not {"records", "order"} <= state.keys():
            raise UsageError(
                f"{reprlib.repr(state)} is no state: give the dict that state() returned"
            )
        if state.get("order") != self._recipe.digest:
            raise UsageError(
                "the state is of another order: the files, split, seed, shuffle, num_hosts and "
                "host must be those with which it was saved"
            )
        records = whole("records of the state", state["records"])
        self._data, self._iterator = ImageDataset(self._recipe, records), None
        self.records = records

    def serialize(self) -> str:
        """For tf.train.Checkpoint."""
        return json.dumps(self.state())

    def deserialize(self, text: str) -> None:
        """For tf.train.Checkpoint."""
        self.restore(json.loads(text))
