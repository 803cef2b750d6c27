"""LU decomposition with partial pivoting, in blocks of columns."""

from typing import Any

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    block_size,
    columns,
    is_complex,
    loop,
    rows,
    where,
)


def lu(a: Any) -> tuple[Any, Any, Any]:
    """Computes PA = LU for a [..., m, n], as LAPACK's getrf packs it.

    Returns:
      L below the diagonal and U on and above it [..., m, n]; the row that each step swapped
      with, int32 [..., min(m, n)]; the permutation that the swaps make, int32 [..., m].
    """
    function = _lu
    for _ in a.shape[:-2]:
        function = jax.vmap(function)
    return function(a)


def _lu(a: Any) -> tuple[Any, Any, Any]:
    m, n = a.shape
    rank = min(m, n)
    width = block_size(rank, 64, 16)
    pivots = [np.zeros(0, np.int32)]
    permutation = lax.iota(np.int32, m)
    for start in range(0, rank, width):
        end = min(start + width, rank)
        panel, swaps, order = _factor_panel(a[start:, start:end])
        pivots.append(swaps + np.int32(start))
        permutation = _below(permutation, start, _take_rows(permutation[start:], order))
        rest = _take_rows(a[start:], order)
        rest = lax.dynamic_update_slice(rest, panel, (0, start))
        if end < n:
            lower = panel[: end - start]
            right = lax.linalg.triangular_solve(
                lower, rest[: end - start, end:], left_side=True, lower=True, unit_diagonal=True
            )
            rest = lax.dynamic_update_slice(rest, right, (0, end))
            if end < m:
                product = lax.dot(panel[end - start :], right, precision=lax.Precision.HIGHEST)
                trailing = rest[end - start :, end:] - product
                rest = lax.dynamic_update_slice(rest, trailing, (end - start, end))
        a = _below(a, start, rest)
    return a, lax.concatenate(pivots, 0), permutation


def _factor_panel(a: Any) -> tuple[Any, Any, Any]:
    """Factors a tall panel [m, n], m >= n, by columns: the panel, its swaps, its row order."""
    m, n = a.shape
    row_index = lax.iota(np.int32, m)
    column_index = lax.iota(np.int32, n)

    def eliminate(k: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, swaps, order = state
        column = lax.squeeze(lax.dynamic_slice_in_dim(a, k, 1, 1), (1,))
        # LAPACK's measure of a complex number too.
        size = (
            lax.abs(lax.real(column)) + lax.abs(lax.imag(column))
            if is_complex(a)
            else lax.abs(column)
        )
        candidates = where(lax.ge(row_index, k), size, np.array(-1, size.dtype))
        pivot_row = lax.argmax(candidates, 0, np.int32)
        a = _swap(a, k, pivot_row)
        order = _swap(order, k, pivot_row)
        swaps = where(lax.eq(column_index, k), pivot_row, swaps)

        row = lax.squeeze(lax.dynamic_slice_in_dim(a, k, 1, 0), (0,))
        column = lax.squeeze(lax.dynamic_slice_in_dim(a, k, 1, 1), (1,))
        pivot = lax.squeeze(lax.dynamic_slice_in_dim(row, k, 1, 0), (0,))
        below = lax.gt(row_index, k)
        # As in LAPACK, a column of zeros stays what it is: U is singular, L is not.
        divide = lax.bitwise_and(below, lax.ne(pivot, np.zeros((), a.dtype)))
        column = where(divide, column / pivot, column)
        right = lax.gt(column_index, k)
        update = columns(column) * rows(row)
        inside = lax.bitwise_and(
            lax.broadcast_in_dim(below, (m, n), (0,)), lax.broadcast_in_dim(right, (m, n), (1,))
        )
        a = where(inside, a - update, a)
        a = where(rows(lax.eq(column_index, k)), columns(column), a)
        return a, swaps, order

    start = (a, np.zeros(n, np.int32), lax.iota(np.int32, m))
    return loop(n, eliminate, start)


def _swap(a: Any, i: Any, j: Any) -> Any:
    row_i = lax.dynamic_slice_in_dim(a, i, 1, 0)
    row_j = lax.dynamic_slice_in_dim(a, j, 1, 0)
    a = lax.dynamic_update_slice_in_dim(a, row_j, i, 0)
    return lax.dynamic_update_slice_in_dim(a, row_i, j, 0)


def _take_rows(a: Any, order: Any) -> Any:
    return a.at[order].get(mode="promise_in_bounds", unique_indices=True)


def _below(a: Any, start: int, rest: Any) -> Any:
    """Replaces everything of `a` from row `start` on."""
    return rest if start == 0 else lax.concatenate([a[:start], rest], 0)
