"""The features that a build's options set: schema, columns, shape of the pixels. Pure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from imageshards.transforms.elements import counted, quoted
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.records.objects import (
    CAPTION_FORMATS,
    COMPUTED,
    NO_FORMAT,
    object_columns,
)
from imageshards.transforms.records.schemas import (
    AREA,
    BOX_SIDES,
    CAPTION_KEY,
    COLUMN,
    KEYPOINT,
    OBJECT,
    SCHEMAS,
    Feature,
    Kind,
    Schema,
)

Type = Literal["int", "float", "bytes", "int_list", "float_list", "bytes_list"]
_KINDS: dict[str, Kind] = {"int": "int64", "float": "float", "bytes": "bytes"}
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-/]*")
_SEPARATOR = re.compile(r"[\s,;]+")
_FLOAT_LISTS = frozenset((*BOX_SIDES, AREA, f"{KEYPOINT}x", f"{KEYPOINT}y"))
_NUMBER_LISTS = frozenset((f"{KEYPOINT}visibility", f"{KEYPOINT}num"))
_LARGEST_FLOAT = 3.4028234663852886e38


@dataclass(frozen=True)
class FeatureColumn:
    """A column that becomes a feature.

    Attributes:
      key: the feature's key.
      column: the manifest's column, or the key of the feature in a TFRecord input.
      type: `int` (int64), `float` (float32) or `bytes` for a single value, which every image must
        have; or a list of any length, which is empty if there is no value.
      role: "label" for the label, which is finite; "uri" for a URI, which is relative to the
        manifest's folder; "captions" for one or more texts, which are not divided into words;
        empty for all others.
    """

    key: str
    column: str
    type: Type
    role: Literal["", "label", "uri", "captions"] = ""

    @classmethod
    def parse(cls, text: str) -> FeatureColumn:
        """Parses `COLUMN`, `COLUMN:TYPE` or `KEY=COLUMN:TYPE`; the default type is `bytes`.

        Raises:
          ValueError: the text has another form.

        >>> FeatureColumn.parse("image/object/bbox/xmin=left:float_list")
        FeatureColumn(key='image/object/bbox/xmin', column='left', type='float_list', role='')
        """
        rest, colon, kind = text.rpartition(":")
        if not colon:
            rest, kind = text, "bytes"
        key, equals, column = rest.partition("=")
        if kind not in get_args(Type) or not key or (equals and not column):
            raise ValueError(
                f"--features_from {text!r}: write COLUMN:TYPE or KEY=COLUMN:TYPE, with TYPE one of "
                f"{', '.join(get_args(Type))}"
            )
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"--features_from {text!r}: {key!r} is not a valid key: use letters, digits, "
                "_ . - and / only (KEY=COLUMN sets another key)"
            )
        return cls(key, column or key, kind)  # type: ignore[arg-type]

    @property
    def source(self) -> str:
        """Its name in batches of references, and the source of its feature."""
        return COLUMN + self.key

    @cached_property
    def kind(self) -> Kind:
        """The list of tf.train.Feature that contains the values."""
        return _KINDS[self.type.removesuffix("_list")]

    @property
    def is_list(self) -> bool:
        """Whether a record can have any number of values."""
        return self.type.endswith("_list")

    @property
    def feature(self) -> Feature:
        """The feature in a schema."""
        if self.is_list:
            return Feature(self.key, self.kind, self.source, "List", repeats=False)
        return Feature(
            self.key, self.kind, self.source, "Text" if self.kind == "bytes" else "Scalar"
        )

    def values(self, raw: Sequence[Any]) -> tuple[list[Any], dict[int, str]]:
        """Converts the values of a manifest to values of the feature.

        Args:
          raw: one value per row: a text (CSV), or of any type (JSON, Parquet).

        Returns:
          One value per row, None if it cannot be converted; and row -> what is wrong.
        """
        values: list[Any] = []
        wrong: dict[int, str] = {}
        for row, value in enumerate(raw):
            try:
                values.append(self._value(value))
            except (ValueError, TypeError, OverflowError):
                values.append(None)
                wrong[row] = (
                    f"the column {self.column!r} is {quoted(value)}, which is no {self.type}"
                )
            else:
                if values[-1] is None:
                    wrong[row] = f"no value in the column {self.column!r}"
        return values, wrong

    def of_record(self, values: Sequence[Any] | None) -> Any:
        """Converts the values in a record of a TFRecord input to the value of the feature.

        Args:
          values: the values in the record; None or empty if it has none.

        Raises:
          ValueError: the values cannot be converted; the message gives the reason.
        """
        values = list(values or ())
        parse = self._parse
        if not self.is_list and len(values) != 1:
            if self.type == "bytes" and not values:
                return b""
            raise ValueError(f"{counted(len(values), 'value')} of {self.column!r}, not exactly one")
        try:
            parsed = [parse(value) for value in values]
        except (ValueError, TypeError, OverflowError) as error:
            message = f"{self.column!r} is not of type {self.type}: {quoted(values)}"
            raise ValueError(message) from error
        if self.role == "captions" and not any(parsed):
            raise ValueError(f"no value of {self.column!r}")
        return parsed if self.is_list else parsed[0]

    @property
    def _parse(self) -> Callable[[Any], Any]:
        return _finite if self.role == "label" else _PARSERS[self.kind]

    def _value(self, value: Any) -> Any:
        parse = self._parse
        if self.role == "captions":
            return [parse(text) for text in _texts(value)] or None
        if self.is_list:
            return [parse(item) for item in _items(value)]
        if self.type == "bytes":
            return b"" if value is None else parse(value)
        return None if _is_nothing(value) else parse(value)


SIDE_OPTIONS = {"mask": "masks", "captions": "captions"}
"""`Schema.side` -> the option that says where the files are, or which column it is."""
_SIDE_COLUMNS = {"mask": "mask", "captions": "caption"}
SIDE_KEY = "--side"
"""Key of the column with the URIs of side files. No feature has it."""
_VALUE = re.compile("column:(.+):float")


def value_column(rule: str) -> str:
    """Returns the column of `--labels column:NAME:float`, whose numbers are labels; else empty.

    >>> value_column("column:age:float"), value_column("column:breed")
    ('age', '')
    """
    found = _VALUE.fullmatch(rule)
    return found[1] if found else ""


def feature_columns(options: Mapping[str, Any]) -> tuple[FeatureColumn, ...]:
    """Returns the columns that become features: those of `--features_from`, and the label.

    Args:
      options: option name -> value, as in build.json.

    Raises:
      ValueError: a column is malformed.
    """
    columns = [FeatureColumn.parse(text) for text in options["features_from"] if text != "auto"]
    key, column = SCHEMAS[options["features"]].class_key, value_column(options["labels"])
    if column and key:
        columns.append(FeatureColumn(key, column, "float", role="label"))
    if column := side_column(options):
        if SCHEMAS[options["features"]].side == "captions":
            columns.append(FeatureColumn(CAPTION_KEY, column, "bytes_list", role="captions"))
        else:
            columns.append(FeatureColumn(SIDE_KEY, column, "bytes", role="uri"))
    return tuple(columns)


def side_column(options: Mapping[str, Any]) -> str:
    """Returns the column with captions, or with the URIs of masks; empty: a pattern has the paths.

    Args:
      options: option name -> value, as in build.json.
    """
    side = SCHEMAS[options["features"]].side
    rule = options[SIDE_OPTIONS[side]] if side and not has_captions(options) else "-"
    kind, _, name = (rule or "column").partition(":")
    return (name or _SIDE_COLUMNS[side]) if kind == "column" else ""


def label_rule(options: Mapping[str, Any]) -> str:
    """Returns the rule of `--labels`.

    "auto" is "none" if the schema has no classes, and with annotations: these have classes of their
    own, and their images are often in one folder.
    """
    rule: str = options["labels"]
    has_labels = SCHEMAS[options["features"]].has_labels and not annotation_columns(options)
    return "none" if rule == "auto" and not has_labels else rule


def schema_of(options: Mapping[str, Any]) -> Schema:
    """Returns the schema of a build, with the features of columns and the shape of the pixels.

    Args:
      options: option name -> value, as in build.json.

    Raises:
      ValueError: the options contradict each other; the message gives the values to write.
      KeyError: there is no schema of that name.
    """
    schema = SCHEMAS[options["features"]]
    annotated = annotation_columns(options)
    if annotated and not has_captions(options):
        schema = schema.with_features((*(column.feature for column in annotated), *COMPUTED))
    columns = [FeatureColumn.parse(text) for text in options["features_from"] if text != "auto"]
    taken: dict[str, Feature | None] = {feature.key: feature for feature in schema.features}
    taken |= dict.fromkeys(column.key for column in annotated)
    for column in columns:
        if column.key in taken:
            _check_open(taken[column.key], column)
        taken[column.key] = None
    if columns:
        schema = schema.with_features(column.feature for column in columns)
    if schema.fixed:
        schema = schema.with_shape(_shape(options))
    if value_column(options["labels"]):
        return schema.with_value()
    if options["labels"].startswith(("list:", "columns:")):
        return schema.with_classes()
    return schema.without_labels() if label_rule(options) == "none" else schema


def annotation_columns(options: Mapping[str, Any]) -> tuple[FeatureColumn, ...]:
    """Returns the features that `--annotations` fills.

    Args:
      options: option name -> value, as in build.json.
    """
    name = options.get("annotation_format", NO_FORMAT)
    if has_captions(options):
        return (FeatureColumn(CAPTION_KEY, CAPTION_KEY, "bytes_list", role="captions"),)
    found = object_columns(name, bool(options.get("object_masks")))
    return tuple(map(FeatureColumn.parse, found))


def has_captions(options: Mapping[str, Any]) -> bool:
    """Returns whether `--annotations` are captions, not objects.

    Args:
      options: option name -> value, as in build.json.
    """
    return options.get("annotation_format") in CAPTION_FORMATS


def annotation_problem(column: FeatureColumn) -> str:
    """Returns why a column cannot be an annotation that is mapped; empty if it can, or is none.

    >>> annotation_problem(FeatureColumn.parse("image/object/area=m:int_list"))
    '--features_from: image/object/area is a list of numbers: write image/object/area=m:float_list'
    """
    right = "float_list" if column.key in _FLOAT_LISTS else "int_list"
    allowed = {right} if column.key in _FLOAT_LISTS else {"int_list", "float_list"}
    if column.key not in _FLOAT_LISTS | _NUMBER_LISTS or column.type in allowed:
        return ""
    return (
        f"--features_from: {column.key} is a list of numbers: write "
        f"{column.key}={column.column}:{right}"
    )


def _check_open(existing: Feature | None, column: FeatureColumn) -> None:
    """Raises ValueError unless a column may set the values of an existing feature."""
    if not existing or not existing.is_open:
        raise ValueError(
            f"--features_from: the feature {column.key!r} exists already: write "
            f"KEY={column.column}:{column.type} with another key"
        )
    if (existing.kind, existing.tfds) != (column.feature.kind, column.feature.tfds):
        right = "float_list" if existing.kind == "float" else "int_list"
        raise ValueError(
            f"--features_from: the feature {column.key!r} is of type {right}: write "
            f"{column.key}={column.column}:{right}"
        )


def channels_of(options: Mapping[str, Any]) -> int:
    """Returns the channels of pixels to write: 1, 3, or 0 to keep those of each image."""
    channels = int(options.get("channels") or 0)
    return channels or (3 if SCHEMAS[options["features"]].fixed else 0)


def _shape(options: Mapping[str, Any]) -> tuple[int, int, int]:
    resize = Resize.parse(options["resize"]) if options["resize"] else None
    if resize is None or resize.mode in ("short", "long"):
        raise ValueError(
            f"--features {options['features']} needs one size for all images: set --resize to "
            "32x32, crop:32x32 or pad:32x32"
        )
    return resize.height, resize.width, channels_of(options)


def columns_of(
    rows: Iterable[Mapping[str, Sequence[Any]]], lists: Collection[str] = ()
) -> list[str]:
    """Returns columns for all features of some records, as texts for `FeatureColumn.parse`.

    Args:
      rows: for each record, key -> values. A feature with exactly one value in every record becomes
        a single value, any other feature a list. Features of objects are always lists, and their
        positions and areas are of type float.
      lists: keys of features that always become lists.

    >>> columns_of([{"size": [3]}, {"size": [4], "tags": [b"owl", b"night"]}])
    ['size:int', 'tags:bytes_list']
    """

    def is_list(key: str) -> bool:
        return key in lists or key.startswith(OBJECT)

    types: dict[str, str] = {}
    single: Counter[str] = Counter()
    records = 0
    for records, row in enumerate(rows, 1):  # noqa: B007 - used below
        for key, values in row.items():
            single[key] += len(values) == 1
            if values:
                kind = type(values[0]).__name__  # bytes, int or float
                types.setdefault(key, "float" if kind == "int" and key in _FLOAT_LISTS else kind)
    return [
        f"{key}:{kind}{'' if single[key] == records and not is_list(key) else '_list'}"
        for key, kind in sorted(types.items())
    ]


def _is_nothing(value: Any) -> bool:
    # Tables may contain NaN for missing values.
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _items(value: Any) -> Sequence[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return [item for item in _SEPARATOR.split(value) if item]
        value = json.loads(value)
    return value if isinstance(value, (list, tuple)) else [value]


def _texts(value: Any) -> list[str]:
    """Returns the texts that are not empty: one, or those of a list or a JSON list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):  # a text in brackets
            value = json.loads(value)
    values = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(text, str) or _is_nothing(text) for text in values):
        raise TypeError
    return [text.strip() for text in values if not _is_nothing(text)]


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


def _finite(value: Any) -> float:
    number = _float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, (str, int, float)):
        raise TypeError
    return str(value).encode()


_PARSERS: dict[Kind, Callable[[Any], Any]] = {"int64": _int, "float": _float, "bytes": _bytes}
