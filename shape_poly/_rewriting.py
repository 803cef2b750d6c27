"""Rewrites comparisons as simpler equivalent ones, without sample sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shape_poly._comparisons import Comparison, Fact, facts_of
from shape_poly._expressions import DimExpr, DimOperation, Variable, as_dim, atom_expression, atoms
from shape_poly._intervals import Interval
from shape_poly._normal_form import Normalizer, OutOfTimeError, divisibility, sign
from shape_poly._problem import Problem, follows, is_evident, least_values, normalize, ranges_from

_QUOTIENTS_MULTIPLIED_OUT = 8


def rewrite(
    comparison: Comparison,
    constraints: Sequence[Comparison],
    names: frozenset[str],
    deadline: float,
) -> Comparison:
    """Returns the simplest of several comparisons that are equivalent under the constraints.

    Args:
      comparison: the comparison to rewrite.
      constraints: the known constraints.
      names: the variables of both.
      deadline: the time of `time.monotonic` at which to stop.
    """
    forms = [comparison]
    try:
        facts = facts_of(*constraints)
        goals = facts_of(comparison)
        problem = normalize(facts, goals, sorted(names), deadline)
        forms += _with_all_variables(facts, goals, names, problem, deadline)
        forms += _with_fewer_variables(problem, names)
    except (OverflowError, OutOfTimeError):
        pass  # the forms so far are valid
    return min(forms, key=_complexity)


def _complexity(comparison: Comparison) -> tuple[int, int, int]:
    sides = [side for side in (comparison.left, comparison.right) if isinstance(side, DimExpr)]
    operations = sum(isinstance(a, DimOperation) for side in sides for a in atoms(side))
    return operations, str(comparison).count("-"), sum(side.size for side in sides)


def _with_fewer_variables(problem: Problem, names: frozenset[str]) -> Iterator[Comparison]:
    """Yields the goal with fewer variables, eliminated by equations among the constraints."""
    *defined, goal = problem.goals
    made_up = goal.expression.variables() - names
    if not made_up and goal.constant() is None and _all_follow(defined, problem.ranges):
        yield readable(goal, problem.ranges)


def _with_all_variables(
    facts: Sequence[Fact],
    goals: Sequence[Fact],
    names: frozenset[str],
    problem: Problem,
    deadline: float,
) -> Iterator[Comparison]:
    """Yields the comparison in normal form, and with exact quotients removed by multiplication."""
    ranges = ranges_from([*facts, *least_values(facts)], names)
    normalizer = Normalizer(ranges, deadline)
    *defined, goal = (normalizer.fact(g) for g in goals)
    if not _all_follow(defined, ranges):
        return
    for _ in range(_QUOTIENTS_MULTIPLIED_OUT):
        if goal.constant() is not None:
            return
        yield readable(goal, ranges)
        multiplied = _without_exact_quotient(goal, facts, names, ranges, deadline)
        if multiplied is None:
            return
        goal = normalizer.fact(multiplied)


def _all_follow(facts: Sequence[Fact], ranges: Mapping[str, Interval]) -> bool:
    return all(follows(fact, ranges) for fact in facts)


def _without_exact_quotient(
    fact: Fact,
    known: Sequence[Fact],
    names: frozenset[str],
    ranges: Mapping[str, Interval],
    deadline: float,
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
            exact = Comparison("==", remainder(x, y), 0)
            problem = normalize(known, facts_of(exact), sorted(names), deadline)
            if is_evident(problem, deadline):
                return Fact(fact.relation, rest * y + factor * x)
    return None


def readable(fact: Fact, ranges: Mapping[str, Interval]) -> Comparison:
    """Converts a fact in normal form to a readable comparison."""
    divided = divisibility(fact, ranges)
    if divided is not None:
        return Comparison(fact.relation, remainder(*divided), 0)
    return arrange(_with_remainders(fact))


def remainder(x: DimExpr, y: DimExpr) -> DimExpr:
    """Makes mod(x, y) without simplification."""
    return atom_expression(DimOperation("mod", (x, y)))


def _with_remainders(fact: Fact) -> Fact:
    """Replaces x - y*floordiv(x, y) by mod(x, y)."""
    expression = fact.expression
    for monomial, coefficient in expression.terms:
        match monomial:
            case ((DimOperation("floordiv", (x, y)), 1),):
                divisor = y.constant_value()
            case _:
                continue
        if divisor is not None and coefficient % divisor == 0:
            times = -coefficient // divisor
            without = expression - times * (x - y * DimExpr(((monomial, 1),)))
            if len(without.terms) < len(expression.terms) - 1:
                expression = without + times * remainder(x, y)
    return Fact(fact.relation, expression)


def arrange(fact: Fact) -> Comparison:
    """Converts a fact to a comparison with as few minus signs as possible."""
    terms = [(m, c) for m, c in fact.expression.terms if m]
    constant = sum(c for m, c in fact.expression.terms if not m)
    left = DimExpr.of_terms((m, c) for m, c in terms if c > 0)
    right = DimExpr.of_terms((m, -c) for m, c in terms if c < 0)
    if not left.terms:
        turned = "<=" if fact.relation == ">=" else fact.relation
        return Comparison(turned, right, constant)
    if constant > 0 and right.terms:
        turned = "<=" if fact.relation == ">=" else fact.relation
        return Comparison(turned, right, as_dim(left + constant))
    sides = left, right - constant
    if fact.relation != ">=" and _is_variable(sides[1]) and not _is_variable(left):
        sides = sides[1], left
    return Comparison(fact.relation, sides[0], as_dim(sides[1]))


def _is_variable(dimension: DimExpr) -> bool:
    match dimension.terms:
        case (((((Variable(), 1),), 1)),):
            return True
    return False
