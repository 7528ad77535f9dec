"""Builds the tf.data pipeline of `load`: steps -> records -> parsed and decoded -> batches.

The order of the records is computed by `reader.ordering`, and the records are read without
TensorFlow. Starting at any step is therefore arithmetic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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

_BYTES_PER_CALL = 3 << 19
_RECORDS_PER_CALL = 256
"""Few bytes are read at a time, so that the memory of the last ones is used again. To get new
memory for a record of 110 kB from the system takes 70 us, which is more than to read it."""
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
    def _errors(self) -> list[BuildError | CorruptRecord | UsageError]:
        """Errors of reading, which TensorFlow would turn into tracebacks."""
        return []

    @property
    def _remote(self) -> bool:
        return not storage.is_local(self.files[self.spans[0].file].uri)

    @property
    def _parallel_reads(self) -> int:
        default_reads = _REMOTE_READS if self._remote else min(max(os.cpu_count() or 1, 2), 8)
        return self.options.parallel_reads or default_reads

    @property
    def _records_per_call(self) -> int:
        span = self.spans[0]
        mean = float(self.files[span.file].index.sizes[span.begin : span.end].mean())
        return min(max(int(_BYTES_PER_CALL / mean), 1), _RECORDS_PER_CALL)

    def _read(
        self, per_call: int, convert: Callable[[tf.Tensor], Any] | None = None
    ) -> tf.data.Dataset:
        """Returns the records in parts of up to `per_call`.

        Args:
          per_call: the number of records that are read at once.
          convert: a function of serialized records, string [n]. Default: None, the elements are
            (samples, serialized records), int64 [n] and string [n].
        """
        options, first = self.options, self.first_step * self.host_batch
        end = int(tf.int64.max) - per_call if options.repeat else max(self.records, first)
        size = per_call if options.repeat or not (end - first) % per_call else None

        def read(begin: np.int64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.object_]]:
            try:
                samples, records = self._reader.part(int(begin), min(int(begin) + per_call, end))
            except (BuildError, CorruptRecord, UsageError) as error:
                self._errors.append(error)
                raise
            return samples, np.array(records, object)

        def of_call(begin: tf.Tensor) -> Any:
            samples, records = tf.numpy_function(read, [begin], (tf.int64, tf.string), False)
            samples, records = tf.ensure_shape(samples, [size]), tf.ensure_shape(records, [size])
            return convert(records) if convert else (samples, records)

        return tf.data.Dataset.range(first, end, per_call).map(
            _untransformed(of_call),
            num_parallel_calls=_CALLS if self._remote else self._parallel_reads,
            deterministic=options.deterministic,
        )

    def _records(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the single records of parts."""
        left = max(self.records - self.options.start, 0)
        left = tf.data.INFINITE_CARDINALITY if self.options.repeat else left
        return data.unbatch().apply(tf.data.experimental.assert_cardinality(left))

    def _batched(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Returns single elements in batches if `batch_size` is set."""
        if not self.options.batch_size:
            return data
        ragged = self.elements.keys is not None and self.elements.keys.are_ragged
        batch = data.ragged_batch if ragged else data.batch
        return batch(self.options.batch_size, self.order.remainder != "keep")

    def _elements(self) -> tf.data.Dataset:
        options, elements = self.options, self.elements
        if elements.batched_first:
            data = self._read(self._records_per_call, elements.batch)
            if _is_dense(data.element_spec):
                return self._batched(self._records(data))
            if options.batch_size:
                return self._read(self.host_batch, elements.batch)

        def element(sample: tf.Tensor, serialized: tf.Tensor) -> Any:
            if elements.batched_first:
                return elements.batch(serialized)
            return elements.element(sample, serialized)

        data = self._records(self._read(self._records_per_call)).map(
            _untransformed(element), tf.data.AUTOTUNE, deterministic=options.deterministic
        )
        return self._batched(data)

    def dataset(self) -> tf.data.Dataset:
        """Returns the elements, in batches if `batch_size` is set."""
        tf_options = tf.data.Options()
        tf_options.deterministic = self.options.deterministic
        data = self._elements().prefetch(tf.data.AUTOTUNE)
        return without_auto_sharding(data.with_options(tf_options))

    def error_of_reading(self) -> BuildError | CorruptRecord | UsageError | None:
        """Returns the error that has stopped an iterator; None if it is one of TensorFlow."""
        return self._errors.pop(0) if self._errors else None

    def forget_errors(self) -> None:
        """Forgets the errors that other iterators have not delivered."""
        self._errors.clear()


def _is_dense(spec: Any) -> bool:
    """Returns whether parts of a batch can be put together: their tensors have static shapes."""
    return all(
        isinstance(one, tf.TensorSpec) and one.shape[1:].is_fully_defined()
        for one in tf.nest.flatten(spec)
    )


def without_auto_sharding(data: tf.data.Dataset) -> tf.data.Dataset:
    """Keeps tf.distribute from sharding a data set that already is the share of one host."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.with_options(options)
