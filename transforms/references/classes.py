"""Numbering of classes: texts of labels -> label numbers and class names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from imageshards.transforms.elements import BuildError, quoted

BACKGROUND = "background"
_NUMBER = re.compile(r"\d+(\.0+)?", re.ASCII)  # also 3.0, which tables write if values are missing
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MAX_NUMBER = (1 << 20) - 1
_NO_NUMBER = "nan"


@dataclass(frozen=True)
class Classes:
    """The classes of a data set.

    Attributes:
      names: in label order, the background class included; empty without labels.
      numbers: class text of a reference -> label number.
      note: the origin of the classes, for the notes of the build.
    """

    names: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


def number_classes(
    found: Iterable[str],
    sources: frozenset[str],
    given: Sequence[str] | None = None,
    offset: int = 0,
) -> Classes:
    """Numbers the classes that were found.

    Args:
      found: texts of labels.
      sources: origins of the labels: "folder", "regex" or "column NAME".
      given: class names in label order. None: the texts, sorted; or, if all come from columns of
        manifests and are numbers, these numbers.
      offset: 1 reserves label 0 for the background class.

    Raises:
      BuildError: a text is not one of the given names, or cannot be a line of a file of names; or
        the texts are measurements.

    >>> number_classes(["owl", "cat"], frozenset(["folder"])).numbers
    {'cat': 0, 'owl': 1}
    """
    texts = sorted(found)
    for text in texts:
        _check_name(text)
    from_column = all(source.startswith("column") for source in sources)
    numbered = bool(texts) and from_column and all(map(_NUMBER.fullmatch, texts))
    note = f"by {' and '.join(sorted(sources))}"
    if given is not None:
        names = tuple(given)
        numbers = {name: number for number, name in enumerate(names)}
        if numbered and not set(texts) <= set(names):
            values = {text: int(float(text)) for text in texts}
            numbers = {text: value for text, value in values.items() if value < len(names)}
        if unknown := [text for text in texts if text not in numbers]:
            shown = ", ".join(map(quoted, unknown[:5])) + (", ..." if unknown[5:] else "")
            raise BuildError(
                f"--class_names does not hold {len(unknown):,} of the labels found: {shown}"
            )
    elif numbered:
        numbers = {text: int(float(text)) for text in texts}
        largest = max(numbers.values())
        if largest > _MAX_NUMBER:
            raise BuildError(
                f"label {largest} is too large for the number of a class (at most {_MAX_NUMBER})"
            )
        names = tuple(map(str, range(largest + 1)))
        note += ", whose values are the label numbers"
        if unused := len(names) - len(set(numbers.values())):
            note += f" ({unused:,} of 0 to {largest:,} have no image)"
    else:
        if from_column:
            _check_numbers(texts, sources)
        names = tuple(texts)
        numbers = {name: number for number, name in enumerate(names)}
        if from_column and any(map(_NUMBER.fullmatch, texts)):
            other = next(text for text in texts if not _NUMBER.fullmatch(text))
            note += f", as names: {quoted(other)} is not a number from 0"
    if len(names) == 1 and given is None:
        note += f": {quoted(names[0])} (--labels can also be none, regex:RE or column:NAME)"
    if offset:
        if BACKGROUND in names:
            raise BuildError(
                f"a class is named {BACKGROUND!r}, which is label 0 with --label_offset: rename it"
            )
        names = (BACKGROUND,) * offset + names
    return Classes(names, {text: numbers[text] + offset for text in texts}, note)


def _check_numbers(texts: Sequence[str], sources: frozenset[str]) -> None:
    """Raises a BuildError if texts are numbers, but not those of classes."""
    numbers = [text for text in texts if text.lower() != _NO_NUMBER]
    if numbers and all(map(_DECIMAL.fullmatch, numbers)):
        _check_whole(numbers, sources)
        # Tables write it for a missing value. As a class it would make names of all the others.
        if missing := [text for text in texts if text not in numbers]:
            column = min(sources).removeprefix("column ")
            raise BuildError(
                f"the labels in column {column!r} are numbers, but some are {quoted(missing[0])}: "
                "leave out these rows, leave these values empty, or name the classes in "
                "--class_names"
            )


def _check_whole(texts: Sequence[str], sources: frozenset[str]) -> None:
    """Raises a BuildError if numbers are not whole: they are values, and no classes."""
    if other := next((text for text in texts if not float(text).is_integer()), None):
        column = min(sources).removeprefix("column ")
        raise BuildError(
            f"the labels in column {column!r} are numbers that are not whole, such as "
            f"{quoted(other)}: write --labels column:{column}:float if they are values to predict, "
            "or name the classes in --class_names"
        )


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BuildError(f"class name {quoted(name)} is not UTF-8: rename it") from error
    # A file of class names has one name per line, and its readers strip the lines.
    if name.strip() != name or "\n" in name or "\r" in name:
        raise BuildError(
            f"class name {quoted(name)} has a line break, or spaces at its ends: rename it"
        )
