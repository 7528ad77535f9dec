"""Builds the tf.data pipeline of `load`: steps -> records -> parsed and decoded -> batches.

The order of the records is computed by `reader.ordering`, and the records are read without
TensorFlow. Starting at any step is therefore arithmetic.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from imageshards.reader.files import RecordFile
from imageshards.reader.options import ReadOptions
from imageshards.reader.ordering.global_order import Order
from imageshards.reader.ordering.host_records import HostRecords
from imageshards.reader.splits import Span
from imageshards.reader.tensorflow.elements import Elements
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records.container import CorruptRecord

_RECORDS_PER_CALL = 64
_REMOTE_READS = 16
_CALLS = 2
"""Calls at a time that wait for remote files, of which the reads run ahead."""
# The traced functions have no Python control flow, and AutoGraph takes a second to find that out.
_untransformed = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Recipe:
    """Describes a pipeline completely.

    Attributes:
      files: the record files to which the spans refer.
      spans: the records of the order, of all hosts.
      order: the global batches.
      elements: converts a record to an element.
      options: the host, the batches and the start.
    """

    files: Sequence[RecordFile]
    spans: Sequence[Span]
    order: Order
    elements: Elements
    options: ReadOptions

    @property
    def host_batch(self) -> int:
        """The number of records of this host in a global batch."""
        return self.options.batch_size or 1

    @property
    def first_step(self) -> int:
        """The number of steps that are skipped.

        Raises:
          UsageError: `start` is within a batch.
        """
        step, rest = divmod(self.options.start, self.host_batch)
        if rest:
            raise UsageError(
                f"start {self.options.start} is within a batch: use a multiple of {self.host_batch}"
            )
        return step

    def records_of(self, host: int) -> int:
        """Returns the number of different records that a host reads in an epoch."""
        order, mine = self.order, self.host_batch
        records = order.full_steps * mine
        if order.remainder != "drop":
            left = order.records - order.full_steps * order.global_batch
            records += min(max(left - host * mine, 0), mine)
        return records

    @property
    def records(self) -> int:
        """See `ImageDataset`."""
        return self.records_of(self.options.host)

    @property
    def least_records(self) -> int:
        """See `ImageDataset`."""
        return self.records_of(self.options.num_hosts - 1)

    @property
    def steps_per_epoch(self) -> int:
        """See `ImageDataset`."""
        return self.order.steps if self.options.repeat else self._reader.steps

    @cached_property
    def _reader(self) -> HostRecords:
        options = self.options
        return HostRecords(
            self.files, self.spans, self.order, options.host, options.num_hosts,
            self._parallel_reads, options.repeat,
        )  # fmt: skip

    @cached_property
    def _errors(self) -> list[BuildError | CorruptRecord]:
        """Errors of reading, which TensorFlow would turn into tracebacks."""
        return []

    @property
    def _remote(self) -> bool:
        return not storage.is_local(self.files[self.spans[0].file].uri)

    @property
    def _parallel_reads(self) -> int:
        default_reads = _REMOTE_READS if self._remote else min(max(os.cpu_count() or 1, 2), 8)
        return self.options.parallel_reads or default_reads

    def _steps(self, steps_per_call: int) -> tf.data.Dataset:
        """Returns (samples, serialized records), int64 [n] and string [n], for several steps."""
        options, first = self.options, self.first_step
        end = tf.int64.max - steps_per_call if options.repeat else max(self.steps_per_epoch, first)
        full = options.repeat or self.order.remainder == "drop"
        size = self.host_batch * steps_per_call if full and steps_per_call == 1 else None

        def read(step: np.int64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.object_]]:
            last = min(int(step) + steps_per_call, int(end))
            try:
                samples, records = self._reader.read(int(step), last)
            except (BuildError, CorruptRecord) as error:
                self._errors.append(error)
                raise
            return samples, np.array(records, object)

        def of_step(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            samples, records = tf.numpy_function(read, [step], (tf.int64, tf.string), False)
            return tf.ensure_shape(samples, [size]), tf.ensure_shape(records, [size])

        return tf.data.Dataset.range(first, end, steps_per_call).map(
            _untransformed(of_step),
            num_parallel_calls=_CALLS if self._remote else self._parallel_reads,
            deterministic=options.deterministic,
        )

    def dataset(self) -> tf.data.Dataset:
        """Returns the elements, in batches if `batch_size` is set."""
        options, elements = self.options, self.elements
        in_batches = bool(options.batch_size and elements.batched_first)
        data = self._steps(1 if in_batches else max(1, _RECORDS_PER_CALL // self.host_batch))
        if not in_batches:
            data = data.unbatch()
            left = max(self.records - options.start, 0)
            left = tf.data.INFINITE_CARDINALITY if options.repeat else left
            data = data.apply(tf.data.experimental.assert_cardinality(left))

        def element(sample: tf.Tensor, serialized: tf.Tensor) -> Any:
            if elements.batched_first:
                return elements.batch(serialized)
            return elements.element(sample, serialized)

        data = data.map(
            _untransformed(element), tf.data.AUTOTUNE, deterministic=options.deterministic
        )
        if options.batch_size and not in_batches:
            ragged = elements.keys is not None and elements.keys.are_ragged
            batch = data.ragged_batch if ragged else data.batch
            data = batch(options.batch_size, self.order.remainder != "keep")
        tf_options = tf.data.Options()
        tf_options.deterministic = options.deterministic
        return without_auto_sharding(data.prefetch(tf.data.AUTOTUNE).with_options(tf_options))

    def error_of_reading(self) -> BuildError | CorruptRecord | None:
        """Returns the error that has stopped the pipeline; None if it is one of TensorFlow."""
        return self._errors[0] if self._errors else None


def without_auto_sharding(data: tf.data.Dataset) -> tf.data.Dataset:
    """Keeps tf.distribute from sharding a data set that already is the share of one host."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.with_options(options)
