"""LU decomposition with partial pivoting, in blocks of columns."""

import functools
from typing import Any

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    block_size,
    columns,
    int32,
    is_complex,
    loop,
    multiple_of,
    resize,
    rows,
    sizes_known,
    where,
)

# Of panels of a symbolic size.
_WIDTH = 32


def lu(a: Any, *, rank: Any) -> tuple[Any, Any, Any]:
    """Computes PA = LU for a [..., m, n], as LAPACK's getrf packs it; `rank` is min(m, n).

    Returns:
      L below the diagonal and U on and above it [..., m, n]; the row that each step swapped
      with, int32 [..., min(m, n)]; the permutation that the swaps make, int32 [..., m].
    """
    known = sizes_known(*a.shape[-2:])
    function = _lu if known else functools.partial(_lu_of_symbolic_size, rank=rank)
    for _ in a.shape[:-2]:
        function = jax.vmap(function)
    packed, swaps, permutation = function(a)
    return packed, swaps, permutation


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


def _lu_of_symbolic_size(a: Any, *, rank: Any) -> tuple[Any, Any, Any]:
    """Factors as `_lu`, panel by panel in a loop: each step is one on the whole matrix."""
    m, n = a.shape
    padded = multiple_of(_WIDTH, rank)
    a = resize(a, tuple(multiple_of(_WIDTH, size) for size in (m, n)))
    row_index, column_index = (lax.iota(np.int32, size) for size in a.shape)

    def factor(p: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, swaps, permutation = state
        start = p * np.int32(_WIDTH)
        end = start + np.int32(_WIDTH)
        count = lax.min(int32(rank) - start, np.int32(_WIDTH))
        panel = lax.dynamic_slice_in_dim(a, start, _WIDTH, 1)
        panel, panel_swaps, order = _factor_panel(panel, start, count)
        swaps = lax.dynamic_update_slice(swaps, panel_swaps, (start,))
        permutation, a = _take_rows(permutation, order), _take_rows(a, order)
        a = lax.dynamic_update_slice_in_dim(a, panel, start, 1)
        beyond = rows(column_index >= end)
        lower = lax.dynamic_slice_in_dim(panel, start, _WIDTH, 0)
        right = lax.dynamic_slice_in_dim(a, start, _WIDTH, 0)
        solved = lax.linalg.triangular_solve(
            lower, right, left_side=True, lower=True, unit_diagonal=True
        )
        right = where(beyond, solved, right)
        a = lax.dynamic_update_slice_in_dim(a, right, start, 0)
        product = lax.dot(panel, right, precision=lax.Precision.HIGHEST)
        return where(beyond & columns(row_index >= end), a - product, a), swaps, permutation

    swaps = lax.full((padded,), 0, np.int32)
    a, swaps, permutation = loop(padded // _WIDTH, factor, (a, swaps, row_index))
    return resize(a, (m, n)), resize(swaps, (rank,)), resize(permutation, (m,))


def _factor_panel(a: Any, start: Any = 0, count: Any = None) -> tuple[Any, Any, Any]:
    """Factors a tall panel [m, n] by columns: the panel, its swaps, its row order.

    Args:
      a: the panel.
      start: the first row that is left to factor; the first column's pivot gets there.
      count: how many of the columns are factored, all by default.
    """
    m, n = a.shape
    row_index = lax.iota(np.int32, m)
    column_index = lax.iota(np.int32, n)

    def eliminate(j: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, swaps, order = state
        k = start + j
        column = lax.squeeze(lax.dynamic_slice_in_dim(a, j, 1, 1), (1,))
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
        swaps = where(lax.eq(column_index, j), pivot_row, swaps)

        row = lax.squeeze(lax.dynamic_slice_in_dim(a, k, 1, 0), (0,))
        column = lax.squeeze(lax.dynamic_slice_in_dim(a, j, 1, 1), (1,))
        pivot = lax.squeeze(lax.dynamic_slice_in_dim(row, j, 1, 0), (0,))
        below = lax.gt(row_index, k)
        # As in LAPACK, a column of zeros stays what it is: U is singular, L is not.
        divide = lax.bitwise_and(below, lax.ne(pivot, np.zeros((), a.dtype)))
        column = where(divide, column / pivot, column)
        right = lax.gt(column_index, j)
        update = columns(column) * rows(row)
        inside = lax.bitwise_and(
            lax.broadcast_in_dim(below, (m, n), (0,)), lax.broadcast_in_dim(right, (m, n), (1,))
        )
        a = where(inside, a - update, a)
        a = where(rows(lax.eq(column_index, j)), columns(column), a)
        return a, swaps, order

    initial = (a, np.zeros(n, np.int32), lax.iota(np.int32, m))
    return loop(n if count is None else count, eliminate, initial)


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
