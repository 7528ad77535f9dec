"""What `verify` found in some parts of a data set."""

from __future__ import annotations

from dataclasses import dataclass, field

from imageshards.reader.verification.problems import BadBoxes, Missing, Problem, Unsuitable

_PROBLEMS_SHOWN = 20


@dataclass
class Findings:
    """What `verify` found in some parts of a data set; of bounded size.

    Attributes:
      records: the number of records that were checked and are sound.
      bytes: the size of the existing shards, in bytes.
      damaged: see `Verdict`.
      missing: see `Verdict`.
      unsuitable: see `Verdict`.
      bad_boxes: see `Verdict`.
      first: (number of the part, position in it, line) of the first problems.
    """

    records: int = 0
    bytes: int = 0
    damaged: int = 0
    missing: int = 0
    unsuitable: int = 0
    bad_boxes: int = 0
    first: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, part: int, problem: Problem) -> None:
        """Adds a problem of a part; those of a part are added in order."""
        position = self.damaged + self.missing + self.unsuitable
        if isinstance(problem, Missing):
            self.missing += 1
        elif isinstance(problem, Unsuitable):
            self.unsuitable += 1
            self.bad_boxes += isinstance(problem, BadBoxes)
        else:
            self.damaged += 1
        if len(self.first) < _PROBLEMS_SHOWN:
            self.first.append((part, position, str(problem)))

    def merge(self, other: Findings) -> None:
        """Adds the findings in other parts."""
        self.records += other.records
        self.bytes += other.bytes
        self.damaged += other.damaged
        self.missing += other.missing
        self.unsuitable += other.unsuitable
        self.bad_boxes += other.bad_boxes
        self.first = sorted([*self.first, *other.first])[:_PROBLEMS_SHOWN]

    @property
    def lines(self) -> tuple[str, ...]:
        """The first problems, and a line with the number of the others."""
        lines = [line for *_, line in self.first]
        if (more := self.damaged + self.missing + self.unsuitable - len(lines)) > 0:
            lines.append(f"and {more:,} more problems")
        return tuple(lines)
