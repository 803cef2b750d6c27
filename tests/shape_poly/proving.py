"""Helpers for tests of proofs: random comparisons, small assignments and a time limit."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping

from hypothesis import strategies as st

from shape_poly import Comparison, ComparisonOperator, DimExpr, DimOperation, OperationKind
from tests.strategies import OPERATORS, VARIABLES

GRID = 6
"""Maximum size in the assignments of `grid`."""
FOREVER = math.inf
"""Deadline that never passes."""


def make_unsimplified(kind: OperationKind, x: DimExpr, y: DimExpr) -> DimExpr:
    """Makes an operation without simplification, so that the prover has to handle it."""
    return DimExpr(((((DimOperation(kind, (x, y)), 1),), 1),))


def _combine(inner: st.SearchStrategy[DimExpr]) -> st.SearchStrategy[DimExpr]:
    pairs = st.tuples(inner, inner)
    divisors = st.integers(-6, 6).filter(bool).map(DimExpr.constant)
    quotients: st.SearchStrategy[OperationKind] = st.sampled_from(("floordiv", "mod"))
    extrema: st.SearchStrategy[OperationKind] = st.sampled_from(("max", "min"))
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        st.builds(make_unsimplified, quotients, inner, divisors),
        st.builds(make_unsimplified, quotients, inner, inner).filter(_is_defined_somewhere),
        st.builds(make_unsimplified, extrema, inner, inner),
    )


def _is_defined_somewhere(dimension: DimExpr) -> bool:
    try:
        dimension.evaluate(dict.fromkeys(VARIABLES, 3))
    except ZeroDivisionError:
        return False
    return True


def dimensions(max_leaves: int = 4) -> st.SearchStrategy[DimExpr]:
    """Draws dimensions; their divisors may be symbolic, and 0 for some sizes."""
    leaves = st.integers(-6, 9).map(DimExpr.constant) | st.sampled_from(VARIABLES).map(
        DimExpr.variable
    )
    return st.recursive(leaves, _combine, max_leaves=max_leaves)


def comparisons(max_leaves: int = 4) -> st.SearchStrategy[Comparison]:
    """Draws comparisons of two `dimensions`."""
    return st.builds(
        Comparison, st.sampled_from(OPERATORS), dimensions(max_leaves), dimensions(max_leaves)
    )


constraint_lists = st.lists(comparisons(3), max_size=2)
larger_sizes = st.fixed_dictionaries(dict.fromkeys(VARIABLES, st.integers(1, 40)))


def grid(
    names: Iterable[str], constraints: Iterable[Comparison] = ()
) -> Iterator[Mapping[str, int]]:
    """Yields small assignments that satisfy the constraints, by sum, then lexicographically."""
    constraints = tuple(constraints)
    ordered = sorted(names)
    for values in _sorted_sizes(len(ordered)):
        assignment = dict(zip(ordered, values, strict=True))
        if all(c.holds(assignment) for c in constraints):
            yield assignment


@functools.cache
def _sorted_sizes(count: int) -> list[tuple[int, ...]]:
    """Lists the assignments of `count` variables by sum, then lexicographically."""
    sizes = itertools.product(range(1, GRID + 1), repeat=count)
    return sorted(sizes, key=lambda v: (sum(v), v))


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails if the block takes longer; limits are generous, because machines differ."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


_factors = st.builds(
    lambda c, a, b: DimExpr.variable(a) * c * (DimExpr.variable(b) if b else 1),
    st.integers(-4, 4).filter(bool),
    st.sampled_from(VARIABLES),
    st.none() | st.sampled_from(VARIABLES),
) | st.integers(-4, 4).filter(bool).map(DimExpr.constant)


def _compare(
    operator: ComparisonOperator,
    quotient: OperationKind | None,
    factors: tuple[DimExpr, DimExpr],
    x: DimExpr,
    y: DimExpr,
    right: DimExpr,
) -> Comparison:
    f, g = factors
    if quotient is None or y == 0:
        return Comparison(operator, f * x, f * y + (right.constant_value() or 0))
    return Comparison(operator, g * make_unsimplified(quotient, f * x, f * y), right)


product_comparisons: st.SearchStrategy[Comparison] = st.builds(
    _compare,
    st.sampled_from(OPERATORS),
    st.sampled_from(("floordiv", "mod", None)),
    st.tuples(_factors, _factors),
    _factors | dimensions(2),
    _factors | dimensions(2),
    st.just(DimExpr.constant(0)) | _factors,
)
"""Comparisons of products, quotients and remainders with common factors."""
