"""Proves or refutes comparisons of dimensions."""

from __future__ import annotations

import functools

from shape_poly._comparisons import Comparison, as_comparison
from shape_poly._deciding import Proven, Refuted, Unknown, Verdict, decide
from shape_poly._scope import SymbolicScope

__all__ = ["Proven", "Refuted", "Unknown", "Verdict", "prove"]

_CACHED = 4096


class _UndecidedError(Exception):
    """Carries a reason past the cache, which stores no exceptions, so that a retry may succeed."""


def prove(
    comparison: Comparison | str, scope: SymbolicScope | None = None, *, time_limit: float = 2.0
) -> Verdict:
    """Proves or refutes that a comparison holds for all sizes (integers >= 1) in the scope.

    `//` and `mod` round down like Python's, also for negative divisors. A comparison does not hold
    if a divisor is 0.

    Args:
      comparison: the comparison, such as `"mod(b, 2) == 0"`.
      scope: the constraints on the sizes; by default none.
      time_limit: the time limit in seconds.

    Returns:
      Proven; or Refuted with the smallest counterexample; or Unknown with the reason. The
      counterexample is the smallest by its sum, then lexicographically by variable name, or the
      smallest one found within the time limit. It has values for the variables of the comparison
      and of related constraints.

    Raises:
      DimensionSyntaxError: the text is not a comparison.
      ImportError: the proof needs z3-solver, which is not installed.

    >>> prove("floordiv(b + 1, 2) + floordiv(b, 2) == b")
    Proven()
    >>> prove("mod(b, 2) == 0", SymbolicScope(["b >= 4"]))
    Refuted(counterexample={'b': 5})
    """
    constraints = scope.constraints if scope else ()
    try:
        return _decide(constraints, as_comparison(comparison), time_limit)
    except _UndecidedError as e:
        return Unknown(str(e))


@functools.lru_cache(maxsize=_CACHED)
def _decide(
    constraints: tuple[Comparison, ...], comparison: Comparison, time_limit: float
) -> Proven | Refuted:
    verdict = decide(constraints, comparison, time_limit=time_limit)
    if isinstance(verdict, Unknown):
        raise _UndecidedError(verdict.reason)
    return verdict
