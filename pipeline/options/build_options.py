"""All options of a build as one frozen value, and the digest that identifies a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from imageshards.pipeline.options.declare import Group, Option, options_of
from imageshards.pipeline.options.groups.dataset import About, Labels, Output, Splits
from imageshards.pipeline.options.groups.records import Annotations, Images, Records
from imageshards.pipeline.options.groups.running import CommandOptions, Execution
from imageshards.pipeline.options.groups.sources import Choice, Inputs

FORMAT_VERSION = 3
"""Part of every digest. It increases when the same options produce different bytes than before.

3: images are named, and so ordered and split, by their path below the input, not by their URI.
"""

_OF_VERSION_0_1_0 = (
    "num_shards", "seed", "labels", "class_names", "label_offset", "splits", "split_names",
    "group_by", "uri_column", "image_key", "label_key", "name_key", "base_uri", "include_all",
    "features", "channels", "pixel_range", "text_unit", "compression", "features_from", "check",
    "convert", "exif", "multi_frame", "resize", "enlarge", "quality", "min_size", "max_pixels",
    "max_bytes", "dedupe", "writer",
)  # fmt: skip
"""Every build.json has these, in this order; it has later options if they differ from defaults."""
_NOT_DIGESTED_AT_DEFAULT = frozenset({"channels", "pixel_range", "text_unit", "compression"})
"""The digest omits these, as well as all later options, if they have their defaults."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """All options of a build. Each group checks its values at construction.

    `imageshards.pipeline.assembly.BuildSpec` checks their combinations.

    >>> options = BuildOptions.of(input=("photos",), output="dataset", quality=90)
    >>> options.images.quality
    90
    """

    inputs: Inputs = field(default_factory=Inputs)
    choice: Choice = field(default_factory=Choice)
    output: Output = field(default_factory=Output)
    labels: Labels = field(default_factory=Labels)
    splits: Splits = field(default_factory=Splits)
    records: Records = field(default_factory=Records)
    images: Images = field(default_factory=Images)
    annotations: Annotations = field(default_factory=Annotations)
    about: About = field(default_factory=About)
    execution: Execution = field(default_factory=Execution)

    @classmethod
    def groups(cls) -> dict[str, type[Group]]:
        """Attribute -> class of its group."""
        return {item.name: item.default_factory for item in fields(cls)}  # type: ignore[misc]

    @classmethod
    def command_line(cls) -> list[type[Group]]:
        """The groups of `imageshards build`: those of the build, and that of the command."""
        return [*cls.groups().values(), CommandOptions]

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Name -> declaration of every option, in order."""
        groups = cls.groups().values()
        return {option.name: option for group in groups for option in options_of(group)}

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Makes options with the given values, by name; the others have their defaults.

        Raises:
          UsageError: a value is missing or not allowed.
          TypeError: a name is not that of an option.
        """
        if unknown := values.keys() - cls.declared().keys():
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        given: dict[str, Any] = {
            name: group(**{o.name: values[o.name] for o in options_of(group) if o.name in values})
            for name, group in cls.groups().items()
        }
        return cls(**given)

    def values(self) -> dict[str, Any]:
        """Name -> value of every option."""
        return {
            option.name: getattr(getattr(self, name), option.name)
            for name, group in self.groups().items()
            for option in options_of(group)
        }

    def replace(self, **values: Any) -> Self:
        """Returns a copy with other values, by name."""
        return self.of(**{**self.values(), **values})

    def is_default(self, name: str) -> bool:
        """Returns whether an option has its default value."""
        return bool(self.values()[name] == self.declared()[name].default)

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that affect the shards, for plan.json and build.json."""
        values = self.values()
        later = {
            option.name: values[option.name]
            for option in self.declared().values()
            if option.affects_shards
            and option.name not in _OF_VERSION_0_1_0
            and values[option.name] != option.default
        }
        return {name: values[name] for name in _OF_VERSION_0_1_0} | later

    @property
    def settings(self) -> str:
        """A digest of `recorded`. A build resumes only builds with an equal digest."""
        import json  # --help needs neither of them
        from hashlib import blake2b

        digested = {
            name: value
            for name, value in self.recorded.items()
            if name not in _NOT_DIGESTED_AT_DEFAULT or not self.is_default(name)
        }
        text = json.dumps([FORMAT_VERSION, digested], sort_keys=True)
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def differences(self, recorded: Mapping[str, Any]) -> str:
        """Describes how the options of another build differ; empty if they do not.

        Args:
          recorded: `recorded` of the other build, from its plan.json.
        """
        import json

        defaults = {name: option.default for name, option in self.declared().items()}
        # Tuples are lists in JSON.
        mine = json.loads(json.dumps({**defaults, **self.recorded}))
        theirs = json.loads(json.dumps({**defaults, **recorded}))
        return "; ".join(
            f"--{name} was {_text(theirs[name])}, now {_text(mine[name])}"
            for name in mine
            if theirs[name] != mine[name]
        )


def _text(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text or "(none)"
