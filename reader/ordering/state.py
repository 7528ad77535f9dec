"""States of an order: a position that any number of hosts can save and restore. Pure."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from imageshards.reader.options import check_integer
from imageshards.transforms.elements import UsageError

VERSION = 3
"""The version of the order. In version 1, each host had an order of its own. In version 2, the
records of an incomplete last batch were neighbours in the files."""
_EARLIER = "finish the training with that version, or start it again"


def make_state(step: int, seed: int, batch: int, data: str, order: str) -> dict[str, Any]:
    """Returns a state, a dict that json.dumps accepts, of less than 200 bytes.

    Args:
      step: the number of global batches that were delivered.
      seed: the seed of the order.
      batch: the number of records of a global batch.
      data: the fingerprint of the data set.
      order: a digest of the other settings that determine the order.
    """
    return {
        "version": VERSION, "step": step, "seed": seed, "batch": batch, "data": data,
        "order": order,
    }  # fmt: skip


def step_of(
    state: Mapping[str, Any], seed: int, batch: int, data: str, order_of: Callable[[int], str]
) -> int:
    """Returns the step of a state.

    Args:
      state: the state.
      seed: the seed of the order.
      batch: the number of records of a global batch.
      data: the fingerprint of the data set.
      order_of: returns the digest of the other settings at a step.

    Raises:
      UsageError: `state` is not a state, or it belongs to another order of records; the message
        says which of the arguments differs.
    """
    if isinstance(state, Mapping) and {"records", "order"} == state.keys():
        raise UsageError(
            "the state was saved by an earlier version of imageshards, whose order depends on the "
            f"number of hosts: {_EARLIER}"
        )
    expected = make_state(0, seed, batch, data, "")
    if not isinstance(state, Mapping) or state.keys() != expected.keys():
        raise UsageError(
            f"{reprlib.repr(state)} is not a state: pass the dict that state() returned"
        )
    if state["version"] != VERSION:
        raise UsageError(
            "the state was saved by another version of imageshards, which reads the records in "
            f"another order (order {state['version']}, not {VERSION}): {_EARLIER}"
        )
    step = check_integer("step of the state", state["step"])
    reasons = {
        "data": "its records differ: use the files and the split with which it was saved",
        "batch": "its global batch has {theirs} records, not {ours}: set batch_size * num_hosts "
        "to {theirs}",
        "seed": "its seed is {theirs}, not {ours}",
        "order": "its shuffling differs: use the reader (load or grain), shuffle, drop_remainder, "
        "repeat, balance and weights with which it was saved",
    }
    for key, reason in reasons.items():
        ours = order_of(step) if key == "order" else expected[key]
        if state[key] != ours:
            why = reason.format(theirs=state[key], ours=ours)
            raise UsageError(f"the state belongs to another order of records: {why}")
    return step
