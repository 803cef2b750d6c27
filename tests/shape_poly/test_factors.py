"""Tests nonzero factors, divisibility, and rewriting by them, which keeps the meaning."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shape_poly import (
    Comparison,
    DimExpr,
    Proven,
    Refuted,
    SymbolicScope,
    parse_comparison,
    prove,
    weakest_requirement,
)

# The face hides the steps of a proof, which are tested one by one.
from shape_poly._comparisons import list_facts
from shape_poly._deciding import decide, select_related
from shape_poly._normal_form import Normalizer, match_divisibility, reduce_fact
from shape_poly._problem import find_least_values, find_ranges
from shape_poly._requirements import rewrite
from tests.sampling import examples
from tests.shape_poly.proving import (
    FOREVER,
    GRID,
    grid,
    make_unsimplified,
    product_comparisons,
    within,
)
from tests.strategies import VARIABLES

_constraints = st.one_of(
    st.builds(
        lambda name, k: Comparison(">=", DimExpr.variable(name), k),
        st.sampled_from(VARIABLES),
        st.integers(1, GRID - 2),
    ),
    st.builds(
        lambda name, k: Comparison("==", make_unsimplified("mod", DimExpr.variable(name), k), 0),
        st.sampled_from(VARIABLES),
        st.integers(2, 3).map(DimExpr.constant),
    ),
    product_comparisons,
)
_constraint_lists = st.lists(_constraints, max_size=2)


@given(product_comparisons, _constraint_lists)
@settings(max_examples=examples(60), deadline=None)
def test_without_factors_a_fact_says_the_same(
    comparison: Comparison, constraints: list[Comparison]
) -> None:
    facts = list_facts(*constraints)
    ranges = find_ranges([*facts, *find_least_values(facts)], VARIABLES)
    fact = list_facts(comparison)[-1]
    for form in (fact, Normalizer(ranges, FOREVER).normalize_fact(fact)):
        short = reduce_fact(form, ranges)
        for values in grid(frozenset(VARIABLES)):
            if all(low <= values[name] <= high for name, (low, high) in ranges.items()):
                try:
                    value = form.expression.evaluate(values)
                except ZeroDivisionError:
                    continue
                assert short.holds_for(short.expression.evaluate(values)) == form.holds_for(value)


@given(product_comparisons, _constraint_lists)
@settings(max_examples=examples(60), deadline=None)
def test_bounds_from_facts_follow_from_them(
    comparison: Comparison, constraints: list[Comparison]
) -> None:
    facts = list_facts(comparison, *constraints)
    bounds = find_least_values(facts)
    for values in grid(frozenset(VARIABLES), (comparison, *constraints)):
        assert all(b.holds_for(b.expression.evaluate(values)) for b in bounds)


@given(product_comparisons, _constraint_lists)
@settings(max_examples=examples(60), deadline=None)
def test_rewritten_comparisons_are_equivalent(
    comparison: Comparison, constraints: list[Comparison]
) -> None:
    relevant, names = select_related(constraints, comparison.variables())
    rewritten = rewrite(comparison, relevant, names, FOREVER)
    assert rewritten.variables() <= names
    for values in grid(names, relevant):
        assert rewritten.holds(values) == comparison.holds(values)


@given(product_comparisons, _constraint_lists)
@settings(max_examples=examples(50), deadline=None)
def test_verdicts_about_products_agree_with_python(
    comparison: Comparison, constraints: list[Comparison]
) -> None:
    relevant, names = select_related(constraints, comparison.variables())
    failing = [v for v in grid(names, relevant) if not comparison.holds(v)]
    match decide(constraints, comparison, time_limit=0.1):
        case Proven():
            assert not failing
        case Refuted(sizes):
            assert all(c.holds(sizes) for c in relevant)
            assert not comparison.holds(sizes)


@pytest.mark.parametrize(
    ("text", "dividend", "divisor"),
    [
        ("mod(b*d*s, - 8*b*s) == 0", "d", 8),
        ("mod(2*h*s, - 2*k*s) == 0", "h", "k"),
        ("- 2*mod(- h, k)*s == 0", "h", "k"),
        ("mod(3*b, 4) != 0", "b", 4),
        ("mod(3*b, 4*h) == 0", "3*b", "4*h"),
        ("b*floordiv(h, b) == h", "h", "b"),
        ("b*d*s + 8*b*floordiv(- d, 8)*s == 0", "d", 8),
    ],
)
def test_divisibility_is_recognised(text: str, dividend: str, divisor: str | int) -> None:
    *_, fact = list_facts(parse_comparison(text))
    ranges = find_ranges((), "bdhks")
    pair = match_divisibility(reduce_fact(fact, ranges), ranges)
    assert pair is not None
    assert tuple(map(str, pair)) == (dividend, str(divisor))


@pytest.mark.parametrize(
    "text",
    ["b*floordiv(h, b) >= h", "mod(b, h - 2) == 0", "floordiv(b, 2) == b", "mod(b, 3) == 1"],
)
def test_other_facts_are_not_divisibility(text: str) -> None:
    *_, fact = list_facts(parse_comparison(text))
    assert match_divisibility(fact, find_ranges((), "bh")) is None


_BATCHED_PATCHES = "mod(- 12*b*floordiv(3*b*h*w, - 12*b*w)*w, - 12*b*h) == 0"


@pytest.mark.parametrize(
    ("comparison", "constraints", "requirement"),
    [
        ("mod(b*d*s, - 8*b*s) == 0", (), "mod(d, 8) == 0"),
        ("mod(2*h*s, - 2*k*s) == 0", (), "mod(h, k) == 0"),
        ("- 2*mod(- h, k)*s == 0", (), "mod(h, k) == 0"),
        ("mod(- a*b, 4) == 0", (), "mod(a*b, 4) == 0"),
        ("mod(h*w, k) == 0", (), "mod(h*w, k) == 0"),
        ("mod(a, - b) == 0", (), "mod(a, b) == 0"),
        ("mod(b*h, b*k) != 0", (), "mod(h, k) != 0"),
        # Under constraints.
        (
            "- 2*mod(- floordiv(h, 2)*w, 2*floordiv(h, 2)) == 0",
            ("mod(h, 2) == 0",),
            "mod(w, 2) == 0",
        ),
        ("mod(h*w, h*k) == 0", ("mod(h, 2) == 0",), "mod(w, k) == 0"),
        ("mod(3*b*h*w, - 12*b*w) == 0", (), "mod(h, 4) == 0"),
        (_BATCHED_PATCHES, ("mod(h, 4) == 0",), "mod(w, 4) == 0"),
        (_BATCHED_PATCHES, ("mod(3*b*h*w, - 12*b*w) == 0",), "mod(w, 4) == 0"),
        # Quotients without remainder.
        ("- floordiv(a, - b) == c", ("mod(a, b) == 0",), "a == b*c"),
        ("- floordiv(a, - b) == c", ("mod(a, - b) == 0",), "a == b*c"),
        ("floordiv(a*d, b) == c", ("mod(a*d, b) == 0",), "a*d == b*c"),
        ("- floordiv(- a*d, 4) == c", ("mod(a*d, 4) == 0",), "a*d == 4*c"),
        # Factors of both sides.
        ("b*h >= b*w", (), "h >= w"),
        ("b*h > b*w", (), "h >= w + 1"),
        ("b*h == b*w + b*s", (), "h == s + w"),
        ("2*b*s >= 4*s", (), "b >= 2"),
        ("floordiv(b*h, b*k) == 3", (), "floordiv(h, k) == 3"),
    ],
)
def test_requirements_have_no_factors_in_common(
    comparison: str, constraints: tuple[str, ...], requirement: str
) -> None:
    scope = SymbolicScope(constraints)
    with within(2):
        assert str(weakest_requirement(parse_comparison(comparison), scope)) == requirement


@pytest.mark.parametrize(
    ("comparison", "constraints"),
    [
        (_BATCHED_PATCHES, ("mod(h, 4) == 0", "mod(w, 4) == 0")),
        ("mod(- a*b, 4) == 0", ("mod(a*b, 4) == 0",)),
        ("mod(- 2*a*b, - 2*c*b) == 0", ("mod(a, c) == 0",)),
        ("mod(a, - b) == 0", ("a == b*c",)),
        ("- floordiv(a, - b) == c", ("a == b*c",)),
        ("- floordiv(- 3*a*d, 4) == 3*floordiv(a*d, 4)", ("mod(a*d, 4) == 0",)),
        ("floordiv(a*d, - b) == - floordiv(a*d, b)", ("mod(a*d, b) == 0",)),
        ("mod(h*w, - 2*floordiv(h, 2)) == 0", ("mod(h, 2) == 0",)),
        ("mod(a*d, b) == 0", ("mod(a, b) == 0",)),
        ("floordiv(a, b) >= 1", ("mod(a, b) == 0",)),
    ],
)
def test_divisible_products_are_proven(comparison: str, constraints: tuple[str, ...]) -> None:
    assert prove(comparison, SymbolicScope(constraints)) == Proven()
