"""Comparisons as facts: E >= 0, E == 0 or E != 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from shape_poly._comparisons import Comparison
from shape_poly._expressions import DimExpr, divisors_in

Relation: TypeAlias = Literal[">=", "==", "!="]


@dataclass(frozen=True)
class Fact:
    """Comparison of an expression with 0."""

    relation: Relation
    expression: DimExpr

    def constant(self) -> bool | None:
        """Returns whether it holds, if that does not depend on the variables."""
        value = self.expression.constant_value()
        return None if value is None else self.holds_for(value)

    def holds_for(self, value: int) -> bool:
        """Checks whether it holds where the expression has this value."""
        if self.relation == ">=":
            return value >= 0
        return (value == 0) == (self.relation == "==")


def facts_of(*comparisons: Comparison) -> list[Fact]:
    """Returns facts equivalent to the comparisons: divisors are not 0, and the sides compare."""
    found: list[Fact] = []
    for comparison in comparisons:
        sides = (DimExpr.of(comparison.left), DimExpr.of(comparison.right))
        divisors = dict.fromkeys(d for side in sides for d in divisors_in(side))
        found += [*(Fact("!=", d) for d in divisors), difference_fact(comparison)]
    return found


def difference_fact(comparison: Comparison) -> Fact:
    """Returns the fact that the sides compare, which says nothing of their divisors."""
    left, right = DimExpr.of(comparison.left), DimExpr.of(comparison.right)
    match comparison.operator:
        case ">=":
            return Fact(">=", left - right)
        case ">":
            return Fact(">=", left - right - 1)
        case "<=":
            return Fact(">=", right - left)
        case "<":
            return Fact(">=", right - left - 1)
        case "==":
            return Fact("==", left - right)
        case _:
            return Fact("!=", left - right)
