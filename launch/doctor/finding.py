"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
      name: what was checked.
      status: "ok": it works; "note": a fact, or an optional part that is not there; "warning": it
        works, but slowly or not for everything; "problem": builds fail.
      value: what was found.
      advice: what to do; empty if there is nothing to do.
    """

    name: str
    status: Status
    value: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.value}: {self.advice}" if self.advice else self.value
