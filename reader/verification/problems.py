"""The kinds of problems that `verify` finds: damage, missing files, and unsuitable records."""

from __future__ import annotations


class Problem(str):
    """A line about damage, such as a missing file or a wrong checksum."""

    def within(self, place: str) -> Problem:
        """Returns the problem with the place where it was found."""
        return type(self)(f"{place}: {self}")


class Missing(Problem):
    """A line about a file that does not exist."""


class Unsuitable(Problem):
    """A line about a record that is undamaged, but whose image or boxes training cannot use."""


class BadBoxes(Unsuitable):
    """A line about a record whose boxes are not within its image."""
