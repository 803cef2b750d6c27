"""Asks z3 for values that satisfy facts and refute goals; the only module that loads it."""

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
"""z3's own count of what it does; it usually manages a tenth of that."""

_MANY_VARIABLES = 100
_LINEAR_SECONDS = 0.3
_STEP_SECONDS = 0.3
"""For one step towards the smallest counterexample."""


@dataclass(frozen=True)
class Model:
    """Values of the problem's original variables that satisfy its facts and refute its goals."""

    values: Mapping[str, int]


@dataclass(frozen=True)
class NoModel:
    """States that there are no such values."""


@dataclass(frozen=True)
class Undecided:
    """States that z3 did not find out, and why."""

    reason: str


def load(purpose: str) -> Any:
    """Imports z3.

    Raises:
      ImportError: it is not installed; `purpose` says what needs it.
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
    """Finds values that satisfy the facts and refute the goals, the smallest if time allows.

    Args:
      problem: what is given and what is to be refuted.
      accepts: whether values of the original variables do what is asked, by Python's arithmetic.
      purpose: what z3 is needed for, for the error if it is missing.
      least_sum: no smaller sum of the original variables needs to be tried; None where the
        values need not be small.
      deadline: by `time.monotonic`; later by what loading z3 takes, once a process.

    Raises:
      ImportError: z3 is not installed.
    """
    before = time.monotonic()
    z3 = load(purpose)
    deadline += time.monotonic() - before
    try:
        for exact in (False, True):
            # Products are unknowns at first, of which only some inequalities are told: linear
            # arithmetic is fast, and often enough.
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
    """Solver with the problem in it."""

    def __init__(self, z3: Any, problem: Problem, *, exact: bool, deadline: float) -> None:
        # A context of its own makes threads independent of each other.
        self._z3, self._context = z3, z3.Context()
        self.problem, self._deadline = problem, deadline
        self._encoding = Encoding(z3, self._context, problem, exact=exact, deadline=deadline)
        # Solver looks for a strategy first. That pays off for products; where there are many
        # variables it disregards the time limit.
        made = z3.Solver if exact and len(problem.ranges) <= _MANY_VARIABLES else z3.SimpleSolver
        self._solver = made(ctx=self._context)
        self._solver.set("max_memory", _MEMORY_MB)
        for fact in problem.facts:
            self.add(self._encoding.fact(fact))
        goals = [self._encoding.fact(goal) for goal in problem.goals]
        self.add(z3.Not(z3.And(*goals, self._context)))

    @property
    def is_exact(self) -> bool:
        """Returns whether its models are models of the problem."""
        return self._encoding.is_exact

    def add(self, condition: Any) -> None:
        """Adds a condition."""
        self._solver.add(condition, *self._encoding.new_definitions())

    def check(
        self, *, seconds: float = math.inf, at_most: tuple[DimExpr, int] | None = None
    ) -> str:
        """Asks z3: "sat", "unsat", or why neither.

        Args:
          seconds: the time for it; never more than what is left.
          at_most: a dimension that must not be greater than the integer, this once.

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
        """Requires the dimension to have this value."""
        self.add(self._encoding.dimension(dimension) == value)

    def values(self) -> dict[str, int]:
        """Returns the original variables' values in the last model."""
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
    """Minimises values, by their sum and then one after the other, until the time is over."""
    original = search.problem.original
    names = sorted(values)
    everything = DimExpr.of_terms(term for name in names for term in original[name].terms)
    # The last variable follows from the sum and the others.
    targets = [(everything, names, least_sum), *((original[n], [n], 1) for n in names[:-1])]
    try:
        for dimension, summed, low in targets:
            while low < (size := sum(values[n] for n in summed)):
                middle = (low + size) // 2
                outcome = search.check(seconds=_STEP_SECONDS, at_most=(dimension, middle))
                if outcome == "unsat":
                    low = middle + 1
                    continue
                found = search.values() if outcome == "sat" else values
                if outcome != "sat" or not accepts(found):
                    return values
                values = found
            search.fix(dimension, size)
    except OutOfTimeError:
        pass
    return values
