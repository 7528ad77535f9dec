"""The batches of a host, as a data set of Grain whose state fits any number of hosts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import grain
import numpy as np
from absl import flags

from imageshards.reader.elements.arrays import Allocate, ArrayElements, empty, spec_of
from imageshards.reader.options import ReadOptions
from imageshards.reader.ordering.global_order import NO_RECORD, Order, host_slots
from imageshards.reader.random_access import Records


@dataclass(frozen=True)
class BatchSource:
    """A data source of Grain: item i is this host's part of a global batch.

    Attributes:
      records: the records of the split.
      elements: converts a record to an element.
      order: which records are in a global batch.
      options: the batch size, the host, and whether epochs repeat.
      start: the number of global batches before item 0.
      assembled: False for items that are lists of elements; `assemble` makes them batches.
    """

    records: Records
    elements: ArrayElements
    order: Order
    options: ReadOptions
    start: int = 0
    assembled: bool = True

    def __repr__(self) -> str:
        # Grain logs it, and compares it where it checkpoints a data source.
        return f"BatchSource({self.records!r}, {self.order.state(self.start)})"

    def __len__(self) -> int:
        options, order = self.options, self.order
        steps = sys.maxsize if options.repeat else order.steps
        if not options.repeat and not options.batch_size and order.steps > order.full_steps:
            # The last step has a record for some of the hosts.
            steps -= options.host >= order.records % options.num_hosts
        return max(steps - self.start, 0)

    def __getitem__(self, index: int) -> Any:
        """Returns a batch, or one element if there is no batch size."""
        step, options, order = self.start + index, self.options, self.order
        numbers = order.part(step, options.host, options.num_hosts)
        first, _ = host_slots(order.global_batch, options.host, options.num_hosts)
        samples = step * order.global_batch + first + np.arange(len(numbers))
        # A random batch has records of most files: one by one, their indexes would delay it.
        self.records.read_indexes(numbers[numbers != NO_RECORD])
        made = [
            self._element(sample, number)
            for sample, number in zip(samples.tolist(), numbers.tolist(), strict=True)
            if number != NO_RECORD
        ]
        return self.assemble(made) if self.assembled else made

    def assemble(self, elements: list[Any], allocate: Allocate = np.empty) -> Any:
        """Returns a batch of elements, or one element if there is no batch size.

        Args:
          elements: the elements of an item.
          allocate: creates the array of the images.
        """
        if not elements:  # an incomplete batch that ends before the part of this host
            return empty(self.elements.batch([self._element(0, 0)]))
        if self.options.batch_size:
            return self.elements.batch(elements, allocate)
        return self.elements.single(elements[0])

    def assemble_shared(self, elements: list[Any]) -> Any:
        """Returns a batch for another process, with images in memory that the processes share."""
        return self.assemble(elements, grain.multiprocessing.SharedMemoryArray)

    @cached_property
    def _schema(self) -> Any:
        return self.elements.parsed

    def _element(self, sample: int, number: int) -> Any:
        return self.records.made(
            number, self._schema, lambda values: self.elements.element(sample, values)
        )


class Batches(grain.IterDataset[Any]):  # type: ignore[misc]
    """Batches of one host; made by `reader.grain`.

    Attributes:
      records: the records in an epoch of all hosts together.
      steps_per_epoch: the number of batches in an epoch; equal on all hosts.
      dropped: the number of records that an epoch of all hosts omits, other ones in each epoch.
      padded: the number of records that an epoch of all hosts repeats, to complete its last batch.
      class_names: names in label order; empty if unknown.
      num_classes: the number of class names.
    """

    def __init__(self, source: BatchSource, workers: int, threads: int) -> None:
        super().__init__()
        self.records = source.order.records
        self.steps_per_epoch = source.order.steps
        self.dropped = source.order.dropped
        self.padded = source.order.padded
        self.class_names = list(source.records.classes)
        self.num_classes = len(self.class_names)
        self._source = source
        self._workers = workers
        self._threads = threads

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self)

    def __str__(self) -> str:
        return f"Batches({self._source!r})"

    @cached_property
    def element_spec(self) -> Any:
        """The shapes and dtypes of the first element: an element of `ArraySpec`."""
        return spec_of(self._source[0])

    def starting_at(self, step: int) -> grain.IterDataset[Any]:
        """Returns the batches from a step on, as Grain's own data set, whose state starts at 0."""
        options = grain.ReadOptions(
            num_threads=self._threads, prefetch_buffer_size=max(self._threads, 2)
        )
        source = replace(self._source, start=step, assembled=not self._workers)
        data = grain.MapDataset.source(source).to_iter_dataset(options)
        if self._workers:
            # Batches in other memory would be copied into shared memory. Threads make only elements
            # ahead: when a process ends, shared memory is deleted only if it has been delivered.
            data = data.map(source.assemble_shared)
            # Grain reads flags of its own, which only programs started by absl's app.run parse.
            if not flags.FLAGS.is_parsed():
                flags.FLAGS.mark_as_parsed()
            data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=self._workers))
        return data


class BatchIterator(grain.DatasetIterator[Any]):  # type: ignore[misc]
    """An iterator whose state is a step: the number of global batches that were delivered.

    The state does not depend on the host, the number of hosts, processes or threads.
    """

    def __init__(self, data: Batches) -> None:
        super().__init__()
        self._data = data
        self._order = data._source.order
        self._inner: grain.DatasetIterator[Any] | None = None
        self.step = 0

    def __next__(self) -> Any:
        """Returns the next batch. After an error, another call reads the same records again.

        Raises:
          CorruptRecord: a record or an image is damaged, or it cannot be read. The message names
            the file and the offset.
        """
        if self._inner is None:
            self.start_prefetch()
        try:
            batch = next(self._inner)  # type: ignore[arg-type]
        except StopIteration:
            raise
        except Exception:
            self.close()
            raise
        self.step += 1
        return batch

    def start_prefetch(self) -> None:
        """Starts to read ahead."""
        if self._inner is None:
            self._inner = iter(self._data.starting_at(self.step))
            self._inner.start_prefetch()

    def get_state(self) -> dict[str, Any]:
        """Returns the position, a dict of less than 200 bytes that json.dumps accepts."""
        return self._order.state(self.step)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Moves to the position of a state, which any number of hosts may have saved.

        Raises:
          UsageError: it is not a state, or it belongs to another order of records.
        """
        step = self._order.step_of(state)
        self.close()
        self.step = step

    def close(self) -> None:
        """Ends the threads and processes that read ahead."""
        if self._inner is not None:
            self._inner.close()
            self._inner = None
