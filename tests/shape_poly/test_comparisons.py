"""Tests comparisons: parsing, printing and evaluation."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shape_poly import (
    Comparison,
    ComparisonOperator,
    DimensionSyntaxError,
    DimExpr,
    parse_comparison,
)
from tests import strategies


@given(strategies.comparisons)
def test_parsing_undoes_printing(comparison: Comparison) -> None:
    assert parse_comparison(str(comparison)) == comparison
    assert hash(parse_comparison(str(comparison))) == hash(comparison)
    assert pickle.loads(pickle.dumps(comparison)) == comparison


@given(
    st.sampled_from(strategies.OPERATORS),
    strategies.expressions,
    strategies.expressions,
    strategies.assignments,
)
def test_holds_as_python_compares(
    operator: ComparisonOperator, left: DimExpr, right: DimExpr, values: dict[str, int]
) -> None:
    comparison = Comparison(operator, left, right)
    x, y = left.evaluate(values), right.evaluate(values)
    expected = {">=": x >= y, "<=": x <= y, "==": x == y, ">": x > y, "<": x < y, "!=": x != y}
    assert comparison.holds(values) is expected[operator]
    assert comparison.negate().holds(values) is not expected[operator]
    assert comparison.negate().negate() == comparison
    assert Comparison(operator, comparison.difference(), 0).holds(values) is expected[operator]
    assert comparison.variables() == left.variables() | right.variables()
    some = {name: value for name, value in values.items() if name != "b"}
    assert comparison.substitute(some).holds(values) is expected[operator]
    assert comparison.substitute(some).variables() <= {"b"}


def test_where_a_divisor_is_0_nothing_holds() -> None:
    comparison = parse_comparison("floordiv(b, a - 1) >= 0")
    assert comparison.holds({"a": 2, "b": 1})
    assert not comparison.holds({"a": 1, "b": 1})
    assert not comparison.negate().holds({"a": 1, "b": 1})
    with pytest.raises(ZeroDivisionError):
        comparison.substitute({"a": 1})
    with pytest.raises(KeyError):
        comparison.holds({"a": 2})


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("b>=5", "b >= 5"),
        (" mod( b , 8 ) ==0 ", "mod(b, 8) == 0"),
        ("2*b > h//2", "2*b > floordiv(h, 2)"),
        ("b != -1", "b != -1"),
        ("2*3 < b - b", "6 < 0"),
        ("in <= is", "in <= is"),
    ],
)
def test_prints_as_jax_reads_it(text: str, printed: str) -> None:
    assert str(parse_comparison(text)) == printed


def test_equal_sides_make_equal_comparisons() -> None:
    assert Comparison(">=", DimExpr.constant(3), 1) == Comparison(">=", 3, DimExpr.constant(1))
    assert Comparison("==", 3, 1).difference() == 2
    assert parse_comparison("b + 2 == b").difference() == 2
    assert parse_comparison("b == 2 - 2").right == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "b",
            "The constraint 'b' is wrong at column 2: no comparison found. A constraint compares",
        ),
        ("b = 5", "constraint 'b = 5' is wrong at column 3: '=' is not a comparison operator"),
        ("b => 5", "at column 3: '=>' is not a comparison operator"),
        (
            "2 <= b <= 5",
            "constraint '2 <= b <= 5' is wrong at column 8: expected one comparison",
        ),
        ("b >= (2", "constraint 'b >= \\(2' is wrong at column 8"),
        ("b >= ", "constraint 'b >= ' is wrong at column 6"),
        (">= 5", "constraint '>= 5' is wrong at column 1"),
        ("b >= 2 $ 3", "is wrong at column 8"),
        ("mod(b, 0) == 0", "The constraint .* is wrong at column .: division by zero"),
        ("x" * 300, "at column 301: no comparison found"),
        (f"b > {2**128}", "at column 1: its sides differ by .* a number of more than 128 bits"),
    ],
)
def test_other_text_is_an_error_with_the_column(text: str, message: str) -> None:
    with pytest.raises(DimensionSyntaxError, match=message) as raised:
        parse_comparison(text)
    assert raised.value.text == text
    copy = pickle.loads(pickle.dumps(raised.value))
    assert type(copy) is type(raised.value)
    assert str(copy) == str(raised.value)


def test_a_comparison_has_an_operator_and_two_dimensions() -> None:
    assert Comparison(">=", DimExpr.variable("b"), np.int64(4)).holds({"b": 4})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be one of >=, <=, ==, >, <, !=. Got: '=>'"):
        Comparison("=>", 1, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"parse_dimension makes one from text. Got: 'b' of"):
        Comparison(">=", "b", 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"A constraint must be a string. Got: 3 of type int. A"):
        parse_comparison(3)  # type: ignore[arg-type]


def test_the_error_says_what_a_constraint_is() -> None:
    with pytest.raises(DimensionSyntaxError) as raised:
        parse_comparison("b = 5")
    assert str(raised.value) == (
        "The constraint 'b = 5' is wrong at column 3: '=' is not a comparison operator. A "
        "constraint compares "
        "two dimensions by >=, <=, ==, >, < or !=, as 'b >= 5' or 'mod(b, 8) == 0'."
    )
