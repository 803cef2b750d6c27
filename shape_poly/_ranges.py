"""Bounds variables by facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from shape_poly._expressions import DimExpr, Variable, enclosure
from shape_poly._facts import Fact
from shape_poly._intervals import Interval

POSITIVE: Interval = (1, math.inf)

_VALUES_TRIED = 128
_SIZE_TRIED = 50


def ranges_from(facts: Sequence[Fact], names: Iterable[str]) -> dict[str, Interval]:
    """Bounds the variables by facts that are linear in one variable each.

    Where facts contradict each other, a lower bound is above the upper one.
    """
    ranges = dict.fromkeys(names, POSITIVE)
    for fact in facts:
        match fact.expression.terms:
            case [(((Variable(name), 1),), slope), *rest] if all(not m for m, _ in rest):
                low, high = _solutions(fact, slope, sum(c for _, c in rest))
                ranges[name] = max(ranges[name][0], low), min(ranges[name][1], high)
    return ranges


def least_values(facts: Sequence[Fact]) -> list[Fact]:
    """Finds lower bounds of variables by trying values in facts about one variable each.

    As b >= 8 from b - 8*floordiv(b, 8) == 0.
    """
    bounds: dict[str, int] = {}
    for fact in facts:
        names = fact.expression.variables()
        if len(names) != 1 or not fact.expression.depth or fact.expression.size > _SIZE_TRIED:
            continue
        (name,) = names
        low = bounds.get(name, 1)
        while low <= _VALUES_TRIED and not _may_hold(fact, {name: low}):
            low += 1
        bounds[name] = low
    return [Fact(">=", DimExpr.variable(n) - low) for n, low in bounds.items() if low > 1]


def _may_hold(fact: Fact, values: Mapping[str, int]) -> bool:
    try:
        return fact.holds_for(fact.expression.evaluate(values))
    except ZeroDivisionError:
        return True


def _solutions(fact: Fact, slope: int, offset: int) -> Interval:
    """Bounds v where slope*v + offset compares with 0 as the fact says."""
    if fact.relation == "!=":
        return POSITIVE
    if fact.relation == "==":
        return (1, 0) if offset % slope else (-offset // slope, -offset // slope)
    return (-(offset // slope), math.inf) if slope > 0 else (1, offset // -slope)


def contradict(facts: Iterable[Fact], ranges: Mapping[str, Interval]) -> bool:
    """Checks whether the bounds show that not all of the facts hold."""
    return any(low > high for low, high in ranges.values()) or any(
        follows(fact, ranges) is False for fact in facts
    )


def follows(fact: Fact, ranges: Mapping[str, Interval]) -> bool | None:
    """Decides whether the fact holds, or None if the bounds do not tell."""
    low, high = enclosure(fact.expression, ranges)
    if fact.relation == ">=":
        return True if low >= 0 else False if high < 0 else None
    if low > 0 or high < 0:
        return fact.relation == "!="
    return fact.relation == "==" if low == high == 0 else None
