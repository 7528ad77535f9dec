"""Weights of the parts of a mixture, and how they change with the step. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from imageshards.transforms.elements import UsageError

Weight = Callable[[int], Any] | tuple[tuple[int, float], ...]
"""A function of the step, or (step, weight): each weight holds from its step on."""
PERIOD = 1 << 18
"""The number of samples in which weights that do not change are exact."""


@dataclass(frozen=True)
class Weights:
    """The weights of the parts of a mixture.

    >>> weights = weights_of([0.7, [(0, 0.0), (100, 0.3)]], ["a", "b"])
    >>> weights.at(0).tolist(), weights.at(100).tolist()
    ([0.7, 0.0], [0.7, 0.3])

    Attributes:
      names: the names of the parts, for errors.
      parts: the weight of each part.
      sizes: the number of records of each part.
    """

    names: tuple[str, ...]
    parts: tuple[Weight, ...]
    sizes: tuple[int, ...]

    @cached_property
    def are_functions(self) -> bool:
        """Whether a weight is a function, which is called again and again."""
        return any(callable(part) for part in self.parts)

    @cached_property
    def changes(self) -> list[int]:
        """The steps at which a weight that is not a function changes, in order; the first is 0."""
        return sorted({0, *(at for part in self.parts if not callable(part) for at, _ in part)})

    def at(self, step: int) -> npt.NDArray[np.float64]:
        """Returns the weights of a step: float64 [parts].

        Raises:
          UsageError: a function returns what is no weight, all weights are 0, or a part with a
            weight has no records.
        """
        found = np.array([self._of(part, step) for part in range(len(self.parts))], np.float64)
        if not found.any():
            raise UsageError(f"the weights of step {step:,} are all 0: set at least one")
        for part in np.flatnonzero(found).tolist():
            if not self.sizes[part]:
                raise UsageError(f"{self.names[part]} has a weight, but no records: set it to 0")
        return found

    def _of(self, part: int, step: int) -> float:
        weight, name = self.parts[part], self.names[part]
        if not callable(weight):
            return next(value for at, value in reversed(weight) if at <= step)
        try:
            value = weight(step)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(f"the weight of {name} failed at step {step:,}: {reason}") from error
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 <= number < math.inf:
            raise UsageError(
                f"invalid weight {value!r} of {name} at step {step:,}: must be a number of at "
                "least 0"
            )
        return number


def weights_of(
    weights: Sequence[object], names: Sequence[str], sizes: Sequence[int] | None = None
) -> Weights:
    """Returns the weights that a user gives.

    Args:
      weights: for each part, a number, the weights from some steps on as [(step, weight), ...], or
        a function of the step that returns a number.
      names: the names of the parts, for errors.
      sizes: the number of records of each part. Default: None, enough.

    Raises:
      UsageError: a weight is not a number of at least 0, it is too small, all are 0, or a part with
        a weight has no records.
    """
    parts = tuple(_parsed(weight, name) for weight, name in zip(weights, names, strict=True))
    found = Weights(tuple(names), parts, tuple(sizes or [1] * len(parts)))
    for step in [0] if found.are_functions else found.changes:
        now = found.at(step)
        small = np.flatnonzero((now > 0) & (now < now.sum() / PERIOD)).tolist()
        if small and not found.are_functions:
            raise UsageError(
                f"the weight {now[small[0]]} of {names[small[0]]} is too small: must be 0, or at "
                f"least 1/{PERIOD} of the sum of all weights"
            )
    return found


def _parsed(weight: Any, name: str) -> Weight:
    if callable(weight):
        function: Callable[[int], Any] = weight
        return function
    pairs = (
        weight if isinstance(weight, Sequence) and not isinstance(weight, str) else [(0, weight)]
    )
    try:
        found = tuple((int(step), float(value)) for step, value in pairs)
    except (TypeError, ValueError):
        found = ()
    steps = [step for step, _ in found]
    valid = all(0 <= value < math.inf for _, value in found)
    if not valid or not found or steps != sorted(set(steps)) or steps[0] != 0:
        raise UsageError(
            f"invalid weight {weight!r} of {name}: must be a number of at least 0, a list of "
            "(step, weight) that starts at step 0, or a function of the step"
        )
    return found
