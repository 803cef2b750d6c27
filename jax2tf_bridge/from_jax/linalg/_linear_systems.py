"""Solves triangular systems by substitution, and tridiagonal ones by elimination."""

import functools
from typing import Any

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    are_sizes_known,
    broadcast,
    columns,
    conj,
    epsilon,
    int32,
    loop,
    resize,
    rows,
    where,
)

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
    swap = (*range(axis - 1), axis, axis - 1)
    # Right-hand sides are stored as rows, which are contiguous: X M = Y, with M = A or A^T.
    transposed = transpose_a != left_side
    forward = lower == transposed
    rest = n % _STEP_ROWS
    scales = None if unit_diagonal else rows(1 / _conj_if(conjugate_a, _take_diagonal(a)))

    def solve(start: Any, width: int, state: tuple[Any, Any]) -> tuple[Any, Any]:
        y, x = state
        panel = lax.dynamic_slice_in_dim(a, start, width, axis if transposed else axis - 1)
        panel = _conj_if(conjugate_a, lax.transpose(panel, swap) if transposed else panel)
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

    y = lax.transpose(b, swap) if left_side else b
    state = (y, lax.full_like(y, 0))
    if rest:
        state = solve(0 if forward else n - rest, rest, state)
    if n >= _STEP_ROWS:
        state = loop(n // _STEP_ROWS, step, state)
    x = state[1]
    return lax.transpose(x, swap) if left_side else x


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


def _conj_if(conjugated: bool, a: Any) -> Any:
    return conj(a) if conjugated else a


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
        other_row = (
            where(keep, below, diagonal),
            where(keep, next_diagonal, above),
            where(keep, next_above, zero),
            where(keep, next_right, right),
        )
        factor = where(other_row[0] == 0, 0, other_row[0] / pivot_row[0])
        reduced = tuple(x - factor * y for x, y in zip(other_row[1:], pivot_row[1:], strict=True))
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
    solvable = lax.reduce(pivots != 0, np.array(True), lax.bitwise_and, (0,))
    x = where(solvable, x, np.array(np.nan, x.dtype))
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
    largest = lax.reduce(sizes, np.zeros((), sizes.dtype), lax.max, (d.ndim - 1,))
    pivot = lax.convert_element_type(where(largest > 0, largest, 1), d.dtype)
    dl, d, du = (resize(x, longer) for x in (dl, d, du))
    d = where(lax.iota(np.int32, m + 1) == int32(m), columns(pivot), d)
    return dl, d, du, resize(b, (*b.shape[:-2], m + 1, b.shape[-1]))


def _raise_tiny_pivots(last: Any, upper: Any) -> tuple[Any, Any]:
    """Raises pivots that are smaller than a rounding error of U to that error, keeping signs."""
    sizes = [lax.abs(x) for x in (*upper[:3], lax.expand_dims(last, (0,)))]
    real = sizes[0].dtype
    entries = [lax.reduce(x, np.zeros((), real), lax.max, (0,)) for x in sizes]
    largest = functools.reduce(lax.max, entries)
    tiny = lax.max(largest * epsilon(real), np.array(np.finfo(real).tiny, real))

    def raise_pivot(pivot: Any) -> Any:
        size = lax.abs(pivot)
        one = np.array(1, pivot.dtype)
        sign = where(size == 0, one, lax.sign(pivot))
        return where(size < tiny, sign * lax.convert_element_type(tiny, pivot.dtype), pivot)

    return raise_pivot(last), (raise_pivot(upper[0]), *upper[1:])
