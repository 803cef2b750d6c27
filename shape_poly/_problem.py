"""Simplifies problems: equations eliminate variables, and bounds may prove the goals."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shape_poly._comparisons import Fact
from shape_poly._expressions import (
    Atom,
    DimExpr,
    DimOperation,
    Variable,
    atom_expression,
    iter_atoms,
)
from shape_poly._intervals import POSITIVE, Interval, Ranges, enclose
from shape_poly._normal_form import Normalizer, OutOfTimeError, map_atoms, match_divisibility, sign

_MAX_ELIMINATIONS = 50
"""Maximum number of eliminated variables; one elimination can make another possible."""

_MAX_RESIDUE_CLASSES = 64
_MAX_SEARCHED_TERMS = 20


@dataclass(frozen=True)
class Problem:
    """Question whether facts imply goals, in normal form, after the elimination of variables.

    Attributes:
      facts: the known facts.
      goals: the facts to prove, all of them.
      ranges: bounds of the remaining variables, which follow from the facts.
      original: the original variables, expressed by the remaining ones.
    """

    facts: tuple[Fact, ...]
    goals: tuple[Fact, ...]
    ranges: Ranges
    original: Mapping[str, DimExpr]

    def original_values(self, values: Mapping[str, int]) -> dict[str, int]:
        """Computes the values of the original variables from those of the remaining ones."""
        return {name: value.evaluate(values) for name, value in self.original.items()}


def normalize(
    facts: Sequence[Fact], goals: Sequence[Fact], names: Sequence[str], deadline: float
) -> Problem:
    """Converts a problem to normal form.

    Raises:
      OutOfTimeError: the deadline passed.
      OverflowError: the normal form has too many terms.
    """
    remaining = set(names)
    original = {name: DimExpr.variable(name) for name in names}
    fresh = (name for i in itertools.count() if (name := f"quotient{i}") not in names)
    facts = [*facts, *find_least_values(facts)]
    for step in range(_MAX_ELIMINATIONS + 1):
        normalizer = Normalizer(find_ranges(facts, remaining), deadline)
        facts = normalizer.normalize_facts(facts)
        ranges = find_ranges(facts, remaining)
        divisible = [
            d for f in facts if f.relation == "==" and (d := match_divisibility(f, ranges))
        ]
        normalizer = Normalizer(ranges, deadline, divisible)
        facts = normalizer.normalize_facts(facts)
        goals = [normalizer.normalize_fact(g) for g in goals]
        original = {name: normalizer.normalize_dimension(value) for name, value in original.items()}
        ranges = find_ranges(facts, remaining)
        elimination = next((e for f in facts if (e := _find_elimination(f, ranges, fresh))), None)
        if elimination is None or step == _MAX_ELIMINATIONS:
            break
        eliminated, value = elimination.name, elimination.value
        remaining = (remaining - {eliminated}) | elimination.new_names
        facts = [
            *(_replace_variable(f, eliminated, value) for f in (*facts, *elimination.new_facts)),
            Fact(">=", value - 1),
        ]
        goals = [_replace_variable(g, eliminated, value) for g in goals]
        original = {n: _substitute(v, {eliminated: value}) for n, v in original.items()}
    return Problem(tuple(facts), tuple(goals), ranges, original)


def _replace_variable(fact: Fact, name: str, value: DimExpr) -> Fact:
    return Fact(fact.relation, _substitute(fact.expression, {name: value}))


def _substitute(dimension: DimExpr, values: Mapping[str, DimExpr]) -> DimExpr:
    """Replaces variables; the result is not in normal form."""

    def replace(atom: Atom) -> DimExpr:
        if isinstance(atom, Variable):
            return values.get(atom.name) or atom_expression(atom)
        x, y = (_substitute(operand, values) for operand in atom.operands)
        return atom_expression(DimOperation(atom.kind, (x, y)))

    return map_atoms(dimension, replace)


@dataclass(frozen=True)
class _Elimination:
    """Replacement of a variable by an expression, with the new variables and facts it needs."""

    name: str
    value: DimExpr
    new_names: frozenset[str] = frozenset()
    new_facts: tuple[Fact, ...] = ()


def _find_elimination(fact: Fact, ranges: Ranges, fresh: Iterator[str]) -> _Elimination | None:
    if fact.relation != "==":
        return None
    for monomial, coefficient in fact.expression.terms:
        match monomial:
            case [(Variable(name), 1)] if abs(coefficient) == 1:
                pass
            case _:
                continue
        rest = fact.expression - DimExpr(((monomial, coefficient),))
        holders = {a for m, _ in rest.terms for a, _ in m if name in atom_expression(a).variables()}
        value = rest * -coefficient
        if not holders:
            return _Elimination(name, value)
        # v - 8*floordiv(v, 8) == 0 means v == 8*q, with a new variable q for the quotient.
        (holder, *others) = holders
        if others or not isinstance(holder, DimOperation) or holder.kind != "floordiv":
            continue
        low, _ = enclose(atom_expression(holder), ranges)
        divisor = holder.operands[1]
        if math.isinf(low) or name in divisor.variables() or not sign(divisor, ranges):
            continue
        if value == divisor * atom_expression(holder) and sign(divisor, ranges) > 0:
            low = max(low, 1)  # the variable and the divisor are at least 1
        quotient = next(fresh)
        # The new variable is at least 1, but the quotient is at least low.
        shifted = DimExpr.variable(quotient) + (int(low) - 1)
        return _Elimination(
            name,
            map_atoms(
                value,
                lambda atom, holder=holder, shifted=shifted: (  # type: ignore[misc]
                    shifted if atom == holder else atom_expression(atom)
                ),
            ),
            frozenset({quotient}),
            (Fact("==", atom_expression(holder) - shifted),),
        )
    return None


def is_evident(problem: Problem, deadline: float) -> bool:
    """Returns whether the bounds of the variables prove the goals, alone or with one fact.

    Raises:
      OutOfTimeError: the deadline passed.
    """
    if are_contradictory(problem.facts, problem.ranges):
        return True
    return all(_is_evident(goal, problem, deadline) for goal in problem.goals)


def _is_evident(goal: Fact, problem: Problem, deadline: float) -> bool:
    if decide_fact(goal, problem.ranges) or goal in problem.facts:
        return True
    if goal.relation != ">=":
        return False
    for fact in itertools.chain(problem.facts, _iter_definitions(goal.expression, problem.ranges)):
        if time.monotonic() > deadline:
            raise OutOfTimeError
        factors = {">=": (1,), "==": (1, -1), "!=": ()}[fact.relation]
        for factor in factors:
            if enclose(goal.expression - factor * fact.expression, problem.ranges)[0] >= 0:
                return True
    return False


def _iter_definitions(dimension: DimExpr, ranges: Ranges) -> Iterator[Fact]:
    """Yields facts that define the quotients and maxima in an expression."""
    for monomial, _ in dimension.terms[:_MAX_SEARCHED_TERMS]:
        for atom, _ in monomial:
            if isinstance(atom, DimOperation):
                x, y = atom.operands
                value = atom_expression(atom)
                if atom.kind == "max":
                    yield from (Fact(">=", value - x), Fact(">=", value - y))
                elif atom.kind == "floordiv" and enclose(y, ranges)[0] >= 1:
                    yield Fact(">=", x - y * value)
                    yield Fact(">=", y * value + y - 1 - x)


def split_residue_classes(problem: Problem, deadline: float) -> Iterator[Problem]:
    """Yields the problem for each combination of remainders of its variables; itself if too many.

    For example, the normal form proves floordiv(b + 1, 2) + floordiv(b, 2) == b only if b is
    2*q - 1 or 2*q.

    Raises:
      OutOfTimeError: the deadline passed.
      OverflowError: a normal form has too many terms.
    """
    moduli = dict.fromkeys(sorted(problem.ranges), 1)
    for fact in (*problem.facts, *problem.goals):
        for atom in iter_atoms(fact.expression):
            divisor = atom.operands[1].constant_value() if isinstance(atom, DimOperation) else None
            if divisor and isinstance(atom, DimOperation) and atom.kind == "floordiv":
                for name in atom.operands[0].variables():
                    moduli[name] = math.lcm(moduli[name], divisor)
    if not 1 < math.prod(moduli.values()) <= _MAX_RESIDUE_CLASSES:
        yield problem
        return
    names = [name for name, modulus in moduli.items() if modulus > 1]
    for residues in itertools.product(*(range(moduli[name]) for name in names)):
        facts, goals = list(problem.facts), list(problem.goals)
        for name, residue in zip(names, residues, strict=True):
            # The variable now means its quotient, which is also at least 1.
            value = DimExpr.variable(name) * moduli[name] - residue
            facts = [_replace_variable(f, name, value) for f in facts]
            goals = [_replace_variable(g, name, value) for g in goals]
        yield normalize(facts, goals, sorted(problem.ranges), deadline)


_MAX_TRIED_VALUE = 128
_MAX_TRIED_SIZE = 50


def find_ranges(facts: Sequence[Fact], names: Iterable[str]) -> dict[str, Interval]:
    """Bounds the variables by facts that are linear in one variable each.

    If the facts contradict each other, a lower bound exceeds the upper one.
    """
    ranges = dict.fromkeys(names, POSITIVE)
    for fact in facts:
        match fact.expression.terms:
            case [(((Variable(name), 1),), slope), *rest] if all(not m for m, _ in rest):
                low, high = _bound_solutions(fact, slope, sum(c for _, c in rest))
                ranges[name] = max(ranges[name][0], low), min(ranges[name][1], high)
    return ranges


def find_least_values(facts: Sequence[Fact]) -> list[Fact]:
    """Finds lower bounds of variables by trying values in facts about one variable each.

    For example, b - 8*floordiv(b, 8) == 0 gives b >= 8.
    """
    bounds: dict[str, int] = {}
    for fact in facts:
        names = fact.expression.variables()
        if len(names) != 1 or not fact.expression.depth or fact.expression.size > _MAX_TRIED_SIZE:
            continue
        (name,) = names
        low = bounds.get(name, 1)
        while low <= _MAX_TRIED_VALUE and not _may_hold(fact, {name: low}):
            low += 1
        bounds[name] = low
    return [Fact(">=", DimExpr.variable(n) - low) for n, low in bounds.items() if low > 1]


def _may_hold(fact: Fact, values: Mapping[str, int]) -> bool:
    try:
        return fact.holds_for(fact.expression.evaluate(values))
    except ZeroDivisionError:
        return True


def _bound_solutions(fact: Fact, slope: int, offset: int) -> Interval:
    """Returns the bounds of v for which the fact about slope*v + offset holds."""
    if fact.relation == "!=":
        return POSITIVE
    if fact.relation == "==":
        return (1, 0) if offset % slope else (-offset // slope, -offset // slope)
    return (-(offset // slope), math.inf) if slope > 0 else (1, offset // -slope)


def are_contradictory(facts: Iterable[Fact], ranges: Ranges) -> bool:
    """Returns whether the bounds show that the facts cannot all hold."""
    return any(low > high for low, high in ranges.values()) or any(
        decide_fact(fact, ranges) is False for fact in facts
    )


def decide_fact(fact: Fact, ranges: Ranges) -> bool | None:
    """Returns whether the fact holds, or None if the bounds do not decide it."""
    low, high = enclose(fact.expression, ranges)
    if fact.relation == ">=":
        return True if low >= 0 else False if high < 0 else None
    if low > 0 or high < 0:
        return fact.relation == "!="
    return fact.relation == "==" if low == high == 0 else None
