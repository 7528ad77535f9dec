"""The order of the records of a data set, as global batches that any number of hosts can share.

A global batch has a slot for each of its records, and a host serves consecutive slots. A sample is
a place in the sequence of all batches, `step * global_batch + slot`. The record of a sample is a
function of the data set, the seed and the global batch alone.

Reading is sequential because every slot reads blocks of consecutive records. The blocks of an
epoch, in random order, are one sequence, and each slot reads an equal part of it, of which `run`
records at a time are shuffled. The records of an incomplete last batch are read by the first slots,
whose parts are longer by one. So a global batch has a record of as many blocks as it has slots,
and records of a block rarely meet in a batch. With blocks of one record, an epoch is a random
permutation of all records. The records are rotated by a random number before they are cut
into blocks, so that the blocks, and the records that fill no block, differ between epochs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from imageshards.reader.ordering.permutation import Keys, Numbers, derive, first_key, permute
from imageshards.reader.ordering.state import make_state, step_of
from imageshards.transforms.elements import UsageError

Remainder = Literal["drop", "keep", "pad"]
NO_RECORD = -1
"""In place of a record, in an incomplete batch."""

_BLOCK_BYTES = 1 << 20
_WINDOW_BYTES = 128 << 20
_MIN_WINDOW, _MAX_WINDOW = 16, 1 << 16
_MIN_RUN = 4
_BLOCKS_PER_RUN = 4
_BLOCKS_PER_SLOT = 8
_LONG_BLOCK = 12
"""Records. To read a range takes as long as to read some five small records of a local file."""


class Order(ABC):
    """An order of records, as global batches.

    Attributes:
      global_batch: the number of records of a global batch.
      seed: the seed of the order.
      data: the fingerprint of the data set, for states.
      remainder: see `GlobalOrder`.
      records: the number of records of the data set.
    """

    records: int
    global_batch: int
    seed: int
    data: str
    remainder: Remainder

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of batches of an epoch."""

    @property
    @abstractmethod
    def full_steps(self) -> int:
        """The number of complete batches of an epoch, without padding."""

    @property
    @abstractmethod
    def dropped(self) -> int:
        """The number of records of which an epoch has none."""

    @property
    @abstractmethod
    def padded(self) -> int:
        """The number of records that an epoch repeats."""

    @property
    @abstractmethod
    def steps_together(self) -> int:
        """The number of steps whose records are read together, since some are neighbours."""

    @property
    @abstractmethod
    def is_sequential(self) -> bool:
        """Whether the records of these steps are consecutive, or in long blocks."""

    @abstractmethod
    def _digest(self, step: int) -> str:
        """Identifies what determines the order from a step on, beyond what a state names."""

    @abstractmethod
    def samples(self, numbers: npt.ArrayLike) -> Numbers:
        """Returns the records of samples: int64, in the shape of `numbers`.

        Args:
          numbers: int64, the numbers of samples since the start of the first epoch.
        """

    def batch(self, step: int) -> Numbers:
        """Returns the records of a global batch: int64 [global_batch]; see `part`."""
        return self.part(step)

    def part(self, step: int, host: int = 0, hosts: int = 1) -> Numbers:
        """Returns the records of a global batch that a host reads.

        Args:
          step: the number of global batches before it since the start of the first epoch.
          host: the index of the host.
          hosts: the number of hosts, which divides the global batch.

        Returns:
          int64 [global_batch / hosts]: numbers of records of the data set, or `NO_RECORD` in an
          incomplete batch.

        Raises:
          UsageError: the hosts do not divide the global batch.
        """
        first, size = host_slots(self.global_batch, host, hosts)
        return self.samples(step * self.global_batch + first + np.arange(size))

    def state(self, step: int) -> dict[str, Any]:
        """Returns the position before a step, of less than 200 bytes of JSON."""
        return make_state(step, self.seed, self.global_batch, self.data, self._digest(step))

    def step_of(self, state: Mapping[str, Any]) -> int:
        """Returns the step of a state, which any number of hosts may have saved.

        Raises:
          UsageError: `state` is not a state, or it belongs to another order of records.
        """
        return step_of(state, self.seed, self.global_batch, self.data, self._digest)


@dataclass(frozen=True)
class GlobalOrder(Order):
    """An order of records, as global batches.

    >>> order = GlobalOrder(records=10, global_batch=4, seed=1)
    >>> order.steps, order.dropped
    (2, 2)
    >>> batch = order.batch(7)
    >>> parts = [order.part(7, host, hosts=2) for host in range(2)]
    >>> np.concatenate(parts).tolist() == batch.tolist()
    True

    Attributes:
      records: the number of records of the data set.
      global_batch: the number of records of a global batch.
      seed: the seed of the order.
      shuffle: False for the order of the files.
      block: the number of consecutive records that are read together; 1 for a random permutation
        of all records.
      run: the number of records of a slot that are shuffled together.
      lanes: the number of sequences of blocks, which divides the global batch: by default 0, for
        one in each slot. With 1, all slots take turns in one sequence: for compressed files, which
        are decompressed from their beginning.
      remainder: what happens to the records of an epoch that fill no batch. `drop` omits them,
        `keep` ends the epoch with an incomplete batch, and `pad` completes it with records of the
        same epoch.
      data: the fingerprint of the data set, for states.
    """

    records: int
    global_batch: int
    seed: int = 0
    shuffle: bool = True
    block: int = 1
    run: int = 1
    lanes: int = 0
    remainder: Remainder = "drop"
    data: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lanes", self.lanes or self.global_batch)
        if self.remainder not in get_args(Remainder):
            choices = ", ".join(get_args(Remainder))
            raise UsageError(f"invalid remainder {self.remainder!r}: must be one of {choices}")
        if not self.steps:
            raise UsageError(
                f"{self.records:,} records do not fill a global batch of {self.global_batch:,}: "
                "use a smaller batch_size, or drop_remainder=False"
            )

    @property
    def full_steps(self) -> int:
        """The number of complete batches of an epoch, without padding."""
        return self.records // self.global_batch

    @property
    def steps(self) -> int:
        """The number of batches of an epoch."""
        if self.remainder == "drop":
            return self.full_steps
        return -(-self.records // self.global_batch)

    @property
    def dropped(self) -> int:
        """The number of records of which an epoch has none."""
        return self.records - self.full_steps * self.global_batch if self.remainder == "drop" else 0

    @property
    def padded(self) -> int:
        """The number of records that an epoch repeats."""
        return self.steps * self.global_batch - self.records if self.remainder == "pad" else 0

    @property
    def steps_together(self) -> int:
        """The number of steps of a run."""
        return max(1, self.run * self.lanes // self.global_batch)

    @property
    def is_sequential(self) -> bool:
        """See `Order`."""
        return not self.shuffle or self.block >= _LONG_BLOCK

    def samples(self, numbers: npt.ArrayLike) -> Numbers:
        """Returns the records of samples: int64, in the shape of `numbers`.

        Args:
          numbers: int64, the numbers of samples since the start of the first epoch.
        """
        epochs, places = np.divmod(np.asarray(numbers, np.int64), self.steps * self.global_batch)
        if self.remainder == "pad":
            places = np.where(places < self.records, places, (places - self.records) % self.records)
        exists = places < self.records
        found = places if not self.shuffle else self._shuffled(epochs, np.where(exists, places, 0))
        result: Numbers = np.where(exists, found, NO_RECORD)
        return result

    def _shuffled(self, epochs: Numbers, places: Numbers) -> Numbers:
        key = derive(self._key, epochs)
        if self.block == 1:
            return permute(places, self.records, key)
        positions = self._in_lanes(key, places)
        blocks = self.records // self.block
        number, within = np.divmod(positions, self.block)
        in_block = number < blocks
        number = permute(np.where(in_block, number, 0), blocks, derive(key, 0))
        # The records that fill no block are the last ones of the sequence.
        positions = np.where(in_block, number * self.block + within, positions)
        rotation = (derive(key, 1) % np.uint64(self.records)).astype(np.int64)
        result: Numbers = (positions + rotation) % self.records
        return result

    def _in_lanes(self, key: Keys, places: Numbers) -> Numbers:
        """Returns the positions of places in the sequence of blocks."""
        place, lane = np.divmod(places, self.lanes)
        least, longer = divmod(self.records - self.dropped, self.lanes)
        begin, length = lane * least + np.minimum(lane, longer), least + (lane < longer)
        # The last run has what would be too few records to shuffle, too.
        last = np.maximum(length // self.run, 1) - 1
        run = np.minimum(place // self.run, last)
        first = run * self.run
        size = np.where(run == last, length - first, self.run)
        of_run = derive(derive(key, 2), run * self.lanes + lane)
        result: Numbers = begin + first + permute(place - first, size, of_run)
        return result

    @cached_property
    def _key(self) -> Keys:
        return first_key(self.seed)

    def _digest(self, step: int) -> str:
        """Identifies what determines the order, beyond what a state names."""
        # Where all records are permuted, nothing is read in blocks and runs.
        in_blocks = self.shuffle and self.block > 1
        blocks = (self.block, self.run, self.lanes) if in_blocks else ()
        settings = (self.records, self.shuffle, blocks, self.remainder)
        return blake2b(repr(settings).encode(), digest_size=6).hexdigest()


def host_slots(batch: int, host: int, hosts: int) -> tuple[int, int]:
    """Returns (the first slot of a host, the number of its slots).

    Raises:
      UsageError: the hosts do not divide the global batch, or there is no such host.
    """
    if hosts < 1 or not 0 <= host < hosts:
        raise UsageError(f"invalid host {host} of {hosts}: must be from 0 to num_hosts - 1")
    if batch % hosts:
        raise UsageError(
            f"a global batch of {batch:,} cannot be divided among {hosts:,} hosts: use a number of "
            "hosts that divides it"
        )
    return host * (batch // hosts), batch // hosts


def block_and_run(
    records: int, record_bytes: float, batch: int, window: int | None = None
) -> tuple[int, int]:
    """Returns the `block` and the `run` of an order for files that are read sequentially.

    A block has up to 1 MB. A run has at least 4 records, at least 4 blocks, and as many records as
    all slots together hold in the window. A slot reads at least 8 blocks in an epoch.

    Args:
      records: the number of records of the data set.
      record_bytes: the mean size of a record.
      batch: the number of records of a global batch.
      window: the number of records that all hosts together hold in memory and shuffle; None for as
        many as fit in 128 MB, from 16 to 65,536.
    """
    mean = max(int(record_bytes), 1)
    if window is None:
        window = min(max(_WINDOW_BYTES // mean, _MIN_WINDOW), _MAX_WINDOW)
    run = max(window // batch, _MIN_RUN)
    largest = (run // _BLOCKS_PER_RUN, records // batch // _BLOCKS_PER_SLOT, _BLOCK_BYTES // mean)
    return max(1, min(largest)), run
