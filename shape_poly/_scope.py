"""Scopes: constraints on dimension variables, and the proofs and bounds that follow from them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shape_poly._comparisons import (
    Comparison,
    Proven,
    Refuted,
    Unknown,
    Verdict,
    as_comparison,
    make_difference_fact,
)
from shape_poly._deciding import decide, find_conflict
from shape_poly._expressions import Dim, DimExpr, Variable, as_size, atom_expression
from shape_poly._intervals import Bound, Interval, Ranges, enclose

_MAX_CONFLICT_SECONDS = 2.0
"""Time limit for the search of contradictions; others are not reported."""


class ContradictionError(ValueError):
    """Raised for contradictory constraints; `constraints` is a minimal set of them."""

    def __init__(self, constraints: Sequence[Comparison]) -> None:
        self.constraints = tuple(constraints)
        quoted = [f"'{c}'" for c in self.constraints]
        if len(quoted) == 1:
            problem = f"The constraint {quoted[0]} never holds"
        else:
            problem = (
                f"The constraints {', '.join(quoted[:-1])} and {quoted[-1]} contradict each other"
            )
        super().__init__(
            f"{problem}: dimension variables are integers of at least 1, and no such sizes "
            f"satisfy {'it' if len(quoted) == 1 else 'them all'}. Remove or correct "
            f"{'it' if len(quoted) == 1 else 'one of them'}."
        )

    def __reduce__(self) -> tuple[type[ContradictionError], tuple[tuple[Comparison, ...]]]:
        return type(self), (self.constraints,)


@dataclass(frozen=True, init=False)
class SymbolicScope:
    """Constraints on dimension variables, which are integers of at least 1. Immutable.

    >>> scope = SymbolicScope(["b >= 4", "mod(b, 2) == 0"])
    >>> scope.holds({"b": 6}), scope.holds({"b": 7})
    (True, False)
    """

    constraints: tuple[Comparison, ...]

    def __init__(self, constraints: Iterable[str | Comparison] = (), *, check: bool = True) -> None:
        """Parses the constraints and drops duplicates.

        Args:
          constraints: comparisons, or texts such as `"b >= 4"`.
          check: whether to search for contradictions.

        Raises:
          DimensionSyntaxError: the text of a constraint is not a comparison.
          ContradictionError: no sizes satisfy the constraints.
          TypeError: the constraints are not a sequence of comparisons and texts.
        """
        if isinstance(constraints, str) or not isinstance(constraints, Iterable):
            raise TypeError(
                "constraints must be a sequence, such as ['b >= 4', 'mod(b, 2) == 0']. "
                f"Got: {constraints!r} of type {type(constraints).__name__}"
            )
        comparisons = tuple(dict.fromkeys(map(as_comparison, constraints)))
        object.__setattr__(self, "constraints", comparisons)
        conflict = find_conflict(comparisons, time_limit=_MAX_CONFLICT_SECONDS) if check else None
        if conflict:
            raise ContradictionError(conflict)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Returns whether every constraint holds for these values.

        Raises:
          KeyError: a variable has no value.
        """
        return all(c.holds(values) for c in self.constraints)

    def variables(self) -> frozenset[str]:
        """Returns the names of all variables in the constraints."""
        return frozenset().union(*(c.variables() for c in self.constraints))

    def with_constraints(self, *constraints: str | Comparison, check: bool = True) -> SymbolicScope:
        """Returns a scope with more constraints.

        Raises:
          DimensionSyntaxError: the text of a constraint is not a comparison.
          ContradictionError: no sizes satisfy the constraints.
        """
        return SymbolicScope((*self.constraints, *constraints), check=check)

    def __str__(self) -> str:
        return ", ".join(str(c) for c in self.constraints) or "no constraints"


def get_constraints(scope: SymbolicScope | None) -> tuple[Comparison, ...]:
    """Returns the constraints of a scope; () for None; raises a TypeError for other types."""
    if scope is None:
        return ()
    if not isinstance(scope, SymbolicScope):
        raise TypeError(
            "scope must be a SymbolicScope, such as SymbolicScope(['b >= 4']). "
            f"Got: {scope!r} of type {type(scope).__name__}"
        )
    return scope.constraints


_MAX_CACHED_PROOFS = 4096


class _UndecidedError(Exception):
    """Carries a reason past the cache, which stores no exceptions, so that a retry may succeed."""


def prove(
    comparison: Comparison | str, scope: SymbolicScope | None = None, *, time_limit: float = 2.0
) -> Verdict:
    """Proves or refutes that a comparison holds for all sizes (integers >= 1) in the scope.

    `//` and `mod` round down like Python's, also for negative divisors. A comparison does not hold
    if a divisor is 0.

    Args:
      comparison: the comparison, such as `"mod(b, 2) == 0"`.
      scope: the constraints on the sizes; by default none.
      time_limit: the time limit in seconds.

    Returns:
      Proven; or Refuted with the smallest counterexample; or Unknown with the reason. The
      counterexample is the smallest by its sum, then lexicographically by variable name, or the
      smallest one found within the time limit. It has values for the variables of the comparison
      and of related constraints.

    Raises:
      DimensionSyntaxError: the text is not a comparison.
      TypeError: the comparison or the scope is of another type.
      ImportError: the proof needs z3-solver, which is not installed.

    >>> prove("floordiv(b + 1, 2) + floordiv(b, 2) == b")
    Proven()
    >>> prove("mod(b, 2) == 0", SymbolicScope(["b >= 4"]))
    Refuted(counterexample={'b': 5})
    """
    try:
        return _decide(get_constraints(scope), as_comparison(comparison), time_limit)
    except _UndecidedError as e:
        return Unknown(str(e))


@functools.lru_cache(maxsize=_MAX_CACHED_PROOFS)
def _decide(
    constraints: tuple[Comparison, ...], comparison: Comparison, time_limit: float
) -> Proven | Refuted:
    verdict = decide(constraints, comparison, time_limit=time_limit)
    if isinstance(verdict, Unknown):
        raise _UndecidedError(verdict.reason)
    return verdict


_PROPAGATION_ROUNDS = 3
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

    Raises:
      TypeError: the dimension is neither an expression nor an integer.

    >>> from shape_poly import SymbolicScope, parse_dimension
    >>> symbolic_dim_bounds(parse_dimension("mod(b, 8) + 1"))
    (1, 8)
    >>> symbolic_dim_bounds(parse_dimension("b - floordiv(b, 2)"), SymbolicScope(["b <= 9"]))
    (1, 5)
    >>> symbolic_dim_bounds(parse_dimension("2*b"), ranges={"b": (1, 100)})
    (2, 200)
    """
    if not isinstance(dimension, DimExpr):
        size = as_size(dimension)
        return size, size
    facts = [fact for c in get_constraints(scope) for fact in _list_not_negative(c)]
    narrowed = _narrow_ranges(facts, ranges or {})
    lower, upper = enclose(dimension, narrowed)
    if len(facts) * len(dimension.terms) <= _MAX_WORK:
        for fact in facts:
            lower = max(lower, _bound_lower(dimension, fact, narrowed))
            upper = min(upper, -_bound_lower(-dimension, fact, narrowed))
    # Contradictory constraints are ignored, because they imply every bound.
    return (lower, upper) if lower <= upper else enclose(dimension, ranges)


def _list_not_negative(constraint: Comparison) -> Sequence[DimExpr]:
    """Returns expressions that the constraint makes at least 0."""
    fact = make_difference_fact(constraint)
    if fact.relation == "==":
        return fact.expression, -fact.expression
    return (fact.expression,) if fact.relation == ">=" else ()


def _narrow_ranges(facts: Sequence[DimExpr], known: Ranges) -> dict[str, Interval]:
    """Narrows the known bounds of variables by facts that are linear in them.

    If the facts contradict each other, a lower bound may exceed the upper one.
    """
    ranges = dict(known)
    for _ in range(_PROPAGATION_ROUNDS):
        before = dict(ranges)
        for fact in facts:
            for monomial, coefficient in fact.terms if len(fact.terms) <= _MAX_TERMS else ():
                match monomial:
                    case ((Variable(name) as variable, 1),):
                        others = fact - atom_expression(variable) * coefficient
                        if name not in others.variables():
                            highest = enclose(others, ranges)[1]
                            low, high = ranges.get(name, (1, math.inf))
                            ranges[name] = _narrow((low, high), coefficient, highest)
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


def _bound_lower(x: DimExpr, fact: DimExpr, ranges: Ranges) -> Bound:
    """Bounds x from below by x - k*fact, because the fact is at least 0."""
    coefficients = dict(x.terms)
    factors = {
        coefficients[monomial] // c
        for monomial, c in fact.terms
        if monomial and monomial in coefficients and coefficients[monomial] % c == 0
    }
    lower: Bound = -math.inf
    for factor in factors:
        if 0 < factor <= _MAX_FACTOR:
            with contextlib.suppress(OverflowError):  # of coefficients near the limit
                lower = max(lower, enclose(x - fact * factor, ranges)[0])
    return lower
