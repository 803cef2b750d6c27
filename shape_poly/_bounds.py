"""Bounds dimensions under the constraints of a scope."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shape_poly._comparisons import Comparison, difference_fact
from shape_poly._expressions import (
    Dim,
    DimExpr,
    Variable,
    atom_expression,
)
from shape_poly._intervals import Bound, Interval, enclosure
from shape_poly._scope import SymbolicScope

_ROUNDS = 3
"""Number of times that the bounds of variables are propagated to each other."""
_MAX_TERMS = 20
"""Maximum number of terms of a constraint that bounds variables; longer ones are skipped."""
_MAX_WORK = 5000
"""Maximum product of terms and constraints for which each constraint is tried."""
_MAX_FACTOR = 1000


def symbolic_dim_bounds(
    dimension: Dim,
    scope: SymbolicScope | None = None,
    *,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> tuple[float, float]:
    """Returns inclusive bounds of a dimension, (lower, upper); finite ones are ints.

    The bounds hold for all variables of at least 1 that satisfy the constraints, but need not be
    the tightest ones. z3 is not used.

    Args:
      dimension: the dimension.
      scope: the constraints.
      ranges: the minimum and maximum of some variables; other variables are at least 1.

    >>> from shape_poly import SymbolicScope, parse_dimension
    >>> symbolic_dim_bounds(parse_dimension("mod(b, 8) + 1"))
    (1, 8)
    >>> symbolic_dim_bounds(parse_dimension("b - floordiv(b, 2)"), SymbolicScope(["b <= 9"]))
    (1, 5)
    >>> symbolic_dim_bounds(parse_dimension("2*b"), ranges={"b": (1, 100)})
    (2, 200)
    """
    if not isinstance(dimension, DimExpr):
        return dimension, dimension
    facts = [] if scope is None else [f for c in scope.constraints for f in _not_negative(c)]
    narrowed = _ranges(facts, ranges or {})
    lower, upper = enclosure(dimension, narrowed)
    if len(facts) * len(dimension.terms) <= _MAX_WORK:
        for fact in facts:
            lower = max(lower, _lower_by(dimension, fact, narrowed))
            upper = min(upper, -_lower_by(-dimension, fact, narrowed))
    # Contradictory constraints are ignored, because they imply every bound.
    return (lower, upper) if lower <= upper else enclosure(dimension, ranges)


def _not_negative(constraint: Comparison) -> Sequence[DimExpr]:
    """Returns expressions that the constraint makes at least 0."""
    fact = difference_fact(constraint)
    if fact.relation == "==":
        return fact.expression, -fact.expression
    return (fact.expression,) if fact.relation == ">=" else ()


def _ranges(facts: Sequence[DimExpr], known: Mapping[str, Interval]) -> dict[str, Interval]:
    """Narrows the known bounds of variables by facts that are linear in them.

    If the facts contradict each other, a lower bound may exceed the upper one.
    """
    ranges = dict(known)
    for _ in range(_ROUNDS):
        before = dict(ranges)
        for fact in facts:
            for monomial, coefficient in fact.terms if len(fact.terms) <= _MAX_TERMS else ():
                match monomial:
                    case ((Variable(name) as variable, 1),):
                        others = fact - atom_expression(variable) * coefficient
                        if name not in others.variables():
                            most = enclosure(others, ranges)[1]
                            low, high = ranges.get(name, (1, math.inf))
                            ranges[name] = _narrow((low, high), coefficient, most)
        if ranges == before:
            break
    return ranges


def _narrow(known: Interval, coefficient: int, others: Bound) -> Interval:
    """Returns the range of v for which coefficient*v + others may be at least 0."""
    low, high = known
    if isinstance(others, float):
        return known
    if coefficient > 0:
        return max(low, -(others // coefficient)), high
    return low, min(high, others // -coefficient)


def _lower_by(x: DimExpr, fact: DimExpr, ranges: Mapping[str, Interval]) -> Bound:
    """Bounds x from below by x - k*fact, because the fact is at least 0."""
    coefficients = dict(x.terms)
    factors = {
        coefficients[monomial] // c
        for monomial, c in fact.terms
        if monomial and monomial in coefficients and coefficients[monomial] % c == 0
    }
    useful = [f for f in factors if 0 < f <= _MAX_FACTOR]
    return max((enclosure(x - fact * f, ranges)[0] for f in useful), default=-math.inf)
