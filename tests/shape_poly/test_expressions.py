"""Tests expressions: arithmetic like Python's, simplification, substitution, limits, pickling."""

import itertools
import operator
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shape_poly import (
    Dim,
    DimExpr,
    DimOperation,
    Integers,
    Variable,
    evaluate_shape,
    operation,
    parse_dimension,
)
from tests import strategies

a, b, c = (DimExpr.variable(name) for name in strategies.VARIABLES)


def value(dimension: Dim, values: dict[str, int]) -> int:
    return dimension if isinstance(dimension, int) else dimension.evaluate(values)


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
    assert (+x).evaluate(values) == vx
    assert DimExpr.sum([x, 5, y, x]).evaluate(values) == 2 * vx + vy + 5


@given(strategies.written, strategies.assignments)
def test_simplifying_keeps_the_value(x: DimExpr, values: dict[str, int]) -> None:
    try:
        expected = x.evaluate(values)
    except ZeroDivisionError:
        return
    try:
        simplified = x.simplify()
    except ZeroDivisionError:  # a divisor is 0 once terms cancel: then it is 0 always
        pytest.fail(f"{x} has the value {expected}")
    assert value(simplified, values) == expected


@given(strategies.written)
def test_simplifying_ends_in_one_form(x: DimExpr) -> None:
    try:
        simplified = x.simplify()
    except ZeroDivisionError:
        return
    if isinstance(simplified, DimExpr):
        assert simplified.simplify() == simplified
        assert parse_dimension(str(simplified), simplify=True) == simplified


@given(
    strategies.expressions,
    st.fixed_dictionaries({"a": strategies.expressions, "b": strategies.expressions}),
    strategies.assignments,
)
def test_evaluating_after_substituting_is_evaluating_at_the_values(
    x: DimExpr, dimensions: dict[str, DimExpr], values: dict[str, int]
) -> None:
    # Where the values that are substituted are sizes, as rules for variables hold for them only.
    inner = {name: dimension.evaluate(values) for name, dimension in dimensions.items()}
    if min(inner.values()) >= 1:
        assert value(x.substitute(dimensions), values) == x.evaluate({**values, **inner})


class Counting(Integers):
    """Integers that count their operations."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in {"add", "multiply", "floordiv", "mod", "maximum", "minimum"}:
            return found

        def counted(left: int, right: int) -> Any:
            self.operations.append(name)
            return found(left, right)

        return counted


@given(strategies.expressions, strategies.assignments)
def test_evaluating_in_another_algebra(x: DimExpr, values: dict[str, int]) -> None:
    assert x.evaluate_with(values, Counting()) == x.evaluate(values)


def test_an_algebra_computes_repeated_operations_once() -> None:
    algebra = Counting()
    assert (b // 2 * (b // 2) + (b // 2) % 3).evaluate_with({"b": 7}, algebra) == 9
    assert sorted(algebra.operations) == ["add", "floordiv", "mod", "multiply"]


@given(strategies.expressions, strategies.expressions)
def test_equal_sums_of_products_are_one_object_to_a_dict(x: DimExpr, y: DimExpr) -> None:
    assert x + y == y + x
    assert hash((x + y) * (x - y)) == hash(x * x - y * y)
    assert (x + y) * (x - y) == x * x - y * y
    assert (x == y) == (x.sort_key() == y.sort_key())


def test_a_constant_is_equal_to_the_integer() -> None:
    assert b - b == 0
    assert hash(b - b + 4) == hash(4)
    assert {4: "four"}[b - b + 4] == "four"  # type: ignore[index]
    assert b != 4
    assert b != "b"


def test_operators_take_what_is_an_integer() -> None:
    class Four:
        def __index__(self) -> int:
            return 4

    four: Any = Four()
    assert (b + four, b * four, 4 - b, four - b) == (b + 4, b * 4, 4 - b, 4 - b)
    assert str(7 // b) == "floordiv(7, b)"
    assert str(7 % b) == "mod(7, b)"
    wrong: Any = 0.5
    for compute in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod):
        with pytest.raises(TypeError, match="unsupported operand"):
            compute(b, wrong)


def test_no_comparison_of_values_by_accident() -> None:
    unordered: Any = b
    with pytest.raises(TypeError, match="not supported"):
        sorted([unordered, a])
    texts = ["3", "b", "a", "-2", "a + b", "floordiv(a, 2)"]
    dimensions = [b - b + parse_dimension(text) for text in texts]
    in_order = [str(d) for d in sorted(dimensions, key=DimExpr.sort_key)]
    assert in_order == ["a", "b", "a + b", "floordiv(a, 2)", "- 2", "3"]


@pytest.mark.parametrize(
    ("written", "simplified"),
    [
        # Divisions by a constant.
        ("floordiv(4*b + 6, 2)", "2*b + 3"),
        ("floordiv(4*b + a + 5, 2)", "2*b + floordiv(a + 1, 2) + 2"),
        ("floordiv(b, -2)", "floordiv(- b, 2)"),
        ("floordiv(b, -1)", "- b"),
        ("floordiv(6*b + 3, 4)", "floordiv(3*b + 1, 2)"),
        ("floordiv(floordiv(b, 2) + 3, 2)", "floordiv(b + 2, 4) + 1"),
        ("floordiv(mod(-b, 8) + b, 8)", "- floordiv(- b, 8)"),
        ("floordiv(3*mod(-b, 8) + 3*b, 8)", "- 3*floordiv(- b, 8)"),
        ("floordiv(2*floordiv(b, 2), 3)", "floordiv(2*floordiv(b, 2), 3)"),
        ("floordiv(floordiv(a, 2) + mod(b, 3), 4)", "floordiv(floordiv(a, 2) + mod(b, 3), 4)"),
        ("floordiv(mod(b, 8), 8)", "0"),
        ("floordiv(mod(b, 8) + 8, 16)", "0"),
        ("mod(35*b, -2)", "- mod(b, 2)"),
        ("mod(7*b, 8)", "mod(- b, 8)"),
        ("mod(4*b, 8) - 4*mod(b, 2)", "0"),
        ("mod(4*b + 3, 8)", "4*mod(b, 2) + 3"),
        ("mod(mod(-b, 8) + b, -8)", "0"),
        ("mod(mod(b, 12) + 1, 4)", "mod(b + 1, 4)"),
        ("mod(mod(b, 4), 12)", "mod(b, 4)"),
        ("mod(mod(b, 5), 4)", "mod(mod(b, 5), 4)"),
        ("mod(b, 1)", "0"),
        # By a symbolic divisor, which is never 0.
        ("floordiv(a*b, b)", "a"),
        ("floordiv(a*b + b*2, b)", "a + 2"),
        ("floordiv(a*b + c, b)", "a + floordiv(c, b)"),
        ("mod(a*b + c, b)", "mod(c, b)"),
        ("floordiv(a^2 + 2*a*b + b^2, a + b)", "a + b"),
        ("floordiv(2*a*c, 2*b*c)", "floordiv(a, b)"),
        ("mod(2*a*c, 2*b*c)", "2*c*mod(a, b)"),
        ("floordiv(a*b, -b)", "- a"),
        ("floordiv(b, b + 1)", "0"),
        ("mod(b, a + b)", "b"),
        # Here it may be 0.
        ("floordiv(a*b - a, b - 1)", "floordiv(a*b - a, b - 1)"),
        ("mod(b - 1, b - 1)", "mod(b - 1, b - 1)"),
        ("floordiv(0, b - 1)", "floordiv(0, b - 1)"),
        (
            "floordiv(a*mod(b, 2), c*mod(b, 2))",
            "floordiv(a*mod(b, 2), c*mod(b, 2))",
        ),
        # max and min.
        ("max(b, 0)", "b"),
        ("max(b - 3, 0)", "max(b - 3, 0)"),
        ("max(b, b + 2)", "b + 2"),
        ("min(a + b, b)", "b"),
        ("max(3, max(b, 2))", "max(b, 3)"),
        ("max(b, a)", "max(a, b)"),
        ("max(max(c, a), max(b, a))", "max(a, max(b, c))"),
        ("min(max(a, 1), 1)", "1"),
        ("max(mod(b, 4), 4)", "4"),
    ],
)
def test_simplified_forms(written: str, simplified: str) -> None:
    before, after = parse_dimension(written), parse_dimension(written, simplify=True)
    assert str(before) != simplified or written == simplified
    assert str(after) == simplified
    for sizes in itertools.product(range(1, 11), repeat=3):
        values = dict(zip(strategies.VARIABLES, sizes, strict=True))
        try:
            expected = value(before, values)
        except ZeroDivisionError:
            # Rules do not give a value to what has none, but that terms cancel.
            with pytest.raises(ZeroDivisionError):
                value(after, values)
            continue
        assert value(after, values) == expected


def test_operators_simplify() -> None:
    assert (-b % 8 + b) // 8 == -(-b // 8)
    assert a * b // b == a
    assert a * b % b == 0
    assert operation("max", b, 0) == b
    assert operation("max", b, 0, simplify=False) != b


def test_what_grows_too_large_is_refused() -> None:
    wide = DimExpr.sum(DimExpr.variable(f"v{i}") for i in range(600))
    with pytest.raises(OverflowError, match="of too many terms"):
        wide * wide
    with pytest.raises(OverflowError, match="of more than 10000 terms"):
        DimExpr.sum(DimExpr.variable(f"v{i}") for i in range(10_001))
    with pytest.raises(OverflowError, match="of a degree above 256"):
        b**257
    with pytest.raises(OverflowError, match="of a degree above 256"):
        (b**200) * (b**57)
    with pytest.raises(OverflowError, match="a power of a dimension of too many terms"):
        wide**2
    with pytest.raises(OverflowError, match="more than 128 bits"):
        (b * 2**100) * 2**100
    deep = b
    for _ in range(64):
        deep = (deep + a) // c
    with pytest.raises(OverflowError, match="nested more than 64 deep"):
        (deep + a) // c
    doubled = b
    while (larger := doubled * doubled + doubled).size <= 200_000:
        doubled = larger // c
    with pytest.raises(OverflowError, match="more than 200000 variables and constants"):
        larger // c


def test_nested_divisors_stay_below_their_limit() -> None:
    nested = b
    for _ in range(20):
        nested = (nested + 1) // 1000
    assert nested.evaluate({"b": 1000**7}) == 0
    assert nested.depth == 4


def test_names_that_read_as_something_else_are_refused() -> None:
    names: list[Any] = ["", "2b", "a b", "max", "_", "a+b", 3]
    for name in names:
        with pytest.raises(ValueError, match="a dimension variable needs a name like 'b'"):
            DimExpr.variable(name)


def test_an_unknown_kind_of_operation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one of floordiv, mod, max, min. Got: 'pow'"):
        operation("pow", b, 2)  # type: ignore[arg-type]


def test_negative_powers_are_refused() -> None:
    with pytest.raises(ValueError, match="no negative power"):
        b**-1
    for exponent in (b, 2.0):
        with pytest.raises(TypeError, match="unsupported operand"):
            b**exponent  # type: ignore[operator]


def test_division_by_the_constant_0_is_refused() -> None:
    for compute in (operator.floordiv, operator.mod):
        with pytest.raises(ZeroDivisionError, match=r"\(b, 0\)"):
            compute(b, a - a)
    with pytest.raises(ZeroDivisionError):
        (b // (a - 3)).substitute({"a": 3})


@given(strategies.expressions)
def test_pickling_keeps_it(x: DimExpr) -> None:
    str(x), hash(x)
    copy = pickle.loads(pickle.dumps(x))
    assert (copy, hash(copy), str(copy)) == (x, hash(x), str(x))


def test_pickling_leaves_out_what_is_cached() -> None:
    # Hashes of strings differ between processes.
    x = b // 2
    cold = pickle.dumps(DimExpr.variable("b") // 2)
    hash(x), str(x), x.variables()
    assert pickle.dumps(x) == cold


def test_shapes_are_evaluated_as_far_as_they_are_known() -> None:
    assert evaluate_shape((a, b + 1, 3), {"a": 2}) == (2, None, 3)
    assert evaluate_shape((b // (a - 2),), {"a": 2, "b": 2}) == (None,)


def test_the_parts_of_an_expression() -> None:
    ((monomial, coefficient),) = (2 * b * (b // 2)).terms
    assert (monomial, coefficient) == (
        ((Variable("b"), 1), (DimOperation("floordiv", (b, DimExpr.constant(2))), 1)),
        2,
    )
    assert (b // 2 + a).variables() == {"a", "b"}
