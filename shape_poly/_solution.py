"""Solves for the dimension variables by a plan, and collects conditions on the sizes."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from shape_poly._comparisons import COMPARE, Comparison, ComparisonOperator
from shape_poly._expressions import (
    Algebra,
    Dim,
    DimExpr,
    Variable,
    as_dim,
    as_size,
    iter_divisors,
    variables_of,
)


@dataclass(frozen=True)
class Place:
    """Position of a size in the shapes: `shapes[argument][axis]`."""

    argument: int
    axis: int


@dataclass(frozen=True)
class PlanStep:
    """Equation for a variable: `slope * variable + offset` equals the size at `place`."""

    variable: str
    place: Place
    dimension: DimExpr
    slope: Dim
    offset: Dim


@dataclass(frozen=True)
class Definition:
    """Definition of a variable by a constraint, such as `a == 2*b`."""

    variable: str
    dimension: Dim
    constraint: Comparison


@dataclass(frozen=True)
class Plan:
    """Steps that compute the variables from sizes; see `make_plan`.

    Attributes:
      steps: the equations of variables that follow from a size, in order.
      definitions: the definitions of variables that follow from constraints afterwards.
      equations: the other dimensions, which must equal their sizes.
      undetermined: the variables that cannot be computed.
    """

    steps: tuple[PlanStep, ...]
    definitions: tuple[Definition, ...]
    equations: tuple[tuple[Place, Dim], ...]
    undetermined: frozenset[str]


def make_plan(
    shapes: Iterable[Sequence[Dim]],
    sizes: Iterable[Sequence[object]] | None = None,
    constraints: Iterable[Comparison] = (),
) -> Plan:
    """Plans how to compute the variables of symbolic shapes from actual sizes.

    Args:
      shapes: the symbolic shapes.
      sizes: the sizes of each shape; None for a size that will not be known. An int is preferred
        to other values if a variable follows from several sizes. By default all are known.
      constraints: the constraints on the variables. If the sizes do not suffice, equations with a
        variable on the left side are used, as in jax.export.

    >>> from shape_poly import parse_dimension
    >>> b, c = parse_dimension("b"), parse_dimension("b + 2*c")
    >>> [f"{s.variable} from {s.dimension}" for s in make_plan([(b, c)]).steps]
    ['b from b', 'c from b + 2*c']
    """
    constraints = tuple(constraints)
    equations: dict[Place, Dim] = {}
    ints: set[Place] = set()
    names = {name for constraint in constraints for name in constraint.variables()}
    shapes = [tuple(map(as_dim, shape)) for shape in shapes]
    rows: Iterable[Sequence[object]] = shapes if sizes is None else sizes
    for argument, (shape, row) in enumerate(zip(shapes, rows, strict=True)):
        for axis, (dimension, size) in enumerate(zip(shape, row, strict=True)):
            names |= variables_of(dimension)
            if size is not None:
                equations[place := Place(argument, axis)] = dimension
                if isinstance(size, int):
                    ints.add(place)
    steps = _make_steps(equations, ints)
    definitions: tuple[Definition, ...] = ()
    missing = names - {step.variable for step in steps}
    if missing and (candidates := _collect_definitions(constraints)):
        values = {d.variable: d.dimension for d in candidates}
        substituted = {p: _substitute(dimension, values) for p, dimension in equations.items()}
        more_steps = _make_steps(substituted, ints)
        solved = {step.variable for step in more_steps}
        solvable = tuple(d for d in candidates if variables_of(d.dimension) <= solved)
        still_missing = names - solved - {d.variable for d in solvable}
        if len(still_missing) < len(missing):
            steps, definitions, missing = more_steps, solvable, still_missing
    used = {step.place for step in steps}
    rest = tuple((place, d) for place, d in equations.items() if place not in used)
    return Plan(steps, definitions, rest, frozenset(missing))


def _make_steps(equations: Mapping[Place, Dim], ints: Collection[Place]) -> tuple[PlanStep, ...]:
    """Solves equations with one unknown each, one after the other."""
    remaining = {p: d for p, d in equations.items() if isinstance(d, DimExpr)}
    steps: list[PlanStep] = []
    solved: set[str] = set()
    while True:
        candidates = [
            step
            for place, dimension in remaining.items()
            if (step := _make_step(place, dimension, solved)) is not None
        ]
        if not candidates:
            return tuple(steps)
        best = min(candidates, key=lambda step: (step.place not in ints, _rank_step(step)))
        steps.append(best)
        solved.add(best.variable)
        del remaining[best.place]


def _collect_definitions(constraints: Iterable[Comparison]) -> tuple[Definition, ...]:
    """Collects definitions from the constraints of the form `variable == expression`."""
    definitions: dict[str, Definition] = {}
    for constraint in constraints:
        left = constraint.left
        if constraint.operator != "==" or not (isinstance(left, DimExpr) and left.is_variable()):
            continue
        (name,) = left.variables()
        value = _substitute(constraint.right, {n: d.dimension for n, d in definitions.items()})
        if name in definitions or name in variables_of(value):
            continue
        for other in definitions.values():
            dimension = _substitute(other.dimension, {name: value})
            definitions[other.variable] = replace(other, dimension=dimension)
        definitions[name] = Definition(name, value, constraint)
    return tuple(definitions.values())


def _substitute(dimension: Dim, values: Mapping[str, Dim]) -> Dim:
    if variables_of(dimension).isdisjoint(values) or isinstance(dimension, int):
        return dimension
    try:
        return dimension.substitute(values)
    except (ZeroDivisionError, OverflowError):
        # Ignores a constraint that never holds or is too large.
        return dimension


def _make_step(place: Place, dimension: DimExpr, solved: set[str]) -> PlanStep | None:
    """Solves a dimension for its only unknown variable; None if that is not possible."""
    unknown = dimension.variables() - solved
    if len(unknown) != 1:
        return None
    (name,) = unknown
    if not is_linear(dimension, name):
        return None
    variable = Variable(name)
    offset = DimExpr(tuple(t for t in dimension.terms if variable not in dict(t[0])))
    slope = DimExpr.sum(
        DimExpr(((tuple(f for f in monomial if f[0] != variable), coefficient),))
        for monomial, coefficient in dimension.terms
        if variable in dict(monomial)
    )
    return PlanStep(name, place, dimension, as_dim(slope), as_dim(offset))


def _rank_step(step: PlanStep) -> int:
    """Ranks equations: simple ones come first, because they give simple error messages."""
    if isinstance(step.slope, DimExpr):
        return 3
    return (step.slope != 1) + (step.offset != 0)


def is_linear(dimension: DimExpr, name: str) -> bool:
    """Returns whether `name` occurs only as a factor of degree 1, outside of operations."""
    for monomial, _ in dimension.terms:
        degree = 0
        for atom, exponent in monomial:
            if isinstance(atom, Variable):
                degree += exponent if atom.name == name else 0
            elif any(name in o.variables() for o in atom.operands):
                return False
        if degree > 1:
            return False
    return True


def shape_text(shape: Iterable[object]) -> str:
    """Formats a shape as users write it: `(b, 28)`, `(b,)`; None, an unknown size, is `?`."""
    texts = ["?" if dimension is None else str(dimension) for dimension in shape]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


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
        run.apply_step(step)
    for definition in plan.definitions:
        run.apply_definition(definition)
    for place, dimension in plan.equations:
        run.apply_equation(place, dimension)
    defining = {definition.constraint for definition in plan.definitions}
    for constraint in constraints:
        if constraint not in defining:
            run.apply_constraint(constraint)
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
    sizes = [tuple(None if size is None else as_size(size) for size in row) for row in actual]
    return dict(solve(make_plan(shapes, sizes), sizes, Integers()).values)


class _PlanRun(Generic[T]):
    def __init__(self, sizes: Sequence[Sequence[Any]], algebra: Algebra[T], smallest: int) -> None:
        self.values: dict[str, T] = {}
        self.checks: list[Check[T]] = []
        self._sizes, self._algebra, self._smallest = sizes, algebra, smallest
        self._places: dict[str, tuple[Place, ...]] = {}

    def apply_step(self, step: PlanStep) -> None:
        place, name, algebra = step.place, step.variable, self._algebra
        offset = self._evaluate(step.offset, (place,))
        slope = self._evaluate(step.slope, (place,))
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

    def apply_definition(self, definition: Definition) -> None:
        names = variables_of(definition.dimension)
        if names <= self.values.keys():
            places = self._list_places(names)
            value = self._evaluate(definition.dimension, places, definition.constraint)
            if value is not None:
                self._assign(definition.variable, value, places, definition.constraint)

    def _assign(
        self, name: str, value: T, places: tuple[Place, ...], constraint: Comparison | None = None
    ) -> None:
        least = self._smallest
        reason = (f"Expected value >= {least} for dimension variable {name}. Got: ", value)
        if self._require(">=", value, least, reason, places, constraint):
            self.values[name] = value
            self._places[name] = places

    def _list_places(self, names: Iterable[str]) -> tuple[Place, ...]:
        return tuple(dict.fromkeys(p for name in sorted(names) for p in self._places[name]))

    def apply_equation(self, place: Place, dimension: Dim) -> None:
        value = self._evaluate(dimension, (place,))
        if value is None:
            return
        if isinstance(dimension, DimExpr):
            names = dimension.variables()
            known = () if dimension.is_variable() else self._format_assignment(names)
            reason = (f"{dimension} is ", value, *known)
        else:
            reason = (f"the size of dimension {place.axis} must be ", value)
        self._require("==", self._sizes[place.argument][place.axis], value, reason, (place,))

    def apply_constraint(self, constraint: Comparison) -> None:
        names = sorted(constraint.variables())
        if not self.values.keys() >= set(names):
            return
        places = self._list_places(names)
        left = self._evaluate(constraint.left, places, constraint)
        right = self._evaluate(constraint.right, places, constraint)
        if left is None or right is None:
            return
        reason: list[str | T] = []
        for side, value in ((constraint.left, left), (constraint.right, right)):
            if isinstance(side, DimExpr):
                reason += [f"{' and ' if reason else ''}{side} is ", value]
        sides = (constraint.left, constraint.right)
        if not all(isinstance(side, int) or side.is_variable() for side in sides):
            reason += self._format_assignment(names)
        self._require(constraint.operator, left, right, tuple(reason), places, constraint)

    def _evaluate(
        self, dimension: Dim, places: tuple[Place, ...], constraint: Comparison | None = None
    ) -> T | None:
        """Evaluates a dimension; None if a variable has no value or a divisor is known to be 0."""
        if isinstance(dimension, int):
            return self._algebra.constant(dimension)
        if not dimension.variables() <= self.values.keys():
            return None
        for divisor in iter_divisors(dimension):
            value = divisor.evaluate_with(self.values, self._algebra)
            reason = (
                f"{dimension} divides by {divisor}, which is 0",
                *self._format_assignment(divisor.variables()),
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

    def _format_assignment(self, names: Iterable[str]) -> Iterator[str | T]:
        before = " for "
        for name in sorted(names):
            yield f"{before}{name} = "
            yield self.values[name]
            before = ", "
