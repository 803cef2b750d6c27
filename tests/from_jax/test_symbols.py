"""Dimensions, comparisons and scopes to JAX and back; agreement with JAX's own algebra."""

from __future__ import annotations

import contextlib
import operator
import tokenize
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export as jax_export

from jax2tf_bridge import export
from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.from_jax import dim_from_jax, dim_to_jax, scope_from_jax

# Private: an export does not show the forms of constraints for JAX.
from jax2tf_bridge.from_jax._symbols import comparison_to_jax, scope_to_jax
from shape_poly import (
    Dim,
    DimExpr,
    OperationKind,
    SymbolicScope,
    operation,
    parse_comparison,
    parse_dimension,
    symbolic_dim_bounds,
    symbolic_shape,
)
from tests import strategies
from tests.sampling import examples
from tests.strategies import VARIABLES

Both = tuple[Any, DimExpr]
"""The same dimension in JAX and in shape_poly."""


def jax_dims(text: str, scope: jax_export.SymbolicScope | None = None) -> tuple[Any, ...]:
    return tuple(jax_export.symbolic_shape(text, scope=scope or jax_export.SymbolicScope()))


def jax_dim(text: str, scope: jax_export.SymbolicScope | None = None) -> Any:
    return jax_dims(text, scope)[0]


def value(dimension: Dim, values: dict[str, int]) -> int:
    return dimension if isinstance(dimension, int) else dimension.evaluate(values)


@st.composite
def built_in_both(draw: st.DrawFn) -> Both:
    """A random dimension, built alike in JAX and here."""
    scope = jax_export.SymbolicScope()
    ours = [DimExpr.variable(name) for name in VARIABLES]
    pool: list[Both] = list(zip(jax_dims(", ".join(VARIABLES), scope), ours, strict=True))
    for _ in range(draw(st.integers(min_value=1, max_value=6))):
        (x, our_x), (y, our_y) = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        if draw(st.booleans()):
            y = draw(strategies.divisors)
            our_y = DimExpr.constant(y)
        kind = draw(st.sampled_from(("+", "-", "*", "floordiv", "mod", "max", "min")))
        pool.append(_combined(kind, x, y, our_x, our_y))
    return pool[-1]


def _check(error: Exception, *texts: str) -> None:
    if not any(text in str(error) for text in texts):
        raise error


def _combined(kind: str, x: Any, y: Any, our_x: DimExpr, our_y: DimExpr) -> Both:
    if kind in ("+", "-", "*"):
        compute = {"+": operator.add, "-": operator.sub, "*": operator.mul}[kind]
        return compute(x, y), compute(our_x, our_y)
    if kind in ("floordiv", "mod"):
        divide = operator.floordiv if kind == "floordiv" else operator.mod
        try:
            return divide(x, y), divide(our_x, our_y)
        except ZeroDivisionError:  # known to be 0 here or there
            return x, our_x
    try:
        extremum = (jax.core.max_dim if kind == "max" else jax.core.min_dim)(x, y)
    except Exception as e:
        # JAX must know that no divisor is 0 to decide which is greater.
        _check(e, "Possible division by 0")
        return x, our_x
    name: OperationKind = "max" if kind == "max" else "min"
    return extremum, operation(name, our_x, our_y)


@given(built_in_both(), strategies.assignments)
@settings(max_examples=examples(150))
def test_what_jax_prints_evaluates_as_the_same_expression_here(
    both: Both, values: dict[str, int]
) -> None:
    dimension, ours = both
    read = dim_from_jax(dimension)
    try:
        expected = ours.evaluate(values)
    except ZeroDivisionError:
        return
    with contextlib.suppress(ZeroDivisionError):  # here the part with the divisor canceled
        assert value(read, values) == expected
    # Reading loses nothing: JAX takes it for the very same.
    assert str(parse_dimension(str(dimension), simplify=True)) == str(
        read.simplify() if isinstance(read, DimExpr) else read
    )


@given(built_in_both(), strategies.assignments)
@settings(max_examples=examples(150))
def test_jax_knows_its_own_dimensions_again(both: Both, values: dict[str, int]) -> None:
    dimension, ours = both
    scope = jax_export.SymbolicScope() if isinstance(dimension, int) else dimension.scope
    assert dim_to_jax(dim_from_jax(dimension), scope) == dimension
    # Our dimension may be simplified, but has the value of JAX's.
    try:
        expected = ours.evaluate(values)
        theirs = dim_from_jax(dim_to_jax(ours, scope))
        assert value(theirs, values) == expected
    except ZeroDivisionError:
        pass
    except ShapeError as e:
        _check(e, "Possible division by 0")


@given(strategies.expressions, strategies.assignments)
@settings(max_examples=examples(100), deadline=None)
def test_jax_evaluates_our_dimensions_alike(x: DimExpr, values: dict[str, int]) -> None:
    # With b == 3 in the scope JAX writes 3 for b: reading the text again, it evaluates itself.
    known = jax_export.SymbolicScope([f"{name} == {size}" for name, size in values.items()])
    evaluated = x.evaluate_with(
        dict(zip(VARIABLES, jax_dims("a, b, c", known), strict=True)), InJax()
    )
    assert operator.index(evaluated) == x.evaluate(values)
    open_scope = jax_export.SymbolicScope()
    dims = dict(zip(VARIABLES, jax_dims("a, b, c", open_scope), strict=True))
    assert value(dim_from_jax(x.evaluate_with(dims, InJax())), values) == x.evaluate(values)


class InJax:
    """JAX's dimensions as an algebra."""

    constant = staticmethod(int)
    add = staticmethod(operator.add)
    multiply = staticmethod(operator.mul)
    floordiv = staticmethod(operator.floordiv)
    mod = staticmethod(operator.mod)
    maximum = staticmethod(jax.core.max_dim)
    minimum = staticmethod(jax.core.min_dim)


@pytest.mark.parametrize(
    "text",
    [
        "b",
        "- b + 3",
        "2*a*b + a^2 - 1",
        "floordiv(b, - 2) + mod(- b, 8)",
        "mod(mod(- b, 8) + b, - 8)",
        "max(a, min(b - 3, 7))",
        "floordiv(a^2*b, a + 2*b)",
        "lambda_1*if",
    ],
)
def test_texts_of_jax(text: str) -> None:
    scope = jax_export.SymbolicScope()
    dimension = jax_dim(text, scope)
    assert str(dim_from_jax(dimension)) == str(parse_dimension(text))
    assert dim_to_jax(parse_dimension(text), scope) == dimension


@pytest.mark.parametrize(
    ("spec", "like"),
    [
        ("", None),
        ("b", None),
        ("(b,)", None),
        ("(b, 28, ...)", (None, 28, 3)),
        ("b, h, w, 3", None),
        ("_, h", (5, None)),
        ("...", (5, 6)),
        (None, (5, 6)),
        ("2*b, b^2*3, b*-2", None),
        ("((b, mod(b, 2)))", None),
        ("1_000*b, 0", None),
        ("  b ,\th", None),
    ],
)
def test_specifications_say_what_they_say_to_jax(spec: str | None, like: Any) -> None:
    expected = jax_export.symbolic_shape(spec, like=like)
    if spec and "-2" in spec:
        with pytest.raises(ValueError, match="negative size"):
            symbolic_shape(spec, like=like)
        spec, expected = spec.rpartition(",")[0], expected[:-1]
    assert [str(d) for d in symbolic_shape(spec, like=like)] == [
        str(dim_from_jax(d)) for d in expected
    ]


@pytest.mark.parametrize(
    ("spec", "like"),
    [
        ("b;", None),
        ("(b", None),
        ("b)", None),
        ("b,,b", None),
        ("..., b", (1, 2)),
        ("...", None),
        ("_", None),
        ("_", (None,)),
        ("b, 4", (2, 3)),
        ("b b", None),
        ("floordiv(b)", None),
    ],
)
def test_what_jax_refuses_is_refused(spec: str, like: Any) -> None:
    with pytest.raises((ValueError, tokenize.TokenError)):
        jax_export.symbolic_shape(spec, like=like)
    with pytest.raises(ValueError, match="at column"):
        symbolic_shape(spec, like=like)


def test_sizes_pass_as_they_are() -> None:
    scope = jax_export.SymbolicScope()
    assert dim_from_jax(np.int64(3)) == 3
    assert type(dim_from_jax(np.int64(3))) is int
    assert dim_to_jax(3, scope) == 3
    with pytest.raises(TypeError):
        dim_from_jax("b")


def test_dimensions_that_jax_does_not_take() -> None:
    with pytest.raises(
        ShapeError, match=r"^JAX rejects the dimension max\(floordiv\(a, b - 1\), 2\): "
    ):
        dim_to_jax(parse_dimension("max(floordiv(a, b - 1), 2)"), jax_export.SymbolicScope())


@pytest.mark.skipif(
    not hasattr(jax_export, "symbolic_dim_bounds"), reason="JAX has it from 0.11 on"
)
@given(built_in_both())
def test_bounds_agree_with_jaxs(both: Both) -> None:
    dimension, ours = both
    try:
        jax_lower, jax_upper = getattr(jax_export, "symbolic_dim_bounds")(dimension)  # noqa: B009
    except Exception as e:
        _check(e, "Possible division by 0")
        return
    lower, upper = symbolic_dim_bounds(ours)
    # Both are sound, so that they overlap.
    assert lower <= jax_upper
    assert jax_lower <= upper


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        ("b >= 4", ["b >= 4"]),
        ("4 <= b", ["4 <= b"]),
        ("b > 4", ["b >= 5"]),
        ("4 < b", ["4 <= b - 1"]),
        ("a < b", ["a <= b - 1"]),
        ("b != 4", []),
        ("b == 4", ["b == 4"]),
        ("4 == b", ["b == 4"]),
        ("2*b == h", ["2*b == h", "h == 2*b"]),
        ("h == 2*b", ["h == 2*b", "2*b == h"]),
        ("a + 1 == 2*b + 2", ["a == 2*b + 1", "2*b == a - 1"]),
        ("mod(35*b, -2) == 0", ["mod(35*b, - 2) == 0"]),
        ("- mod(b, 2) == 0", ["mod(b, 2) == 0"]),
        # Operations rather than variables, and nothing that it would itself contain.
        (
            "a + floordiv(b, 2) == 2*b",
            [
                "floordiv(b, 2) == - a + 2*b",
                "a == 2*b - floordiv(b, 2)",
                "2*b == a + floordiv(b, 2)",
            ],
        ),
        ("b == 2*floordiv(b, 2)", ["2*floordiv(b, 2) == b", "b == 2*floordiv(b, 2)"]),
        (
            "floordiv(b + 1, 2) == floordiv(b, 2)",
            ["floordiv(b + 1, 2) == floordiv(b, 2)", "floordiv(b, 2) == floordiv(b + 1, 2)"],
        ),
        ("3 == 3", ["3 == 3"]),
    ],
)
def test_comparisons_in_forms_for_jax(comparison: str, expected: list[str]) -> None:
    assert comparison_to_jax(parse_comparison(comparison)) == expected


@given(strategies.comparisons, strategies.assignments)
def test_every_form_for_jax_says_the_same(comparison: Any, values: dict[str, int]) -> None:
    forms = comparison_to_jax(comparison)
    assert forms or comparison.operator in ("==", "!=")
    for form in forms:
        assert parse_comparison(form).holds(values) == comparison.holds(values)


@pytest.mark.parametrize(
    ("comparison", "forms"),
    [
        ("b == 2*h", ["b == 2*h", "2*h == b"]),
        ("h*w == 64", ["h*w == 64"]),
        ("h*w == b", ["b == h*w"]),
        ("a*b == c*d", []),
        ("b == b*c + 1", []),
        ("b != 3", []),
    ],
)
def test_what_jax_would_divide_by_for_ever_has_no_form(comparison: str, forms: list[str]) -> None:
    assert comparison_to_jax(parse_comparison(comparison)) == forms


@given(st.lists(strategies.comparisons, max_size=3), strategies.assignments)
@settings(max_examples=examples(100), deadline=None)
def test_scopes_are_texts_equal_to_jax(constraints: list[Any], values: dict[str, int]) -> None:
    scope = SymbolicScope(constraints, check=False)
    try:
        converted = scope_to_jax(scope)
    except ShapeError as e:
        # JAX has no form for a comparison, sees that it never holds, or fears that a divisor is 0.
        # Products within max and min can also violate an assertion of JAX's own.
        if all(c.operator != "!=" for c in constraints):
            _check(e, "Unsatisfiable", "Possible division by 0", "AssertionError")
        return
    if scope.holds(values):
        assert scope_from_jax(converted).holds(values)
    elif not any(_trivial(c) for c in constraints):
        assert not scope_from_jax(converted).holds(values)


def _trivial(comparison: Any) -> bool:
    """Returns whether JAX drops a constraint, since its sides differ by a constant."""
    return isinstance(comparison.difference(), int)


def test_scopes_to_jax_and_back() -> None:
    constraints = ["b >= 4", "mod(b, 8) == 0", "h == 2*b", "a*b <= 7*h", "mod(35*h, - 2) == 0"]
    scope = SymbolicScope(constraints)
    converted = scope_to_jax(scope)
    assert isinstance(converted, jax_export.SymbolicScope)
    assert scope_from_jax(converted) == scope
    # JAX uses them.
    assert jax_dim("b", converted) >= 3
    assert jax_dim("b", converted) % 8 == 0
    assert jax_dim("h", converted) == 2 * jax_dim("b", converted)
    assert scope_from_jax(scope_to_jax(SymbolicScope())) == SymbolicScope()


def test_an_equality_in_no_form_for_jax_becomes_inequalities() -> None:
    scope = SymbolicScope(["b == 2*h", "b == 2*h*h"], check=False)
    texts = [str(c) for c in scope_from_jax(scope_to_jax(scope)).constraints]
    assert texts[0] == "b == 2*h"
    for values in ({"b": 2, "h": 1}, {"b": 4, "h": 2}, {"b": 8, "h": 2}):
        assert scope_from_jax(scope_to_jax(scope)).holds(values) == scope.holds(values)


def test_constraints_that_jax_cannot_be_given() -> None:
    with pytest.raises(
        ShapeError,
        match=r"^The constraint 'b != 4' cannot be passed to JAX, which supports only >=",
    ):
        scope_to_jax(SymbolicScope(["b != 4"]))
    with pytest.raises(
        ShapeError, match=r"^The constraint '3 >= 4' cannot be passed to JAX: Unsat"
    ):
        scope_to_jax(SymbolicScope(["3 >= 4"], check=False))


def test_what_a_scope_of_jax_derives_is_left_out() -> None:
    scope = jax_export.SymbolicScope(["mod(b, 8) == 0", "b>=4"])
    assert [str(c) for c in scope_from_jax(scope).constraints] == ["mod(b, 8) == 0", "b >= 4"]


def test_a_product_of_sizes_that_is_a_number_is_told_to_jax() -> None:
    portable = export(
        lambda x: x.reshape(-1) + np.ones(64, np.float32),
        polymorphic_shapes="(h, w)",
        polymorphic_constraints=["h*w == 64"],
        platforms=["cpu"],
    )(np.ones((4, 16), np.float32))
    assert portable.out_avals[0].shape == (64,)
