"""Interval arithmetic, and bounds of expressions computed with it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from shape_poly._expressions import Atom, DimExpr, DimOperation, Monomial, Variable, atom_expression

Bound: TypeAlias = int | float
"""An int or an infinity; other floats would round."""
Interval: TypeAlias = tuple[Bound, Bound]
"""The lowest and the highest value, both inclusive."""
Ranges: TypeAlias = Mapping[str, Interval]
"""Bounds of variables."""

POSITIVE: Interval = (1, math.inf)
_EVERYTHING: Interval = (-math.inf, math.inf)


def _add(x: Bound, y: Bound) -> Bound:
    # Python cannot add an infinity and an int that is too large for a float.
    if isinstance(x, float):
        return x
    return y if isinstance(y, float) else x + y


def _multiply(x: Bound, y: Bound) -> Bound:
    if x == 0 or y == 0:
        return 0
    if isinstance(x, float) or isinstance(y, float):
        return math.inf if (x > 0) == (y > 0) else -math.inf
    return x * y


def _enclose_values(values: Iterable[Bound]) -> Interval:
    values = tuple(values)
    return min(values), max(values)


def _multiply_intervals(x: Interval, y: Interval) -> Interval:
    return _enclose_values(_multiply(a, b) for a in x for b in y)


def _raise_to_power(x: Interval, exponent: int) -> Interval:
    if exponent == 1:
        return x
    # Infinities stay floats; other floats would round.
    low, high = (b if isinstance(b, float) else b**exponent for b in x)
    if exponent % 2:
        return low, high
    return 0 if x[0] <= 0 <= x[1] else min(abs(low), high), max(abs(low), high)


def _positive_parts(divisor: Interval) -> Iterator[tuple[int, Interval]]:
    """Yields (1, positive divisors) and (-1, absolute values of the negative divisors)."""
    low, high = divisor
    if high >= 1:
        yield 1, (max(low, 1), high)
    if low <= -1:
        yield -1, (max(-high, 1), -low)


def _union(intervals: list[Interval]) -> Interval:
    # A divisor that is always 0 leaves no interval, and the result no value.
    if not intervals:
        return _EVERYTHING
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def _floordiv(x: Interval, y: Interval) -> Interval:
    return _union(
        [
            _enclose_values(_divide(sign * a, b) for a in x for b in divisors)
            for sign, divisors in _positive_parts(y)
        ]
    )


def _divide(x: Bound, y: Bound) -> Bound:
    """Divides by a positive divisor and rounds down; infinities become limits."""
    if isinstance(y, float):
        return 0 if x >= 0 else -1
    return x if isinstance(x, float) else x // y


def _mod(x: Interval, y: Interval) -> Interval:
    parts: list[Interval] = []
    for sign, divisors in _positive_parts(y):
        # x % -d is -(-x % d).
        low, high = _bound_remainders(x if sign > 0 else (-x[1], -x[0]), divisors)
        parts.append((low, high) if sign > 0 else (-high, -low))
    return _union(parts)


def _bound_remainders(x: Interval, y: Interval) -> Interval:
    (low, high), (least, greatest) = x, y
    if low >= 0 and high < least:
        return low, high
    if (
        least == greatest
        and not isinstance(low, float)
        and not isinstance(high, float)
        and low // least == high // least
    ):
        # All values lie between two successive multiples of the divisor.
        return low % least, high % least
    largest = _add(greatest, -1)
    return 0, min(high, largest) if low >= 0 else largest


_OPERATIONS: Mapping[str, Callable[[Interval, Interval], Interval]] = {
    "floordiv": _floordiv,
    "mod": _mod,
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
}


# Bounds.

_MAX_OPERATIONS = 4
"""Maximum number of operations of one sum that are replaced by their operands."""
_MAX_STEPS = 120
_MAX_SUM_TERMS = 40
_MAX_SHIFTED_DEGREE = 4


def enclose(expression: DimExpr, ranges: Ranges | None = None, *, effort: int = 3) -> Interval:
    """Bounds the values of an expression.

    Args:
      expression: the expression to bound.
      ranges: bounds of some variables; all variables are at least 1.
      effort: how many operations may be replaced by their operands, one after the other; 0 bounds
        each term by itself.
    """
    return _BoundsSearch(ranges or {}).find_interval(expression, effort)


class _BoundsSearch:
    """Computes and caches the bounds of one expression and its operations."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._known: dict[tuple[Atom, int], Interval] = {}
        self._steps = 0

    def find_interval(self, x: DimExpr, effort: int) -> Interval:
        lower, upper = self._bound_by_terms(x, effort)
        if lower == upper or len(x.terms) < 2:
            return lower, upper
        lower = max(lower, self._bound_lower(x, effort))
        return lower, min(upper, -self._bound_lower(-x, effort))

    def _bound_by_terms(self, x: DimExpr, effort: int) -> Interval:
        lower: Bound = 0
        upper: Bound = 0
        for monomial, coefficient in x.terms:
            low, high = _multiply_intervals(
                self._bound_monomial(monomial, effort), (coefficient, coefficient)
            )
            lower, upper = _add(lower, low), _add(upper, high)
        return lower, upper

    def _bound_monomial(self, monomial: Monomial, effort: int) -> Interval:
        product: Interval = (1, 1)
        for atom, exponent in monomial:
            product = _multiply_intervals(
                product, _raise_to_power(self._bound_atom(atom, effort), exponent)
            )
        return product

    def _bound_atom(self, atom: Atom, effort: int) -> Interval:
        if isinstance(atom, Variable):
            low, high = self._ranges.get(atom.name, POSITIVE)
            return max(1, low), high
        key = atom, effort
        if key not in self._known:
            # Nested operations get less effort, because the effort of all levels multiplies.
            inner = max(effort - 1, 0)
            x, y = (self.find_interval(o, inner) for o in atom.operands)
            self._known[key] = _OPERATIONS[atom.kind](x, y)
        return self._known[key]

    def _bound_lower(self, x: DimExpr, effort: int) -> Bound:
        """Bounds x from below, as tightly as the remaining steps allow."""
        self._steps += 1
        best = max(self._bound_by_terms(x, effort)[0], self._bound_lower_by_excess(x))
        if effort <= 0 or self._steps > _MAX_STEPS or len(x.terms) > _MAX_SUM_TERMS:
            return best
        operations = sorted(x.linear_operations(), key=lambda pair: -pair[0].depth)
        for atom, c in operations[:_MAX_OPERATIONS]:
            try:
                rest = x - atom_expression(atom) * c
                best = max(best, self._bound_lower_without(atom, c, rest, effort - 1))
            except OverflowError:
                continue  # the expression without the operation would be too large
        return best

    def _bound_lower_without(self, atom: DimOperation, c: int, rest: DimExpr, effort: int) -> Bound:
        """Bounds c*atom + rest from below by an expression without the operation."""
        x, y = atom.operands
        if atom.kind in ("max", "min"):
            parts = [self._bound_lower(o * c + rest, effort) for o in (x, y)]
            # c*max(x, y) is the greater of c*x and c*y, or the lesser if c is negative.
            return max(parts) if (atom.kind == "max") == (c > 0) else min(parts)
        divisor = y.constant_value()
        if atom.kind == "floordiv" and divisor is not None:
            if divisor < 0:
                x, divisor = -x, -divisor
            if c > 0:
                x = x - (divisor - 1)
            bound = self._bound_lower(x * c + rest * divisor, effort)
            return bound if isinstance(bound, float) else -(-bound // divisor)
        if c > 0 or self._bound_by_terms(y, effort)[0] < 1:
            return -math.inf
        bounds: list[Bound] = []
        if atom.kind == "mod":
            bounds.append(self._bound_lower((y - 1) * c + rest, effort))
        # A quotient or remainder of x is then at most x.
        if self._bound_by_terms(x, effort)[0] >= 0:
            bounds.append(self._bound_lower(x * c + rest, effort))
        return max(bounds, default=-math.inf)

    def _bound_lower_by_excess(self, x: DimExpr) -> Bound:
        """Bounds x from below after each atom is written as its lower bound plus an excess.

        Example: with a = 1 + p and b = 1 + q, a*b - b is p + p*q, which is at least 0.
        """
        degrees = [sum(e for _, e in monomial) for monomial, _ in x.terms]
        small = len(x.terms) <= _MAX_SUM_TERMS and max(degrees, default=0) > 1
        if not small or max(degrees) > _MAX_SHIFTED_DEGREE or all(c > 0 for _, c in x.terms):
            return -math.inf
        intervals = {a: self._bound_atom(a, 0) for monomial, _ in x.terms for a, _ in monomial}
        terms: dict[Monomial, int] = {}
        for monomial, coefficient in x.terms:
            for excess, factor in _shift_monomial(monomial, intervals):
                terms[excess] = terms.get(excess, 0) + factor * coefficient
        total: Bound = 0
        for monomial, coefficient in terms.items():
            product: Interval = (coefficient, coefficient)
            for atom, exponent in monomial:
                low, high = intervals[atom]
                above = (low, high) if isinstance(low, float) else (0, _add(high, -low))
                product = _multiply_intervals(product, _raise_to_power(above, exponent))
            total = _add(total, product[0])
        return total


def _shift_monomial(
    monomial: Monomial, intervals: Mapping[Atom, Interval]
) -> Iterator[tuple[Monomial, int]]:
    """Yields the terms of a monomial after each atom becomes (lower bound + excess)."""
    choices: list[list[tuple[Monomial, int]]] = []
    for atom, exponent in monomial:
        low = intervals[atom][0]
        if isinstance(low, float):
            choices.append([(((atom, exponent),), 1)])
            continue
        factors = [math.comb(exponent, p) * low ** (exponent - p) for p in range(exponent + 1)]
        choices.append([(((atom, p),) if p else (), f) for p, f in enumerate(factors)])
    for chosen in itertools.product(*choices):
        excess = tuple(power for part, _ in chosen for power in part)
        yield excess, math.prod(factor for _, factor in chosen)
