"""Tests bounds: they hold for every sample, and are tight where interval arithmetic is."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from shape_poly import (
    Comparison,
    Dim,
    DimExpr,
    SymbolicScope,
    parse_dimension,
    symbolic_dim_bounds,
)
from tests import strategies
from tests.sampling import examples
from tests.shape_poly.proving import within


@given(strategies.written, strategies.assignments)
def test_every_value_is_within_the_bounds(x: DimExpr, values: dict[str, int]) -> None:
    lower, upper = symbolic_dim_bounds(x)
    try:
        value = x.evaluate(values)
    except ZeroDivisionError:
        return
    assert lower <= value <= upper


@given(strategies.written, strategies.bounds_of_variables, strategies.assignments)
def test_every_value_under_the_constraints_is_within_the_bounds(
    x: DimExpr, constraints: list[Comparison], values: dict[str, int]
) -> None:
    scope = SymbolicScope(constraints, check=False)
    lower, upper = symbolic_dim_bounds(x, scope)
    # Moved to where the constraints hold, which few samples would do by chance.
    for constraint in constraints:
        (name,) = constraint.variables()
        shift = {">": 1, "<": -1}.get(constraint.operator, 0)
        if not constraint.holds(values):
            assert isinstance(constraint.right, int)
            values = {**values, name: max(1, constraint.right + shift)}
    if not scope.holds(values):
        return
    try:
        value = x.evaluate(values)
    except ZeroDivisionError:
        return
    assert lower <= value <= upper


@given(strategies.expressions, strategies.comparisons, strategies.assignments)
@settings(max_examples=examples(60))
def test_every_value_under_any_constraint_is_within_the_bounds(
    x: DimExpr, constraint: Comparison, values: dict[str, int]
) -> None:
    scope = SymbolicScope([constraint], check=False)
    if scope.holds(values):
        lower, upper = symbolic_dim_bounds(x, scope)
        assert lower <= x.evaluate(values) <= upper
        # Also of the very expression that is constrained.
        difference = constraint.difference()
        if isinstance(difference, DimExpr):
            lower, upper = symbolic_dim_bounds(difference, scope)
            assert lower <= difference.evaluate(values) <= upper


@pytest.mark.parametrize(
    ("text", "constraints", "expected"),
    [
        ("b", [], (1, math.inf)),
        ("-b", [], (-math.inf, -1)),
        ("b", ["b >= 4"], (4, math.inf)),
        ("b", ["b > 4", "b <= 10"], (5, 10)),
        ("b", ["10 > b"], (1, 9)),
        ("b", ["b < 10"], (1, 9)),
        ("b", ["b == 3"], (3, 3)),
        ("b", ["2*b + 1 >= 8"], (4, math.inf)),
        ("b", ["b >= a", "a >= 4"], (4, math.inf)),
        ("b", ["b != 3"], (1, math.inf)),
        ("b", ["b == 2*a", "a <= 8"], (2, 16)),
        ("a - b", ["a >= b + 2"], (2, math.inf)),
        ("3*a - 3*b + 1", ["a >= b + 2"], (7, math.inf)),
        ("floordiv(b, 2)", ["floordiv(b, 2) == a", "a <= 3"], (1, 3)),
        ("mod(b, 8)", [], (0, 7)),
        ("mod(b, -8)", [], (-7, 0)),
        ("mod(b, 8)", ["b <= 5"], (1, 5)),
        ("mod(b, 8)", ["b >= 9", "b <= 12"], (1, 4)),
        ("mod(b, 8)", ["mod(b, 8) == 0"], (0, 0)),
        ("mod(b, a)", ["a <= 5"], (0, 4)),
        ("mod(-b, a)", [], (0, math.inf)),
        ("floordiv(b, 2)", ["b >= 4", "b <= 9"], (2, 4)),
        ("floordiv(-b, 2)", ["b >= 4", "b <= 9"], (-5, -2)),
        ("floordiv(b, a)", ["b <= 9"], (0, 9)),
        ("floordiv(b, a - 3)", ["b <= 9"], (-9, 9)),
        ("floordiv(7, b)", [], (0, 7)),
        ("floordiv(-7, b)", [], (-7, -1)),
        ("floordiv(a - 5, 2)^2", [], (0, math.inf)),
        ("floordiv(a - 5, 2)^3", ["a <= 9"], (-8, 8)),
        ("max(b, 4)", ["b <= 9"], (4, 9)),
        ("max(b - 3, 0)", [], (0, math.inf)),
        ("min(b, 4)", [], (1, 4)),
        # A variable that occurs twice.
        ("b - floordiv(b, 2)", [], (1, math.inf)),
        ("floordiv(b, 2) - b", [], (-math.inf, -1)),
        ("b - 8*floordiv(b, 8)", [], (0, 7)),
        ("b + mod(-b, 8)", [], (1, math.inf)),
        ("b - mod(a, b)", [], (1, math.inf)),
        ("b - mod(b, 8)", [], (0, math.inf)),
        ("b - floordiv(b, a)", [], (0, math.inf)),
        ("max(a, b) - b", [], (0, math.inf)),
        ("b - min(a, b)", [], (0, math.inf)),
        ("max(b, 3) - min(b, 3)", [], (0, math.inf)),
        ("a*b - b", [], (0, math.inf)),
        ("a*b*c - a*b - c + 1", [], (0, math.inf)),
        ("a^2 - 2*a + 1", [], (0, math.inf)),
        ("(a - 5)^2", [], (-math.inf, math.inf)),
        ("floordiv(b + 1, 2) - floordiv(b, 2)", [], (0, 1)),
    ],
)
def test_bounds_are_close(text: str, constraints: list[str], expected: tuple[float, float]) -> None:
    assert symbolic_dim_bounds(parse_dimension(text), SymbolicScope(constraints)) == expected


def test_bounds_of_a_size_are_the_size() -> None:
    assert symbolic_dim_bounds(7) == (7, 7)
    assert symbolic_dim_bounds(DimExpr.constant(7)) == (7, 7)
    lower, _ = symbolic_dim_bounds(np.int64(7))  # type: ignore[arg-type]
    assert type(lower) is int


def test_text_has_no_bounds() -> None:
    text: Any = "b"
    with pytest.raises(TypeError, match=r"parse_dimension makes one from text. Got: 'b' of type"):
        symbolic_dim_bounds(text)


def test_finite_bounds_are_exact_ints() -> None:
    lower, upper = symbolic_dim_bounds(parse_dimension(f"{2**90 + 1}*b"))
    assert lower == 2**90 + 1
    assert isinstance(lower, int)
    assert upper == math.inf
    # Beyond what a float holds, where an int and an infinity cannot be added.
    power = symbolic_dim_bounds(parse_dimension("b^60*a^60 - c"), SymbolicScope(["a >= 1000000"]))
    assert power == (-math.inf, math.inf)
    assert symbolic_dim_bounds(
        parse_dimension("b^60*a^60 + c"), SymbolicScope(["a >= 1000000"])
    ) == (10**360 + 1, math.inf)


def test_bounds_of_coefficients_near_the_limit() -> None:
    scope = SymbolicScope([f"{2**120}*b + {2**127}*c >= 3"], check=False)
    assert symbolic_dim_bounds(parse_dimension(f"{2**127}*b"), scope) == (2**127, math.inf)


def test_contradicting_constraints_bound_nothing() -> None:
    scope = SymbolicScope(["b >= 4", "b <= 2"], check=False)
    assert symbolic_dim_bounds(parse_dimension("b + 1"), scope) == (2, math.inf)


def test_large_dimensions_and_scopes_take_seconds_at_most() -> None:
    many = DimExpr.sum(DimExpr.variable(f"v{i}") * i for i in range(1, 5001))
    chain = [f"v{i} >= v{i + 1} + 1" for i in range(1, 300)]
    operations = [parse_dimension(f"max(mod(a, b + {i}), floordiv(c, {i}))") for i in range(2, 30)]
    deep = "b"
    for i in range(60):
        deep = f"max({deep} - a, floordiv(c, {i + 2}))"
    dimensions: list[tuple[Dim, list[str]]] = [
        (many, []),
        (many, chain),
        (parse_dimension("v1 - v2 + v3"), chain),
        (DimExpr.variable("v1"), [f"{many} >= 0"]),
        (DimExpr.sum(operations) - DimExpr.sum(operations[::2]) * 3, []),
        (parse_dimension(deep), []),
    ]
    for dimension, constraints in dimensions:
        scope = SymbolicScope(constraints, check=False)
        with within(10):
            symbolic_dim_bounds(dimension, scope)


def test_known_ranges_of_variables_narrow_the_bounds() -> None:
    b, n = DimExpr.variable("b"), DimExpr.variable("n")
    assert symbolic_dim_bounds(2 * b + n, ranges={"b": (1, 100)}) == (3, math.inf)
    assert symbolic_dim_bounds(2 * b + n, ranges={"b": (7, 7), "n": (1, 5)}) == (15, 19)
    scope = SymbolicScope(["b <= n"])
    assert symbolic_dim_bounds(b, scope, ranges={"n": (1, 9)}) == (1, 9)
