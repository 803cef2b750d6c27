"""Tests weakest_requirement: the simplest comparison that is equivalent to another one."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shape_poly import (
    Comparison,
    ContradictionError,
    DimExpr,
    SymbolicScope,
    parse_comparison,
    weakest_requirement,
)

# The prover ignores the other constraints.
from shape_poly._deciding import select_related
from tests.sampling import examples
from tests.shape_poly.proving import comparisons, grid, make_unsimplified, within


@pytest.mark.parametrize(
    ("comparison", "constraints", "requirement"),
    [
        # A bound of one size.
        ("floordiv(b, 2) - 3 >= 0", (), "b >= 6"),
        ("- floordiv(b, 2) < 0", (), "b >= 2"),
        ("max(floordiv(h - 3, 2) + 1, 0) >= 1", (), "h >= 3"),
        ("floordiv(b, 128) >= 8", (), "b >= 1024"),
        ("floordiv(b*h, h) >= 5", (), "b >= 5"),
        ("2*b > 7", (), "b >= 4"),
        ("b*b >= 10", (), "b >= 4"),
        ("min(b, 5) == 5", (), "b >= 5"),
        ("min(b, 5) == b", (), "b <= 5"),
        ("b < 300", (), "b <= 299"),
        ("3 <= b", ("b <= 7",), "b >= 3"),
        ("b >= 5", ("mod(b, 4) == 0",), "b >= 5"),
        ("floordiv(b, 4) >= 2", ("mod(b, 4) == 0",), "b >= 8"),
        ("b >= 5", (), "b >= 5"),
        ("4*b == 16", (), "b == 4"),
        ("floordiv(b, a - 1) >= 0", (), "a >= 2"),
        # Divisibility.
        ("mod(35*b, -2) == 0", (), "mod(b, 2) == 0"),
        ("mod(-b, 8) == 0", (), "mod(b, 8) == 0"),
        ("mod(6*b, 4) == 0", (), "mod(b, 2) == 0"),
        ("mod(3*b, 4) == 0", (), "mod(b, 4) == 0"),
        ("mod(b, 4) == 0", ("mod(b, 2) == 0",), "mod(b, 4) == 0"),
        ("floordiv(b + 1, 2) == floordiv(b, 2)", (), "mod(b, 2) == 0"),
        ("2*floordiv(b, 2) != b", (), "mod(b, 2) == 1"),
        ("2*floordiv(b - 1, 2) + 1 == b", (), "mod(b, 2) == 1"),
        ("mod(b*h, 3) == 0", (), "mod(b*h, 3) == 0"),
        ("mod(7*b + 7*h, 14) == 0", (), "mod(b + h, 2) == 0"),
        ("h*floordiv(b, h) == b", (), "mod(b, h) == 0"),
        # Two sizes.
        ("h - w >= 0", (), "h >= w"),
        ("min(h, w) == w", (), "h >= w"),
        ("2*h == 2*w", (), "h == w"),
        ("3*h - 6*w == 0", (), "h == 2*w"),
        ("h - w == 3", (), "h == w + 3"),
        ("floordiv(b - h, 2) + 1 >= 0", (), "h <= b + 2"),
        ("floordiv(b, h) >= 1", (), "b >= h"),
        ("l - k + 1 >= 3", (), "l >= k + 2"),
        ("floordiv(b + h, 2) - 3 >= 0", (), "b + h >= 6"),
        ("b*h > 6", (), "b*h >= 7"),
        ("0 <= 2*b + h - 9", (), "2*b + h >= 9"),
        # No simpler one.
        ("mod(b, 3) <= 1", (), "mod(b, 3) <= 1"),
        ("b != 3", (), "b != 3"),
        ("floordiv(b + 3, 4) == 2", (), "floordiv(b + 3, 4) == 2"),
        # Always, and never.
        ("b >= 1", (), "b >= 1"),
        ("mod(4*b, 2) == 0", (), "mod(4*b, 2) == 0"),
        ("b <= 0", (), None),
        ("b >= 8", ("b <= 7",), None),
        ("mod(b, 2) == 1", ("b == 2*h",), None),
    ],
)
def test_requirements_are_simple(
    comparison: str, constraints: tuple[str, ...], requirement: str | None
) -> None:
    simplest = weakest_requirement(comparison, SymbolicScope(constraints))
    assert (None if simplest is None else str(simplest)) == requirement


@given(comparisons(3), st.lists(comparisons(2), max_size=1))
@settings(max_examples=examples(15), deadline=None)
def test_requirements_are_equivalent(comparison: Comparison, given_: list[Comparison]) -> None:
    try:
        scope = SymbolicScope(given_)
    except ContradictionError:
        scope = SymbolicScope()
    required = weakest_requirement(comparison, scope, time_limit=0.3)
    relevant, names = select_related(scope.constraints, comparison.variables())
    for values in grid(names, relevant):
        assert comparison.holds(values) == (required is not None and required.holds(values))


def test_hard_comparisons_come_back_in_time() -> None:
    nested = DimExpr.variable("b")
    for i in range(40):
        nested = make_unsimplified(
            "floordiv" if i % 2 else "max", 3 * nested + i, DimExpr.constant(i + 2)
        )
    many = [DimExpr.variable(f"v{i}") for i in range(200)]
    products = DimExpr.sum(x * y for x, y in itertools.pairwise(many))
    for comparison in (
        parse_comparison("x^3 + y^3 != z^3"),
        Comparison(">=", nested, 1000),
        Comparison("!=", products, 777),
    ):
        with within(5):
            simplest = weakest_requirement(comparison, time_limit=0.2)
        assert simplest is not None
        assert simplest.variables() == comparison.variables()
