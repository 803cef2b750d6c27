"""Expressions: arithmetic against Python's, printing against parsing, solving."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shape_poly
from shape_poly import (
    DimensionSyntaxError,
    DimExpr,
    evaluate_shape,
    parse_dimension,
    solve_dimensions,
)
from tests import strategies

a, b = DimExpr.variable("a"), DimExpr.variable("b")


@given(strategies.expressions, strategies.expressions, strategies.assignments)
def test_arithmetic_is_that_of_the_values(x: DimExpr, y: DimExpr, values: dict[str, int]) -> None:
    vx, vy = x.evaluate(values), y.evaluate(values)
    assert (x + y).evaluate(values) == vx + vy
    assert (x - y).evaluate(values) == vx - vy
    assert (x * y).evaluate(values) == vx * vy
    assert (x // 7).evaluate(values) == vx // 7
    assert (x % -5).evaluate(values) == vx % -5
    assert (x**2).evaluate(values) == vx**2
    assert (3 - x).evaluate(values) == 3 - vx


@given(strategies.expressions)
def test_parsing_undoes_printing(x: DimExpr) -> None:
    parsed = parse_dimension(str(x))
    constant = x.constant_value()
    assert parsed == (x if constant is None else constant)


@given(strategies.expressions, strategies.expressions)
def test_equal_sums_of_products_are_one_object_to_a_dict(x: DimExpr, y: DimExpr) -> None:
    assert x + y == y + x
    assert hash((x + y) * (x - y)) == hash(x * x - y * y)
    assert (x + y) * (x - y) == x * x - y * y


@given(strategies.assignments, st.integers(1, 9), st.integers(-9, 9))
def test_solving_undoes_evaluating(values: dict[str, int], slope: int, offset: int) -> None:
    shape = (a * slope + offset, a + b, DimExpr.variable("c") * b, 7)
    sizes = evaluate_shape(shape, values)
    assert solve_dimensions([shape], [sizes]) == values


def test_what_does_not_follow_is_left_out() -> None:
    assert solve_dimensions([(a + b,)], [(5,)]) == {}
    assert solve_dimensions([(a * 2,)], [(5,)]) == {}
    assert solve_dimensions([(a // 2, b)], [(5, None)]) == {}
    assert solve_dimensions([(a * a,)], [(4,)]) == {}
    assert solve_dimensions([(a + 3,)], [(3,)]) == {}  # a would be 0
    assert evaluate_shape((a, b + 1, 3), {"a": 2}) == (2, None, 3)
    assert evaluate_shape((b // (a - 2),), {"a": 2, "b": 2}) == (None,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b", "b"),
        ("- b + 2*a*b", "2*a*b - b"),
        ("b^2 * 3 + 1", "3*b^2 + 1"),
        ("(a + b)**2", "2*a*b + a^2 + b^2"),
        ("non_negative(b - 3)", "max(b - 3, 0)"),
        ("floordiv(b, -2) + mod(-b, 8)", "floordiv(b, - 2) + mod(- b, 8)"),
        ("b // 2 % 3", "mod(floordiv(b, 2), 3)"),
        ("min(a, max(b, 2))", "min(a, max(b, 2))"),
    ],
)
def test_reads_what_users_and_jax_write(text: str, expected: str) -> None:
    dimension = parse_dimension(text)
    assert str(dimension) == expected
    assert parse_dimension(expected) == dimension


def test_constants_become_ints() -> None:
    assert parse_dimension("2*3 - 6") == 0
    assert parse_dimension("b - b + 4") == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b +", "syntax error at column 4 of the dimension 'b \\+'"),
        ("b // 0", "division by zero at column 1"),
        ("mod(b, a - a)", "division by zero at column 1"),
        ("  a^2 + foo(b)", "unknown function foo of 1 operands at column 9"),
        ("foo(b)", "unknown function foo of 1 operands at column 1"),
        ("2 + b**-1", "a power is an integer from 0 to 64, but found at column 8"),
        ("2 + 'x'", "unexpected text at column 5"),
        ("True", "unexpected text at column 1"),
        ("b << 2", "unknown operator at column 1"),
        ("(" * 5000 + "b" + ")" * 4000, "(syntax error|nested too deeply|text too long)"),
        ("b" * 20_000, "text too long"),
        ("(a + b + c + d + e + f + g + h)^64", "a dimension of more than 10000 terms"),
    ],
)
def test_other_text_is_an_error_with_the_column(text: str, message: str) -> None:
    with pytest.raises(DimensionSyntaxError, match=message):
        parse_dimension(text)


def test_negative_powers_are_refused() -> None:
    with pytest.raises(ValueError, match="no negative power"):
        b**-1


def test_doctests() -> None:
    for module in (shape_poly, shape_poly._expressions, shape_poly._parser):
        assert doctest.testmod(module).failed == 0
