"""LU decomposition with partial pivoting, in blocks of columns."""

import functools
from typing import Any, NamedTuple

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
    width = block_size(rank, 128, 16)
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

    Columns are kept as rows, which lie together in memory, and what LAPACK swaps stays where it is.
    A step does the update of the step before first: then XLA writes to the panel in place.

    Args:
      a: the panel.
      start: the first row that is left to factor; the first column's pivot gets there.
      count: how many of the columns are factored, all by default.
    """
    m, n = a.shape
    row_index, column_index = lax.iota(np.int32, m), lax.iota(np.int32, n)
    count = n if count is None else count
    start = int32(start)
    zero = np.zeros((), a.dtype)

    def update(j: Any, state: _Panel) -> Any:
        """Completes step j - 1."""
        below = rows(state.position >= start + j) & (j > 0)
        right = columns(column_index >= j)
        here = columns(column_index == j - np.int32(1))
        difference = state.columns - columns(state.pivot_row) * rows(state.multipliers)
        changed = where(here, rows(state.multipliers), difference)
        return where(below & (right | here), changed, state.columns)

    def eliminate(j: Any, state: _Panel) -> _Panel:
        k = start + j
        by_column = update(j, state)
        column = lax.squeeze(lax.dynamic_slice_in_dim(by_column, j, 1, 0), (0,))
        place, row = _place_of_largest(column, state.position, k)
        pivot = _at(column, row)
        pivot_row = lax.squeeze(lax.dynamic_slice_in_dim(by_column, row, 1, 1), (1,))
        # As in LAPACK, a column of zeros stays what it is: U is singular, L is not.
        multipliers = where(lax.ne(pivot, zero), column / pivot, column)
        moved = where(state.position == k, place, state.position)
        position = where(row_index == row, k, moved)
        swaps = where(column_index == j, place, state.swaps)
        return _Panel(by_column, pivot_row, multipliers, position, swaps)

    by_column = lax.transpose(a, (1, 0))
    zeros = lax.full((n,), 0, a.dtype), lax.full((m,), 0, a.dtype)
    state = _Panel(by_column, *zeros, row_index, lax.full((n,), 0, np.int32))
    state = loop(count, eliminate, state)
    by_column = update(int32(count), state)
    order = lax.full_like(row_index, 0)
    order = order.at[state.position].set(row_index, mode="promise_in_bounds", unique_indices=True)
    return _take_rows(lax.transpose(by_column, (1, 0)), order), state.swaps, order


class _Panel(NamedTuple):
    """Columns on the way to L and U, with the last step still to be subtracted.

    columns: [n, m], column by column, rows where they were.
    pivot_row: [n], the row that the last step chose.
    multipliers: [m], of that row, for each of the rows.
    position: [m], the place of each row.
    swaps: [n], the place that each step swapped with.
    """

    columns: Any
    pivot_row: Any
    multipliers: Any
    position: Any
    swaps: Any


def _place_of_largest(column: Any, position: Any, k: Any) -> tuple[Any, Any]:
    """Finds an entry [m] of the largest size: its place, the first one from k on, and its row."""
    # LAPACK's measure of a complex number too.
    size = (
        lax.abs(lax.real(column)) + lax.abs(lax.imag(column))
        if is_complex(column)
        else lax.abs(column)
    )
    # As integers, which XLA compares fast, the bits of positive floats have the same order (with
    # NaN at the end).
    dtype = np.dtype(f"int{8 * size.dtype.itemsize}")
    bits = where(position >= k, lax.bitcast_convert_type(size, dtype), -1)

    def first_larger(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
        is_first = (x[0] > y[0]) | ((x[0] == y[0]) & (x[1] < y[1]))
        return tuple(lax.select(is_first, *pair) for pair in zip(x, y, strict=True))

    # One reduction is one kernel, where two on vectors are six.
    candidates = bits, position, lax.iota(np.int32, column.shape[0])
    least = np.array(-1, dtype), np.int32(np.iinfo(np.int32).max), np.int32(0)
    _, place, row = lax.reduce(candidates, least, first_larger, (0,))
    return place, row


def _at(x: Any, i: Any) -> Any:
    return lax.squeeze(lax.dynamic_slice_in_dim(x, i, 1, 0), (0,))


def _take_rows(a: Any, order: Any) -> Any:
    return a.at[order].get(mode="promise_in_bounds", unique_indices=True)


def _below(a: Any, start: int, rest: Any) -> Any:
    """Replaces everything of `a` from row `start` on."""
    return rest if start == 0 else lax.concatenate([a[:start], rest], 0)
