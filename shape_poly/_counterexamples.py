"""Finds small assignments by trial, in the order of their sums."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shape_poly._comparisons import NEVER, Comparison, Proven, Refuted
from shape_poly._expressions import Atom, DimExpr, Variable
from shape_poly._intervals import Bound, Interval, Ranges

_MAX_STATEMENT_CHARACTERS = 200
"""Length at which a sum or product ends, because Python's compiler recurses into long ones."""

_STEPS_PER_TIME_CHECK = 256

_MAX_VARIABLES = 50
"""Maximum number of variables; with more, only assignments with the smallest sum are tried."""

_MAX_SKIPPED_VALUES = 1000
"""Maximum number of values of a variable to skip in search of its smallest one."""


@dataclass(frozen=True)
class OutOfBudget:
    """Result of a search that stopped: no counterexample has a sum of at most `total`."""

    total: int


def find_smallest(
    constraints: Sequence[Comparison],
    comparison: Comparison,
    ranges: Ranges,
    *,
    count: int,
    deadline: float,
) -> Proven | Refuted | OutOfBudget:
    """Finds the counterexample with the smallest sum, the lexicographically first one of these.

    Returns Proven if there are finitely many assignments, and none is a counterexample.

    Args:
      constraints: the constraints to satisfy.
      comparison: the comparison to refute; it counts as false if a divisor is 0.
      ranges: every variable, with bounds that follow from the constraints.
      count: the maximum number of assignments to try.
      deadline: the time of `time.monotonic` at which to stop.
    """
    steps = 0
    for total, assignments in _iter_by_sum(constraints, comparison, ranges):
        if steps and (
            steps >= count or time.monotonic() > deadline or len(ranges) > _MAX_VARIABLES
        ):
            return OutOfBudget(total - 1)
        for values in assignments:
            if values is not None:
                return Refuted(values)
            steps += 1
            if steps >= count or (
                steps % _STEPS_PER_TIME_CHECK == 0 and time.monotonic() > deadline
            ):
                return OutOfBudget(total - 1)
        steps += 1
    return Proven()


def iter_small_assignments(
    constraints: Sequence[Comparison], ranges: Ranges, *, deadline: float
) -> Iterator[dict[str, int]]:
    """Yields assignments that satisfy the constraints, by sum, then lexicographically.

    `ranges` has every variable, with bounds that follow from the constraints.
    """
    for _, assignments in _iter_by_sum(constraints, NEVER, ranges):
        if time.monotonic() > deadline:
            return
        yield from filter(None, assignments)


def _iter_by_sum(
    constraints: Sequence[Comparison], refuted: Comparison, ranges: Ranges
) -> Iterator[tuple[int, Iterator[dict[str, int] | None]]]:
    """Yields each sum with its assignments, in order; None stands for a refused assignment."""
    if any(low > high for low, high in ranges.values()):
        return
    names = sorted(ranges)
    domains = [_make_domain(name, ranges[name], constraints) for name in names]
    accepts = _compile_test([c for c in constraints if len(c.variables()) != 1], refuted, names)
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
                for values in _iter_assignments(domains, total)
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
    allowed = _compile_test(own, NEVER, [name])
    # Sums start higher if the constraints exclude small values.
    end = lower + _MAX_SKIPPED_VALUES
    while lower < min(end, upper) and not allowed(lower):
        lower += 1
    return _Domain(lower, upper, allowed)


def _iter_assignments(domains: Sequence[_Domain], total: int) -> Iterator[tuple[int, ...] | None]:
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
            for following in _iter_assignments(rest, total - value):
                yield None if following is None else (value, *following)
    else:
        yield None


def _compile_test(
    constraints: Sequence[Comparison], refuted: Comparison, names: Sequence[str]
) -> Callable[..., bool]:
    """Compiles a function of `names`: whether the constraints hold, and `refuted` does not.

    Its source has only integers and generated names, and no text of the user.
    """
    variables = {name: f"v{i}" for i, name in enumerate(names)}
    source = _Source()

    def condition(comparison: Comparison) -> str:
        left, right = (
            DimExpr.of(side).evaluate_with(variables, source)
            for side in (comparison.left, comparison.right)
        )
        return f"{left} {comparison.operator} {right}"

    source.lines += [f"def accepts({', '.join(variables.values())}):", "  try:", "    pass"]
    for constraint in constraints:
        source.lines.append(f"    if not {condition(constraint)}: return False")
    source.lines += ["  except ZeroDivisionError:", "    return False", "  try:"]
    source.lines.append(f"    return not {condition(refuted)}")
    source.lines += ["  except ZeroDivisionError:", "    return True"]
    code = compile("\n".join(source.lines), "<comparison of dimensions>", "exec")
    namespace: dict[str, Callable[..., bool]] = {}
    exec(code, {"max": max, "min": min}, namespace)
    return namespace["accepts"]


class _Source:
    """Algebra that writes Python source; equal operations are computed once.

    Factors of products are variables, integers and results of statements, so they need no
    parentheses.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def _assign(self, text: str) -> str:
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = f"t{len(self._names)}"
            self.lines.append(f"    {name} = {text}")
        return name

    def constant(self, value: int) -> str:
        # Hexadecimal, because Python refuses to print decimal integers of thousands of digits.
        return f"({value:#x})" if value < 0 else f"{value:#x}"

    def _split(self, text: str) -> str:
        return text if len(text) < _MAX_STATEMENT_CHARACTERS else self._assign(text)

    def add(self, left: str, right: str) -> str:
        return self._split(f"{left} + {right}")

    def multiply(self, left: str, right: str) -> str:
        return self._split(f"{left} * {right}")

    def floordiv(self, left: str, right: str) -> str:
        return self._assign(f"({left}) // ({right})")

    def mod(self, left: str, right: str) -> str:
        return self._assign(f"({left}) % ({right})")

    def maximum(self, left: str, right: str) -> str:
        return self._assign(f"max({left}, {right})")

    def minimum(self, left: str, right: str) -> str:
        return self._assign(f"min({left}, {right})")


def bound_degree(dimension: DimExpr) -> int:
    """Returns an upper bound of the degree of a polynomial that bounds the dimension."""
    return max(
        (sum(_bound_atom_degree(a) * e for a, e in monomial) for monomial, _ in dimension.terms),
        default=0,
    )


def _bound_atom_degree(atom: Atom) -> int:
    return 1 if isinstance(atom, Variable) else max(1, *map(bound_degree, atom.operands))
