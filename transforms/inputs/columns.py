"""Columns of values, as labels, splits, groups and features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imageshards.transforms.elements import (
    LABEL_SEPARATOR,
    BuildError,
    Problem,
    enumerated,
    quoted,
    to_bytes,
    to_text,
)
from imageshards.transforms.inputs.kind import ListingOptions
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.references.batch import RefBatch

LABEL = "label"
"""The column of the labels if no rule names another one."""
_NOTHING = type(None)


def check_columns(uri: str, header: Sequence[str], options: ListingOptions) -> None:
    """Checks the columns of a file that has images and their values.

    Args:
      uri: the file.
      header: the names of its columns.
      options: how to list.

    Raises:
      BuildError: a column is missing that is required, that gives the label, or `--name_key`.
    """
    columns = options.columns
    for name in columns.all_required:
        if name not in header:
            raise BuildError(f"{uri}: no column {name!r}; its columns are: {enumerated(header)}")
    if LABEL in columns.optional and LABEL not in header:
        raise BuildError(
            f"{uri}: no column {LABEL!r}: write --labels column:NAME, or --labels none to build "
            f"without labels; its columns are: {enumerated(header)}"
        )
    name = options.record_keys.name
    if name and not {name, name.partition(".")[0]} & {*header}:
        raise BuildError(
            f"{uri}: no column {name!r} for --name_key; its columns are: {enumerated(header)}"
        )


def with_features(
    refs: RefBatch,
    columns: Mapping[str, Sequence[Any]],
    features: Sequence[FeatureColumn],
    absolute: Callable[[list[str]], list[str]] = list,
) -> RefBatch:
    """Returns references with values that become features of their records.

    Args:
      refs: the references.
      columns: name -> one value per reference, of any type.
      features: the columns to convert. A value that cannot be converted makes its reference a
        reject.
      absolute: makes the URIs of side files absolute.
    """
    values: dict[FeatureColumn, list[Any]] = {}
    problems = refs.problems if features else {}
    before = len(problems)
    for feature in features:
        values[feature], wrong = feature.values(columns[feature.column])
        if feature.role == "uri":
            known = iter(absolute([to_text(value) for value in values[feature] if value]))
            values[feature] = [value and to_bytes(next(known)) for value in values[feature]]
        for row, reason in wrong.items():
            problems.setdefault(row, Problem("features", "NoFeature", reason))
    if len(problems) > before:
        refs = refs.with_problems(problems)
    return refs.with_features(values)


def texts_of(values: Sequence[Any], column: str, where: Callable[[int], str]) -> list[str | None]:
    """Converts texts and numbers of a column to texts; None means no value.

    Args:
      values: one value per row.
      column: the name of the column, for messages.
      where: row -> where it is, for messages.

    Raises:
      BuildError: a value is neither a text nor a number, or is not Unicode.
    """
    if {*map(type, values)} <= {str, _NOTHING}:
        texts = [value or None for value in values]
    else:
        texts = [_text(value, column, where, row) for row, value in enumerate(values)]
    try:
        "".join(filter(None, texts)).encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, escaped in JSON
        row = next(i for i, text in enumerate(texts) if text and error.object[error.start] in text)
        raise BuildError(f"{where(row)}: {column} is not Unicode: {quoted(texts[row])}") from error
    return texts


def _text(value: Any, column: str, where: Callable[[int], str], row: int) -> str | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value == "" or value != value:  # tables write NaN for a missing value
        return None
    if isinstance(value, (str, bool, int, float)):
        return str(value)
    if isinstance(value, list):
        texts = (_text(item, column, where, row) for item in value)
        # A list, even one of a single value or of none, is no text.
        return LABEL_SEPARATOR + LABEL_SEPARATOR.join(filter(None, texts))
    raise BuildError(f"{where(row)}: {column} must be a text or a number, not {quoted(value)}")
