"""The options of `load` in groups: frozen dataclasses that check their values. Pure.

The docstring of `load` explains each option and its default.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, TypedDict

from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.schemas import Feature, Schema

Dtype = Literal["uint8", "float32", "bfloat16"]
_DTYPES = ("uint8", "float32", "bfloat16")
MAX_SEED = (1 << 62) - 1
"""TensorFlow takes seeds of 63 bits; one bit separates the uses of a seed."""


class LoadOptions(TypedDict, total=False):
    """The keyword arguments of `load`."""

    batch_size: int | None
    drop_remainder: bool | None
    image_size: int | tuple[int, int] | None
    dtype: Dtype
    channels: int
    crop_fraction: float
    augment: bool
    decode: bool
    features: Mapping[str, Any] | None
    image_key: str | None
    label_key: str | None
    num_hosts: int
    host: int
    shuffle: bool | int
    seed: int
    repeat: bool
    deterministic: bool
    parallel_reads: int | None
    start: int


def check_integer(name: str, value: object, least: int = 0, most: int = MAX_SEED) -> int:
    """Returns an argument as an int. NumPy's integers are accepted.

    Raises:
      UsageError: the value is not an integer, or it is out of range.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        bounds = f"at least {least}" + (f" and at most {most}" if number > most else "")
        raise UsageError(f"invalid {name} {value!r}: must be an integer, {bounds}")
    return number


def check_channels(channels: int, allowed: Sequence[int]) -> None:
    """Raises a UsageError if `channels` is not one of the allowed numbers."""
    if channels not in allowed:
        choices = " or ".join(map(str, allowed))
        raise UsageError(f"invalid channels {channels!r}: must be {choices}")


class _Group:
    """A group of options."""

    def _check_integers(self, least: int, *names: str) -> None:
        """Replaces these options by ints. An option whose default is None may be None."""
        for name in names:
            value = getattr(self, name)
            if value is not None or getattr(type(self), name) is not None:
                object.__setattr__(self, name, check_integer(name, value, least))


@dataclass(frozen=True)
class Batching(_Group):
    """How records are grouped into batches."""

    batch_size: int | None = None
    drop_remainder: bool | None = None

    def __post_init__(self) -> None:
        self._check_integers(1, "batch_size")


@dataclass(frozen=True)
class Decoding(_Group):
    """How a parsed record becomes an element of the data set."""

    image_size: int | tuple[int, int] | None = None
    dtype: Dtype = "float32"
    channels: int = 3
    crop_fraction: float = 1.0
    augment: bool = False
    decode: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise UsageError(f"invalid dtype {self.dtype!r}: must be one of {', '.join(_DTYPES)}")
        check_channels(self.channels, (3, 1))
        _ = self.size
        fraction = self.crop_fraction
        if not isinstance(fraction, Real) or not 0 < fraction <= 1:
            raise UsageError(f"invalid crop_fraction {fraction!r}: must be above 0 and at most 1")
        if self.augment and self.image_size is None:
            raise UsageError("augment requires an image_size: set both")
        if self.crop_fraction < 1 and self.image_size is None:
            raise UsageError(f"crop_fraction {fraction} requires an image_size: set both")

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width in pixels, or None."""
        size = self.image_size
        if size is None:
            return None
        sides = tuple(size) if isinstance(size, Sequence) else (size, size)
        if len(sides) != 2:
            raise UsageError(f"invalid image_size {size!r}: must be a number or (height, width)")
        return check_integer("image_size", sides[0], 1), check_integer("image_size", sides[1], 1)


@dataclass(frozen=True)
class Keys(_Group):
    """Which features of a record are read."""

    features: Mapping[str, Any] | None = None
    image_key: str | None = None
    label_key: str | None = None

    def applied_to(self, schema: Schema) -> Schema:
        """Returns the schema with these keys in place of its own."""
        if self.label_key is not None:
            schema = schema.without_labels()
            if self.label_key:
                label = Feature(self.label_key, "int64", "label", "ClassLabel")
                schema = schema.with_features([label])
        if self.image_key is not None:
            labels = tuple(f for f in schema.features if f.source == "label")
            image = Feature(self.image_key, "bytes", "encoded", "Image")
            schema = replace(schema, features=(image, *labels), holds="encoded")
        return schema


@dataclass(frozen=True)
class Sharding(_Group):
    """Which part of the records this host reads."""

    num_hosts: int = 1
    host: int = 0

    def __post_init__(self) -> None:
        self._check_integers(1, "num_hosts")
        self._check_integers(0, "host")
        if self.host >= self.num_hosts:
            raise UsageError(
                f"invalid host {self.host} of {self.num_hosts}: must be from 0 to num_hosts - 1"
            )


@dataclass(frozen=True)
class Reading(_Group):
    """In which order records are read, and how."""

    shuffle: bool | int = True
    seed: int = 0
    repeat: bool = True
    deterministic: bool = True
    parallel_reads: int | None = None
    start: int = 0

    def __post_init__(self) -> None:
        shuffle: object = self.shuffle
        if not isinstance(shuffle, Integral) or shuffle < 0:
            raise UsageError(
                f"invalid shuffle {shuffle!r}: must be True, False or a number of records"
            )
        self._check_integers(0, "seed", "start")
        self._check_integers(1, "parallel_reads")
        if self.start and not self.deterministic:
            raise UsageError(
                f"start {self.start} requires deterministic=True: without it the order of the "
                "records is not known"
            )

    @property
    def window(self) -> int | None:
        """How many records are shuffled together; None for a default."""
        return None if isinstance(self.shuffle, bool) else int(self.shuffle) or None


@dataclass(frozen=True)
class Groups:
    """All options of `load`."""

    batching: Batching
    decoding: Decoding
    keys: Keys
    sharding: Sharding
    reading: Reading


def group(options: Mapping[str, object]) -> Groups:
    """Sorts the keyword arguments of `load` into their groups.

    Raises:
      UsageError: an option is unknown, or its value is invalid.
    """
    known = LoadOptions.__annotations__
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"
            raise UsageError(f"load has no option {name!r}: {hint}")

    def made(kind: type[Any]) -> Any:
        names = {field.name for field in fields(kind)}
        return kind(**{name: value for name, value in options.items() if name in names})

    return Groups(*map(made, (Batching, Decoding, Keys, Sharding, Reading)))
