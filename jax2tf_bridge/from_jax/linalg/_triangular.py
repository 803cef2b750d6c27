"""Triangular systems with few right-hand sides, by substitution."""

import functools
from typing import Any

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import broadcast, conj, loop, rows, sizes_known

# Rows that a step solves: one kernel of XLA's does their arithmetic on single numbers.
_WIDTH = 4

# Where substitution is faster on CPU than XLA's expansion of the operation, which inverts blocks
# of 128 rows: measured between 3 and 1024 rows, 1 and 64 right-hand sides, 1 and 2000 matrices.
_MOST_ROWS = 512
_MOST_RIGHT_HAND_SIDES = 4
_LEAST_ROWS_IN_BATCHES = 24

# Of 16 bits, what is rounded at each step loses digits.
_DTYPES = ("float32", "float64", "complex64", "complex128")


def substitution_is_fast(a: Any, b: Any, *, left_side: bool) -> bool:
    """Checks that `triangular_solve` is for systems of these shapes and dtypes."""
    n, count = a.shape[-1], b.shape[-1 if left_side else -2]
    if not sizes_known(n, count) or a.dtype.name not in _DTYPES:
        return False
    least = 1 if a.ndim == 2 else _LEAST_ROWS_IN_BATCHES
    few = range(1, _MOST_RIGHT_HAND_SIDES + 1)
    return n in range(least, _MOST_ROWS + 1) and count in few


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
    """Computes what lax.linalg.triangular_solve does, for [..., n, n] of a known n.

    A step solves a few rows and subtracts them from all the others, those that are solved
    included: nothing reads these again, so that the other triangle may hold anything.
    """
    n, axis = a.shape[-1], a.ndim - 1
    swap = (*range(axis - 1), axis, axis - 1)
    # Right-hand sides are rows, which lie together in memory: X M = Y, with M = A or A^T.
    transposed = transpose_a != left_side
    forward = lower == transposed
    rest = n % _WIDTH
    scales = None if unit_diagonal else rows(1 / _conj_if(conjugate_a, _diagonal(a)))

    def solve(start: Any, width: int, state: tuple[Any, Any]) -> tuple[Any, Any]:
        y, x = state
        panel = lax.dynamic_slice_in_dim(a, start, width, axis if transposed else axis - 1)
        panel = _conj_if(conjugate_a, lax.transpose(panel, swap) if transposed else panel)
        cut = functools.partial(
            lax.dynamic_slice_in_dim, start_index=start, slice_size=width, axis=axis
        )
        block, right, here = cut(panel), cut(y), None if scales is None else cut(scales)
        solved: dict[int, Any] = {}
        for i in range(width) if forward else reversed(range(width)):
            value = _column(right, i)
            for j, known in solved.items():
                value = lax.sub(value, _product(known, _column(_row(block, j), i)))
            solved[i] = value if here is None else _product(value, _column(here, i))
        for j, known in solved.items():
            y = lax.sub(y, _product(known, _row(panel, j)))
        values = lax.concatenate([solved[i] for i in range(width)], axis)
        return y, lax.dynamic_update_slice_in_dim(x, values, start, axis)

    def step(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        offset = k * np.int32(_WIDTH)
        start = rest + offset if forward else np.int32(n - rest - _WIDTH) - offset
        return solve(start, _WIDTH, state)

    y = lax.transpose(b, swap) if left_side else b
    state = (y, lax.full_like(y, 0))
    if rest:
        state = solve(0 if forward else n - rest, rest, state)
    if n >= _WIDTH:
        state = loop(n // _WIDTH, step, state)
    x = state[1]
    return lax.transpose(x, swap) if left_side else x


def _product(a: Any, b: Any) -> Any:
    """Multiplies elementwise; broadcasts where it must."""
    if a.shape != b.shape:
        shape = lax.broadcast_shapes(a.shape, b.shape)
        a, b = broadcast(a, shape), broadcast(b, shape)
    return lax.mul(a, b)


def _diagonal(a: Any) -> Any:
    n = a.shape[-1]
    flat = lax.reshape(a, (*a.shape[:-2], n * n))
    return lax.slice_in_dim(flat, 0, n * n, n + 1, axis=flat.ndim - 1)


def _conj_if(conjugated: bool, a: Any) -> Any:
    return conj(a) if conjugated else a


def _row(a: Any, i: int) -> Any:
    return lax.slice_in_dim(a, i, i + 1, axis=a.ndim - 2)


def _column(a: Any, i: int) -> Any:
    return lax.slice_in_dim(a, i, i + 1, axis=a.ndim - 1)
