"""What the options of a build say of its features: schema, columns, shape of the pixels. Pure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from imageshards.transforms.images.resize import Resize
from imageshards.transforms.records.schemas import COLUMN, SCHEMAS, Feature, Kind, Schema

Type = Literal["int", "float", "bytes", "int_list", "float_list", "bytes_list"]
_KINDS: dict[Type, Kind] = {
    "int": "int64",
    "float": "float",
    "bytes": "bytes",
    "int_list": "int64",
    "float_list": "float",
    "bytes_list": "bytes",
}
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-/]*")
_SEPARATOR = re.compile(r"[\s,;]+")
_LARGEST_FLOAT = 3.4028234663852886e38


@dataclass(frozen=True)
class FeatureColumn:
    """One column that becomes a feature.

    Attributes:
      key: of the feature.
      column: of the manifest.
      type: `int` (int64), `float` (float32) and `bytes` are single values, which every image must
        have; the lists are of any length, empty where there is no value.
    """

    key: str
    column: str
    type: Type

    @classmethod
    def parse(cls, text: str) -> FeatureColumn:
        """From `COLUMN`, `COLUMN:TYPE` or `KEY=COLUMN:TYPE`; without a type it is `bytes`."""
        rest, colon, kind = text.rpartition(":")
        if not colon:
            rest, kind = text, "bytes"
        key, equals, column = rest.partition("=")
        if kind not in get_args(Type) or not key or (equals and not column):
            raise ValueError(
                f"--features_from {text!r}: write COLUMN:TYPE or KEY=COLUMN:TYPE, TYPE one of "
                f"{', '.join(get_args(Type))}"
            )
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"--features_from {text!r}: {key!r} is no key of a feature: letters, digits, "
                "_ . - and / only (KEY=COLUMN gives the column another)"
            )
        return cls(key, column or key, kind)  # type: ignore[arg-type]

    @property
    def source(self) -> str:
        """Its name in a batch of references and among the values of a record."""
        return COLUMN + self.key

    @property
    def is_list(self) -> bool:
        """Whether an image may have any number of values."""
        return self.type.endswith("_list")

    @property
    def feature(self) -> Feature:
        """The feature as a schema has it."""
        tfds: Literal["Text", "List", "Scalar"] = "List" if self.is_list else "Scalar"
        return Feature(
            self.key, _KINDS[self.type], self.source, "Text" if self.type == "bytes" else tfds,
            repeats=not self.is_list,
        )  # fmt: skip

    def values(self, raw: Sequence[Any]) -> tuple[list[Any], dict[int, str]]:
        """Values as the manifest has them -> values of the feature.

        Args:
          raw: texts (of CSV), or what JSON and Parquet have.

        Returns:
          A value a row (None where there is none), and row -> what is wrong with it.
        """
        values: list[Any] = []
        wrong: dict[int, str] = {}
        for row, value in enumerate(raw):
            try:
                values.append(self._value(value))
            except (ValueError, TypeError, OverflowError):
                values.append(None)
                shown = repr(value)
                shown = shown if len(shown) <= 60 else shown[:57] + "..."
                wrong[row] = f"the column {self.column!r} is {shown}, which is no {self.type}"
            else:
                if values[-1] is None:
                    wrong[row] = f"no value in the column {self.column!r}"
        return values, wrong

    def of_record(self, values: Sequence[Any] | None) -> Any:
        """The value of the feature in a record of a TFRecord file.

        Args:
          values: as the record has them; None or empty where it has none.

        Raises:
          ValueError: the record has no such value; says why.
        """
        values = list(values or ())
        parse = _PARSERS[_KINDS[self.type]]
        if not self.is_list and len(values) != 1:
            if self.type == "bytes" and not values:
                return b""
            raise ValueError(f"{len(values)} values of {self.column!r}, which has to be one")
        try:
            parsed = [parse(value) for value in values]
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{self.column!r} is no {self.type}: {str(values)[:60]}") from error
        return parsed if self.is_list else parsed[0]

    def _value(self, value: Any) -> Any:
        parse = _PARSERS[_KINDS[self.type]]
        if self.is_list:
            return [parse(item) for item in _items(value)]
        if self.type == "bytes":
            return b"" if value is None else parse(value)
        return None if _is_nothing(value) else parse(value)


def schema_of(options: Mapping[str, Any]) -> Schema:
    """The schema of a build: its features, those of columns too, and the shape of its pixels.

    Args:
      options: of a `Config`, or as build.json has them.

    Raises:
      ValueError: they make no schema; says what to write instead.
      KeyError: there is no schema of that name.
    """
    schema = SCHEMAS[options["features"]]
    columns = [FeatureColumn.parse(text) for text in options["features_from"] if text != "auto"]
    taken: dict[str, Feature | None] = {feature.key: feature for feature in schema.features}
    for column in columns:
        if column.key in taken:
            _check_open(taken[column.key], column)
        taken[column.key] = None
    if columns:
        schema = schema.with_features(column.feature for column in columns)
    if schema.fixed:
        schema = schema.with_shape(_shape(options))
    return schema.without_labels() if options["labels"] == "none" else schema


def _check_open(there: Feature | None, column: FeatureColumn) -> None:
    """Refuses a column for a key that is taken, unless it is one that columns are to fill."""
    if not there or not there.is_open:
        raise ValueError(
            f"--features_from: there is a feature {column.key!r} already: write "
            f"KEY={column.column}:{column.type} with another key"
        )
    if (there.kind, there.tfds) != (column.feature.kind, column.feature.tfds):
        right = "float_list" if there.kind == "float" else "int_list"
        raise ValueError(
            f"--features_from: the feature {column.key!r} is of type {right}: write "
            f"{column.key}={column.column}:{right}"
        )


def channels_of(options: Mapping[str, Any]) -> int:
    """Channels of pixels that are written: 1 or 3, or 0 for what each image has."""
    told = int(options.get("channels") or 0)
    return told or (3 if SCHEMAS[options["features"]].fixed else 0)


def _shape(options: Mapping[str, Any]) -> tuple[int, int, int]:
    resize = Resize.parse(options["resize"]) if options["resize"] else None
    if resize is None or resize.mode in ("short", "long"):
        raise ValueError(
            f"--features {options['features']} needs one size for all images: write --resize "
            "32x32, crop:32x32 or pad:32x32"
        )
    return resize.height, resize.width, channels_of(options)


def columns_of(
    rows: Iterable[Mapping[str, Sequence[Any]]], lists: Collection[str] = ()
) -> list[str]:
    """The columns, as `FeatureColumn.parse` takes them, that hold all features of some records.

    Args:
      rows: key -> values of each record. A key that has one value in each is a single value.
      lists: keys that are lists whatever they have.
    """
    kinds: dict[str, Kind] = {}
    single: Counter[str] = Counter()
    records = 0
    for records, row in enumerate(rows, 1):  # noqa: B007 - used below
        for key, values in row.items():
            single[key] += len(values) == 1
            if values:
                kinds.setdefault(key, _kind(values[0]))
    names = {"int64": "int", "float": "float", "bytes": "bytes"}
    return [
        f"{key}:{names[kind]}{'' if single[key] == records and key not in lists else '_list'}"
        for key, kind in sorted(kinds.items())
    ]


def _kind(value: Any) -> Kind:
    if isinstance(value, bytes):
        return "bytes"
    return "int64" if isinstance(value, int) else "float"


def _is_nothing(value: Any) -> bool:
    # NaN is how tables say "nothing".
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            value = json.loads(value)
        else:
            value = [item for item in _SEPARATOR.split(value) if item]
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        return [value]
    return value


def _int(value: Any) -> int:
    if isinstance(value, str):
        try:
            number = int(value)
        except ValueError:
            number = _integer(float(value))
    elif isinstance(value, (int, float)):
        number = _integer(value)
    else:
        raise TypeError
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError
    return number


def _integer(value: float) -> int:
    if value != math.floor(value):
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if not isinstance(value, (str, int, float)):
        raise TypeError
    number = float(value)
    if abs(number) > _LARGEST_FLOAT and not math.isinf(number):
        raise OverflowError
    return number


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, (str, int, float)):
        raise TypeError
    return str(value).encode()


_PARSERS: dict[Kind, Callable[[Any], Any]] = {"int64": _int, "float": _float, "bytes": _bytes}
