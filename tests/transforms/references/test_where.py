"""Conditions on columns, against a model: the same condition in Python, row by row."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import listing

from imageshards.transforms.elements import BuildError, Problem
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.selection.where import Where

Row = dict[str, str | None]
Condition = tuple[str, Callable[[Row], bool]]
OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def batch(rows: list[Row]) -> RefBatch:
    uris = [f"/d/{number}.jpg" for number in range(len(rows))]
    return listing(uris, **{name: [row[name] for row in rows] for name in ("n", "t")})


def compared(column: str, sign: str, value: Any) -> Condition:
    def holds(row: Row) -> bool:
        text = row[column]
        if text is None:
            return sign == "!="
        return bool(OPERATORS[sign](text if isinstance(value, str) else float(text), value))

    return f"{column} {sign} {value!r}", holds


def between(low: int, high: int) -> Condition:
    return (
        f"{low} <= n < {high}",
        lambda row: row["n"] is not None and low <= float(row["n"]) < high,
    )


def listed(values: list[str], is_in: bool) -> Condition:
    sign = "in" if is_in else "not in"
    return f"t {sign} {values!r}", lambda row: (row["t"] in values) == is_in


def both(sign: str, left: Condition, right: Condition) -> Condition:
    combine = all if sign == "and" else any
    return f"({left[0]}) {sign} ({right[0]})", lambda row: combine([left[1](row), right[1](row)])


texts = st.sampled_from(["a", "b", "ä", "bad", "2024-01-01"])
signs = st.sampled_from([*OPERATORS])
simple = st.one_of(
    st.builds(compared, st.just("n"), signs, st.one_of(st.integers(0, 9), st.floats(0, 9))),
    st.builds(compared, st.just("t"), signs, texts),
    st.builds(between, st.integers(0, 9), st.integers(0, 9)),
    st.builds(listed, st.lists(texts, max_size=3), st.booleans()),
    st.sampled_from(["n", "t"]).map(lambda c: (f"{c} is None", lambda row: row[c] is None)),
)
conditions = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(both, st.sampled_from(["and", "or"]), inner, inner),
        inner.map(lambda one: (f"not ({one[0]})", lambda row: not one[1](row))),
    ),
    max_leaves=5,
)
numbers = st.one_of(st.none(), st.integers(0, 9).map(str), st.floats(0, 9).map(str))
rows = st.lists(st.fixed_dictionaries({"n": numbers, "t": st.none() | texts}), max_size=8)


@given(conditions, rows)
def test_a_condition_selects_the_rows_that_python_selects(condition: Condition, rows: list[Row]):
    text, holds = condition
    assert Where(text).mask(batch(rows)).tolist() == list(map(holds, rows))


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("`my width` / height > 1.5", [0]),
        ("(`my width` * height) % 2 == 1 or -height < -9", [1]),
        ("`my width` > height", [0]),
        ("flag", [0]),
        ("not flag", [1, 2]),
        ("flag == False", [1]),
        ("flag != True and name == name", [1]),
        ('name == "it\'s `x`"', [0]),
        ("name >= 'a' > 'A'", [0, 1]),
        ("`null` is None and `#` == '#'", [2]),
    ],
)
def test_expressions(text: str, selected: list[int]):
    columns = {
        "my width": ["30", "7", None], "height": [" 9", "7", "1e0"], "flag": ["True", "0", None],
        "name": ["it's `x`", "b", None], "null": ["", "3", None], "#": [None, None, "#"],
    }  # fmt: skip
    where = Where(text)
    assert set(where.columns) <= set(columns)
    found = where.mask(listing([f"/d/{row}.jpg" for row in range(3)], **columns))
    assert found.nonzero()[0].tolist() == selected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("width >=", "write it like"),
        ("split = 'bad'", "write == instead of ="),
        ("a > 1 AND b > 2", "write and instead of AND"),
        ("a <> 2", "write != instead of <>"),
        ("a BETWEEN 1 AND 5", "write 9 <= width <= 99 instead of BETWEEN"),
        ("a IS NULL", "write is None instead of IS NULL"),
        ("a is NULL", "'NULL' is no column: write None, or `NULL` if it is one"),
        ("a == true", "'true' is no column: write True, or `true` if it is one"),
        ("a > 1 # and b > 2", "write names of columns with # in backticks"),
        ("b == ' AND ' and a = 2", "write == instead of ="),
        ("\"a\" == 'b'", "it names no column: write columns without quotes, or in backticks"),
        ("a == 'b'; DROP TABLE c", "write it like"),
        ("a in ('b')", "is not a list: write it like camera in ['a', 'b']"),
        ("__import__('os')", "is not a condition"),
        ("a.b > 1", "'a.b' is not a number"),
        ("len(a) > 1", "'len(a)' is not a number"),
        ("a > [1]", "is not a number"),
        ("a in 'abc'", "is not a list"),
        ("a is 3", "compared with `is`"),
        ("'a' == 1", "is not the name of a column"),
        ("1 < 2", "names no column"),
        ("a == 12345678901234567890", "compare it as a text, in quotes"),
        ("(" * 5000 + "a" + ")" * 5000, "invalid --where"),
        ("a > 1; b", "write it like"),
        ("a > 1) or (b > 2", "write it like"),
        ("(x := 1)", "is not a condition"),
        ("a\0", "write it like"),
    ],
)
def test_a_malformed_expression_is_an_error_in_one_line(text: str, says: str):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Where(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_of_another_type_are_an_error():
    refs = listing(["/d/1.jpg", "/d/2.jpg"], n=["3", "wide"])
    says = "--where: the column 'n' is compared as a number, but /d/2.jpg has 'wide'"
    with pytest.raises(BuildError, match=says):
        Where("n > 2").mask(refs)
    with pytest.raises(BuildError, match=r"used as a condition, but /d/1\.jpg has '3'"):
        Where("n").mask(refs)


def test_what_could_not_be_listed_stays_a_reject():
    refs = listing(["/d/1.jpg", "/d/2.jpg", "/d/3.jpg"], n=[None, None, "9"])
    problems = {0: Problem("read", "Corrupt", ""), 1: Problem("features", "NoFeature", "")}
    assert Where("n > 2").mask(refs.with_problems(problems)).tolist() == [True, False, True]
