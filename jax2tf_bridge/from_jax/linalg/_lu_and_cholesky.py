"""LU and Cholesky decompositions in blocks of columns."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    are_sizes_known,
    choose_block_width,
    columns,
    eye_like,
    int32,
    is_complex,
    loop,
    matmul,
    real,
    resize,
    round_up_to_multiple,
    rows,
    where,
)

# Number of columns in a panel of a matrix of symbolic size.
_PANEL_WIDTH = 32


def lu(a: Any, *, rank: Any) -> tuple[Any, Any, Any]:
    """Computes PA = LU for a [..., m, n], packed like LAPACK's getrf; `rank` is min(m, n).

    Returns:
      L below the diagonal and U on and above it [..., m, n]; the row that each step swapped
      with, int32 [..., min(m, n)]; the permutation that the swaps result in, int32 [..., m].
    """
    known = are_sizes_known(*a.shape[-2:])
    function = _factor_static if known else functools.partial(_factor_symbolic, rank=rank)
    for _ in a.shape[:-2]:
        function = jax.vmap(function)
    packed, swaps, permutation = function(a)
    return packed, swaps, permutation


def _factor_static(a: Any) -> tuple[Any, Any, Any]:
    m, n = a.shape
    rank = min(m, n)
    width = choose_block_width(rank, 128)
    pivots = [np.zeros(0, np.int32)]
    permutation = lax.iota(np.int32, m)
    for start in range(0, rank, width):
        end = min(start + width, rank)
        panel, swaps, order = _factor_panel(a[start:, start:end])
        pivots.append(swaps + np.int32(start))
        permutation = _replace_rows_from(permutation, start, _take_rows(permutation[start:], order))
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
        a = _replace_rows_from(a, start, rest)
    return a, lax.concatenate(pivots, 0), permutation


def _factor_symbolic(a: Any, *, rank: Any) -> tuple[Any, Any, Any]:
    """Factors like `_factor_static`, but in a loop whose steps update the whole matrix."""
    m, n = a.shape
    padded = round_up_to_multiple(_PANEL_WIDTH, rank)
    a = resize(a, tuple(round_up_to_multiple(_PANEL_WIDTH, size) for size in (m, n)))
    row_index, column_index = (lax.iota(np.int32, size) for size in a.shape)

    def factor(p: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, swaps, permutation = state
        start = p * np.int32(_PANEL_WIDTH)
        end = start + np.int32(_PANEL_WIDTH)
        count = lax.min(int32(rank) - start, np.int32(_PANEL_WIDTH))
        panel = lax.dynamic_slice_in_dim(a, start, _PANEL_WIDTH, 1)
        panel, panel_swaps, order = _factor_panel(panel, start, count)
        swaps = lax.dynamic_update_slice(swaps, panel_swaps, (start,))
        permutation, a = _take_rows(permutation, order), _take_rows(a, order)
        a = lax.dynamic_update_slice_in_dim(a, panel, start, 1)
        beyond = rows(column_index >= end)
        lower = lax.dynamic_slice_in_dim(panel, start, _PANEL_WIDTH, 0)
        right = lax.dynamic_slice_in_dim(a, start, _PANEL_WIDTH, 0)
        solved = lax.linalg.triangular_solve(
            lower, right, left_side=True, lower=True, unit_diagonal=True
        )
        right = where(beyond, solved, right)
        a = lax.dynamic_update_slice_in_dim(a, right, start, 0)
        product = lax.dot(panel, right, precision=lax.Precision.HIGHEST)
        return where(beyond & columns(row_index >= end), a - product, a), swaps, permutation

    swaps = lax.full((padded,), 0, np.int32)
    a, swaps, permutation = loop(padded // _PANEL_WIDTH, factor, (a, swaps, row_index))
    return resize(a, (m, n)), resize(swaps, (rank,)), resize(permutation, (m,))


def _factor_panel(a: Any, start: Any = 0, count: Any = None) -> tuple[Any, Any, Any]:
    """Factors a tall panel [m, n] column by column.

    Columns are stored as rows, which are contiguous in memory. Rows are not swapped; the panel
    records their positions. Each step begins with the update of the step before, which lets XLA
    write to the panel in place.

    Args:
      a: the panel.
      start: the first row that is not factored yet, where the first column's pivot goes.
      count: the number of columns to factor, all by default.

    Returns:
      The factored panel, its swaps, and its row order.
    """
    m, n = a.shape
    row_index, column_index = lax.iota(np.int32, m), lax.iota(np.int32, n)
    count = n if count is None else count
    start = int32(start)
    zero = np.zeros((), a.dtype)

    def update(j: Any, state: _LUPanel) -> Any:
        """Subtracts the update of step j - 1."""
        below = rows(state.position >= start + j) & (j > 0)
        right = columns(column_index >= j)
        is_previous = columns(column_index == j - np.int32(1))
        difference = state.columns - columns(state.pivot_row) * rows(state.multipliers)
        changed = where(is_previous, rows(state.multipliers), difference)
        return where(below & (right | is_previous), changed, state.columns)

    def eliminate(j: Any, state: _LUPanel) -> _LUPanel:
        k = start + j
        by_column = update(j, state)
        column = lax.squeeze(lax.dynamic_slice_in_dim(by_column, j, 1, 0), (0,))
        pivot_position, row = _find_pivot(column, state.position, k)
        pivot = _entry_at(column, row)
        pivot_row = lax.squeeze(lax.dynamic_slice_in_dim(by_column, row, 1, 1), (1,))
        # A column of zeros is kept, as in LAPACK: U is singular, L is not.
        multipliers = where(lax.ne(pivot, zero), column / pivot, column)
        new_position = where(state.position == k, pivot_position, state.position)
        position = where(row_index == row, k, new_position)
        swaps = where(column_index == j, pivot_position, state.swaps)
        return _LUPanel(by_column, pivot_row, multipliers, position, swaps)

    by_column = lax.transpose(a, (1, 0))
    zeros = lax.full((n,), 0, a.dtype), lax.full((m,), 0, a.dtype)
    state = _LUPanel(by_column, *zeros, row_index, lax.full((n,), 0, np.int32))
    state = loop(count, eliminate, state)
    by_column = update(int32(count), state)
    order = lax.full_like(row_index, 0)
    order = order.at[state.position].set(row_index, mode="promise_in_bounds", unique_indices=True)
    return _take_rows(lax.transpose(by_column, (1, 0)), order), state.swaps, order


class _LUPanel(NamedTuple):
    """A partly factored panel, whose last step is not subtracted yet.

    columns: [n, m], the columns, with rows in their original order.
    pivot_row: [n], the pivot row of the last step.
    multipliers: [m], the multiples of the pivot row to subtract from each row.
    position: [m], the position of each row after the swaps.
    swaps: [n], the position that each step swapped with.
    """

    columns: Any
    pivot_row: Any
    multipliers: Any
    position: Any
    swaps: Any


def _find_pivot(column: Any, position: Any, k: Any) -> tuple[Any, Any]:
    """Returns position and row of the largest entry of a column [m], at positions from k on."""
    # LAPACK measures complex numbers in the same way.
    size = (
        lax.abs(lax.real(column)) + lax.abs(lax.imag(column))
        if is_complex(column)
        else lax.abs(column)
    )
    # The bits of positive floats have the same order as integers (with NaN at the end), which XLA
    # compares fast.
    dtype = np.dtype(f"int{8 * size.dtype.itemsize}")
    bits = where(position >= k, lax.bitcast_convert_type(size, dtype), -1)

    def first_larger(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
        is_first = (x[0] > y[0]) | ((x[0] == y[0]) & (x[1] < y[1]))
        return tuple(lax.select(is_first, *pair) for pair in zip(x, y, strict=True))

    # A single reduction compiles to one kernel; two reductions with vector operations need six.
    candidates = bits, position, lax.iota(np.int32, column.shape[0])
    initial = np.array(-1, dtype), np.int32(np.iinfo(np.int32).max), np.int32(0)
    _, pivot_position, row = lax.reduce(candidates, initial, first_larger, (0,))
    return pivot_position, row


def _entry_at(x: Any, i: Any) -> Any:
    return lax.squeeze(lax.dynamic_slice_in_dim(x, i, 1, 0), (0,))


def _take_rows(a: Any, order: Any) -> Any:
    return a.at[order].get(mode="promise_in_bounds", unique_indices=True)


def _replace_rows_from(a: Any, start: int, rest: Any) -> Any:
    """Replaces the rows of `a` from `start` on."""
    return rest if start == 0 else lax.concatenate([a[:start], rest], 0)


def cholesky(a: Any) -> Any:
    """Computes the lower triangular L with L L^H = a [..., n, n].

    Only the lower triangle of `a` is read, and L is zero above the diagonal. A matrix that is not
    positive definite gives NaN throughout.
    """
    n = a.shape[-1]
    width = choose_block_width(n, 32)
    panels = []
    pivot_blocks = []
    trailing = a
    for start in range(0, n, width):
        size = min(width, n - start)
        block = trailing[..., :size, :size]
        factor, inverse, pivots = _factor_block(block)
        pivot_blocks.append(pivots)
        panel = [factor]
        if start + size < n:
            below = matmul(trailing[..., size:, :size], adjoint(inverse))
            panel.append(below)
            trailing = trailing[..., size:, size:] - matmul(below, adjoint(below))
        panels.append(_pad_above(lax.concatenate(panel, a.ndim - 2), start))
    result = lax.concatenate(panels, a.ndim - 1)
    # NaN is not above zero, so a NaN pivot fails the test too.
    definite = lax.reduce(
        lax.gt(lax.concatenate(pivot_blocks, a.ndim - 2), np.zeros((), pivot_blocks[0].dtype)),
        np.array(True),
        lax.bitwise_and,
        (a.ndim - 2,),
    )
    return where(columns(columns(definite)), result, np.array(np.nan, a.dtype))


def _factor_block(a: Any) -> tuple[Any, Any, Any]:
    """Returns the Cholesky factor of a small matrix, the factor's inverse, and the pivots.

    Eliminates [a | I] column by column, which leaves the factor on the left and its inverse on the
    right.
    """
    n = a.shape[-1]
    index = lax.iota(np.int32, n)
    zero = np.zeros((), a.dtype)

    def eliminate(k: Any, state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        remaining, factor, inverse, pivots = state
        is_pivot = lax.eq(index, k)
        column = lax.squeeze(lax.dynamic_slice_in_dim(remaining, k, 1, a.ndim - 1), (a.ndim - 1,))
        pivot = real(lax.dynamic_slice_in_dim(column, k, 1, a.ndim - 2))
        scale = lax.convert_element_type(lax.rsqrt(pivot), a.dtype)
        column = where(lax.ge(index, k), column * scale, zero)
        below = where(is_pivot, zero, column)
        row = lax.dynamic_slice_in_dim(inverse, k, 1, a.ndim - 2) * columns(scale)
        factor = where(rows(is_pivot), columns(column), factor)
        remaining = remaining - columns(below) * rows(lax.conj(below) if is_complex(a) else below)
        inverse = where(columns(is_pivot), row, inverse - columns(below) * row)
        return remaining, factor, inverse, where(is_pivot, pivot, pivots)

    pivots = lax.full_like(real(a[..., 0]), 1)
    start = (a, lax.full_like(a, 0), eye_like(a, n, n), pivots)
    _, factor, inverse, pivots = loop(n, eliminate, start)
    return factor, inverse, pivots


def _pad_above(panel: Any, count: int) -> Any:
    config = [(0, 0, 0)] * (panel.ndim - 2) + [(count, 0, 0), (0, 0, 0)]
    return lax.pad(panel, np.zeros((), panel.dtype), config)
