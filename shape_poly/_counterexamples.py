"""Finds small assignments by trial, in the order of their sums."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shape_poly._comparisons import Comparison
from shape_poly._expressions import Dim, DimExpr, DimOperation, Variable
from shape_poly._intervals import Bound, Interval

_MAX_TERMS_PER_STATEMENT = 40
"""Maximum number of terms per statement; Python's compiler recurses over a sum."""

_STEPS_PER_TIME_CHECK = 256

_MAX_VARIABLES = 50
"""Maximum number of variables of which more than the least values are tried."""

_MAX_SKIPPED_VALUES = 1000
"""Maximum number of values of a variable to skip in search of its smallest one."""


@dataclass(frozen=True)
class Assignment:
    """Result: the smallest accepted assignment, by sum, then lexicographically."""

    values: Mapping[str, int]


@dataclass(frozen=True)
class Exhausted:
    """Result: no assignment is accepted; there are finitely many, and all were tried."""


@dataclass(frozen=True)
class OutOfBudget:
    """Result: no assignment with a sum of at most `total` is accepted."""

    total: int


def smallest_assignment(
    constraints: Sequence[Comparison],
    refuted: Comparison | None,
    ranges: Mapping[str, Interval],
    *,
    count: int,
    deadline: float,
) -> Assignment | Exhausted | OutOfBudget:
    """Finds the smallest assignment that satisfies the constraints and refutes `refuted`.

    Args:
      constraints: the constraints to satisfy.
      refuted: a comparison that must not hold (undefined counts as not holding), or None.
      ranges: every variable, with bounds that follow from the constraints.
      count: the maximum number of assignments to try.
      deadline: the time of `time.monotonic` at which to stop.
    """
    steps = 0
    for total, assignments in _iter_by_sum(constraints, refuted, ranges):
        if steps and (
            steps >= count or time.monotonic() > deadline or len(ranges) > _MAX_VARIABLES
        ):
            return OutOfBudget(total - 1)
        for values in assignments:
            if values is not None:
                return Assignment(values)
            steps += 1
            if steps >= count or (
                steps % _STEPS_PER_TIME_CHECK == 0 and time.monotonic() > deadline
            ):
                return OutOfBudget(total - 1)
        steps += 1
    return Exhausted()


def small_assignments(
    constraints: Sequence[Comparison], ranges: Mapping[str, Interval], *, deadline: float
) -> Iterator[dict[str, int]]:
    """Yields assignments that satisfy the constraints, by sum, then lexicographically.

    `ranges` has every variable, with bounds that follow from the constraints.
    """
    for _, assignments in _iter_by_sum(constraints, None, ranges):
        if time.monotonic() > deadline:
            return
        yield from filter(None, assignments)


def _iter_by_sum(
    constraints: Sequence[Comparison], refuted: Comparison | None, ranges: Mapping[str, Interval]
) -> Iterator[tuple[int, Iterator[dict[str, int] | None]]]:
    """Yields (sum, assignment) pairs in order; the assignment is None if it is not accepted."""
    if any(low > high for low, high in ranges.values()):
        return
    names = sorted(ranges)
    domains = [_make_domain(name, ranges[name], constraints) for name in names]
    accepts = compile_test([c for c in constraints if len(c.variables()) != 1], refuted, names)
    # Python cannot add an infinity and an integer that is too large for a float.
    uppers = [d.upper for d in domains]
    last = math.inf if math.inf in uppers else sum(uppers)
    total = sum(d.lower for d in domains)
    while total <= last:
        yield (
            total,
            (
                dict(zip(names, values, strict=True))
                if values is not None and accepts(*values)
                else None
                for values in _iter_of_sum(domains, total)
            ),
        )
        total += 1


class _Domain:
    """Values of one variable that its own constraints allow, computed on demand."""

    def __init__(self, lower: int, upper: Bound, allowed: Callable[..., bool]) -> None:
        self.lower, self.upper = lower, upper
        self._allowed = allowed
        self._tried = lower - 1
        self._values: list[int] = []
        self._members: set[int] = set()

    def up_to(self, limit: int) -> list[int]:
        """Returns all values up to the limit in ascending order, and possibly some above it."""
        while self._tried < min(limit, self.upper):
            self._tried += 1
            if self._allowed(self._tried):
                self._values.append(self._tried)
                self._members.add(self._tried)
        return self._values

    def has_one_up_to(self, limit: int) -> bool:
        values = self.up_to(limit)
        return bool(values) and values[0] <= limit

    def __contains__(self, value: int) -> bool:
        self.up_to(value)
        return value in self._members


def _make_domain(name: str, bounds: Interval, constraints: Sequence[Comparison]) -> _Domain:
    lower, upper = int(bounds[0]), bounds[1]
    own = [c for c in constraints if c.variables() == {name}]
    if not own:
        return _Domain(lower, upper, lambda value: True)
    allowed = compile_test(own, None, [name])
    # Sums start higher if the constraints exclude small values.
    end = lower + _MAX_SKIPPED_VALUES
    while lower < min(end, upper) and not allowed(lower):
        lower += 1
    return _Domain(lower, upper, allowed)


def _iter_of_sum(domains: Sequence[_Domain], total: int) -> Iterator[tuple[int, ...] | None]:
    """Yields the assignments with this sum, lexicographically; None for a dead end."""
    least = tuple(d.lower for d in domains)
    slack = total - sum(least)
    if slack == 0:
        yield least if all(v in d for v, d in zip(least, domains, strict=True)) else None
    elif len(domains) == 1:
        yield (total,) if total in domains[0] else None
    elif all(d.has_one_up_to(d.lower + slack) for d in domains):
        first, rest = domains[0], domains[1:]
        for value in first.up_to(first.lower + slack):
            if value > first.lower + slack:
                break
            for others in _iter_of_sum(rest, total - value):
                yield None if others is None else (value, *others)
    else:
        yield None


def compile_test(
    constraints: Sequence[Comparison], refuted: Comparison | None, names: Sequence[str]
) -> Callable[..., bool]:
    """Compiles a test whether the constraints hold, and `refuted` does not, for values of `names`.

    Its source consists of integers and generated names and contains no text of the user.
    """
    source = _Statements({name: f"v{i}" for i, name in enumerate(names)})
    source.lines.append("  try:")
    for constraint in constraints:
        source.lines.append(f"    if not ({source.comparison(constraint)}): return False")
    source.lines += ["    pass", "  except ZeroDivisionError:", "    return False"]
    if refuted is None:
        source.lines.append("  return True")
    else:
        source.lines.append("  try:")
        source.lines.append(f"    return not ({source.comparison(refuted)})")
        source.lines += ["  except ZeroDivisionError:", "    return True"]
    parameters = ", ".join(source.variables.values())
    text = "\n".join([f"def accepts({parameters}):", *source.lines])
    namespace: dict[str, Callable[..., bool]] = {}
    exec(compile(text, "<comparison of dimensions>", "exec"), {"max": max, "min": min}, namespace)
    return namespace["accepts"]


class _Statements:
    """Statements that compute dimensions; equal operations are computed once."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self.lines: list[str] = []
        self._operations: dict[DimOperation, str] = {}
        self._temporaries = 0

    def comparison(self, comparison: Comparison) -> str:
        left, right = self.dimension(comparison.left), self.dimension(comparison.right)
        return f"{left} {comparison.operator} {right}"

    def dimension(self, dimension: Dim) -> str:
        if isinstance(dimension, int):
            return _literal(dimension)
        terms = []
        for monomial, coefficient in dimension.terms:
            factors = [] if coefficient == 1 and monomial else [_literal(coefficient)]
            for atom, exponent in monomial:
                text = self._atom(atom)
                factors.append(text if exponent == 1 else f"{text}**{exponent}")
            terms.append("*".join(factors))
        if len(terms) <= 1:
            return f"({terms[0]})" if terms else "0"
        result = self._temporary()
        for start in range(0, len(terms), _MAX_TERMS_PER_STATEMENT):
            part = " + ".join(terms[start : start + _MAX_TERMS_PER_STATEMENT])
            self.lines.append(f"    {result} {'+=' if start else '='} {part}")
        return result

    def _atom(self, atom: Variable | DimOperation) -> str:
        if isinstance(atom, Variable):
            return self.variables[atom.name]
        known = self._operations.get(atom)
        if known is None:
            left, right = (self.dimension(operand) for operand in atom.operands)
            known = self._operations[atom] = self._temporary()
            match atom.kind:
                case "floordiv":
                    text = f"{left} // {right}"
                case "mod":
                    text = f"{left} % {right}"
                case "max" | "min":
                    text = f"{atom.kind}({left}, {right})"
            self.lines.append(f"    {known} = {text}")
        return known

    def _temporary(self) -> str:
        self._temporaries += 1
        return f"t{self._temporaries}"


def _literal(value: int) -> str:
    # Hexadecimal, because Python refuses to print decimal integers of thousands of digits.
    return f"({value:#x})" if value < 0 else f"{value:#x}"


def degree(dimension: Dim) -> int:
    """Returns an upper bound of the degree of a polynomial that bounds the dimension."""
    if not isinstance(dimension, DimExpr):
        return 0
    return max(
        (sum(_atom_degree(a) * e for a, e in monomial) for monomial, _ in dimension.terms),
        default=0,
    )


def _atom_degree(atom: Variable | DimOperation) -> int:
    if isinstance(atom, Variable):
        return 1
    return max(1, *(degree(operand) for operand in atom.operands))
