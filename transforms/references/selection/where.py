"""Expressions that select references by their columns: `width >= 256 and split != 'bad'`.

The syntax is Python's, of which only comparisons, logic and arithmetic are allowed; nothing is
executed. The columns of manifests are texts, so that the other side of a comparison decides its
type.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from imageshards.transforms.elements import BuildError, quoted, to_bytes, to_text
from imageshards.transforms.references.batch import RefBatch

_MOST_CHARACTERS = 10_000
_LARGEST = 1 << 53
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`([^`]+)`""")
_SQL = {
    "<>": "!=", "&&": "and", "||": "or", " IS NOT NULL": "is not None", " IS NULL": "is None",
    " BETWEEN ": "9 <= width <= 99", " AND ": "and", " OR ": "or", " IN ": "in", "NOT ": "not",
}  # fmt: skip
_LITERALS = {"null": "None", "none": "None", "true": "True", "false": "False"}
"""Names, in lower case, that are literals in SQL or in JSON, and what they are here."""
_ORDER: Mapping[type[ast.cmpop], tuple[Callable[[Any, Any], Any], str]] = {
    ast.Lt: (operator.lt, "less"),
    ast.LtE: (operator.le, "less_equal"),
    ast.Gt: (operator.gt, "greater"),
    ast.GtE: (operator.ge, "greater_equal"),
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_TRUTH = {b"true": True, b"1": True, b"false": False, b"0": False}


@dataclass(frozen=True)
class Where:
    """A condition on columns.

    Attributes:
      text: the expression. Names are columns, in backticks if they are not identifiers; literals
        are numbers, texts, True, False and None.

    Raises:
      ValueError: it is malformed.

    >>> refs = RefBatch.listed(["/d/1.jpg", "/d/2.jpg"], [3, 3])
    >>> Where("width >= 256 or camera in ('a', 'b')").mask(
    ...     refs.with_texts({"width": ["300", "9"], "camera": [None, "c"]})
    ... ).tolist()
    [True, False]
    """

    text: str

    def __post_init__(self) -> None:
        try:
            _Check(self._names).test(self._tree)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(
                f"invalid --where {quoted(self.text)}: {_syntax(self.text)}"
            ) from error
        if not self.columns:
            raise ValueError(
                f"invalid --where {quoted(self.text)}: it names no column: write columns without "
                "quotes, or in backticks"
            )

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, in order."""
        found = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name)]
        found.sort(key=lambda node: node.col_offset)
        return tuple(dict.fromkeys(self._names.get(node.id, node.id) for node in found))

    def mask(self, refs: RefBatch) -> np.ndarray:
        """Which references it selects; bool. References that could not be listed stay, as rejects.

        Args:
          refs: as they were listed, with its columns.

        Raises:
          BuildError: a value does not have the type that the expression requires.
        """
        selected: np.ndarray = _Evaluation(self._names, refs).test(self._tree)
        for row, problem in refs.problems.items():
            if problem.stage != "features":
                selected[row] = True
        return selected

    @cached_property
    def _names(self) -> dict[str, str]:
        """Identifier -> the column in backticks that it replaces."""
        columns = [match[1] for match in _QUOTED.finditer(self.text) if match[1]]
        return {f"_{number}_": column for number, column in enumerate(columns)}

    @cached_property
    def _tree(self) -> ast.expr:
        if len(self.text) > _MOST_CHARACTERS or "\0" in self.text:
            raise SyntaxError
        names = iter(self._names)
        if "#" in _QUOTED.sub("", self.text):  # the rest would be a comment
            raise SyntaxError
        python = _QUOTED.sub(lambda match: next(names) if match[1] else match[0], self.text)
        return ast.parse(python.strip(), mode="eval").body


def _syntax(text: str) -> str:
    if "#" in (outside := _QUOTED.sub("", text)):
        return "write names of columns with # in backticks"
    for wrong, right in _SQL.items():
        if wrong in outside:
            return f"write {right} instead of {wrong.strip()}"
    if re.search(r"[^=!<>]=[^=]", outside):
        return "write == instead of ="
    return "write it like \"width >= 256 and split != 'bad'\""


class _Check:
    """Visits an expression; subclasses evaluate it.

    There are three kinds of expressions: a test has a bool for each row, a number a float, and a
    side of a comparison is the one that its other side makes of it.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def test(self, node: ast.expr) -> Any:
        match node:
            case ast.BoolOp(op, values):
                return self.logic(isinstance(op, ast.And), [self.test(value) for value in values])
            case ast.UnaryOp(ast.Not(), operand):
                return self.logic(True, [self.test(operand)], negated=True)
            case ast.Compare(left, ops, comparators):
                left_sides = [left, *comparators[:-1]]
                return self.logic(
                    True,
                    [
                        self._compare(*step)
                        for step in zip(left_sides, ops, comparators, strict=True)
                    ],
                )
            case ast.Name():
                return self.truth(self._column(node))
        raise self._wrong(node, "is not a condition")

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
        is_equal = isinstance(op, (ast.Eq, ast.Is, ast.In))
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.Tuple, ast.List, ast.Set)):
                raise self._wrong(right, "is not a list: write it like camera in ['a', 'b']")
            found = [self._equal(left, item) for item in right.elts]
            return self.logic(False, found, negated=not is_equal)
        if not isinstance(op, tuple(_ORDER)):
            if isinstance(op, (ast.Is, ast.IsNot)) and not _is(right, type(None)):
                if isinstance(right, ast.Name):
                    self._column(right)
                raise self._wrong(right, "is compared with `is`, which is for None: write ==")
            return self.logic(True, [self._equal(left, right)], negated=not is_equal)
        number, text = _ORDER[type(op)]
        if _is(left, str) or _is(right, str):
            return self.texts(text, self._text(left), self._text(right))
        return self.numbers(number, self.number(left), self.number(right))

    def _equal(self, left: ast.expr, right: ast.expr) -> Any:
        for side, other in ((left, right), (right, left)):
            if isinstance(other, ast.Constant) and other.value is None:
                return self.missing(self._column(side))
            if _is(other, bool):
                is_true = self.truth if ast.unparse(other) == "True" else self.falsehood
                return is_true(self._column(side))
        both_names = isinstance(left, ast.Name) and isinstance(right, ast.Name)
        if both_names or _is(left, str) or _is(right, str):
            return self.texts("equal", self._text(left), self._text(right))
        return self.numbers(operator.eq, self.number(left), self.number(right))

    def number(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(int() | float() as value) if not isinstance(value, bool):
                if abs(value) > _LARGEST:
                    raise self._wrong(node, "is a large number: compare it as a text, in quotes")
                return float(value)
            case ast.UnaryOp(ast.USub(), operand):
                return self.numbers(operator.sub, 0.0, self.number(operand))
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                sides = self.number(left), self.number(right)
                return self.numbers(_ARITHMETIC[type(op)], *sides)
            case ast.Name():
                return self.column_of_numbers(self._column(node))
        raise self._wrong(node, "is not a number")

    def _text(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return pa.scalar(to_bytes(node.value), pa.large_binary())
        return self.column_of_texts(self._column(node))

    def _column(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name):
            raise self._wrong(node, "is not the name of a column")
        if node.id in self._names:
            return self._names[node.id]
        if right := _LITERALS.get(node.id.lower()):
            raise self._wrong(node, f"is no column: write {right}, or `{node.id}` if it is one")
        return node.id

    def _wrong(self, node: ast.expr, what: str) -> ValueError:
        text = ast.unparse(node)
        for name, column in self._names.items():
            text = text.replace(name, f"`{column}`")
        return ValueError(f"invalid --where: {quoted(text)} {what}")

    # What an expression consists of; here, only its form matters.

    def logic(self, every: bool, tests: list[Any], negated: bool = False) -> Any:
        pass

    def truth(self, column: str) -> Any:
        pass

    def falsehood(self, column: str) -> Any:
        pass

    def missing(self, column: str) -> Any:
        pass

    def texts(self, function: str, left: Any, right: Any) -> Any:
        pass

    def numbers(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        pass

    def column_of_texts(self, column: str) -> Any:
        pass

    def column_of_numbers(self, column: str) -> Any:
        pass


class _Evaluation(_Check):
    """Evaluates an expression for references. A missing value is equal to None alone."""

    def __init__(self, names: Mapping[str, str], refs: RefBatch) -> None:
        super().__init__(names)
        self._refs = refs

    def logic(self, every: bool, tests: list[Any], negated: bool = False) -> np.ndarray:
        found = (np.logical_and if every else np.logical_or).reduce(
            [np.broadcast_to(test, len(self._refs)) for test in tests], axis=0, initial=every
        )
        return np.broadcast_to(~found if negated else found, len(self._refs)).copy()

    def truth(self, column: str) -> np.ndarray:
        return self._is(column, True)

    def falsehood(self, column: str) -> np.ndarray:
        return self._is(column, False)

    def _is(self, column: str, wanted: bool) -> np.ndarray:
        encoded = self.column_of_texts(column).dictionary_encode()
        found = []
        for value in encoded.dictionary.to_pylist():
            if value.lower() not in _TRUTH:
                raise self._no_value(column, value, "used as a condition", "true or false")
            found.append(_TRUTH[value.lower()] is wanted)
        rows = encoded.indices.fill_null(len(found)).to_numpy()
        values: np.ndarray = np.array([*found, False])[rows]
        return values

    def missing(self, column: str) -> np.ndarray:
        return self.column_of_texts(column).is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def texts(self, function: str, left: Any, right: Any) -> np.ndarray:
        found = pc.call_function(function, [left, right])
        if isinstance(found, pa.Scalar):
            return np.full(len(self._refs), found.as_py())
        return found.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def numbers(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(np.asarray(left, float), np.asarray(right, float))

    def column_of_texts(self, column: str) -> pa.Array:
        found = self._refs.text_column(column)
        assert found is not None, "listing returns the required columns"
        return found

    def column_of_numbers(self, column: str) -> np.ndarray:
        texts = self.column_of_texts(column)
        try:
            values = pc.utf8_trim_whitespace(texts.cast(pa.large_string())).cast(pa.float64())
        except pa.ArrowInvalid:
            values = pa.array([self._number(column, text) for text in texts.to_pylist()])
        return values.fill_null(np.nan).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def _number(self, column: str, text: bytes | None) -> float:
        try:
            return np.nan if text is None else float(text)
        except ValueError:
            raise self._no_value(column, text, "compared as a number", "a number") from None

    def _no_value(self, column: str, value: bytes | None, how: str, what: str) -> BuildError:
        row = self.column_of_texts(column).to_pylist().index(value)
        return BuildError(
            f"--where: the column {column!r} is {how}, but {self._refs.uris[row]} has "
            f"{quoted(to_text(value or b''))}, which is not {what}"
        )


def _is(node: ast.expr, kind: type) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, kind)
