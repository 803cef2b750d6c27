"""Hypothesis strategies that the tests share."""

from __future__ import annotations

from hypothesis import strategies as st

from shape_poly import DimExpr
from shape_poly._expressions import operation

VARIABLES = ("a", "b", "c")

sizes = st.integers(min_value=1, max_value=50)
assignments = st.fixed_dictionaries(dict.fromkeys(VARIABLES, sizes))
constants = st.integers(min_value=-20, max_value=20).map(DimExpr.constant)
variables = st.sampled_from(VARIABLES).map(DimExpr.variable)


def _combine(inner: st.SearchStrategy[DimExpr]) -> st.SearchStrategy[DimExpr]:
    positive = st.integers(min_value=1, max_value=9)
    divisors = positive | positive.map(lambda n: -n)
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, divisors).map(lambda p: p[0] // p[1]),
        st.tuples(inner, divisors).map(lambda p: p[0] % p[1]),
        st.tuples(inner, inner).map(lambda p: operation("max", *p)),
        st.tuples(inner, inner).map(lambda p: operation("min", *p)),
    )


expressions = st.recursive(constants | variables, _combine, max_leaves=8)
"""Dimension expressions over VARIABLES; divisors are nonzero constants."""
