"""Tests the solver: it inverts evaluation, or its checks say why it cannot."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shape_poly import (
    Dim,
    DimExpr,
    Integers,
    Place,
    Solution,
    evaluate_shape,
    is_linear,
    make_plan,
    parse_comparison,
    parse_dimension,
    shape_text,
    solve,
    solve_dimensions,
)
from tests import strategies

a, b, c = (DimExpr.variable(name) for name in "abc")


def dims(text: str) -> tuple[Dim, ...]:
    # At the commas that are not between the operands of an operation.
    return tuple(parse_dimension(d) for d in re.split(r",(?![^()]*\))", text))


def solved(shapes: list[str], sizes: list[Any], constraints: Any = ()) -> Solution[int]:
    symbolic = [dims(shape) for shape in shapes]
    comparisons = [parse_comparison(text) for text in constraints]
    return solve(make_plan(symbolic, sizes, comparisons), sizes, Integers(), comparisons)


def reasons(solution: Solution[int]) -> list[str]:
    return ["".join(map(str, check.reason)) for check in solution.checks]


@st.composite
def solvable(draw: st.DrawFn) -> list[tuple[Dim, ...]]:
    """Draws shapes that determine a, b and c, in any order, among other expressions."""
    order = draw(st.permutations([a, b, c]))
    steps = []
    for i, variable in enumerate(order):
        slope = draw(st.sampled_from([1, 1, 2, 3, -1, -4]))
        offset = draw(st.integers(-5, 5))
        known = draw(st.sampled_from([DimExpr.constant(0), *order[:i]]))
        steps.append(variable * slope + known + offset)
    extra = draw(st.lists(strategies.expressions, max_size=3))
    shape = draw(st.permutations([*steps, *extra]))
    cut = draw(st.integers(0, len(shape)))
    return [tuple(shape[:cut]), tuple(shape[cut:])]


@given(solvable(), strategies.assignments)
def test_solving_undoes_evaluating(shapes: list[tuple[Dim, ...]], values: dict[str, int]) -> None:
    sizes = [evaluate_shape(shape, values) for shape in shapes]
    solution = solve(make_plan(shapes), sizes, Integers())
    assert solution.values == values
    assert solution.checks == ()
    assert solve_dimensions(shapes, sizes) == values


@given(solvable(), st.data())
def test_any_sizes_are_consistent_or_contradicted(
    shapes: list[tuple[Dim, ...]], data: st.DataObject
) -> None:
    """All checks hold if and only if evaluation at the solution gives the sizes."""
    sizes = [tuple(data.draw(st.integers(-3, 9)) for _ in shape) for shape in shapes]
    solution = solve(make_plan(shapes), sizes, Integers())
    found = set(solution.values) == {"a", "b", "c"} and all(
        value >= 1 for value in solution.values.values()
    )
    fits = found and [evaluate_shape(s, solution.values) for s in shapes] == sizes
    assert (solution.checks == ()) == fits
    assert all(check.holds is False for check in solution.checks)


@given(solvable(), strategies.assignments, st.data())
def test_sizes_that_are_not_known_leave_variables_out(
    shapes: list[tuple[Dim, ...]], values: dict[str, int], data: st.DataObject
) -> None:
    sizes = [
        tuple(data.draw(st.sampled_from([size, None])) for size in evaluate_shape(shape, values))
        for shape in shapes
    ]
    solution = solve(make_plan(shapes, sizes), sizes, Integers())
    assert solution.checks == ()
    assert solution.values.items() <= values.items()
    assert make_plan(shapes, sizes).undetermined == values.keys() - solution.values.keys()


@given(strategies.assignments, st.integers(1, 9), st.integers(-9, 9))
def test_products_with_what_is_known(values: dict[str, int], slope: int, offset: int) -> None:
    shape = (a * slope + offset, a + b, c * b + b, 7)
    assert solve_dimensions([shape], [evaluate_shape(shape, values)]) == values


def test_what_does_not_follow_is_left_out() -> None:
    assert solve_dimensions([(a + b,)], [(5,)]) == {}
    assert solve_dimensions([(a * 2,)], [(5,)]) == {}
    assert solve_dimensions([(a // 2, b)], [(5, None)]) == {}
    assert solve_dimensions([(a * a,)], [(4,)]) == {}
    assert solve_dimensions([(a + 3,)], [(3,)]) == {}  # a would be 0
    assert solve_dimensions([(a, (a - 2) * b)], [(2, 0)]) == {"a": 2}


def test_numpy_sizes_are_checked_as_integers() -> None:
    three: Any = np.int32(3)
    sizes: list[Any] = [np.int64(5), np.int64(0)]
    for size in sizes:
        assert solve_dimensions([(a * 2,)], [(size,)]) == {}
    assert solve_dimensions([(three, a)], [(3, 5)]) == {"a": 5}
    assert evaluate_shape((three, a), {"a": 5}) == (3, 5)


def test_simple_equations_and_known_sizes_come_first() -> None:
    shapes = [(2 * a, a + 1), (a,)]
    assert [s.place for s in make_plan(shapes).steps] == [Place(1, 0)]
    unknown = object()
    plan = make_plan(shapes, [(unknown, 4), (unknown,)])
    assert [s.place for s in plan.steps] == [Place(0, 1)]
    assert plan.equations == ((Place(0, 0), 2 * a), (Place(1, 0), a))
    assert make_plan(shapes, [(unknown, None), (None,)]).steps[0].slope == 2


@pytest.mark.parametrize(
    ("shapes", "sizes", "constraints", "expected"),
    [
        (["b, 2*b"], [(2, 5)], (), ["2*b is 4 for b = 2"]),
        (["b", "b"], [(2,), (5,)], (), ["b is 2"]),
        (["b, 28"], [(2, 27)], (), ["the size of dimension 1 must be 28"]),
        (["2*b"], [(3,)], (), ["Division had remainder 1 when computing the value of b"]),
        (["b"], [(0,)], (), ["Expected value >= 1 for dimension variable b. Got: 0"]),
        (["b + 3"], [(2,)], (), ["Expected value >= 1 for dimension variable b. Got: -1"]),
        (["a, b, a*b + 1"], [(2, 3, 6)], (), ["a*b + 1 is 7 for a = 2, b = 3"]),
        (
            ["b, floordiv(8, b - 1)"],
            [(1, 8)],
            (),
            ["floordiv(8, b - 1) divides by b - 1, which is 0 for b = 1"],
        ),
        (["a, a*b - 2*b"], [(2, 1)], (), ["b does not follow from a*b - 2*b where a - 2 is 0"]),
        (["b"], [(3,)], ["b >= 4"], ["b is 3"]),
        (["b"], [(6,)], ["mod(b, 4) == 0"], ["mod(b, 4) is 2 for b = 6"]),
        (["a", "b"], [(5,), (4,)], ["a < b"], ["a is 5 and b is 4"]),
        (["a", "b"], [(5,), (4,)], ["a <= 2*b - 4"], ["a is 5 and 2*b - 4 is 4 for a = 5, b = 4"]),
        (
            ["b"],
            [(1,)],
            ["mod(8, b - 1) >= 0"],
            ["mod(8, b - 1) divides by b - 1, which is 0 for b = 1"],
        ),
        (["b"], [(4,)], ["b > 4", "b != 4"], ["b is 4", "b is 4"]),
    ],
)
def test_contradictions_are_explained(
    shapes: Any, sizes: Any, constraints: Any, expected: Any
) -> None:
    solution = solved(shapes, sizes, constraints)
    assert reasons(solution) == expected
    assert all(check.holds is False for check in solution.checks)


def test_places_and_comparisons_of_checks() -> None:
    (check,) = solved(["a", "3, b"], [(5,), (3, 4)], ["a <= b"]).checks
    assert check.places == (Place(0, 0), Place(1, 1))
    assert str(check.comparison) == "a <= b"
    (check,) = solved(["b, b"], [(5, 4)]).checks
    assert (check.places, check.comparison) == ((Place(0, 1),), None)


def test_what_depends_on_a_variable_without_a_value_is_left_out() -> None:
    solution = solved(["2*b, b + c", "b, 3*b"], [(3, None), (None, 7)], ["b >= 9", "c >= 2"])
    assert reasons(solution) == ["Division had remainder 1 when computing the value of b"]


@pytest.mark.parametrize(
    ("shapes", "sizes", "constraints", "values"),
    [
        (["a + b"], [(6,)], ["a == b"], {"a": 3, "b": 3}),
        (["a"], [(6,)], ["a == 2*b"], {"a": 6, "b": 3}),
        (["a + c"], [(9,)], ["a == 2*b", "b == c"], {"a": 6, "b": 3, "c": 3}),
        (["a + b"], [(9,)], ["b == 3"], {"a": 6, "b": 3}),
        (["a", "b"], [(3,), (3,)], ["a == b"], {"a": 3, "b": 3}),
        (["b"], [(3,)], ["a == floordiv(8, b - 3)"], {"b": 3}),
        (["a + b"], [(3,)], ["a == a", "2*a == b", "a != b"], {}),
    ],
)
def test_equations_among_the_constraints_help(
    shapes: Any, sizes: Any, constraints: Any, values: Any
) -> None:
    solution = solved(shapes, sizes, constraints)
    assert solution.values == values
    divisions = [reason for reason in reasons(solution) if "divides by" in reason]
    assert reasons(solution) == divisions
    assert bool(divisions) == ("floordiv(8, b - 3)" in str(constraints))


@pytest.mark.parametrize(
    ("shapes", "sizes", "constraints", "expected"),
    [
        (["a"], [(5,)], ["a == 2*b"], "Division had remainder 1 when computing the value of b"),
        (["a", "b"], [(3,), (4,)], ["a == b"], "a is 3 and b is 4"),
        (["b + c"], [(4,)], ["c == b - 2", "a == b - 5"], "Expected value >= 1 for dimension"),
    ],
)
def test_sizes_that_contradict_equations_among_the_constraints(
    shapes: Any, sizes: Any, constraints: Any, expected: str
) -> None:
    assert any(expected in reason for reason in reasons(solved(shapes, sizes, constraints)))


class Texts:
    """Algebra of texts; every value is unknown."""

    def constant(self, value: int) -> str:
        return str(value)

    def __getattr__(self, name: str) -> Any:
        return lambda left, right: f"{name}({left}, {right})"


def test_other_algebras() -> None:
    plan = make_plan([dims("2*b + 1, b")], [("x", "y")])
    solution = solve(plan, [("x", "y")], Texts(), [parse_comparison("b >= 4")])
    assert solution.values == {"b": "y"}
    assert [(c.operator, c.left, c.right, c.holds) for c in solution.checks] == [
        (">=", "y", 1, None),
        ("==", "x", "add(multiply(y, 2), 1)", None),
        (">=", "y", "4", None),
    ]


@pytest.mark.parametrize(
    ("shapes", "undetermined"),
    [
        (["a + b, 3"], {"a", "b"}),
        (["b*b"], {"b"}),
        (["mod(b, 2), b*b"], {"b"}),
        (["a + b + c"], {"a", "b", "c"}),
        (["floordiv(b, 2)"], {"b"}),
        (["b", "3, 4"], set()),
        (["2*b - 1"], set()),
        (["a + b", "b"], set()),
        (["a", "a*b"], set()),
        (["- b + 9"], set()),
        ([], set()),
    ],
)
def test_variables_that_no_size_determines(shapes: list[str], undetermined: set[str]) -> None:
    assert make_plan([dims(shape) for shape in shapes]).undetermined == undetermined


def test_variables_of_constraints_must_follow_too() -> None:
    plan = make_plan([dims("b")], constraints=[parse_comparison("c >= b")])
    assert plan.undetermined == {"c"}
    assert not make_plan([dims("a + b")], constraints=[parse_comparison("a == b")]).undetermined


def test_is_linear() -> None:
    assert is_linear(a * b + b + 1, "b")
    assert not is_linear(b * b, "b")
    assert not is_linear(a * (b // 2), "b")


def test_many_dimensions_are_solved_quickly() -> None:
    names = [f"v{i}" for i in range(300)]
    variables = [DimExpr.variable(name) for name in names]
    shape = (variables[0], *(x + y for x, y in itertools.pairwise(variables)))
    values = {name: i + 1 for i, name in enumerate(names)}
    assert solve_dimensions([shape], [evaluate_shape(shape, values)]) == values


def test_shapes_read_as_users_write_them() -> None:
    assert shape_text((b, 28)) == "(b, 28)"
    assert shape_text((None,)) == "(?,)"
    assert shape_text(()) == "()"
