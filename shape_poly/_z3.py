"""Asks z3 for values that satisfy facts and refute goals; only this module imports z3."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shape_poly._encoding import Encoding
from shape_poly._expressions import DimExpr
from shape_poly._normal_form import OutOfTimeError
from shape_poly._problem import Problem

_MEMORY_MB = 1000
_STEPS_A_SECOND = 100_000_000
"""Limit of z3's own step counter per second; z3 usually reaches a tenth of it."""

_MANY_VARIABLES = 100
_LINEAR_SECONDS = 0.3
_STEP_SECONDS = 0.3
"""Time limit of one step towards the smallest counterexample."""


@dataclass(frozen=True)
class Model:
    """Result: values of the original variables that satisfy the facts and refute the goals."""

    values: Mapping[str, int]


@dataclass(frozen=True)
class NoModel:
    """Result: there are no such values."""


@dataclass(frozen=True)
class Undecided:
    """Result: z3 found no answer, with the reason."""

    reason: str


def load(purpose: str) -> Any:
    """Imports z3.

    Raises:
      ImportError: z3 is not installed; `purpose` describes the need for it.
    """
    try:
        import z3
    except ImportError as e:
        raise ImportError(
            f"{purpose} needs z3-solver, which is not installed here. "
            "Install it with: pip install 'jax2tf-bridge[jax]'"
        ) from e
    return z3


def find_model(
    problem: Problem,
    accepts: Callable[[Mapping[str, int]], bool],
    *,
    purpose: str,
    least_sum: int | None,
    deadline: float,
) -> Model | NoModel | Undecided:
    """Finds values that satisfy the facts and refute the goals, if possible the smallest.

    Args:
      problem: the facts and goals.
      accepts: verifies values of the original variables in Python's arithmetic.
      purpose: the need for z3, for the error if it is missing.
      least_sum: the minimum sum of the original variables; None to accept any values.
      deadline: the time of `time.monotonic` at which to stop; the first import of z3 extends it.

    Raises:
      ImportError: z3 is not installed.
    """
    before = time.monotonic()
    z3 = load(purpose)
    deadline += time.monotonic() - before
    try:
        for exact in (False, True):
            # At first products are unknowns with some inequalities, because linear arithmetic is
            # fast and often suffices.
            search = _SolverSearch(z3, problem, exact=exact, deadline=deadline)
            outcome = search.check(seconds=math.inf if search.is_exact else _LINEAR_SECONDS)
            if outcome == "unsat":
                return NoModel()
            if outcome == "sat":
                values = search.values()
                if accepts(values):
                    if least_sum is None:
                        return Model(values)
                    if not search.is_exact:
                        search = _SolverSearch(z3, problem, exact=True, deadline=deadline)
                    return Model(_smallest(search, values, accepts, least_sum))
                if search.is_exact:
                    return Undecided(f"the solver's answer {values} is wrong")
            elif search.is_exact:
                return Undecided(outcome)
    except OutOfTimeError:
        return Undecided("the time ran out")
    except z3.Z3Exception as e:
        return Undecided(f"z3 stopped: {e}")
    raise AssertionError("the second search is exact")


class _SolverSearch:
    """z3 solver that holds the problem."""

    def __init__(self, z3: Any, problem: Problem, *, exact: bool, deadline: float) -> None:
        # Each search has its own context, so that threads are independent.
        self._z3, self._context = z3, z3.Context()
        self.problem, self._deadline = problem, deadline
        self._encoding = Encoding(z3, self._context, problem, exact=exact, deadline=deadline)
        # Solver chooses a strategy first. That pays off for products, but with many variables it
        # ignores the time limit.
        made = z3.Solver if exact and len(problem.ranges) <= _MANY_VARIABLES else z3.SimpleSolver
        self._solver = made(ctx=self._context)
        self._solver.set("max_memory", _MEMORY_MB)
        for fact in problem.facts:
            self.add(self._encoding.fact(fact))
        goals = [self._encoding.fact(goal) for goal in problem.goals]
        self.add(z3.Not(z3.And(*goals, self._context)))

    @property
    def is_exact(self) -> bool:
        """Returns whether every model is a solution of the problem."""
        return self._encoding.is_exact

    def add(self, condition: Any) -> None:
        """Adds a condition."""
        self._solver.add(condition, *self._encoding.new_definitions())

    def check(
        self, *, seconds: float = math.inf, at_most: tuple[DimExpr, int] | None = None
    ) -> str:
        """Runs z3: returns "sat", "unsat", or the reason for neither.

        Args:
          seconds: the time limit; at most the remaining time.
          at_most: a dimension and its maximum, for this check only.

        Raises:
          OutOfTimeError: no time is left.
        """
        seconds = min(seconds, self._deadline - time.monotonic())
        if seconds <= 0:
            raise OutOfTimeError
        self._solver.set("timeout", math.ceil(seconds * 1000))
        self._solver.set("rlimit", math.ceil(seconds * _STEPS_A_SECOND))
        if at_most is not None:
            condition = self._encoding.dimension(at_most[0]) <= at_most[1]
            self._solver.add(*self._encoding.new_definitions())
            self._solver.push()
            self._solver.add(condition)
        outcome = str(self._solver.check())
        if outcome == "sat":
            self._model = self._solver.model()
        elif outcome == "unknown":
            outcome = self._solver.reason_unknown()
        if at_most is not None:
            self._solver.pop()
        return "the time ran out" if outcome in ("timeout", "canceled") else outcome

    def fix(self, dimension: DimExpr, value: int) -> None:
        """Adds the condition that the dimension has this value."""
        self.add(self._encoding.dimension(dimension) == value)

    def values(self) -> dict[str, int]:
        """Returns the values of the original variables in the last model."""
        values = {
            name: self._model.eval(variable, model_completion=True).as_long()
            for name, variable in self._encoding.variables.items()
        }
        return self.problem.original_values(values)


def _smallest(
    search: _SolverSearch,
    values: Mapping[str, int],
    accepts: Callable[[Mapping[str, int]], bool],
    least_sum: int,
) -> Mapping[str, int]:
    """Minimizes first the sum of the values, then each value, until the time limit."""
    original = search.problem.original
    names = sorted(values)
    everything = DimExpr.of_terms(term for name in names for term in original[name].terms)
    # The sum and the other variables determine the last one.
    targets = [(everything, names, least_sum), *((original[n], [n], 1) for n in names[:-1])]
    try:
        for dimension, summed, low in targets:
            while low < (size := sum(values[n] for n in summed)):
                middle = (low + size) // 2
                outcome = search.check(seconds=_STEP_SECONDS, at_most=(dimension, middle))
                if outcome == "unsat":
                    low = middle + 1
                    continue
                smaller = search.values() if outcome == "sat" else values
                if outcome != "sat" or not accepts(smaller):
                    return values
                values = smaller
            search.fix(dimension, size)
    except OutOfTimeError:
        pass
    return values
