"""The data set that `load` returns, and its iterators."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from imageshards.reader.tensorflow.recipe import Recipe
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records.container import CorruptRecord


class ImageDataset(tf.data.Dataset):  # type: ignore[misc]
    """A tf.data.Dataset that knows its length and can start at any record.

    Attributes:
      records: the records in an epoch of this host.
      least_records: the records in an epoch of the host that has the fewest; equal on all hosts.
      steps_per_epoch: the number of batches of this host; with `repeat`, it is equal on all hosts.
      dropped: the number of records that an epoch of all hosts omits, other ones in each epoch.
      padded: the number of records that an epoch of all hosts repeats, to complete its last batch.
      class_names: names in label order; empty if unknown.
      num_classes: the number of class names: labels are below it.
    """

    def __init__(self, recipe: Recipe, class_names: Sequence[str] = ()) -> None:
        self._recipe = recipe
        self.class_names = list(class_names)
        self.num_classes = len(self.class_names)
        self._data = recipe.dataset()
        self.records = recipe.records
        self.least_records = recipe.least_records
        self.steps_per_epoch = recipe.steps_per_epoch
        self.dropped = recipe.order.dropped
        self.padded = recipe.order.padded
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
          records: the number of records of this host to skip, counted from the start of the first
            epoch; a multiple of `batch_size`.
        """
        options = replace(self._recipe.options, start=records)
        return ImageDataset(replace(self._recipe, options=options), self.class_names)

    def iterator(self) -> StatefulIterator:
        """Returns an iterator whose state can be saved and restored."""
        return StatefulIterator(self)


class _Iterator(OwnedIterator):  # type: ignore[misc]
    """TensorFlow's iterator; outside of a tf.function, its errors name the corrupt file.

    It is a subclass because Keras, tf.function and tf.train.Checkpoint require TensorFlow's class.
    """

    def __init__(self, data: tf.data.Dataset, recipe: Recipe) -> None:
        recipe.forget_errors()
        super().__init__(data)
        self._recipe = recipe

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except tf.errors.OpError as error:
            raise self._recipe.error_of_reading() or error from None


class StatefulIterator(tf.train.experimental.PythonState):  # type: ignore[misc]
    """An iterator that resumes at the next record after a restart.

    `state()` is a JSON value of less than 200 bytes. It counts the global batches that were
    delivered, not those that were read ahead, and is equal on all hosts. Any number of hosts can
    restore it, with the same `batch_size * num_hosts`. `tf.train.Checkpoint(iterator=...)` saves
    the same state.

    >>> from imageshards.reader import load
    >>> train = load("dataset", "train", batch_size=8, image_size=64)
    >>> iterator = train.iterator()
    >>> images, labels = next(iterator)
    >>> state = iterator.state()
    >>> state["step"], iterator.records
    (1, 8)
    >>> iterator = train.iterator()
    >>> iterator.restore(state)

    Attributes:
      step: the number of elements delivered since the start of the first epoch.
    """

    def __init__(self, data: ImageDataset) -> None:
        self._recipe = data._recipe
        self.step = self._recipe.first_step
        self._data = data
        self._iterator: Iterator[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next record, from 0."""
        return self.step // self._recipe.order.steps

    @property
    def records(self) -> int:
        """The records that this host delivered since the start of the first epoch."""
        return self.step * self._recipe.host_batch

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> Any:
        """Returns the next element; see `load`.

        After an error, another call reads the same records again.

        Raises:
          CorruptRecord: the CRC of a record is wrong, or it cannot be read. The message names the
            file and the offset.
        """
        if self._iterator is None:
            self._iterator = iter(self._data)
        try:
            element = next(self._iterator)
        except (BuildError, CorruptRecord):
            if self._recipe.options.deterministic:
                self._move(self.step)
            raise
        self.step += 1
        return element

    def state(self) -> dict[str, Any]:
        """Returns the position of the iterator, a dict that json.dumps accepts."""
        if not self._recipe.options.deterministic:
            raise UsageError("with deterministic=False the iterator has no state")
        return self._recipe.order.state(self.step)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Moves to the position of a state.

        Raises:
          UsageError: `state` is not a state, or it belongs to other files or to another split,
            seed, shuffling or global batch.
        """
        self._move(self._recipe.order.step_of(state))

    def _move(self, step: int) -> None:
        self._data = self._data.starting_at(step * self._recipe.host_batch)
        self._iterator = None
        self.step = step

    def serialize(self) -> str:
        """Returns the state for tf.train.Checkpoint."""
        return json.dumps(self.state())

    def deserialize(self, text: str) -> None:
        """Restores the state from tf.train.Checkpoint."""
        self.restore(json.loads(text))
