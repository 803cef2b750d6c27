"""Interval arithmetic: operations on intervals, which enclose the results for their members."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

Bound: TypeAlias = int | float
"""An int, or an infinity: floats would round."""
Interval: TypeAlias = tuple[Bound, Bound]
"""The lowest and the highest value."""

POSITIVE: Interval = (1, math.inf)
_EVERYTHING: Interval = (-math.inf, math.inf)


def plus(x: Bound, y: Bound) -> Bound:
    # An infinity and an int too large for a float cannot be added.
    if isinstance(x, float):
        return x
    return y if isinstance(y, float) else x + y


def _product(x: Bound, y: Bound) -> Bound:
    if x == 0 or y == 0:
        return 0
    if isinstance(x, float) or isinstance(y, float):
        return math.inf if (x > 0) == (y > 0) else -math.inf
    return x * y


def times(x: Interval, y: Interval) -> Interval:
    corners = [_product(a, b) for a in x for b in y]
    return min(corners), max(corners)


def power(x: Interval, exponent: int) -> Interval:
    if exponent == 1:
        return x
    low, high = (math.inf if isinstance(b, float) else b**exponent for b in x)
    if exponent % 2:
        low, high = (b if isinstance(b, float) else b**exponent for b in x)
        return low, high
    return (0 if x[0] <= 0 <= x[1] else min(low, high)), max(low, high)


def _positive_parts(divisor: Interval) -> Iterator[tuple[int, Interval]]:
    """Yields the positive divisors with 1, and the negative ones, made positive, with -1."""
    low, high = divisor
    if high >= 1:
        yield 1, (max(low, 1), high)
    if low <= -1:
        yield -1, (max(-high, 1), -low)


def _union(intervals: list[Interval]) -> Interval:
    # None where the divisor is always 0: then no value is to be enclosed.
    if not intervals:
        return _EVERYTHING
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def _floordiv(x: Interval, y: Interval) -> Interval:
    return _union(
        [
            _quotients(x if sign > 0 else (-x[1], -x[0]), divisors)
            for sign, divisors in _positive_parts(y)
        ]
    )


def _quotients(x: Interval, y: Interval) -> Interval:
    corners = [_quotient(a, b) for a in x for b in y]
    return min(corners), max(corners)


def _quotient(x: Bound, y: Bound) -> Bound:
    """Divides by a positive divisor and rounds down; infinities become limits."""
    if isinstance(y, float):
        return 0 if x >= 0 else -1
    return x if isinstance(x, float) else x // y


def _mod(x: Interval, y: Interval) -> Interval:
    parts: list[Interval] = []
    for sign, divisors in _positive_parts(y):
        # x % -d is -(-x % d).
        low, high = _remainders(x if sign > 0 else (-x[1], -x[0]), divisors)
        parts.append((low, high) if sign > 0 else (-high, -low))
    return _union(parts)


def _remainders(x: Interval, y: Interval) -> Interval:
    (low, high), (least, greatest) = x, y
    if low >= 0 and high < least:
        return low, high
    if (
        least == greatest
        and not isinstance(low, float)
        and not isinstance(high, float)
        and low // least == high // least
    ):
        # All of them in one stretch between multiples of the divisor.
        return low % least, high % least
    largest = plus(greatest, -1)
    return 0, min(high, largest) if low >= 0 else largest


def _max(x: Interval, y: Interval) -> Interval:
    return max(x[0], y[0]), max(x[1], y[1])


def _min(x: Interval, y: Interval) -> Interval:
    return min(x[0], y[0]), min(x[1], y[1])


INTERVAL_OPERATIONS: Mapping[str, Callable[[Interval, Interval], Interval]] = {
    "floordiv": _floordiv,
    "mod": _mod,
    "max": _max,
    "min": _min,
}
