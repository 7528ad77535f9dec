"""Declares an option once, as a field of a frozen dataclass.

The command line, `--help`, the checks of single values, the tables of the documentation, the Flex
Template's parameters, the Airflow form and build.json follow from the declaration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from imageshards.pipeline.options.parser import expected, refuse

Value = bool | int | float | str | tuple[str, ...]
AUTO = "auto"
"""The value of options that are derived from others or from the inputs."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
      name: the name of the field and, with two dashes, of the option.
      default: the default value; its type is the option's type.
      help: what the option does, for `--help`, the documentation and forms. Its limits and its
        default are appended.
      brief: the text in the short `--help`; empty: only `--help-all` shows the option.
      metavar: what `--help` shows for the value; empty: `shown_metavar` derives it.
      default_text: describes the default; empty: the value itself is shown.
      required: what to specify, for an option without a default.
      choices: the allowed values, or a function that returns them.
      limits: the least and the largest allowed number.
      pattern: a regular expression that the value must match, for which `expected` is the text.
      expected: describes the allowed values in an error message.
      form_pattern: a regular expression with which forms check a rule, before the rule's own
        parser reports errors in more detail.
      is_uri: whether the value is a path or URI.
      affects_shards: whether the value changes the shards of the same references. If so, build.json
        has it, and a build with another value does not resume this one.
      in_build_yaml: whether build.yaml has the option. It does not have what depends on who builds
        the data set where, and on which machines.
      empty: the text of an empty value, for an option whose default is another one.
      images_only: whether schemas of texts reject the option.
      in_template: whether the Flex Template has the option.
      aliases: other names.
      separator: separates the values of an option that has several; empty: each value is given by
        repeating the option.
      parse: makes the value from all texts that were given; raises UsageError.
    """

    name: str
    default: Any
    help: str
    brief: str = ""
    metavar: str = ""
    default_text: str = ""
    required: str = ""
    choices: tuple[str | int, ...] | Callable[[], Iterable[str]] = ()
    limits: tuple[float, float] | None = None
    pattern: str = ""
    expected: str = ""
    form_pattern: str = ""
    is_uri: bool = False
    affects_shards: bool = True
    in_build_yaml: bool = True
    empty: str = ""
    images_only: bool = False
    in_template: bool = True
    aliases: tuple[str, ...] = ()
    separator: str = ""
    parse: Callable[[Sequence[str]], Value] | None = None

    @property
    def flag(self) -> str:
        """`--name`."""
        return f"--{self.name}"

    @property
    def is_switch(self) -> bool:
        """Whether the option takes no value."""
        return isinstance(self.default, bool)

    @property
    def is_list(self) -> bool:
        """Whether the option takes several values."""
        return isinstance(self.default, tuple)

    @property
    def shown_metavar(self) -> str:
        """The value as help shows it: a name, the choices, or N; empty for a switch."""
        if self.metavar or self.is_switch:
            return self.metavar
        return "N" if self.limits else "|".join(map(str, self.allowed))

    @property
    def allowed(self) -> tuple[str | int, ...]:
        """The allowed values, if they are known by name."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    @property
    def shown_default(self) -> str:
        """The default as help shows it; empty for switches and required options."""
        if self.default_text or self.is_switch or self.required:
            return self.default_text
        values = self.default if isinstance(self.default, tuple) else (self.default,)
        return ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)

    @property
    def description(self) -> str:
        """The help, the limits and the default, in one line."""
        facts = []
        if self.choices and not self._names_choices:
            facts.append(", ".join(map(str, self.allowed)))
        if self.limits:
            facts.append(self._range())
        if self.shown_default:
            facts.append(f"default: {self.shown_default}")
        return self.help + (f" ({'; '.join(facts)})" if facts else "")

    @property
    def _names_choices(self) -> bool:
        """Whether the allowed values are in the help, or take the place of the value's name."""
        if not self.metavar or "|" in self.metavar:
            return True
        return all(str(choice) in self.help for choice in self.allowed)

    def _range(self) -> str:
        least, most = self.limits or (0, 0)
        top = "2**64 - 1" if most == (1 << 64) - 1 else f"{most}"
        return f"{least} to {top}"

    def parsed(self, texts: Sequence[str]) -> Value:
        """Parses the values on the command line.

        Args:
          texts: one for each time the option was given. The last one is used, unless the option
            takes several values.

        Raises:
          UsageError: a text is empty, or is not the expected number.
        """
        if "" in texts and not self.required:
            refuse(f"{self.flag} is empty: specify a value, or omit the option")
        if self.parse:
            return self.parse(texts)
        if isinstance(self.default, tuple):
            return tuple(texts[-1].split(self.separator)) if self.separator else tuple(texts)
        try:
            return type(self.default)(texts[-1])  # type: ignore[no-any-return]
        except ValueError:
            kind = "an integer" if isinstance(self.default, int) else "a number"
            span = f" from {self._range()}" if self.limits else ""
            refuse(f"invalid {self.flag} {texts[-1]!r}: expected {kind}{span}")

    def _has_type(self, value: Any) -> bool:
        """Whether Python code gave a value of the type of the default."""
        if isinstance(self.default, tuple):
            return isinstance(value, tuple) and all(isinstance(text, str) for text in value)
        if isinstance(self.default, float):
            return isinstance(value, float | int)
        return self.default is None or type(value) is type(self.default)

    def check(self, value: Any) -> None:
        """Checks a single value.

        Raises:
          UsageError: the value is missing or not allowed.
        """
        if self.required and not value:
            refuse(f"{self.flag} is missing: specify {self.required}")
        problem = ""
        if not self._has_type(value):
            problem = f"expected {_TYPES[type(self.default)]}"
        elif self.choices and value not in self.allowed:
            problem = expected(value, self.allowed)
        elif self.limits and not self.limits[0] <= value <= self.limits[1]:
            problem = f"expected a number from {self._range()}"
        elif self.pattern and not re.fullmatch(self.pattern, value):
            problem = f"expected {self.expected}"
        if problem:
            refuse(f"invalid {self.flag} {value!r}: {problem}")


_TYPES = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a text, such as '16'",
    tuple: "a tuple of texts, such as ('a', 'b')",
}


def option(default: Any, help: str, **details: Any) -> Any:
    """Declares an option as a field of a `Group`.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Tiles(Group):
    ...     title = "tiles"
    ...     side: int = option(256, "Side of a tile in pixels", limits=(1, 4096))
    >>> Tiles(side=512).side
    512
    >>> Tiles(side=0)
    Traceback (most recent call last):
    imageshards.transforms.elements.UsageError: invalid --side 0: expected a number from 1 to 4096

    Args:
      default: the default value.
      help: what the option does.
      **details: further attributes of `Option`.
    """
    return field(default=default, metadata={"help": help, **details})


class Group:
    """Base class of the frozen dataclasses that declare options: checks each value at construction.

    Attributes:
      title: the heading in `--help` and in the documentation.
    """

    title: ClassVar[str]

    def __post_init__(self) -> None:
        for declared in options_of(type(self)):
            declared.check(getattr(self, declared.name))


def options_of(group: type[Group]) -> tuple[Option, ...]:
    """The options of a group, in the order of their declaration."""
    if group not in _DECLARED:
        _DECLARED[group] = tuple(
            Option(name=item.name, default=item.default, **item.metadata)
            for item in fields(group)  # type: ignore[arg-type]
        )
    return _DECLARED[group]


_DECLARED: dict[Any, tuple[Option, ...]] = {}
