"""Simplifies comparisons that sizes must satisfy."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence

from shape_poly._comparisons import Comparison, Fact, facts_of
from shape_poly._counterexamples import small_assignments
from shape_poly._deciding import Proven, Refuted, decide, touching, witness
from shape_poly._expressions import (
    DimExpr,
    DimOperation,
    Variable,
    as_dim,
)
from shape_poly._intervals import Interval, enclosure
from shape_poly._normal_form import Normalizer, OutOfTimeError
from shape_poly._problem import least_values, ranges_from
from shape_poly._rewriting import arrange, readable, remainder, rewrite
from shape_poly._scope import SymbolicScope

_SAMPLES = 600
_SAMPLING_SECONDS = 0.2
_UNFOLDINGS = 20
_MAX_VARIABLES_TOGETHER = 3


def weakest_requirement(
    comparison: Comparison, scope: SymbolicScope | None = None, *, time_limit: float = 5.0
) -> Comparison | None:
    """Finds the simplest comparison that is equivalent to this one in the scope.

    Args:
      comparison: the required comparison.
      scope: the known constraints; by default none.
      time_limit: the total time limit in seconds.

    Returns:
      The simplest comparison that was found and proven equivalent; or the comparison itself,
      rewrite; or None if it never holds in the scope.

    Raises:
      ImportError: the proof needs z3-solver, which is not installed.

    >>> from shape_poly import parse_comparison
    >>> str(weakest_requirement(parse_comparison("floordiv(b, 2) - 3 >= 0")))
    'b >= 6'
    """
    deadline = time.monotonic() + time_limit
    constraints, names = touching(scope.constraints if scope else (), comparison.variables())
    comparison = rewrite(comparison, constraints, names, deadline)
    both = (*constraints, comparison)
    first = witness(both, time_limit=time_limit / 4)
    if isinstance(first, Proven):
        return None
    if _is_simple(comparison):
        return comparison
    samples = _Samples(comparison)
    if isinstance(first, Refuted):
        samples.add(first.counterexample)
    refutation = decide(constraints, comparison, time_limit=time_limit / 4)
    if isinstance(refutation, Refuted):
        samples.add(refutation.counterexample)
    try:
        facts = facts_of(*constraints)
        ranges = ranges_from([*facts, *least_values(facts)], names)
    except OverflowError:
        return comparison
    sampled_until = min(deadline, time.monotonic() + _SAMPLING_SECONDS)
    small = small_assignments(constraints, ranges, deadline=sampled_until)
    for values in itertools.islice(small, _SAMPLES):
        samples.add(values)
    for candidate in dict.fromkeys(_candidates(comparison, samples, ranges, deadline)):
        if candidate == comparison:
            return comparison
        if not candidate.variables():
            continue
        proofs = ((both, candidate), ((*constraints, candidate), comparison))
        if samples.agree(candidate) and all(
            isinstance(decide(given, goal, time_limit=deadline - time.monotonic()), Proven)
            for given, goal in proofs
        ):
            return candidate
    return comparison


def _is_simple(comparison: Comparison) -> bool:
    """Returns whether a variable is compared with a constant, which is the simplest form."""
    match comparison:
        case Comparison(">=" | "<=" | "==", DimExpr(((((Variable(), 1),), 1),)), int()):
            return True
    return False


class _Samples:
    """Assignments in the scope, sorted by whether the comparison holds for them."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self.positive: list[Mapping[str, int]] = []
        self.negative: list[Mapping[str, int]] = []

    def add(self, values: Mapping[str, int]) -> None:
        """Adds an assignment."""
        holds = self._comparison.holds(values)
        (self.positive if holds else self.negative).append(values)

    def agree(self, candidate: Comparison) -> bool:
        """Returns whether the candidate and the comparison hold for the same samples."""
        return all(map(candidate.holds, self.positive)) and not any(
            map(candidate.holds, self.negative)
        )


def _candidates(
    comparison: Comparison, samples: _Samples, ranges: Mapping[str, Interval], deadline: float
) -> Iterator[Comparison]:
    """Yields comparisons that may be equivalent, simplest first."""
    names = sorted(comparison.variables())
    if samples.positive and samples.negative:
        for name in names:
            yield from _of_values(DimExpr.variable(name), [v[name] for v in samples.positive])
        for x, y in itertools.permutations(names, 2):
            yield from _of_two(x, y, samples.positive)
    yield from _unfold(comparison, ranges, deadline)
    if samples.positive and samples.negative:
        for count in range(2, min(len(names), _MAX_VARIABLES_TOGETHER) + 1):
            for chosen in itertools.combinations(names, count):
                yield from _of_several(chosen, samples.positive)
    yield from _tidy(comparison)


def _of_values(dimension: DimExpr, values: Sequence[int]) -> Iterator[Comparison]:
    """Yields comparisons of a dimension with constants, if the samples show all of its values."""
    least, greatest = min(values), max(values)
    if least == greatest:
        yield Comparison("==", dimension, least)
    yield Comparison(">=", dimension, least)
    yield Comparison("<=", dimension, greatest)
    step = math.gcd(*(value - least for value in values))
    if step >= 2:
        yield Comparison("==", remainder(dimension, DimExpr.constant(step)), least % step)


def _of_two(x: str, y: str, samples: Sequence[Mapping[str, int]]) -> Iterator[Comparison]:
    left, right = DimExpr.variable(x), DimExpr.variable(y)
    apart = [values[x] - values[y] for values in samples]
    least, greatest = min(apart), max(apart)
    if least == greatest >= 0:
        yield Comparison("==", left, as_dim(right + least))
    if least >= 0:
        yield Comparison(">=", left, as_dim(right + least))
    if greatest >= 0:
        yield Comparison("<=", left, as_dim(right + greatest))
    factor = min(values[x] // values[y] for values in samples)
    if factor >= 2:
        if all(values[x] == factor * values[y] for values in samples):
            yield Comparison("==", left, factor * right)
        yield Comparison(">=", left, factor * right)
    yield Comparison("==", remainder(left, right), 0)


def _of_several(names: Sequence[str], samples: Sequence[Mapping[str, int]]) -> Iterator[Comparison]:
    variables = [DimExpr.variable(name) for name in names]
    for dimension in (DimExpr.sum(variables), math.prod(variables, start=DimExpr.constant(1))):
        yield from _of_values(dimension, [dimension.evaluate(values) for values in samples])


def _unfold(
    comparison: Comparison, ranges: Mapping[str, Interval], deadline: float
) -> Iterator[Comparison]:
    """Yields the comparison in normal form, and with quotients multiplied out."""
    normalizer = Normalizer(ranges, deadline)
    try:
        steps = [normalizer.fact(facts_of(comparison)[-1])]
        while len(steps) < _UNFOLDINGS:
            following = _without_a_quotient(steps[-1], ranges)
            if following is None:
                break
            steps.append(normalizer.fact(following))
    except (OverflowError, OutOfTimeError):
        return
    for fact in reversed(steps):
        if fact.constant() is None:
            yield readable(fact, ranges)


def _without_a_quotient(fact: Fact, ranges: Mapping[str, Interval]) -> Fact | None:
    """Rewrites an inequality without one of its quotients or maxima."""
    if fact.relation != ">=":
        return None
    for monomial, coefficient in fact.expression.terms:
        match monomial:
            case ((DimOperation(kind, (x, y)), 1),) if abs(coefficient) == 1:
                rest = fact.expression - DimExpr(((monomial, coefficient),))
            case _:
                continue
        if kind == "max":
            # max(x, 0) >= n means x >= n for positive n; max(x, 0) <= n means x <= n for n >= 0.
            return Fact(">=", x * coefficient + rest)
        if kind == "floordiv" and enclosure(y, ranges)[0] >= 1:
            if coefficient == 1:
                return Fact(">=", x + y * rest)
            return Fact(">=", y * rest + y - 1 - x)
    return None


def _tidy(comparison: Comparison) -> Iterator[Comparison]:
    """Yields the comparison with its terms sorted to the sides, each simplified."""
    *_, fact = facts_of(comparison)
    try:
        yield arrange(Fact(fact.relation, DimExpr.of(fact.expression.simplify())))
        yield arrange(fact)
    except (OverflowError, ZeroDivisionError):
        return
