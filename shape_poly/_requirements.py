"""Simplifies comparisons that sizes must satisfy: by rewriting, then by sample sizes."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence

from shape_poly._comparisons import (
    Comparison,
    Fact,
    Proven,
    Refuted,
    as_comparison,
    list_facts,
    make_difference_fact,
)
from shape_poly._counterexamples import iter_small_assignments
from shape_poly._deciding import decide, find_witness, select_related
from shape_poly._expressions import (
    DimExpr,
    DimOperation,
    as_dim,
    atom_expression,
    iter_atoms,
    raw_operation,
)
from shape_poly._intervals import Ranges, enclose
from shape_poly._normal_form import Normalizer, OutOfTimeError, match_divisibility, sign
from shape_poly._problem import (
    Problem,
    decide_fact,
    find_least_values,
    find_ranges,
    is_evident,
    normalize,
)
from shape_poly._scope import SymbolicScope, get_constraints

_MAX_SAMPLES = 600
_MAX_SAMPLING_SECONDS = 0.2
_MAX_UNFOLDINGS = 20
_MAX_VARIABLES_TOGETHER = 3


def weakest_requirement(
    comparison: Comparison | str, scope: SymbolicScope | None = None, *, time_limit: float = 5.0
) -> Comparison | None:
    """Finds the simplest comparison that is equivalent to this one in the scope.

    Args:
      comparison: the required comparison, such as `"floordiv(b, 2) >= 3"`.
      scope: the known constraints; by default none.
      time_limit: the total time limit in seconds.

    Returns:
      The simplest comparison that is proven equivalent; else the comparison itself, rewritten; or
      None if it never holds in the scope.

    Raises:
      DimensionSyntaxError: the text is not a comparison.
      TypeError: the comparison or the scope is of another type.
      ImportError: the proof needs z3-solver, which is not installed.

    >>> str(weakest_requirement("floordiv(b, 2) - 3 >= 0"))
    'b >= 6'
    """
    deadline = time.monotonic() + time_limit
    comparison = as_comparison(comparison)
    constraints, names = select_related(get_constraints(scope), comparison.variables())
    comparison = rewrite(comparison, constraints, names, deadline)
    both = (*constraints, comparison)
    witness = find_witness(both, time_limit=time_limit / 4)
    if isinstance(witness, Proven):
        return None
    if _is_simple(comparison):
        return comparison
    samples = _Samples(comparison)
    verdict = decide(constraints, comparison, time_limit=time_limit / 4)
    for result in (witness, verdict):
        if isinstance(result, Refuted):
            samples.add(result.counterexample)
    try:
        facts = list_facts(*constraints)
        ranges = find_ranges([*facts, *find_least_values(facts)], names)
    except OverflowError:
        return comparison
    sampled_until = min(deadline, time.monotonic() + _MAX_SAMPLING_SECONDS)
    small = iter_small_assignments(constraints, ranges, deadline=sampled_until)
    for values in itertools.islice(small, _MAX_SAMPLES):
        samples.add(values)
    for candidate in dict.fromkeys(_iter_candidates(comparison, samples, ranges, deadline)):
        if candidate == comparison:
            return comparison
        if not candidate.variables():
            continue
        proofs = ((both, candidate), ((*constraints, candidate), comparison))
        if samples.agree(candidate) and all(
            isinstance(decide(known, goal, time_limit=deadline - time.monotonic()), Proven)
            for known, goal in proofs
        ):
            return candidate
    return comparison


def _is_simple(comparison: Comparison) -> bool:
    """Returns whether a variable is compared with a constant, which is the simplest form."""
    left, right = comparison.left, comparison.right
    has_form = isinstance(left, DimExpr) and left.is_variable() and isinstance(right, int)
    return has_form and comparison.operator in (">=", "<=", "==")


class _Samples:
    """Assignments in the scope, sorted by whether the comparison holds for them."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self.positive: list[Mapping[str, int]] = []
        self.negative: list[Mapping[str, int]] = []

    def add(self, values: Mapping[str, int]) -> None:
        holds = self._comparison.holds(values)
        (self.positive if holds else self.negative).append(values)

    def agree(self, candidate: Comparison) -> bool:
        """Returns whether the candidate and the comparison hold for the same samples."""
        return all(map(candidate.holds, self.positive)) and not any(
            map(candidate.holds, self.negative)
        )


def _iter_candidates(
    comparison: Comparison, samples: _Samples, ranges: Ranges, deadline: float
) -> Iterator[Comparison]:
    """Yields comparisons that may be equivalent, simplest first."""
    names = sorted(comparison.variables())
    if samples.positive and samples.negative:
        for name in names:
            yield from _compare_values(DimExpr.variable(name), [v[name] for v in samples.positive])
        for x, y in itertools.permutations(names, 2):
            yield from _compare_two(x, y, samples.positive)
    yield from _unfold(comparison, ranges, deadline)
    if samples.positive and samples.negative:
        for count in range(2, min(len(names), _MAX_VARIABLES_TOGETHER) + 1):
            for chosen in itertools.combinations(names, count):
                yield from _compare_several(chosen, samples.positive)
    yield from _arrange_terms(comparison)


def _compare_values(dimension: DimExpr, values: Sequence[int]) -> Iterator[Comparison]:
    """Yields comparisons of a dimension with constants, if the samples show all of its values."""
    least, greatest = min(values), max(values)
    if least == greatest:
        yield Comparison("==", dimension, least)
    yield Comparison(">=", dimension, least)
    yield Comparison("<=", dimension, greatest)
    step = math.gcd(*(value - least for value in values))
    if step >= 2:
        yield Comparison(
            "==", raw_operation("mod", dimension, DimExpr.constant(step)), least % step
        )


def _compare_two(x: str, y: str, samples: Sequence[Mapping[str, int]]) -> Iterator[Comparison]:
    left, right = DimExpr.variable(x), DimExpr.variable(y)
    differences = [values[x] - values[y] for values in samples]
    least, greatest = min(differences), max(differences)
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
    yield Comparison("==", raw_operation("mod", left, right), 0)


def _compare_several(
    names: Sequence[str], samples: Sequence[Mapping[str, int]]
) -> Iterator[Comparison]:
    variables = [DimExpr.variable(name) for name in names]
    for dimension in (DimExpr.sum(variables), math.prod(variables, start=DimExpr.constant(1))):
        yield from _compare_values(dimension, [dimension.evaluate(values) for values in samples])


def _unfold(comparison: Comparison, ranges: Ranges, deadline: float) -> Iterator[Comparison]:
    """Yields the comparison in normal form, and with quotients multiplied out."""
    normalizer = Normalizer(ranges, deadline)
    try:
        steps = [normalizer.normalize_fact(make_difference_fact(comparison))]
        while len(steps) < _MAX_UNFOLDINGS:
            following = _remove_quotient(steps[-1], ranges)
            if following is None:
                break
            steps.append(normalizer.normalize_fact(following))
    except (OverflowError, OutOfTimeError):
        return
    for fact in reversed(steps):
        if fact.constant() is None:
            yield _make_readable(fact, ranges)


def _remove_quotient(fact: Fact, ranges: Ranges) -> Fact | None:
    """Rewrites an inequality without one of its quotients or maxima."""
    if fact.relation != ">=":
        return None
    for atom, coefficient in fact.expression.linear_operations():
        if abs(coefficient) != 1:
            continue
        x, y = atom.operands
        rest = fact.expression - atom_expression(atom) * coefficient
        if atom.kind == "max":
            # max(x, 0) >= n means x >= n for positive n; max(x, 0) <= n means x <= n for n >= 0.
            return Fact(">=", x * coefficient + rest)
        if atom.kind == "floordiv" and enclose(y, ranges)[0] >= 1:
            if coefficient == 1:
                return Fact(">=", x + y * rest)
            return Fact(">=", y * rest + y - 1 - x)
    return None


def _arrange_terms(comparison: Comparison) -> Iterator[Comparison]:
    """Yields the comparison with its terms sorted to the sides, each simplified."""
    fact = make_difference_fact(comparison)
    try:
        yield _arrange(Fact(fact.relation, DimExpr.of(fact.expression.simplify())))
        yield _arrange(fact)
    except (OverflowError, ZeroDivisionError):
        return


_MAX_MULTIPLIED_QUOTIENTS = 8


def rewrite(
    comparison: Comparison,
    constraints: Sequence[Comparison],
    names: frozenset[str],
    deadline: float,
) -> Comparison:
    """Returns the simplest of several comparisons that are equivalent under the constraints.

    `names` are the variables of both.
    """
    forms = [comparison]
    try:
        facts = list_facts(*constraints)
        goals = list_facts(comparison)
        problem = normalize(facts, goals, sorted(names), deadline)
        forms += _iter_normal_forms(facts, goals, names, problem, deadline)
        forms += _eliminate_variables(problem, names)
    except (OverflowError, OutOfTimeError):
        pass  # the forms so far are valid
    return min(forms, key=_rank)


def _rank(comparison: Comparison) -> tuple[int, int, int]:
    sides = [side for side in (comparison.left, comparison.right) if isinstance(side, DimExpr)]
    operations = sum(isinstance(a, DimOperation) for side in sides for a in iter_atoms(side))
    return operations, str(comparison).count("-"), sum(side.size for side in sides)


def _eliminate_variables(problem: Problem, names: frozenset[str]) -> Iterator[Comparison]:
    """Yields the goal with fewer variables, eliminated by equations among the constraints."""
    *defined, goal = problem.goals
    new_names = goal.expression.variables() - names
    if not new_names and goal.constant() is None and _all_follow(defined, problem.ranges):
        yield _make_readable(goal, problem.ranges)


def _iter_normal_forms(
    facts: Sequence[Fact],
    goals: Sequence[Fact],
    names: frozenset[str],
    problem: Problem,
    deadline: float,
) -> Iterator[Comparison]:
    """Yields the comparison in normal form, and with exact quotients removed by multiplication."""
    ranges = find_ranges([*facts, *find_least_values(facts)], names)
    normalizer = Normalizer(ranges, deadline)
    *defined, goal = (normalizer.normalize_fact(g) for g in goals)
    if not _all_follow(defined, ranges):
        return
    for _ in range(_MAX_MULTIPLIED_QUOTIENTS):
        if goal.constant() is not None:
            return
        yield _make_readable(goal, ranges)
        multiplied = _remove_exact_quotient(goal, facts, names, ranges, deadline)
        if multiplied is None:
            return
        goal = normalizer.normalize_fact(multiplied)


def _all_follow(facts: Sequence[Fact], ranges: Ranges) -> bool:
    return all(decide_fact(fact, ranges) for fact in facts)


def _remove_exact_quotient(
    fact: Fact, known: Sequence[Fact], names: frozenset[str], ranges: Ranges, deadline: float
) -> Fact | None:
    """Removes a quotient without remainder, by multiplying the fact by its divisor."""
    for monomial, coefficient in fact.expression.terms:
        for atom, exponent in monomial:
            if exponent != 1 or not isinstance(atom, DimOperation) or atom.kind != "floordiv":
                continue
            x, y = atom.operands
            factor = DimExpr.of_terms([(tuple(p for p in monomial if p[0] != atom), coefficient)])
            rest = fact.expression - factor * atom_expression(atom)
            positive = sign(y, ranges)
            if not positive or (fact.relation == ">=" and positive < 0):
                continue
            exact = Comparison("==", raw_operation("mod", x, y), 0)
            problem = normalize(known, list_facts(exact), sorted(names), deadline)
            if is_evident(problem, deadline):
                return Fact(fact.relation, rest * y + factor * x)
    return None


def _make_readable(fact: Fact, ranges: Ranges) -> Comparison:
    """Converts a fact from normal form, so that people can read it."""
    divided = match_divisibility(fact, ranges)
    if divided is not None:
        return Comparison(fact.relation, raw_operation("mod", *divided), 0)
    return _arrange(_restore_remainders(fact))


def _restore_remainders(fact: Fact) -> Fact:
    """Replaces x - y*floordiv(x, y) by mod(x, y)."""
    expression = fact.expression
    for atom, coefficient in expression.linear_operations():
        x, y = atom.operands
        divisor = y.constant_value()
        if atom.kind == "floordiv" and divisor is not None and coefficient % divisor == 0:
            times = -coefficient // divisor
            without = expression - times * (x - y * atom_expression(atom))
            if len(without.terms) < len(expression.terms) - 1:
                expression = without + times * raw_operation("mod", x, y)
    return Fact(fact.relation, expression)


def _arrange(fact: Fact) -> Comparison:
    """Converts a fact to a comparison with as few minus signs as possible."""
    terms = [(m, c) for m, c in fact.expression.terms if m]
    constant = sum(c for m, c in fact.expression.terms if not m)
    left = DimExpr.of_terms((m, c) for m, c in terms if c > 0)
    right = DimExpr.of_terms((m, -c) for m, c in terms if c < 0)
    reversed_relation = "<=" if fact.relation == ">=" else fact.relation
    if not left.terms:
        return Comparison(reversed_relation, right, constant)
    if constant > 0 and right.terms:
        return Comparison(reversed_relation, right, as_dim(left + constant))
    sides = left, right - constant
    if fact.relation != ">=" and sides[1].is_variable() and not left.is_variable():
        sides = sides[1], left
    return Comparison(fact.relation, sides[0], as_dim(sides[1]))
