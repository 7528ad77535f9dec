"""The steps from record files to a tf.data pipeline that can start at any record.

    epochs -> windows -> blocks -> records -> shuffled windows -> parsed and decoded -> batches

The order of the records is a function of the seed and the epoch, and is computed in TensorFlow.
Starting after n records is therefore arithmetic; at most one window of records is read again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from imageshards.reader.files import RecordFile
from imageshards.reader.options import ReadOptions
from imageshards.reader.order import Blocks
from imageshards.reader.tensorflow.elements import Elements
from imageshards.transforms import storage
from imageshards.transforms.records.container import CorruptRecord

_READ_BUFFER_BYTES = 1 << 18
_STRING = tf.TensorSpec([], tf.string)
# The traced functions have no Python control flow, and AutoGraph takes a second to find that out.
_untransformed = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Recipe:
    """Describes a pipeline completely.

    Attributes:
      files: the record files to which the blocks refer.
      blocks: the blocks of this host.
      elements: converts a record to an element.
      options: the order and the batches of the records.
      least_records: the records in an epoch of the host that has the fewest.
    """

    files: Sequence[RecordFile]
    blocks: Blocks
    elements: Elements
    options: ReadOptions
    least_records: int

    @property
    def drop_remainder(self) -> bool:
        """Whether an incomplete last batch is dropped."""
        drop = self.options.drop_remainder
        return self.options.repeat if drop is None else drop

    @property
    def steps_per_epoch(self) -> int:
        """See `ImageDataset`."""
        size, records = self.options.batch_size or 1, self.blocks.records
        if self.options.repeat:
            return max(self.least_records // size, 1)
        return records // size if self.drop_remainder else -(-records // size)

    @cached_property
    def digest(self) -> str:
        """Identifies the files and the order of their records."""
        options = self.options
        return self.blocks.digest(self.files, shuffle=bool(options.shuffle), seed=options.seed)

    def permutation(self, epoch: int | tf.Tensor) -> tf.Tensor:
        """Returns the order of the blocks in an epoch: int64 [blocks]."""
        blocks = tf.range(len(self.blocks.table), dtype=tf.int64)
        if not self.options.shuffle:
            return blocks
        seed = tf.stack([tf.cast(self.options.seed, tf.int64), tf.cast(epoch, tf.int64)])
        # TensorFlow chooses the algorithm by the device unless it is set.
        return tf.random.experimental.stateless_shuffle(blocks, seed, alg="philox")

    def records(self) -> tf.data.Dataset:
        """Returns the serialized records, string []."""
        blocks, options = self.blocks, self.options
        first_epoch, skipped = divmod(options.start, blocks.records)
        first_window = 0
        if options.shuffle:
            first_window, skipped = blocks.seek(self.permutation(first_epoch).numpy(), skipped)
        # Column 0 becomes an index into the files of this host alone.
        numbers, used = np.unique(blocks.table[:, 0], return_inverse=True)
        table = np.column_stack([used, blocks.table[:, 1:]])
        if not self.files[0].container.tf_data:  # Python reads by number, not by offset
            table[:, 1] = [span.begin for span in blocks.spans]
        read_all = self._block_reader([self.files[number] for number in numbers.tolist()])

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            rows = tf.gather(table, self.permutation(number))
            if not options.shuffle:
                return read_all(rows)
            begin = tf.where(number == first_epoch, tf.constant(first_window, tf.int64), 0)

            def window(at: tf.Tensor) -> tf.data.Dataset:
                of_window = rows[at * blocks.per_window : (at + 1) * blocks.per_window]
                # Dataset.shuffle would also depend on the program's tf.random.set_seed.
                variant = tf.raw_ops.ShuffleDataset(
                    input_dataset=tf.data.experimental.to_variant(read_all(of_window)),
                    buffer_size=blocks.per_window * blocks.largest,
                    seed=tf.constant(options.seed, tf.int64),
                    seed2=number * blocks.windows + at + 1,
                    output_types=[tf.string],
                    output_shapes=[[]],
                    reshuffle_each_iteration=False,
                )
                return tf.data.experimental.from_variant(variant, _STRING)

            return tf.data.Dataset.range(begin, blocks.windows).flat_map(_untransformed(window))

        last = tf.int64.max if options.repeat else max(first_epoch, 1)
        data = tf.data.Dataset.range(first_epoch, last).flat_map(_untransformed(epoch))
        if skipped:
            data = data.skip(skipped)
        left = max(blocks.records - options.start, 0)
        left = tf.data.INFINITE_CARDINALITY if options.repeat else left
        return data.apply(tf.data.experimental.assert_cardinality(left))

    def _block_reader(self, files: Sequence[RecordFile]) -> Callable[[Any], tf.data.Dataset]:
        """Returns a function from rows of a table of blocks, int64 [n, 4], to their records."""
        uris = tf.constant([file.uri for file in files])
        compression = files[0].compression
        remote = not storage.is_local(files[0].uri)
        default_reads = 16 if remote else min(max(os.cpu_count() or 1, 2), 8)
        parallel_reads = self.options.parallel_reads or default_reads

        def block(at: int, begin: int, records: int) -> npt.NDArray[np.object_]:
            return np.array([*files[at].data(begin, begin + records)], dtype=object)

        def read_block(row: tf.Tensor) -> tf.data.Dataset:
            data = tf.numpy_function(block, [row[0], row[1], row[2]], tf.string, stateful=False)
            return tf.data.Dataset.from_tensor_slices(tf.ensure_shape(data, [None]))

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
                _untransformed(read if files[0].container.tf_data else read_block),
                cycle_length=parallel_reads,
                block_length=self.blocks.largest,
                num_parallel_calls=parallel_reads,
                deterministic=self.options.deterministic,
            )

        return read_all

    def dataset(self) -> tf.data.Dataset:
        """Returns the elements, in batches if `batch_size` is set."""
        # One window is read while the window before it is decoded.
        data = self.records().prefetch(self.blocks.per_window * self.blocks.largest)
        size, deterministic = self.options.batch_size, self.options.deterministic
        batched_first = self.elements.batched_first
        if size and batched_first:
            data = data.batch(size, self.drop_remainder)
        if not batched_first:
            data = data.enumerate(self.options.start)
        parse = self.elements.batch if batched_first else self.elements.element
        data = data.map(_untransformed(parse), tf.data.AUTOTUNE, deterministic=deterministic)
        if size and not batched_first:
            ragged = self.elements.keys is not None and self.elements.keys.are_ragged
            batch = data.ragged_batch if ragged else data.batch
            data = batch(size, self.drop_remainder)
        options = tf.data.Options()
        options.deterministic = deterministic
        return without_auto_sharding(data.prefetch(tf.data.AUTOTUNE).with_options(options))

    def corrupt_record(self, error: tf.errors.DataLossError) -> CorruptRecord | None:
        """Returns the error with the name of the file; TensorFlow reports only the offset."""
        match = re.search(r"record at (\d+)", str(error))
        if not match:
            return None
        for number in np.unique(self.blocks.table[:, 0]).tolist():
            file = self.files[number]
            row = int(np.searchsorted(file.index[:, 0], int(match[1]), side="right")) - 1
            try:
                next(file.data(row, row + 1))
            except CorruptRecord as problem:
                return CorruptRecord(
                    f"{problem} (to check the whole data set, run imageshards verify)"
                )
        return None


def without_auto_sharding(data: tf.data.Dataset) -> tf.data.Dataset:
    """Keeps tf.distribute from sharding a data set that already is the share of one host."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.with_options(options)
