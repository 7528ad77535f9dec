"""An order that takes records of several parts in given proportions: of data sets, or of classes.

A table of 2**18 samples has the part of each sample. Each part has its proportion in the table, and
is spread evenly. So any number of batches in a row has the proportions, up to one or two records of
each part, and the number of earlier samples of a part follows by arithmetic. The records of a part
are read in a random permutation, and in another one after all of them were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from imageshards.reader.ordering.global_order import Order, Remainder
from imageshards.reader.ordering.permutation import Keys, Numbers, derive, first_key, permute
from imageshards.transforms.elements import UsageError

_PERIOD = 1 << 18
_STEPS_TOGETHER = 4
_OF_SLOTS, _OF_RECORDS = 0, 1


@dataclass(frozen=True)
class Phase:
    """The proportions from a step on.

    Attributes:
      step: the number of steps before it.
      weights: a number of at least 0 for each part; only their ratios matter.
    """

    step: int
    weights: tuple[float, ...]


@dataclass(frozen=True)
class _Table:
    """The parts of the samples of a phase.

    Attributes:
      first: the number of samples before the phase.
      before: int64 [parts], the number of samples of each part before the phase.
      counts: int64 [parts], the number of samples of each part in the period.
      part: int64 [period], the part of each sample.
      rank: int64 [period], the number of samples of the same part before it in the period.
    """

    first: int
    before: Numbers
    counts: Numbers
    part: Numbers
    rank: Numbers

    def counts_until(self, samples: int) -> Numbers:
        """Returns the samples of each part before the phase and in its first `samples`."""
        periods, rest = divmod(samples, _PERIOD)
        some = np.bincount(self.part[:rest], minlength=len(self.counts))
        result: Numbers = self.before + periods * self.counts + some
        return result


@dataclass(frozen=True)
class Mixture(Order):
    """An order of the records of several parts.

    >>> order = Mixture((100, 900), (Phase(0, (0.7, 0.3)),), global_batch=10)
    >>> sorted((order.batch(5) < 100).tolist())
    [False, False, False, True, True, True, True, True, True, True]

    Attributes:
      sizes: the number of records of each part. The parts follow each other.
      phases: the proportions of the parts, in the order of their steps; the first is for step 0.
      global_batch: the number of records of a global batch.
      seed: the seed of the order.
      data: the fingerprint of the data set, for states.
      numbers: int64 [records], the record at each position of the parts; None if they are equal.
    """

    sizes: tuple[int, ...]
    phases: tuple[Phase, ...]
    global_batch: int
    seed: int = 0
    data: str = ""
    numbers: Numbers | None = None
    remainder: Remainder = field(default="drop", init=False)
    records: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", sum(self.sizes))
        for phase in self.phases:
            for size, weight in zip(self.sizes, phase.weights, strict=True):
                if weight and not size:
                    raise UsageError("a part without records has a weight: set it to 0")

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

    def samples(self, numbers: npt.ArrayLike) -> Numbers:
        """Returns the records of samples; see `Order.samples`."""
        step, slot = np.divmod(np.asarray(numbers, np.int64), self.global_batch)
        # Parts are spread evenly, and a slot would have records of the same part for long.
        slot = permute(slot, self.global_batch, derive(derive(self._key, _OF_SLOTS), step))
        samples = step * self.global_batch + slot
        part, earlier = np.empty_like(samples), np.empty_like(samples)
        ends = [table.first for table in self._tables[1:]]
        phase = np.searchsorted(np.array(ends, np.int64), samples, side="right")
        for number, table in enumerate(self._tables):
            mine = phase == number
            periods, at = np.divmod(samples[mine] - table.first, _PERIOD)
            part[mine] = table.part[at]
            earlier[mine] = table.before[part[mine]] + periods * table.counts[part[mine]]
            earlier[mine] += table.rank[at]
        sizes = np.array(self.sizes, np.int64)
        turn, place = np.divmod(earlier, sizes[part])
        key = derive(derive(derive(self._key, _OF_RECORDS), part), turn)
        positions: Numbers = (np.cumsum(sizes) - sizes)[part] + permute(place, sizes[part], key)
        return positions if self.numbers is None else self.numbers[positions]

    @cached_property
    def _key(self) -> Keys:
        return first_key(self.seed)

    @cached_property
    def _tables(self) -> list[_Table]:
        tables: list[_Table] = []
        for phase in self.phases:
            first = phase.step * self.global_batch
            before = np.zeros(len(self.sizes), np.int64)
            if tables:
                before = tables[-1].counts_until(first - tables[-1].first)
            tables.append(_table(first, before, phase.weights))
        return tables

    @cached_property
    def _digest(self) -> str:
        digest = blake2b(repr((self.sizes, self.phases)).encode(), digest_size=6)
        if self.numbers is not None:
            digest.update(self.numbers.tobytes())
        return digest.hexdigest()


def _table(first: int, before: Numbers, weights: Sequence[float]) -> _Table:
    exact = np.array(weights, np.float64) / sum(weights) * _PERIOD
    counts = np.floor(exact).astype(np.int64)
    # The largest remainders get what rounding down has left.
    most = np.argsort(counts - exact, kind="stable")[: _PERIOD - int(counts.sum())]
    counts[most] += 1
    part = np.repeat(np.arange(len(counts)), counts)
    rank = np.arange(_PERIOD) - np.repeat(np.cumsum(counts) - counts, counts)
    # A phase for each part, so that parts of equal weight do not come in the same order.
    phase = derive(first_key(len(counts)), np.arange(len(counts))) / np.float64(2**64)
    order = np.argsort((rank + phase[part]) / counts[part], kind="stable")
    return _Table(first, before, counts, part[order], rank[order])


def phases_of(weights: Sequence[object], what: Sequence[str]) -> tuple[Phase, ...]:
    """Returns the phases of the weights that a user gives.

    Args:
      weights: for each part, a number, or the weights from some steps on: [(step, weight), ...].
      what: the names of the parts, for errors.

    Raises:
      UsageError: a weight is not a number of at least 0, it is too small, or all are 0.
    """
    lists = [_of_steps(weight, name) for weight, name in zip(weights, what, strict=True)]
    phases = []
    for step in sorted({step for one in lists for step, _ in one}):
        now = tuple([weight for its, weight in one if its <= step][-1] for one in lists)
        if not sum(now):
            raise UsageError(f"the weights of step {step:,} are all 0: set at least one")
        for weight, name in zip(now, what, strict=True):
            if 0 < weight < sum(now) / _PERIOD:
                raise UsageError(
                    f"the weight {weight} of {name} is too small: must be 0, or at least "
                    f"1/{_PERIOD} of the sum of all weights"
                )
        phases.append(Phase(step, now))
    return tuple(phases)


def _of_steps(weight: Any, name: str) -> list[tuple[int, float]]:
    pairs = (
        weight if isinstance(weight, Sequence) and not isinstance(weight, str) else [(0, weight)]
    )
    try:
        found = [(int(step), float(value)) for step, value in pairs]
    except (TypeError, ValueError):
        found = []
    steps = [step for step, _ in found]
    valid = all(0 <= value < float("inf") for _, value in found)
    if not valid or not found or steps != sorted(set(steps)) or steps[0] != 0:
        raise UsageError(
            f"invalid weight {weight!r} of {name}: must be a number of at least 0, or a list of "
            "(step, weight) that starts at step 0"
        )
    return found
