"""Asks z3 for values that satisfy facts and refute goals; only this module imports z3.

Facts are translated first: quotients and products become unknowns with definitions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from shape_poly._comparisons import Fact, Proven, Refuted, Unknown, Verdict
from shape_poly._expressions import Atom, DimExpr, DimOperation, Monomial, Variable, atom_expression
from shape_poly._intervals import Interval, enclose
from shape_poly._normal_form import OutOfTimeError
from shape_poly._problem import Problem

_MAX_LEMMA_DEGREE = 6
_MAX_PRODUCTS = 150
"""Maximum number of products; lemmas, which introduce products, are left out above it."""

_MAX_RELATED_QUOTIENTS = 8
"""Maximum number of other quotients that each quotient is related to."""

_MAX_CASES = 16
"""Maximum number of values of a factor that is split into cases."""


class Encoding:
    """Translator of dimensions into z3's integers.

    Every operation and every product is one unknown. A quotient has Python's floor semantics if
    its divisor is not 0, and any value otherwise; facts and goals state that divisors are not 0.
    An exact encoding defines products; otherwise only inequalities are stated. Then unsatisfiable
    still means unsatisfiable, but a model may be wrong.

    Attributes:
      variables: the z3 variables of the problem.
      is_exact: whether products are defined, so that every model is a solution.
    """

    def __init__(
        self, z3: Any, context: Any, problem: Problem, *, exact: bool, deadline: float
    ) -> None:
        self._z3, self._context = z3, context
        self._problem, self._exact, self._deadline = problem, exact, deadline
        self.is_exact = True
        self.variables: dict[str, Any] = {}
        self._operations: dict[DimOperation, Any] = {}
        self._products: dict[Monomial, Any] = {}
        self._quotients: list[tuple[DimOperation, Any]] = []
        self._definitions: list[Any] = []
        for index, name in enumerate(sorted(problem.ranges)):
            variable = self.variables[name] = z3.Int(f"v{index}", context)
            low, high = problem.ranges[name]
            self._definitions.append(variable >= self._encode_integer(int(low)))
            if not math.isinf(high):
                self._definitions.append(variable <= self._encode_integer(int(high)))

    def take_definitions(self) -> list[Any]:
        """Returns the definitions made since the last call."""
        new, self._definitions = self._definitions, []
        return new

    def encode_fact(self, fact: Fact) -> Any:
        term = self.encode_dimension(fact.expression)
        if fact.relation == ">=":
            return term >= 0
        return term == 0 if fact.relation == "==" else term != 0

    def encode_dimension(self, dimension: DimExpr) -> Any:
        """Converts a dimension to a linear term."""
        if time.monotonic() > self._deadline:
            raise OutOfTimeError
        terms = [
            self._encode_integer(coefficient) * self._encode_monomial(monomial)
            if monomial
            else self._encode_integer(coefficient)
            for monomial, coefficient in dimension.terms
        ]
        return self._z3.Sum(terms) if terms else self._encode_integer(0)

    def _encode_integer(self, value: int) -> Any:
        return self._z3.IntVal(value, self._context)

    def _enclose(self, dimension: DimExpr) -> Interval:
        return enclose(dimension, self._problem.ranges, effort=1)

    def _encode_monomial(self, monomial: Monomial) -> Any:
        match monomial:
            case ((atom, 1),):
                return self._encode_atom(atom)
        known = self._products.get(monomial)
        if known is None:
            known = self._products[monomial] = self._z3.FreshInt("u", self._context)
            self._define_product(monomial, known)
        return known

    def _encode_atom(self, atom: Atom) -> Any:
        if isinstance(atom, Variable):
            return self.variables[atom.name]
        known = self._operations.get(atom)
        if known is None:
            known = self._operations[atom] = self._z3.FreshInt("u", self._context)
            self._define_operation(atom, known)
        return known

    def _define_operation(self, atom: DimOperation, result: Any) -> None:
        z3 = self._z3
        x, y = atom.operands
        match atom.kind:
            case "max" | "min":
                left, right = self.encode_dimension(x), self.encode_dimension(y)
                first = left >= right if atom.kind == "max" else left <= right
                self._definitions.append(result == z3.If(first, left, right))
            case "floordiv":
                self._define_remainder(x - y * atom_expression(atom), y)
                if y.constant_value() is None and self._enclose(y)[0] >= 1:
                    self._relate_quotients(atom, result)
            case "mod":
                quotient = atom_expression(DimOperation("floordiv", (x, y)))
                self._definitions.append(result == self.encode_dimension(x - y * quotient))

    def _define_remainder(self, remainder: DimExpr, divisor: DimExpr) -> None:
        """States the bounds of a remainder, which determine the quotient."""
        z3 = self._z3
        low, high = self._enclose(divisor)
        if low == high == 0:
            return
        term, by = self.encode_dimension(remainder), self.encode_dimension(divisor)
        positive = z3.And(term >= 0, term < by)
        negative = z3.And(term <= 0, term > by)
        if low >= 1:
            self._definitions.append(positive)
        elif high <= -1:
            self._definitions.append(negative)
        else:
            self._definitions += [z3.Implies(by > 0, positive), z3.Implies(by < 0, negative)]

    def _relate_quotients(self, atom: DimOperation, result: Any) -> None:
        """States that a quotient grows with its dividend and, if positive, falls with its divisor.

        This follows from the definitions, but only through products, with which z3 is weak.
        """
        z3 = self._z3
        x, y = atom.operands
        for other, quotient in self._quotients[-_MAX_RELATED_QUOTIENTS:]:
            u, v = other.operands
            if y == v:
                left, right = self.encode_dimension(x), self.encode_dimension(u)
                self._definitions.append(z3.Implies(left >= right, result >= quotient))
                self._definitions.append(z3.Implies(left <= right, result <= quotient))
            elif x == u and self._enclose(x)[0] >= 0:
                left, right = self.encode_dimension(y), self.encode_dimension(v)
                self._definitions.append(z3.Implies(left >= right, result <= quotient))
                self._definitions.append(z3.Implies(left <= right, result >= quotient))
        self._quotients.append((atom, result))

    def _define_product(self, monomial: Monomial, result: Any) -> None:
        z3 = self._z3
        if self._exact:
            factors = [
                self._encode_atom(atom) for atom, exponent in monomial for _ in range(exponent)
            ]
            self._definitions.append(result == z3.Product(factors))
        else:
            self.is_exact = False
        if sum(e for _, e in monomial) > _MAX_LEMMA_DEGREE or len(self._products) > _MAX_PRODUCTS:
            return
        for index, (atom, exponent) in enumerate(monomial):
            lowered = ((atom, exponent - 1),) if exponent > 1 else ()
            others = (*monomial[:index], *lowered, *monomial[index + 1 :])
            self._relate(result, atom, DimExpr(((others, 1),)))

    def _relate(self, product: Any, atom: Atom, others: DimExpr) -> None:
        """States inequalities between a product and its factors, `atom` and `others`."""
        z3 = self._z3
        x, y = self._encode_atom(atom), self.encode_dimension(others)
        x_low, x_high = self._enclose(atom_expression(atom))
        y_low, y_high = self._enclose(others)
        # The product of two distances from bounds is at least 0.
        for a, x_sign in ((x_low, 1), (x_high, -1)):
            for b, y_sign in ((y_low, 1), (y_high, -1)):
                if not math.isinf(a) and not math.isinf(b):
                    low, high = self._encode_integer(int(a)), self._encode_integer(int(b))
                    distance = product - low * y - high * x + low * high
                    self._definitions.append(distance * (x_sign * y_sign) >= 0)
        if x_high - x_low < _MAX_CASES:
            for value in range(int(x_low), int(x_high) + 1):
                self._definitions.append(z3.Implies(x == value, product == value * y))
        if y_low >= 0:
            self._definitions += [
                z3.Implies(x >= 1, product >= y),
                z3.Implies(x <= -1, product <= -y),
                z3.Implies(x == 0, product == 0),
            ]
        if isinstance(atom, DimOperation) and y_low >= 0:
            self._relate_operation(product, atom, others)

    def _relate_operation(self, product: Any, atom: DimOperation, others: DimExpr) -> None:
        """States the definition of the atom multiplied by `others`, which is at least 0."""
        z3 = self._z3
        x, y = atom.operands
        if len(x.terms) * len(y.terms) * len(others.terms) > _MAX_CASES:
            return
        if atom.kind == "max":
            left, right = self.encode_dimension(x * others), self.encode_dimension(y * others)
            self._definitions.append(product == z3.If(left >= right, left, right))
        if atom.kind == "floordiv" and self._enclose(y)[0] >= 1:
            remainder = self.encode_dimension((x - y * atom_expression(atom)) * others)
            greatest = self.encode_dimension((y - 1) * others)
            self._definitions += [remainder >= 0, remainder <= greatest]


_MAX_MEMORY_MB = 1000
_MAX_STEPS_PER_SECOND = 100_000_000
"""Limit of z3's own step counter per second; z3 usually reaches a tenth of it."""

_MAX_VARIABLES = 100
_MAX_LINEAR_SECONDS = 0.3
_MAX_STEP_SECONDS = 0.3
"""Time limit of one step towards the smallest counterexample."""


def import_z3(purpose: str) -> Any:
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


def decide_by_z3(
    problem: Problem,
    accepts: Callable[[Mapping[str, int]], bool],
    *,
    purpose: str,
    least_sum: int | None,
    deadline: float,
) -> Verdict:
    """Searches for values that satisfy the facts and refute the goals, if possible the smallest.

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
    z3 = import_z3(purpose)
    deadline += time.monotonic() - before
    try:
        for exact in (False, True):
            # At first products are unknowns with some inequalities, because linear arithmetic is
            # fast and often suffices.
            search = _SolverSearch(z3, problem, exact=exact, deadline=deadline)
            outcome = search.check(seconds=math.inf if search.is_exact else _MAX_LINEAR_SECONDS)
            if outcome == "unsat":
                return Proven()
            if outcome == "sat":
                values = search.values()
                if accepts(values):
                    if least_sum is None:
                        return Refuted(values)
                    if not search.is_exact:
                        search = _SolverSearch(z3, problem, exact=True, deadline=deadline)
                    return Refuted(_minimize_values(search, values, accepts, least_sum))
                if search.is_exact:
                    return Unknown(f"the solver's answer {values} is wrong")
            elif search.is_exact:
                return Unknown(outcome)
    except OutOfTimeError:
        return Unknown("the time ran out")
    except z3.Z3Exception as e:
        return Unknown(f"z3 stopped: {e}")
    raise AssertionError("the second search is exact")


class _SolverSearch:
    def __init__(self, z3: Any, problem: Problem, *, exact: bool, deadline: float) -> None:
        # Each search has its own context, so that threads are independent.
        self._z3, self._context = z3, z3.Context()
        self.problem, self._deadline = problem, deadline
        self._encoding = Encoding(z3, self._context, problem, exact=exact, deadline=deadline)
        # Solver chooses a strategy first. That pays off for products, but with many variables it
        # ignores the time limit.
        has_strategy = exact and len(problem.ranges) <= _MAX_VARIABLES
        solver = z3.Solver if has_strategy else z3.SimpleSolver
        self._solver = solver(ctx=self._context)
        self._solver.set("max_memory", _MAX_MEMORY_MB)
        for fact in problem.facts:
            self.add(self._encoding.encode_fact(fact))
        goals = [self._encoding.encode_fact(goal) for goal in problem.goals]
        self.add(z3.Not(z3.And(*goals, self._context)))

    @property
    def is_exact(self) -> bool:
        """Returns whether every model is a solution of the problem."""
        return self._encoding.is_exact

    def add(self, condition: Any) -> None:
        self._solver.add(condition, *self._encoding.take_definitions())

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
        self._solver.set("rlimit", math.ceil(seconds * _MAX_STEPS_PER_SECOND))
        if at_most is not None:
            condition = self._encoding.encode_dimension(at_most[0]) <= at_most[1]
            self._solver.add(*self._encoding.take_definitions())
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
        self.add(self._encoding.encode_dimension(dimension) == value)

    def values(self) -> dict[str, int]:
        values = {
            name: self._model.eval(variable, model_completion=True).as_long()
            for name, variable in self._encoding.variables.items()
        }
        return self.problem.original_values(values)


def _minimize_values(
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
                outcome = search.check(seconds=_MAX_STEP_SECONDS, at_most=(dimension, middle))
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
