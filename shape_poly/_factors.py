"""Divides comparisons with 0 by factors that are not 0, and writes divisibility in one way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from shape_poly._expressions import (
    Atom,
    DimExpr,
    DimOperation,
    atom_expression,
    common_factors,
    divided,
    divided_monomial,
    enclosure,
    operation,
    without_common_factor,
)
from shape_poly._facts import Fact
from shape_poly._intervals import Bound, Interval

Ranges: TypeAlias = Mapping[str, Interval]

_EFFORT = 1
_TERMS_LOOKED_INTO = 40
"""In longer sums divisibility is not looked for."""


def sign(dimension: DimExpr, ranges: Ranges) -> int:
    """Returns 1 or -1 if bounds show that it is positive or negative everywhere, else 0."""
    low, high = enclosure(dimension, ranges, effort=_EFFORT)
    return 1 if low >= 1 else -1 if high <= -1 else 0


def simplest(fact: Fact, ranges: Ranges) -> Fact:
    """Divides the fact by factors that are not 0, and simplifies dividends and divisors.

    The result is equivalent for variables within the bounds, where no divisor is 0.

    Raises:
      OverflowError: it would be too large.
    """
    fact = _without_content(_without_factors(fact, ranges))
    divided = divisibility(fact, ranges)
    if divided is None:
        return fact
    x, y = divided
    return Fact(fact.relation, x - y * atom_expression(DimOperation("floordiv", (x, y))))


def divisibility(fact: Fact, ranges: Ranges) -> tuple[DimExpr, DimExpr] | None:
    """Returns (x, y) of the simplest equivalent mod(x, y) == 0 (or != 0), if there is one."""
    remainder = None if fact.relation == ">=" else _as_remainder(fact.expression, ranges)
    if remainder is None:
        return None
    _, x, y = without_common_factor(*remainder, signs_in(ranges))
    match operation("mod", x, y).terms:
        # A factor of the divisor is not 0.
        case ((monomial, _),):
            remainders = [a for a, e in monomial if isinstance(a, DimOperation) and a.kind == "mod"]
            others = [a for a, _ in monomial if a not in remainders]
            if len(remainders) == 1 and all(sign(atom_expression(a), ranges) for a in others):
                x, y = remainders[0].operands
    divisor = y.constant_value()
    if divisor is not None:
        content = math.gcd(*(c for _, c in x.terms))
        if math.gcd(content, divisor) == 1:
            x = divided(x, content)
    return _positive(x), _positive(y)


def _positive(x: DimExpr) -> DimExpr:
    return -x if x.terms and x.terms[0][1] < 0 else x


def _as_remainder(x: DimExpr, ranges: Ranges) -> tuple[DimExpr, DimExpr] | None:
    """Returns (u, v) if x is mod(u, v) times a nonzero factor f: f*u - f*v*floordiv(u, v)."""
    for monomial, c in x.terms if len(x.terms) <= _TERMS_LOOKED_INTO else ():
        for atom, exponent in monomial:
            if exponent != 1 or not isinstance(atom, DimOperation):
                continue
            u, v = atom.operands
            if max(len(u.terms), len(v.terms)) > _TERMS_LOOKED_INTO:
                continue
            factor = DimExpr.of_terms([(tuple(p for p in monomial if p[0] != atom), c)])
            if not sign(factor, ranges) or not sign(v, ranges):
                continue
            rest = x - factor * atom_expression(atom)
            if atom.kind == "mod" and not rest.terms:
                return u, v
            if atom.kind == "floordiv" and rest * v == -factor * u:
                return u, v
    return None


def exact_quotient(
    atom: DimOperation, divisible: Sequence[tuple[DimExpr, DimExpr]], ranges: Ranges
) -> DimExpr | None:
    """Simplifies floordiv(u, v), where a multiple of v is known to divide a multiple of u.

    Args:
      atom: a floordiv.
      divisible: pairs (x, y), where y divides x and is not 0.
      ranges: bounds of the variables.
    """
    u, v = atom.operands
    if max(len(u.terms), len(v.terms)) > _TERMS_LOOKED_INTO:
        return None
    for x, y in divisible:
        # Equal numbers of terms are not required; the check is a shortcut.
        alike = u.variables() == x.variables() and len(u.terms) == len(x.terms)
        if (x, y) == (u, v) or not x.terms or not alike or not sign(v, ranges):
            continue
        # u/v == r * x/y for an integer r.
        left, right = u * y, x * v
        times, rest = divmod(left.terms[0][1], right.terms[0][1])
        if not rest and left == right * times:
            return atom_expression(DimOperation("floordiv", (x, y))) * times
    return None


def _without_factors(fact: Fact, ranges: Ranges) -> Fact:
    """Divides the fact by the factors of all of its terms that have a sign."""
    terms = [t for t in fact.expression.terms if t[0] or fact.relation != ">="]
    common = common_factors([m for m, _ in terms], signs_in(ranges))
    if not common:
        return fact
    divided = DimExpr.of_terms((divided_monomial(m, common), c) for m, c in terms)
    if len(terms) == 1 and fact.relation != ">=":
        # A power is 0 where its base is.
        ((monomial, c),) = divided.terms
        return Fact(fact.relation, DimExpr.of_terms([(tuple((a, 1) for a, _ in monomial), c)]))
    signs = math.prod(sign(atom_expression(a), ranges) ** e for a, e in common.items())
    if fact.relation != ">=":
        return Fact(fact.relation, divided * signs)
    return _quotient_at_least(fact, divided, common, signs, ranges)


def _quotient_at_least(
    fact: Fact, divided: DimExpr, common: Mapping[Atom, int], signs: int, ranges: Ranges
) -> Fact:
    """Divides f*x + c >= 0 by f, if c is so near to 0 that it makes no other difference."""
    constant = sum(c for m, c in fact.expression.terms if not m)
    if divided.constant_value() is not None:
        # A bound of what is divided by: the bounds that show its sign may follow from it.
        return fact
    least: Bound = enclosure(
        DimExpr.of_terms([(tuple(common.items()), signs)]), ranges, effort=_EFFORT
    )[0]
    if -least <= constant < least:
        return Fact(">=", divided * signs - (1 if constant < 0 else 0))
    return fact


def signs_in(ranges: Ranges) -> Callable[[Atom], int]:
    """Returns a function that gives the sign of an atom, as `sign`."""
    return lambda atom: sign(atom_expression(atom), ranges)


def _without_content(fact: Fact) -> Fact:
    """Divides the fact by the greatest common divisor of its coefficients but the constant."""
    if fact.relation != ">=" and fact.expression.terms and fact.expression.terms[0][1] < 0:
        fact = Fact(fact.relation, -fact.expression)
    content = math.gcd(*(c for m, c in fact.expression.terms if m))
    constant = sum(c for m, c in fact.expression.terms if not m)
    if content <= 1:
        return fact
    if fact.relation == ">=" or constant % content == 0:
        # floor of the constant: the rest is a whole number.
        return Fact(fact.relation, divided(fact.expression, content))
    return Fact(fact.relation, DimExpr.constant(1))
