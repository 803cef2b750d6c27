"""Solves for the dimension variables by a plan, and collects conditions on the sizes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shape_poly._comparisons import COMPARE, Comparison, ComparisonOperator
from shape_poly._expressions import Algebra, Dim, DimExpr, divisors_in, variables_of
from shape_poly._plan import Definition, Place, Plan, PlanStep, make_plan

T = TypeVar("T")


class Integers:
    """Algebra of Python's integers."""

    constant = staticmethod(int)
    add, multiply = staticmethod(operator.add), staticmethod(operator.mul)
    floordiv, mod = staticmethod(operator.floordiv), staticmethod(operator.mod)
    maximum, minimum = staticmethod(max), staticmethod(min)


@dataclass(frozen=True)
class Check(Generic[T]):
    """Condition on sizes, `left operator right`, with the reason to state if it fails.

    Attributes:
      operator: the comparison operator.
      left, right: sizes, or values of dimensions.
      reason: texts and values to concatenate for the message.
      places: the places of the sizes involved.
      comparison: the constraint that is checked; None for other conditions.
    """

    operator: ComparisonOperator
    left: T
    right: T
    reason: tuple[str | T, ...]
    places: tuple[Place, ...]
    comparison: Comparison | None = None

    @property
    def holds(self) -> bool | None:
        """Returns whether it holds; None if a side is not an int."""
        if isinstance(self.left, int) and isinstance(self.right, int):
            return COMPARE[self.operator](self.left, self.right)
        return None


@dataclass(frozen=True)
class Solution(Generic[T]):
    """Values of the variables, and the conditions for them to be valid, in order."""

    values: Mapping[str, T]
    checks: tuple[Check[T], ...]


def solve(
    plan: Plan,
    sizes: Sequence[Sequence[Any]],
    algebra: Algebra[T],
    constraints: Sequence[Comparison] = (),
    *,
    smallest: int = 1,
) -> Solution[T]:
    """Solves for the variables, and collects the conditions on the sizes.

    Args:
      plan: the plan, made for these sizes and constraints.
      sizes: the actual shapes: integers, or values of `algebra`.
      algebra: the arithmetic to compute with.
      constraints: further conditions. Those with a variable without a value are left out.
      smallest: the minimum of a variable.

    Returns:
      The solution. A variable that would be fractional or below `smallest` has no value; then one
      of the checks fails, and everything that depends on the variable is left out.
    """
    run = _PlanRun(sizes, algebra, smallest)
    for step in plan.steps:
        run.step(step)
    for definition in plan.definitions:
        run.definition(definition)
    for place, dimension in plan.equations:
        run.equation(place, dimension)
    defining = {definition.constraint for definition in plan.definitions}
    for constraint in constraints:
        if constraint not in defining:
            run.constraint(constraint)
    return Solution(run.values, tuple(run.checks))


def solve_dimensions(
    shapes: Iterable[Sequence[Dim]], actual: Iterable[Sequence[int | None]]
) -> dict[str, int]:
    """Finds the values of the variables for which `shapes` become `actual`.

    Args:
      shapes: the symbolic shapes.
      actual: the sizes of each shape; None for unknown sizes.

    Returns:
      The values that follow from equations with one unknown each, one after the other. Variables
      that do not follow, or would be fractional or below 1, are left out. Contradictions are not
      detected; `solve` detects them.
    """
    sizes = [tuple(row) for row in actual]
    return dict(solve(make_plan(shapes, sizes), sizes, Integers()).values)


class _PlanRun(Generic[T]):
    """Evaluation of a plan for given sizes."""

    def __init__(self, sizes: Sequence[Sequence[Any]], algebra: Algebra[T], smallest: int) -> None:
        self.values: dict[str, T] = {}
        self.checks: list[Check[T]] = []
        self._sizes, self._algebra, self._smallest = sizes, algebra, smallest
        self._places: dict[str, tuple[Place, ...]] = {}

    def step(self, step: PlanStep) -> None:
        place, name, algebra = step.place, step.variable, self._algebra
        offset = self._value(step.offset, (place,))
        slope = self._value(step.slope, (place,))
        if offset is None or slope is None:
            return
        size, minus_one = self._sizes[place.argument][place.axis], algebra.constant(-1)
        value = size if step.offset == 0 else algebra.add(size, algebra.multiply(minus_one, offset))
        if isinstance(step.slope, DimExpr):
            undefined = (f"{name} does not follow from {step.dimension} where {step.slope} is 0",)
            if not self._require("!=", slope, 0, undefined, (place,)):
                return
        if step.slope != 1:
            remainder = algebra.mod(value, slope)
            reason = ("Division had remainder ", remainder)
            text = f" when computing the value of {name}"
            if not self._require("==", remainder, 0, (*reason, text), (place,)):
                return
            value = algebra.floordiv(value, slope)
        self._assign(name, value, (place,))

    def definition(self, definition: Definition) -> None:
        names = variables_of(definition.dimension)
        if names <= self.values.keys():
            places = self._places_of(names)
            value = self._value(definition.dimension, places, definition.constraint)
            if value is not None:
                self._assign(definition.variable, value, places, definition.constraint)

    def _assign(
        self,
        name: str,
        value: T,
        places: tuple[Place, ...],
        constraint: Comparison | None = None,
    ) -> None:
        least = self._smallest
        reason = (f"Expected value >= {least} for dimension variable {name}. Got: ", value)
        if self._require(">=", value, least, reason, places, constraint):
            self.values[name] = value
            self._places[name] = places

    def _places_of(self, names: Iterable[str]) -> tuple[Place, ...]:
        return tuple(dict.fromkeys(p for name in sorted(names) for p in self._places[name]))

    def equation(self, place: Place, dimension: Dim) -> None:
        value = self._value(dimension, (place,))
        if value is None:
            return
        if isinstance(dimension, DimExpr):
            names = dimension.variables()
            known = () if str(dimension) in names else self._assignment(names)
            reason = (f"{dimension} is ", value, *known)
        else:
            reason = (f"the size of dimension {place.axis} must be ", value)
        self._require("==", self._sizes[place.argument][place.axis], value, reason, (place,))

    def constraint(self, constraint: Comparison) -> None:
        names = sorted(constraint.variables())
        if not self.values.keys() >= set(names):
            return
        places = self._places_of(names)
        left = self._value(constraint.left, places, constraint)
        right = self._value(constraint.right, places, constraint)
        if left is None or right is None:
            return
        reason: list[str | T] = []
        for side, value in ((constraint.left, left), (constraint.right, right)):
            if isinstance(side, DimExpr):
                reason += [f"{' and ' if reason else ''}{side} is ", value]
        if not all(
            isinstance(s, int) or str(s) in names for s in (constraint.left, constraint.right)
        ):
            reason += self._assignment(names)
        self._require(constraint.operator, left, right, tuple(reason), places, constraint)

    def _value(
        self, dimension: Dim, places: tuple[Place, ...], constraint: Comparison | None = None
    ) -> T | None:
        """Evaluates a dimension; None if a variable has no value or a divisor is known to be 0."""
        if isinstance(dimension, int):
            return self._algebra.constant(dimension)
        if not dimension.variables() <= self.values.keys():
            return None
        for divisor in divisors_in(dimension):
            value = divisor.evaluate_with(self.values, self._algebra)
            reason = (
                f"{dimension} divides by {divisor}, which is 0",
                *self._assignment(divisor.variables()),
            )
            if not self._require("!=", value, 0, reason, places, constraint):
                return None
        return dimension.evaluate_with(self.values, self._algebra)

    def _require(
        self,
        operator: ComparisonOperator,
        left: T,
        right: Any,
        reason: tuple[str | T, ...],
        places: tuple[Place, ...],
        constraint: Comparison | None = None,
    ) -> bool:
        """Adds a check; returns False if it is known to fail."""
        check = Check(operator, left, right, reason, places, constraint)
        if check.holds is not True:
            self.checks.append(check)
        return check.holds is not False

    def _assignment(self, names: Iterable[str]) -> Iterator[str | T]:
        before = " for "
        for name in sorted(names):
            yield f"{before}{name} = "
            yield self.values[name]
            before = ", "
