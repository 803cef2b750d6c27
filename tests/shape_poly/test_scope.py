"""Tests scopes: values that satisfy them, and contradictions between constraints."""

import itertools
import pickle
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Private: the time limit of the search for contradictions, which tests lower.
from shape_poly import (
    Comparison,
    ContradictionError,
    DimensionSyntaxError,
    DimExpr,
    SymbolicScope,
    _scope,
    parse_comparison,
    prove,
    symbolic_shape,
    weakest_requirement,
)
from tests.fresh_process import run_python
from tests.sampling import examples
from tests.shape_poly.proving import comparisons, grid, within


def test_a_scope_holds_where_all_constraints_do() -> None:
    scope = SymbolicScope(["b >= 4", "mod(b, 2) == 0", parse_comparison("h <= b")])
    assert scope.holds({"b": 4, "h": 1})
    assert not scope.holds({"b": 5, "h": 1})
    assert not scope.holds({"b": 4, "h": 5})
    assert scope.variables() == {"b", "h"}
    assert str(scope) == "b >= 4, mod(b, 2) == 0, h <= b"
    assert str(SymbolicScope()) == "no constraints"
    with pytest.raises(KeyError):
        scope.holds({"b": 4})


def test_scopes_are_values() -> None:
    scope = SymbolicScope(["b >= 4", "b>=4", "h == 2*b"])
    assert len(scope.constraints) == 2
    assert scope == SymbolicScope(["b >= 4"]).with_constraints("h == 2*b")
    assert hash(scope) == hash(SymbolicScope(["b >= 4", "h == 2*b"]))
    assert scope != SymbolicScope(["b >= 4"])
    assert pickle.loads(pickle.dumps(scope)) == scope
    with pytest.raises(AttributeError):
        scope.constraints = ()  # type: ignore[misc]


def test_text_that_is_no_constraint_is_an_error() -> None:
    with pytest.raises(DimensionSyntaxError, match="at column 2: no comparison found"):
        SymbolicScope(["b"])


FOUR: Any = 4
TEXTS: Any = ["b >= 4"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SymbolicScope("b >= 4"), r"such as \['b >= 4', .*\]. Got: 'b >= 4' of type str"),
        (lambda: SymbolicScope(FOUR), "constraints must be a sequence, .* Got: 4 of type int"),
        (lambda: SymbolicScope([FOUR]), "A constraint must be a string. Got: 4 of type int"),
        (lambda: SymbolicScope().with_constraints(TEXTS), r"Got: \['b >= 4'\] of type list"),
        (lambda: prove(FOUR), "A constraint must be a string. Got: 4 of type int"),
        (lambda: weakest_requirement(FOUR), "A constraint must be a string. Got: 4 of type int"),
        (lambda: prove("b >= 1", TEXTS), r"such as SymbolicScope\(\['b >= 4'\]\). Got: \["),
        (lambda: symbolic_shape("b", scope=TEXTS), "scope must be a SymbolicScope"),
    ],
)
def test_constraints_of_another_type_are_errors(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("constraints", "conflict"),
    [
        (["b >= 4", "b <= 2"], ["b >= 4", "b <= 2"]),
        (["b <= 0"], ["b <= 0"]),
        (["b >= 2", "b < 1"], ["b < 1"]),
        (["b >= 2", "h >= 3", "b <= 5", "h <= 2", "mod(b, 2) == 0"], ["h >= 3", "h <= 2"]),
        (["mod(b, 2) == 0", "b >= 3", "mod(b, 4) == 1"], ["mod(b, 2) == 0", "mod(b, 4) == 1"]),
        (["h >= w + 1", "w >= b", "b >= h", "b >= 3"], ["h >= w + 1", "w >= b", "b >= h"]),
        (["2*b == 2*h + 1"], ["2*b == 2*h + 1"]),
        (["b == 2*h", "mod(b, 2) == 1"], ["b == 2*h", "mod(b, 2) == 1"]),
        (["b*h == 7", "b >= 2", "h >= 2"], ["b*h == 7", "b >= 2", "h >= 2"]),
        (["mod(b, 3) == 3"], ["mod(b, 3) == 3"]),
        (["max(b, h) < min(b, h)"], ["max(b, h) < min(b, h)"]),
        (["b == 3", "b == 4", "b == 5"], ["b == 4", "b == 5"]),
        (["2 >= 3", "b >= 2"], ["2 >= 3"]),
        (
            ["mod(b, 7) == 3", "mod(b, 5) == 2", "b < 17"],
            ["mod(b, 7) == 3", "mod(b, 5) == 2", "b < 17"],
        ),
    ],
)
def test_contradictions_name_a_minimal_conflict(
    constraints: list[str], conflict: list[str]
) -> None:
    with pytest.raises(ContradictionError) as raised:
        SymbolicScope(constraints)
    assert [str(c) for c in raised.value.constraints] == conflict
    assert SymbolicScope(constraints, check=False).constraints
    for left_out in conflict:
        SymbolicScope([c for c in conflict if c != left_out])


def test_the_text_of_contradictions() -> None:
    with pytest.raises(ContradictionError) as raised:
        SymbolicScope(["b >= 4", "h >= 1", "b <= 2"])
    assert str(raised.value) == (
        "The constraints 'b >= 4' and 'b <= 2' contradict each other: dimension variables are "
        "integers of at least 1, and no such sizes satisfy them all. Remove or correct one of them."
    )
    with pytest.raises(ContradictionError) as raised:
        SymbolicScope(["b <= 0"])
    assert str(raised.value) == (
        "The constraint 'b <= 0' never holds: dimension variables are integers of at least 1, and "
        "no such sizes satisfy it. Remove or correct it."
    )
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    three = ContradictionError([parse_comparison(c) for c in ("a > b", "b > c", "c > a")])
    assert "The constraints 'a > b', 'b > c' and 'c > a' contradict" in str(three)


def test_adding_a_constraint_looks_for_contradictions_too() -> None:
    with pytest.raises(ContradictionError, match="'b >= 4' and 'b <= 2'"):
        SymbolicScope(["b >= 4"]).with_constraints("b <= 2")
    assert SymbolicScope(["b >= 4"]).with_constraints("b <= 2", check=False).constraints


@given(st.lists(comparisons(), min_size=1, max_size=3))
@settings(max_examples=examples(30), deadline=None)
def test_contradictory_constraints_have_no_witness(constraints: list[Comparison]) -> None:
    conflict: tuple[Comparison, ...] = ()
    with mock.patch.object(_scope, "_MAX_CONFLICT_SECONDS", 0.1):
        try:
            SymbolicScope(constraints)
        except ContradictionError as e:
            conflict = e.constraints
    for values in grid(frozenset("abc")) if conflict else ():
        assert not all(c.holds(values) for c in conflict)


def test_undecidable_constraints_are_let_through_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scope, "_MAX_CONFLICT_SECONDS", 0.5)
    with within(3):
        SymbolicScope(["x^3 + y^3 == z^3"])


def test_many_constraints() -> None:
    variables = [DimExpr.variable(f"v{i}") for i in range(20)]
    chain = [Comparison(">=", left, right + 1) for left, right in itertools.pairwise(variables)]
    scope = SymbolicScope(chain)
    with pytest.raises(ContradictionError) as raised:
        scope.with_constraints("v10 <= v15")
    assert len(raised.value.constraints) == 6


def test_simple_constraints_do_not_load_z3() -> None:
    code = """
    import sys
    from shape_poly import SymbolicScope
    SymbolicScope(["b >= 4"])
    SymbolicScope(["b >= 100000", "mod(b, 8) == 0", "h == 2*b", "w <= 7", "h*w >= 5"])
    try:
        SymbolicScope(["b >= 4", "b <= 2"])
    except ValueError:
        print("z3" in sys.modules)
    """
    assert run_python(code) == "False"
