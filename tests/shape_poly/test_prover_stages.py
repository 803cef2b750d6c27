"""Tests each stage of a proof against Python: the normal form, residue classes, z3."""

import itertools
import time
from collections.abc import Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shape_poly import Comparison, DimExpr, Proven, Refuted, SymbolicScope, Unknown, prove

# The face hides the steps of a proof, which are tested one by one.
from shape_poly._comparisons import Fact, list_facts
from shape_poly._intervals import POSITIVE
from shape_poly._normal_form import Normalizer
from shape_poly._problem import Problem, find_ranges, is_evident, normalize, split_residue_classes
from shape_poly._z3 import decide_by_z3
from tests.sampling import examples
from tests.shape_poly.proving import (
    FOREVER,
    comparisons,
    constraint_lists,
    dimensions,
    grid,
    larger_sizes,
)


@given(comparisons(), constraint_lists)
@settings(max_examples=examples(25), deadline=None)
def test_z3_alone_agrees_with_python(comparison: Comparison, constraints: list[Comparison]) -> None:
    facts = list_facts(*constraints)
    names = comparison.variables().union(*(c.variables() for c in constraints))
    problem = Problem(
        tuple(facts),
        tuple(list_facts(comparison)),
        dict.fromkeys(names, POSITIVE),
        {name: DimExpr.variable(name) for name in names},
    )

    def refutes(values: Mapping[str, int]) -> bool:
        return all(c.holds(values) for c in constraints) and not comparison.holds(values)

    deadline = time.monotonic() + 0.1
    verdict = decide_by_z3(problem, refutes, purpose="", least_sum=0, deadline=deadline)
    failing = [v for v in grid(names) if refutes(v)]
    match verdict:
        case Proven():
            assert not failing
        case Refuted(values):
            assert refutes(values)
        case Unknown(reason):
            assert "wrong" not in reason


@given(dimensions(6), larger_sizes)
@settings(max_examples=examples(17), deadline=None)
def test_z3_computes_as_python_does(dimension: DimExpr, values: Mapping[str, int]) -> None:
    try:
        value = dimension.evaluate(values)
    except ZeroDivisionError:
        assume(False)
    facts = tuple(Fact("==", DimExpr.variable(name) - size) for name, size in values.items())
    for claimed, holds in ((value, True), (value + 1, False)):
        problem = Problem(
            facts,
            (Fact("==", dimension - claimed),),
            dict.fromkeys(values, POSITIVE),
            {name: DimExpr.variable(name) for name in values},
        )
        verdict = decide_by_z3(
            problem,
            lambda sizes, claimed=claimed: sizes == values and value != claimed,  # type: ignore[misc]
            purpose="",
            least_sum=0,
            deadline=time.monotonic() + 5,
        )
        assert verdict == (Proven() if holds else Refuted(values))


@pytest.mark.parametrize("kind", ["floordiv", "mod"])
@pytest.mark.parametrize("divisor", [-9, -8, -3, -1, 1, 2, 7, 64])
def test_floor_semantics_of_constant_divisors(kind: str, divisor: int) -> None:
    for dividend in (-17, -16, -8, -1, 0, 1, 7, 8, 9, 63):
        value = dividend // divisor if kind == "floordiv" else dividend % divisor
        text = f"{kind}(b - 20, {divisor})"
        scope = SymbolicScope([f"b == {dividend + 20}"])
        assert prove(f"{text} == {value}", scope) == Proven()
        assert isinstance(prove(f"{text} != {value}", scope), Refuted)


@given(dimensions(6), st.lists(comparisons(2), max_size=2), larger_sizes)
@settings(max_examples=examples(50), deadline=None)
def test_the_normal_form_has_the_same_values(
    dimension: DimExpr, constraints: list[Comparison], values: Mapping[str, int]
) -> None:
    assume(all(c.holds(values) for c in constraints))
    try:
        value = dimension.evaluate(values)
    except ZeroDivisionError:
        assume(False)
    ranges = find_ranges(list_facts(*constraints), values)
    assert all(low <= values[name] <= high for name, (low, high) in ranges.items())
    assert Normalizer(ranges, FOREVER).normalize_dimension(dimension).evaluate(values) == value


@given(st.lists(comparisons(3), min_size=1, max_size=3), comparisons(3))
@settings(max_examples=examples(50), deadline=None)
def test_eliminating_variables_adds_no_sizes(
    constraints: list[Comparison], comparison: Comparison
) -> None:
    names = ("a", "b", "c")
    facts = list_facts(*constraints)
    problem = normalize(facts, list_facts(comparison), names, FOREVER)
    left = sorted(problem.ranges)
    for sizes in itertools.product(range(1, 5), repeat=len(left)):
        values = dict(zip(left, sizes, strict=True))
        if all(_holds(f, values) for f in problem.facts):
            original = problem.original_values(values)
            assert all(c.holds(original) for c in constraints)
            assert comparison.holds(original) == all(_holds(g, values) for g in problem.goals)


def _holds(fact: Fact, values: Mapping[str, int]) -> bool:
    return Comparison(fact.relation, fact.expression, 0).holds(values)


@given(comparisons(4), constraint_lists, larger_sizes)
@settings(max_examples=examples(40), deadline=None)
def test_what_is_evident_in_each_residue_class_holds(
    comparison: Comparison, constraints: list[Comparison], larger: Mapping[str, int]
) -> None:
    names = ("a", "b", "c")
    facts = list_facts(*constraints)
    problem = normalize(facts, list_facts(comparison), names, FOREVER)
    if all(is_evident(part, FOREVER) for part in split_residue_classes(problem, FOREVER)):
        for values in (*grid(frozenset(names)), larger):
            assert comparison.holds(values) or not all(c.holds(values) for c in constraints)
