"""LU and Cholesky decompositions, and solvers of triangular and tridiagonal systems."""

import functools
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    abs1,
    adjoint,
    are_sizes_known,
    broadcast,
    cast_like,
    choose_block_width,
    columns,
    conj,
    epsilon,
    eye_like,
    int32,
    loop,
    matmul,
    max_over,
    pad_zeros,
    real,
    resize,
    round_up_to_multiple,
    rows,
    take_at,
    transpose,
    vmap_matrices,
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
    packed, swaps, permutation = vmap_matrices(function, a)
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
        column = take_at(by_column, j, 0)
        pivot_position, row = _find_pivot(column, state.position, k)
        pivot = take_at(column, row, 0)
        pivot_row = take_at(by_column, row, 1)
        # A column of zeros is kept, as in LAPACK: U is singular, L is not.
        multipliers = where(lax.ne(pivot, zero), column / pivot, column)
        new_position = where(state.position == k, pivot_position, state.position)
        position = where(row_index == row, k, new_position)
        swaps = where(column_index == j, pivot_position, state.swaps)
        return _LUPanel(by_column, pivot_row, multipliers, position, swaps)

    by_column = transpose(a)
    zeros = lax.full((n,), 0, a.dtype), lax.full((m,), 0, a.dtype)
    state = _LUPanel(by_column, *zeros, row_index, lax.full((n,), 0, np.int32))
    state = loop(count, eliminate, state)
    by_column = update(int32(count), state)
    order = lax.full_like(row_index, 0)
    order = order.at[state.position].set(row_index, mode="promise_in_bounds", unique_indices=True)
    return _take_rows(transpose(by_column), order), state.swaps, order


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
    size = abs1(column)
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


def _take_rows(a: Any, order: Any) -> Any:
    return a.at[order].get(mode="promise_in_bounds", unique_indices=True)


def _replace_rows_from(a: Any, start: int, rest: Any) -> Any:
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
        above = [*[(0, 0, 0)] * (a.ndim - 2), (start, 0, 0), (0, 0, 0)]
        panels.append(pad_zeros(lax.concatenate(panel, a.ndim - 2), above))
    result = lax.concatenate(panels, a.ndim - 1)
    # NaN is not above zero, so a NaN pivot fails the test too.
    definite = lax.reduce_and(lax.concatenate(pivot_blocks, a.ndim - 2) > 0, (a.ndim - 2,))
    return where(columns(columns(definite)), result, np.nan)


def _factor_block(a: Any) -> tuple[Any, Any, Any]:
    """Returns the Cholesky factor of a small matrix, the factor's inverse, and the pivots.

    Eliminates [a | I] column by column, which leaves the factor on the left and its inverse on the
    right.
    """
    n = a.shape[-1]
    index = lax.iota(np.int32, n)

    def eliminate(k: Any, state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        remaining, factor, inverse, pivots = state
        is_pivot = index == k
        column = take_at(remaining, k, a.ndim - 1)
        pivot = real(lax.dynamic_slice_in_dim(column, k, 1, a.ndim - 2))
        scale = cast_like(lax.rsqrt(pivot), a)
        column = where(index >= k, column * scale, 0)
        below = where(is_pivot, 0, column)
        row = lax.dynamic_slice_in_dim(inverse, k, 1, a.ndim - 2) * columns(scale)
        factor = where(rows(is_pivot), columns(column), factor)
        remaining = remaining - columns(below) * rows(conj(below))
        inverse = where(columns(is_pivot), row, inverse - columns(below) * row)
        return remaining, factor, inverse, where(is_pivot, pivot, pivots)

    pivots = lax.full_like(real(a[..., 0]), 1)
    start = (a, lax.full_like(a, 0), eye_like(a, n, n), pivots)
    _, factor, inverse, pivots = loop(n, eliminate, start)
    return factor, inverse, pivots


# Number of rows that a step solves; a single XLA kernel does their scalar arithmetic.
_STEP_ROWS = 4

# In these ranges, substitution is faster on CPU than XLA's expansion of the operation, which
# inverts blocks of 128 rows. Measured with 3 to 1024 rows, 1 to 64 right-hand sides, and 1 to 2000
# matrices.
_MAX_ROWS = 512
_MAX_RIGHT_HAND_SIDES = 4
_MIN_ROWS_IN_BATCHES = 24

# 16-bit dtypes are left out, because rounding at each step would lose digits.
_DTYPES = ("float32", "float64", "complex64", "complex128")


def is_substitution_fast(a: Any, b: Any, *, left_side: bool) -> bool:
    """Returns whether `triangular_solve` is the faster choice for these shapes and dtypes."""
    n, count = a.shape[-1], b.shape[-1 if left_side else -2]
    if not are_sizes_known(n, count) or a.dtype.name not in _DTYPES:
        return False
    min_rows = 1 if a.ndim == 2 else _MIN_ROWS_IN_BATCHES
    counts = range(1, _MAX_RIGHT_HAND_SIDES + 1)
    return n in range(min_rows, _MAX_ROWS + 1) and count in counts


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> Any:
    """Implements lax.linalg.triangular_solve for a [..., n, n] with a known n.

    Each step solves a few rows and subtracts them from all rows. This also changes the rows that
    are solved already, but they are not read again. So the other triangle may have any values.
    """
    n, axis = a.shape[-1], a.ndim - 1
    a = conj(a) if conjugate_a else a
    # Right-hand sides are stored as rows, which are contiguous: X M = Y, with M = A or A^T.
    transposed = transpose_a != left_side
    forward = lower == transposed
    rest = n % _STEP_ROWS
    scales = None if unit_diagonal else rows(1 / _take_diagonal(a))

    def solve(start: Any, width: int, state: tuple[Any, Any]) -> tuple[Any, Any]:
        y, x = state
        panel = lax.dynamic_slice_in_dim(a, start, width, axis if transposed else axis - 1)
        panel = transpose(panel) if transposed else panel
        take = functools.partial(
            lax.dynamic_slice_in_dim, start_index=start, slice_size=width, axis=axis
        )
        block, right, block_scales = take(panel), take(y), None if scales is None else take(scales)
        solved: dict[int, Any] = {}
        for i in range(width) if forward else reversed(range(width)):
            value = _take_column(right, i)
            for j, solution in solved.items():
                value = lax.sub(value, _multiply(solution, _take_column(_take_row(block, j), i)))
            solved[i] = (
                value if block_scales is None else _multiply(value, _take_column(block_scales, i))
            )
        for j, solution in solved.items():
            y = lax.sub(y, _multiply(solution, _take_row(panel, j)))
        values = lax.concatenate([solved[i] for i in range(width)], axis)
        return y, lax.dynamic_update_slice_in_dim(x, values, start, axis)

    def step(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        offset = k * np.int32(_STEP_ROWS)
        start = rest + offset if forward else np.int32(n - rest - _STEP_ROWS) - offset
        return solve(start, _STEP_ROWS, state)

    y = transpose(b) if left_side else b
    state = (y, lax.full_like(y, 0))
    if rest:
        state = solve(0 if forward else n - rest, rest, state)
    if n >= _STEP_ROWS:
        state = loop(n // _STEP_ROWS, step, state)
    x = state[1]
    return transpose(x) if left_side else x


def _multiply(a: Any, b: Any) -> Any:
    """Multiplies elementwise, and broadcasts only if the shapes differ."""
    if a.shape != b.shape:
        shape = lax.broadcast_shapes(a.shape, b.shape)
        a, b = broadcast(a, shape), broadcast(b, shape)
    return lax.mul(a, b)


def _take_diagonal(a: Any) -> Any:
    n = a.shape[-1]
    flat = lax.reshape(a, (*a.shape[:-2], n * n))
    return lax.slice_in_dim(flat, 0, n * n, n + 1, axis=flat.ndim - 1)


def _take_row(a: Any, i: int) -> Any:
    return lax.slice_in_dim(a, i, i + 1, axis=a.ndim - 2)


def _take_column(a: Any, i: int) -> Any:
    return lax.slice_in_dim(a, i, i + 1, axis=a.ndim - 1)


def tridiagonal_solve(
    dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False, **params: Any
) -> Any:
    """Solves A X = b for subdiagonal, diagonal and superdiagonal [..., m] and b [..., m, k].

    dl[..., 0] and du[..., -1] are not read. A singular A gives NaN throughout. With
    `perturb_singular`, pivots below a rounding error of the largest entry of U are raised to it.
    """
    del params
    m = d.shape[-1]
    if not are_sizes_known(m):
        dl, d, du, b = _append_row(dl, d, du, b)
    batch = d.ndim - 1
    dl, d, du = (columns(lax.transpose(x, (batch, *range(batch)))) for x in (dl, d, du))
    b = lax.transpose(b, (batch, *range(batch), batch + 1))
    du = lax.concatenate([du[:-1], lax.full_like(du[-1:], 0)], 0)

    def eliminate(carry: Any, following: Any) -> tuple[Any, Any]:
        diagonal, above, right = carry
        below, next_diagonal, next_above, next_right = following
        keep = lax.abs(diagonal) >= lax.abs(below)
        zero = lax.full_like(above, 0)
        pivot_row = (
            where(keep, diagonal, below),
            where(keep, above, next_diagonal),
            where(keep, zero, next_above),
            where(keep, right, next_right),
        )
        eliminated_row = (
            where(keep, below, diagonal),
            where(keep, next_diagonal, above),
            where(keep, next_above, zero),
            where(keep, next_right, right),
        )
        factor = where(eliminated_row[0] == 0, 0, eliminated_row[0] / pivot_row[0])
        reduced = tuple(
            x - factor * y for x, y in zip(eliminated_row[1:], pivot_row[1:], strict=True)
        )
        return reduced, pivot_row

    (last, _, last_right), upper = lax.scan(
        eliminate, (d[0], du[0], b[0]), (dl[1:], d[1:], du[1:], b[1:])
    )

    if perturb_singular:
        last, upper = _raise_tiny_pivots(last, upper)

    def substitute(carry: Any, row: Any) -> tuple[Any, Any]:
        following, second = carry
        diagonal, above, second_above, right = row
        x = (right - above * following - second_above * second) / diagonal
        return (x, following), x

    end = last_right / last
    _, x = lax.scan(substitute, (end, lax.full_like(end, 0)), upper, reverse=True)
    x = lax.concatenate([x, lax.expand_dims(end, (0,))], 0)
    pivots = lax.concatenate([upper[0], lax.expand_dims(last, (0,))], 0)
    solvable = lax.reduce_and(pivots != 0, (0,))
    x = where(solvable, x, np.nan)
    x = lax.transpose(x, (*range(1, batch + 1), 0, batch + 1))
    return resize(x, (*x.shape[:-2], m, x.shape[-1]))


def _append_row(dl: Any, d: Any, du: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """Adds an independent equation, so that the scans are never over an empty axis.

    Its pivot is the largest entry, which does not change the bound for tiny pivots.
    """
    m = d.shape[-1]
    du = where(lax.iota(np.int32, m) == int32(m) - np.int32(1), 0, du)
    longer = (*d.shape[:-1], m + 1)
    sizes = lax.max(lax.max(lax.abs(dl), lax.abs(du)), lax.abs(d))
    largest = max_over(sizes, d.ndim - 1)
    pivot = cast_like(where(largest > 0, largest, 1), d)
    dl, d, du = (resize(x, longer) for x in (dl, d, du))
    d = where(lax.iota(np.int32, m + 1) == int32(m), columns(pivot), d)
    return dl, d, du, resize(b, (*b.shape[:-2], m + 1, b.shape[-1]))


def _raise_tiny_pivots(last: Any, upper: Any) -> tuple[Any, Any]:
    """Raises pivots below a rounding error of U to that error, and keeps their signs."""
    sizes = [lax.abs(x) for x in (*upper[:3], lax.expand_dims(last, (0,)))]
    real = sizes[0].dtype
    largest = functools.reduce(lax.max, [max_over(x, 0) for x in sizes])
    tiny = lax.max(largest * epsilon(real), np.array(np.finfo(real).tiny, real))

    def raise_pivot(pivot: Any) -> Any:
        size = lax.abs(pivot)
        sign = where(size == 0, 1, lax.sign(pivot))
        return where(size < tiny, sign * cast_like(tiny, pivot), pivot)

    return raise_pivot(last), (raise_pivot(upper[0]), *upper[1:])
