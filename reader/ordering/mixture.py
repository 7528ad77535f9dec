"""An order that takes records of several parts in given proportions: of data sets, or of classes.

The timeline has the part of each sample. The records of a part are read in a random permutation,
and in another one after all of them were read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from imageshards.reader.ordering.global_order import Order, Remainder
from imageshards.reader.ordering.permutation import Keys, Numbers, derive, first_key, permute
from imageshards.reader.ordering.timeline import Timeline
from imageshards.reader.ordering.weights import Weights

_STEPS_TOGETHER = 4
_SLOTS_TOGETHER = 1 << 11
_OF_SLOTS, _OF_RECORDS = 0, 1


@dataclass(frozen=True)
class Mixture(Order):
    """An order of the records of several parts.

    >>> from imageshards.reader.ordering.weights import weights_of
    >>> order = Mixture(weights_of([0.7, 0.3], ["a", "b"], [100, 900]), global_batch=10)
    >>> sorted((order.batch(5) < 100).tolist())
    [False, False, False, True, True, True, True, True, True, True]

    Attributes:
      weights: the parts, which follow each other, and the proportion of each.
      global_batch: the number of records of a global batch.
      seed: the seed of the order.
      data: the fingerprint of the data set, for states.
      numbers: int64 [records], the record at each position of the parts; None if they are equal.
    """

    weights: Weights
    global_batch: int
    seed: int = 0
    data: str = ""
    numbers: Numbers | None = None
    remainder: Remainder = field(default="drop", init=False)
    records: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", sum(self.weights.sizes))

    @property
    def steps(self) -> int:
        """The number of batches with as many samples as there are records; at least 1."""
        return max(self.records // self.global_batch, 1)

    @property
    def full_steps(self) -> int:
        """Equal to `steps`."""
        return self.steps

    @property
    def dropped(self) -> int:
        """0: parts are read again and again, each to its end."""
        return 0

    @property
    def padded(self) -> int:
        """0, as `dropped`."""
        return 0

    @property
    def steps_together(self) -> int:
        """As many as reading ahead needs; records that are neighbours are rare."""
        return _STEPS_TOGETHER

    @property
    def is_sequential(self) -> bool:
        """False."""
        return False

    def samples(self, numbers: npt.ArrayLike) -> Numbers:
        """Returns the records of samples; see `Order.samples`.

        Raises:
          UsageError: a weight that is a function returns an invalid value.
        """
        step, slot = np.divmod(np.asarray(numbers, np.int64), self.global_batch)
        # Parts are spread evenly, and a slot would have records of the same part for long.
        piece, slot = np.divmod(slot, _SLOTS_TOGETHER)
        first = piece * _SLOTS_TOGETHER
        size = np.minimum(self.global_batch - first, _SLOTS_TOGETHER)
        key = derive(derive(derive(self._key, _OF_SLOTS), step), piece)
        samples = step * self.global_batch + first + permute(slot, size, key)
        part, earlier = self._timeline.parts(samples)
        sizes = np.array(self.weights.sizes, np.int64)
        turn, place = np.divmod(earlier, sizes[part])
        key = derive(derive(derive(self._key, _OF_RECORDS), part), turn)
        positions: Numbers = (np.cumsum(sizes) - sizes)[part] + permute(place, sizes[part], key)
        return positions if self.numbers is None else self.numbers[positions]

    @cached_property
    def _key(self) -> Keys:
        return first_key(self.seed)

    @cached_property
    def _timeline(self) -> Timeline:
        return Timeline(self.weights, self.global_batch)

    def _digest(self, step: int) -> str:
        """Identifies what determines the order.

        Of weights that are functions, it has the numbers of samples before the step, and the
        weights of the step: a function may be changed for later steps.
        """
        if self.weights.are_functions:
            weights: object = self._timeline.position(step)
        else:
            weights = self.weights.parts
        digest = blake2b(repr((self.weights.sizes, weights)).encode(), digest_size=6)
        digest.update(self._numbers_digest)
        return digest.hexdigest()

    @cached_property
    def _numbers_digest(self) -> bytes:
        return b"" if self.numbers is None else blake2b(self.numbers.tobytes()).digest()
