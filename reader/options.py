"""The options of `load`, which its docstring explains, in two frozen dataclasses. Pure.

`ElementOptions` determine how a record becomes an element. `ReadOptions` determine which records
are read, in which order, and how they are batched.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from imageshards.transforms.elements import UsageError, alternatives

Dtype = Literal["uint8", "float32", "bfloat16"]
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
    keys: Sequence[str] | None
    list_length: int | None
    image_key: str | None
    label_key: str | None
    balance: str | Mapping[str, Any] | None
    num_hosts: int
    host: int
    shuffle: bool | int
    seed: int
    repeat: bool
    deterministic: bool
    parallel_reads: int | None
    start: int


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of `open`."""

    decode: bool
    channels: int
    image_size: int | tuple[int, int] | None
    transform: Callable[[Any], Any] | None
    image_key: str | None
    label_key: str | None
    check: bool


class GrainOptions(TypedDict, total=False):
    """The keyword arguments of `grain`."""

    batch_size: int | None
    drop_remainder: bool | None
    image_size: int | tuple[int, int] | None
    dtype: Dtype
    channels: int
    crop_fraction: float
    augment: bool
    decode: bool
    keys: Sequence[str] | None
    list_length: int | None
    image_key: str | None
    label_key: str | None
    balance: str | Mapping[str, Any] | None
    num_hosts: int
    host: int
    shuffle: bool
    seed: int
    repeat: bool
    workers: int
    threads: int | None


def check_integer(name: str, value: object, least: int = 0, most: int = MAX_SEED) -> int:
    """Returns an argument as an int. NumPy's integers are accepted.

    Raises:
      UsageError: the value is not an integer, or it is out of range.
    """
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        bounds = f"at least {least}" + (f" and at most {most}" if number > most else "")
        raise UsageError(f"invalid {name} {value!r}: must be an integer, {bounds}")
    return number


def check_bools(options: object, *names: str) -> None:
    """Checks attributes that are True or False, or None where that is the default.

    NumPy's are converted to those of Python.

    Raises:
      UsageError: an attribute has another value.
    """
    for name in names:
        value = getattr(options, name)
        if isinstance(value, np.bool_):
            object.__setattr__(options, name, bool(value))
        elif not isinstance(value, bool) and (
            value is not None or getattr(type(options), name) is not None
        ):
            raise UsageError(f"invalid {name} {value!r}: must be True or False")


def check_keys_of(options: ElementOptions | OpenSettings) -> None:
    """Raises a UsageError if `image_key` or `label_key` is not the key of a feature, or None."""
    key: object
    for name, key in (("image_key", options.image_key), ("label_key", options.label_key)):
        if key is not None and not isinstance(key, str):
            raise UsageError(f"invalid {name} {key!r}: must be the key of a feature")
    if not options.image_key and options.image_key is not None:
        raise UsageError("invalid image_key '': must be the key of a feature")


def check_channels(channels: object, allowed: Sequence[int]) -> None:
    """Raises a UsageError if `channels` is not one of the allowed numbers."""
    is_number = isinstance(channels, Integral) and not isinstance(channels, bool)
    if not is_number or channels not in allowed:
        choices = alternatives(allowed)
        raise UsageError(f"invalid channels {channels!r}: must be {choices}")


def size_of(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Returns the height and width of an `image_size`, or None.

    Raises:
      UsageError: the value is invalid.
    """
    if image_size is None:
        return None
    sides = tuple(image_size) if isinstance(image_size, Sequence) else (image_size, image_size)
    if len(sides) != 2 or isinstance(image_size, str):
        raise UsageError(f"invalid image_size {image_size!r}: must be a number or (height, width)")
    return check_integer("image_size", sides[0], 1), check_integer("image_size", sides[1], 1)


def check_names(function: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises a UsageError if a function does not have one of the options."""
    known = list(known)
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"
            raise UsageError(f"{function} has no option {name!r}: {hint}")


@dataclass(frozen=True)
class OpenSettings:
    """The options of `open`."""

    decode: bool = True
    channels: int = 3
    image_size: int | tuple[int, int] | None = None
    transform: Callable[[Any], Any] | None = None
    image_key: str | None = None
    label_key: str | None = None
    check: bool = True

    def __post_init__(self) -> None:
        check_bools(self, "decode", "check")
        check_channels(self.channels, (3, 1, 0))
        check_keys_of(self)
        if self.transform is not None and not callable(self.transform):
            raise UsageError(
                f"invalid transform {self.transform!r}: must be a function of an image"
            )
        if self.size and not self.decode:
            raise UsageError("image_size requires decode=True")

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width in pixels, or None."""
        return size_of(self.image_size)


@dataclass(frozen=True)
class ElementOptions:
    """How a record becomes an element of the data set."""

    image_size: int | tuple[int, int] | None = None
    dtype: Dtype = "float32"
    channels: int = 3
    crop_fraction: float = 1.0
    augment: bool = False
    decode: bool = True
    features: Mapping[str, Any] | None = None
    keys: Sequence[str] | None = None
    list_length: int | None = None
    image_key: str | None = None
    label_key: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            dtypes = ", ".join(get_args(Dtype))
            raise UsageError(f"invalid dtype {self.dtype!r}: must be one of {dtypes}")
        check_bools(self, "augment", "decode")
        check_channels(self.channels, (3, 1))
        check_keys_of(self)
        fraction = self.crop_fraction
        is_number = isinstance(fraction, Real) and not isinstance(fraction, bool)
        if not is_number or not 0 < fraction <= 1:
            raise UsageError(f"invalid crop_fraction {fraction!r}: must be above 0 and at most 1")
        if self.size is None and self.augment:
            raise UsageError("augment requires an image_size: set both")
        if self.size is None and fraction < 1:
            raise UsageError(f"crop_fraction {fraction} requires an image_size: set both")
        keys: object = self.keys
        if keys is not None and (isinstance(keys, (str, bytes)) or not isinstance(keys, Sequence)):
            raise UsageError(f"invalid keys {keys!r}: must be a list of keys of features")
        for key in self.keys or ():
            if not isinstance(key, str):
                raise UsageError(f"invalid keys: {key!r} is not the key of a feature")
        if self.features is not None and not isinstance(self.features, Mapping):
            raise UsageError(
                f"invalid features {self.features!r}: must be a dict, as of tf.io.parse_example"
            )
        if keys is not None and self.features is not None:
            raise UsageError("keys and features cannot be combined: features has all keys")
        if self.list_length is not None:
            check_integer("list_length", self.list_length, 1)
            if keys is None:
                raise UsageError("list_length requires keys, the features that are lists")

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width in pixels, or None."""
        return size_of(self.image_size)


_LEAST = {"batch_size": 1, "num_hosts": 1, "host": 0, "seed": 0, "parallel_reads": 1, "start": 0}
"""The least values of the options that are integers, or None where that is the default."""


@dataclass(frozen=True)
class ReadOptions:
    """Which records are read, in which order, and how they are batched."""

    batch_size: int | None = None
    drop_remainder: bool | None = None
    balance: str | Mapping[str, Any] | None = None
    num_hosts: int = 1
    host: int = 0
    shuffle: bool | int = True
    seed: int = 0
    repeat: bool = True
    deterministic: bool = True
    parallel_reads: int | None = None
    start: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None or getattr(ReadOptions, name) is not None:
                object.__setattr__(self, name, check_integer(name, value, least))
        check_bools(self, "repeat", "deterministic", "drop_remainder")
        if isinstance(self.shuffle, np.bool_):
            check_bools(self, "shuffle")
        balance: object = self.balance
        if balance not in (None, "class") and not isinstance(balance, Mapping):
            raise UsageError(
                f'invalid balance {balance!r}: must be "class", or a dict of class names and '
                "weights"
            )
        shuffle: object = self.shuffle
        if not isinstance(shuffle, Integral) or shuffle < 0:
            raise UsageError(
                f"invalid shuffle {shuffle!r}: must be True, False or a number of records"
            )
        if self.start and not self.deterministic:
            raise UsageError(
                f"start {self.start} requires deterministic=True: without it the order of the "
                "records is not known"
            )

    @property
    def window(self) -> int | None:
        """The number of records that are shuffled together; None for the default."""
        return None if isinstance(self.shuffle, bool) else int(self.shuffle) or None


def group(options: Mapping[str, Any]) -> tuple[ElementOptions, ReadOptions]:
    """Sorts the keyword arguments of `load` into their groups.

    Raises:
      UsageError: an option is unknown, or its value is invalid.
    """
    check_names("load", options, LoadOptions.__annotations__)
    of_elements = {field.name for field in fields(ElementOptions)} & options.keys()
    return (
        ElementOptions(**{name: options[name] for name in of_elements}),
        ReadOptions(**{name: options[name] for name in options.keys() - of_elements}),
    )


@dataclass(frozen=True)
class GrainSettings:
    """The options that only `grain` has."""

    workers: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        check_integer("workers", self.workers)
        if self.threads is not None:
            check_integer("threads", self.threads, 1)


def group_grain(
    options: Mapping[str, Any],
) -> tuple[ElementOptions, ReadOptions, GrainSettings]:
    """Sorts the keyword arguments of `grain` into their groups.

    Raises:
      UsageError: an option is unknown, or its value is invalid.
    """
    check_names("grain", options, GrainOptions.__annotations__)
    if not isinstance(options.get("shuffle", True), bool | np.bool_):
        raise UsageError(
            f"invalid shuffle {options['shuffle']!r}: must be True or False: with random access, "
            "all records of an epoch are shuffled"
        )

    def of(kind: type) -> dict[str, Any]:
        names = {field.name for field in fields(kind)} & options.keys()
        return {name: options[name] for name in names}

    return (
        ElementOptions(**of(ElementOptions)),
        ReadOptions(**of(ReadOptions)),
        GrainSettings(**of(GrainSettings)),
    )
