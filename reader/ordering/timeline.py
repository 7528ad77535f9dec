"""The part of each sample of a mixture, in exact proportions that may change with the step. Pure.

The samples are divided into phases, in which the weights are constant. A phase has a number of
samples of each part, which are spread evenly, so that any samples in a row have the proportions.
What rounding leaves is carried to the next phase. How many samples of each part are before a phase
is the sum of the phases before it. So the part of any sample, and the number of earlier samples of
the part, are known without the samples before it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np
import numpy.typing as npt

from imageshards.reader.ordering.permutation import Numbers, derive, first_key
from imageshards.reader.ordering.weights import PERIOD, Weights

_SAMPLES, _SAMPLES_OF_PART = 1 << 12, 1 << 6
"""The least samples of a phase if weights are functions: of all parts, and for each part."""
_TABLES_HELD = 8
_LOCK = Lock()
"""Of all timelines: a lock of each could not be pickled for other processes."""


@dataclass(frozen=True)
class _Phase:
    """Samples of constant weights.

    Attributes:
      begin: the number of samples before it.
      length: the number of its samples; 0 for the last one, which has no end.
      weights: float64 [parts], which sum to 1.
      before: int64 [parts], the number of samples of each part before the phase.
      carry: float64 [parts], the number of samples that each part lacks before the phase.
    """

    begin: int
    length: int
    weights: npt.NDArray[np.float64]
    before: Numbers
    carry: npt.NDArray[np.float64]

    @property
    def period(self) -> int:
        """The number of samples after which the parts repeat."""
        return min(self.length, PERIOD) if self.length else PERIOD

    @cached_property
    def counts(self) -> Numbers:
        """The number of samples of each part in a period: int64 [parts]."""
        due = self.weights * self.period
        carried = self.length == self.period
        return _whole(due + self.carry if carried else due, self.weights > 0, self.period)


@dataclass(frozen=True)
class _Table:
    """The samples of a period of a phase.

    Attributes:
      part: int64 [period], the part of each sample.
      rank: int64 [period], the number of samples of the same part before it in the period.
    """

    part: Numbers
    rank: Numbers


class Timeline:
    """The parts of the samples of a mixture.

    >>> from imageshards.reader.ordering.weights import weights_of
    >>> timeline = Timeline(weights_of([0.5, 0.5], ["a", "b"]), batch=4)
    >>> part, earlier = timeline.parts(np.arange(4))
    >>> part.tolist(), earlier.tolist()
    ([1, 0, 1, 0], [0, 0, 1, 1])
    """

    def __init__(self, weights: Weights, batch: int) -> None:
        """Computes nothing yet.

        Args:
          weights: the weights of the parts.
          batch: the number of samples of a step.
        """
        self._weights = weights
        self._batch = batch
        parts = len(weights.parts)
        least = max(_SAMPLES, _SAMPLES_OF_PART * parts)
        self._steps = -(-least // batch) if weights.are_functions else 0
        self._phases: list[_Phase] = []
        self._begins: list[int] = []
        self._tables: OrderedDict[int, _Table] = OrderedDict()

    def parts(self, samples: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the part of each sample, and the number of earlier samples of that part.

        Args:
          samples: int64 of any shape, the numbers of samples since the start.

        Raises:
          UsageError: a function of the step returns what is no weight.
        """
        part, earlier = np.empty_like(samples), np.empty_like(samples)
        if not samples.size:
            return part, earlier
        for number in range(self._number(int(samples.min())), self._number(int(samples.max())) + 1):
            phase = self._phases[number]
            mine = samples >= phase.begin
            if phase.length:
                mine &= samples < phase.begin + phase.length
            if not mine.any():
                continue
            table = self._table(number)
            periods, at = np.divmod(samples[mine] - phase.begin, phase.period)
            part[mine] = its = table.part[at]
            earlier[mine] = phase.before[its] + periods * phase.counts[its] + table.rank[at]
        return part, earlier

    def position(self, step: int) -> tuple[object, ...]:
        """Returns what determines the samples from a step on, if weights are functions."""
        phase = self._phases[self._number(step * self._batch)]
        return (
            phase.begin, phase.length, phase.weights.tolist(), phase.before.tolist(),
            phase.carry.tolist(),
        )  # fmt: skip

    def _number(self, sample: int) -> int:
        """Returns the number of the phase of a sample."""
        with _LOCK:
            while not self._phases or (
                self._phases[-1].length and sample >= self._begins[-1] + self._phases[-1].length
            ):
                self._phases.append(self._next())
                self._begins.append(self._phases[-1].begin)
            return int(np.searchsorted(self._begins, sample, side="right")) - 1

    def _next(self) -> _Phase:
        """Returns the phase after the last one."""
        parts = len(self._weights.parts)
        begin, before = 0, np.zeros(parts, np.int64)
        carry = np.zeros(parts)
        if self._phases:
            last = self._phases[-1]
            begin = last.begin + last.length
            periods, rest = divmod(last.length, last.period)
            added = periods * last.counts
            if rest:
                table = self._table_of(last)
                added = added + np.bincount(table.part[:rest], minlength=parts)
            before = last.before + added
            # Many periods have many times the error of one, which is too small to matter.
            carry = last.carry + last.weights * last.length - added if periods == 1 else carry
        step = begin // self._batch
        weights = self._weights.at(step)
        ends = [change for change in self._weights.changes if change > step][:1]
        if self._steps:
            ends.append((step // self._steps + 1) * self._steps)
        length = (min(ends) - step) * self._batch if ends else 0
        return _Phase(begin, length, weights / weights.sum(), before, carry)

    def _table(self, number: int) -> _Table:
        table = self._tables.get(number)
        if table is None:
            table = self._tables[number] = self._table_of(self._phases[number])
            with _LOCK:
                while len(self._tables) > _TABLES_HELD:
                    self._tables.popitem(last=False)
        return table

    def _table_of(self, phase: _Phase) -> _Table:
        counts = phase.counts
        part = np.repeat(np.arange(len(counts)), counts)
        rank = np.arange(phase.period) - np.repeat(np.cumsum(counts) - counts, counts)
        # An offset of each part, so that parts of equal weight do not come in the same order.
        offset = derive(first_key(len(counts)), np.arange(len(counts))) / np.float64(2**64)
        order = np.argsort((rank + offset[part]) / counts[part], kind="stable")
        return _Table(part[order], rank[order])


def _whole(due: npt.NDArray[np.float64], used: npt.NDArray[np.bool_], total: int) -> Numbers:
    """Returns whole numbers that differ little from others, of the same sum: int64 [parts].

    >>> _whole(np.array([1.5, 2.7, -0.2]), np.array([True, True, False]), 4).tolist()
    [1, 3, 0]

    Args:
      due: float64 [parts].
      used: bool [parts]; the others are 0.
      total: the sum.
    """
    counts = np.where(used, np.maximum(np.floor(due), 0), 0).astype(np.int64)
    while left := total - int(counts.sum()):
        sign = 1 if left > 0 else -1
        # The parts that lack most get one more, or those that have most above their due one less.
        lacks = np.where(used if left > 0 else counts > 0, sign * (due - counts), -np.inf)
        changed = np.argsort(-lacks, kind="stable")[: min(abs(left), int(np.isfinite(lacks).sum()))]
        counts[changed] += sign
    return counts
