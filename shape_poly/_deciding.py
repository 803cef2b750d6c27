"""Decides whether constraints imply a comparison: bounds, then small sizes, then z3."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from shape_poly._comparisons import (
    NEVER,
    Comparison,
    Fact,
    Proven,
    Refuted,
    Unknown,
    Verdict,
    list_facts,
)
from shape_poly._counterexamples import bound_degree, find_smallest
from shape_poly._normal_form import OutOfTimeError
from shape_poly._problem import find_ranges, is_evident, normalize, split_residue_classes
from shape_poly._z3 import decide_by_z3

_MAX_ASSIGNMENTS = 4000
_MAX_ENUMERATION_SECONDS = 0.1

_MAX_DEGREE = 200
"""Maximum degree; values of higher powers take too long to compute."""


def decide(
    constraints: Sequence[Comparison], comparison: Comparison, *, time_limit: float
) -> Verdict:
    """Decides, within a time limit in seconds, whether the constraints imply the comparison.

    Constraints on unrelated variables do not matter, unless they contradict each other.

    Raises:
      ImportError: z3 is needed, and not installed.
    """
    relevant, names = select_related(constraints, comparison.variables())
    purpose = f"Proving that {comparison}"
    return _decide(relevant, names, comparison, time_limit, purpose)


def find_witness(
    constraints: Sequence[Comparison], *, time_limit: float, smallest: bool = True
) -> Verdict:
    """Searches for sizes that satisfy the constraints: Refuted has them, Proven means none exist.

    `smallest` asks for the smallest sizes, which takes longer.

    Raises:
      ImportError: z3 is needed, and not installed.
    """
    names = frozenset().union(*(c.variables() for c in constraints))
    purpose = f"Proving that sizes satisfy {' and '.join(map(str, constraints))}"
    return _decide(constraints, names, NEVER, time_limit, purpose, smallest=smallest)


def _decide(
    constraints: Sequence[Comparison],
    names: frozenset[str],
    comparison: Comparison,
    time_limit: float,
    purpose: str,
    *,
    smallest: bool = True,
) -> Verdict:
    deadline = time.monotonic() + time_limit
    try:
        facts = list_facts(*constraints)
        goals = list_facts(comparison)
        _check_degrees([*facts, *goals])
        problem = normalize(facts, goals, sorted(names), deadline)
        if is_evident(problem, deadline):
            return Proven()
        enumeration_deadline = min(deadline, time.monotonic() + _MAX_ENUMERATION_SECONDS)
        known, ranges = constraints, find_ranges(facts, names)
        if not smallest:
            # The search skips variables that equations eliminated.
            known = [Comparison(f.relation, f.expression, 0) for f in problem.facts]
            ranges = dict(problem.ranges)
        search_result = find_smallest(
            known, comparison, ranges, count=_MAX_ASSIGNMENTS, deadline=enumeration_deadline
        )
        match search_result:
            case Refuted(values) if not smallest:
                return Refuted(problem.original_values(values))
            case Refuted() | Proven():
                return search_result
        if all(is_evident(p, deadline) for p in split_residue_classes(problem, deadline)):
            return Proven()
    except OverflowError as e:
        return Unknown(f"it is too large: {e}")
    except OutOfTimeError:
        seconds = f"{max(time_limit, 0):.3g} s"
        return Unknown(f"no proof and no counterexample was found in {seconds}")

    def refutes(values: Mapping[str, int]) -> bool:
        return all(c.holds(values) for c in constraints) and not comparison.holds(values)

    verdict = decide_by_z3(
        problem,
        refutes,
        purpose=purpose,
        least_sum=search_result.total + 1 if smallest else None,
        deadline=deadline,
    )
    if isinstance(verdict, Unknown):
        limit = f"{time_limit:g} s"
        return Unknown(f"no proof and no counterexample was found in {limit}: {verdict.reason}")
    return verdict


def _check_degrees(facts: Sequence[Fact]) -> None:
    highest = max((bound_degree(fact.expression) for fact in facts), default=0)
    if highest > _MAX_DEGREE:
        raise OverflowError(f"powers of degree {highest}, above the limit of {_MAX_DEGREE}")


def select_related(
    constraints: Sequence[Comparison], names: frozenset[str]
) -> tuple[list[Comparison], frozenset[str]]:
    """Returns the constraints related to the names, directly or not, and all variables in them."""
    remaining = list(dict.fromkeys(constraints))
    relevant: set[Comparison] = set()
    while related := {c for c in remaining if c.variables() & names}:
        names = names.union(*(c.variables() for c in related))
        relevant |= related
        remaining = [c for c in remaining if c not in related]
    return [c for c in constraints if c in relevant], names


_MAX_MINIMIZING_SECONDS = 10.0
"""Maximum time in seconds for reducing a conflict to few constraints, for an error."""


def find_conflict(
    constraints: Sequence[Comparison], *, time_limit: float
) -> tuple[Comparison, ...] | None:
    """Finds a minimal set of constraints that contradict each other.

    Returns None if no contradiction exists or none was found within the time limit. If the time
    ends during the reduction, the set may not be minimal.

    Raises:
      ImportError: z3 is needed, and not installed.
    """
    deadline = time.monotonic() + time_limit
    remaining = list(constraints)
    while remaining:
        part, _ = select_related(remaining, remaining[0].variables())
        part = part or remaining[:1]
        remaining = [c for c in remaining if c not in part]
        if _is_contradictory(part, deadline):
            return tuple(_minimize(part, time.monotonic() + _MAX_MINIMIZING_SECONDS))
    return None


def _minimize(part: list[Comparison], deadline: float) -> list[Comparison]:
    """Removes constraints that the contradiction does not need, first in large groups."""
    size = len(part) // 2
    while size:
        start = 0
        while start < len(part):
            rest = part[:start] + part[start + size :]
            if _is_contradictory(rest, deadline):
                part = rest
            else:
                start += size
        size //= 2
    return part


def _is_contradictory(constraints: Sequence[Comparison], deadline: float) -> bool:
    """Returns True only if it is certain that no sizes satisfy all constraints."""
    verdict = find_witness(constraints, time_limit=deadline - time.monotonic(), smallest=False)
    return isinstance(verdict, Proven)
