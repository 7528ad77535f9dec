"""States of an order: a position that any number of hosts can save and restore. Pure."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from imageshards.reader.options import check_integer
from imageshards.transforms.elements import UsageError

VERSION = 2
"""The version of the order. In version 1, each host had an order of its own."""


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


def step_of(state: Mapping[str, Any], seed: int, batch: int, data: str, order: str) -> int:
    """Returns the step of a state.

    Raises:
      UsageError: `state` is not a state, or it belongs to another order of records; the message
        says which of the arguments differs.
    """
    if isinstance(state, Mapping) and {"records", "order"} == state.keys():
        raise UsageError(
            "the state was saved by an earlier version of imageshards, whose order depends on the "
            "number of hosts: finish the training with that version, or start it again"
        )
    expected = make_state(0, seed, batch, data, order)
    if not isinstance(state, Mapping) or state.keys() != expected.keys():
        raise UsageError(
            f"{reprlib.repr(state)} is not a state: pass the dict that state() returned"
        )
    reasons = {
        "version": "it was saved by another version of imageshards (order {theirs}, not {ours})",
        "data": "its records differ: use the files and the split with which it was saved",
        "batch": "its global batch has {theirs} records, not {ours}: set batch_size * num_hosts "
        "to {theirs}",
        "seed": "its seed is {theirs}, not {ours}",
        "order": "its shuffling differs: use the reader (load or grain), shuffle, drop_remainder, "
        "repeat, balance and weights with which it was saved",
    }
    for key, reason in reasons.items():
        if state[key] != expected[key]:
            why = reason.format(theirs=state[key], ours=expected[key])
            raise UsageError(f"the state belongs to another order of records: {why}")
    return check_integer("step of the state", state["step"])
