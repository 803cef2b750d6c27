"""Tests that proofs that are too hard or too large end in time, with a reason."""

import itertools
import random
from collections.abc import Callable

import pytest

from shape_poly import Comparison, DimExpr, Proven, Refuted, Unknown, parse_comparison, prove
from tests.shape_poly.proving import make_unsimplified, within

# Far above the limits that are given: a machine may have other work, but nothing may hang.
IN_TIME = 60


@pytest.mark.parametrize(
    "text",
    [
        "x^3 + y^3 != z^3",
        "6*v^2*w^3 - 5*v^2*u^2 + 6*v^3 - 8*v^2 + 5*u^2 != 5*u^2*w^3 - 6*w^4 + 14*v*w^2 - 3",
        "mod(b^64, 1000007) != 3",
        "7*v^2*w^3*u + 1 + mod(u^5, w^2 + 3) != 3*mod(v^3*w, u + 7)*(9*u*v^3 + w) + 5*u^6",
    ],
)
def test_hard_comparisons_are_unknown_in_time(text: str) -> None:
    with within(IN_TIME):
        verdict = prove(text, time_limit=0.3)
    assert isinstance(verdict, Unknown)
    assert verdict.reason.startswith("no proof and no counterexample was found in 0.3 s")


def _variables(count: int) -> list[DimExpr]:
    return [DimExpr.variable(f"v{i}") for i in range(count)]


def _thirds(variables: list[DimExpr]) -> DimExpr:
    return DimExpr.sum(make_unsimplified("floordiv", v, DimExpr.constant(3)) for v in variables)


def _maxima(variables: list[DimExpr]) -> DimExpr:
    return DimExpr.sum(make_unsimplified("max", v, w) for v, w in itertools.pairwise(variables))


def _nested(variables: list[DimExpr]) -> DimExpr:
    nested = variables[0]
    for i in range(50):
        kind = random.Random(i).choice(["max", "floordiv", "min", "mod"])
        nested = make_unsimplified(kind, 3 * nested + variables[i % 3], DimExpr.constant(i + 2))  # type: ignore[arg-type]
    return nested


def _products(variables: list[DimExpr]) -> DimExpr:
    return DimExpr.sum(v * w for v, w in itertools.pairwise(variables))


THOUSANDS_OF_TERMS: dict[str, Callable[[list[DimExpr]], Comparison]] = {
    "sum": lambda v: Comparison("!=", DimExpr.sum(v), 5000),
    "quotients": lambda v: Comparison("!=", _thirds(v), 5000),
    "maxima": lambda v: Comparison(">", _maxima(v), 5000),
    "products": lambda v: Comparison("!=", _products(v), 77777),
    "square": lambda v: Comparison("!=", DimExpr.sum(v[:80]) ** 2, 10**7 + 1),
    "nested": lambda v: Comparison("!=", _nested(v), 10**6),
    "powers": lambda v: Comparison("!=", (v[0] * v[1]) ** 100, 1001),
}


@pytest.mark.parametrize("name", THOUSANDS_OF_TERMS)
def test_thousands_of_terms_are_decided_or_unknown_in_time(name: str) -> None:
    comparison = THOUSANDS_OF_TERMS[name](_variables(2000))
    with within(IN_TIME):
        verdict = prove(comparison, time_limit=0.3)
    match verdict:
        case Refuted(values):
            assert not comparison.holds(values)
        case Proven():
            assert name == "maxima"  # none of the others is true


def test_what_is_true_of_thousands_of_terms_is_proven() -> None:
    total = DimExpr.sum(_variables(2000))
    assert prove(Comparison(">=", total, 2000), time_limit=IN_TIME) == Proven()
    sevenths = make_unsimplified("floordiv", total, DimExpr.constant(7))
    assert prove(Comparison(">=", 7 * sevenths + 6, total), time_limit=IN_TIME) == Proven()


def test_powers_beyond_the_limit_are_unknown() -> None:
    power = make_unsimplified("mod", DimExpr.variable("b") ** 64, DimExpr.constant(7))
    assert prove(Comparison(">=", power**64, 0)) == Unknown(
        "it is too large: powers of degree 4096, above the limit of 200"
    )


def test_no_time_is_no_verdict() -> None:
    assert prove("b*h >= h*b - 1 + mod(b, h)", time_limit=0) == Unknown(
        "no proof and no counterexample was found in 0 s"
    )


def test_another_try_may_succeed_and_verdicts_are_kept() -> None:
    comparison = parse_comparison("floordiv(b + k, k) <= floordiv(b, k) + 1 + mod(b*k, 3)")
    assert isinstance(prove(comparison, time_limit=0), Unknown)
    first = prove(comparison)
    assert first == Proven()
    assert prove(comparison) is first
