"""Reduction of a square matrix to a bidiagonal one by Householder reflections from both sides."""

from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    RowMatrix,
    are_sizes_known,
    conj,
    loop,
    matmul,
    real,
    resize,
    round_up_to_multiple,
    rows,
    where,
)
from jax2tf_bridge.from_jax.linalg._tridiagonal import make_reflection

# Number of columns in a panel.
_PANEL_WIDTH = 16


class Bidiagonal(NamedTuple):
    """A = P B Q^H with an upper bidiagonal B.

    d: the diagonal of B [n].
    e: the superdiagonal of B [n - 1].
    left, right: the reflection vectors of P and Q [panels, width, padded n]. `apply_panels` takes
      them with a z that is padded to as many rows.
    """

    d: Any
    e: Any
    left: Any
    right: Any


class _Panel(NamedTuple):
    """Reflections that reduce some columns and rows of A to A - sum_i (v_i y_i^H + x_i u_i^H).

    left: v_0, x_0, v_1, x_1, ... as rows [2 width, n].
    right: y_0, u_0, y_1, u_1, ... as rows [2 width, n].
    d, e: [width], the diagonal and superdiagonal of these columns and rows.
    """

    left: RowMatrix
    right: RowMatrix
    d: Any
    e: Any


def bidiagonalize(a: Any) -> Bidiagonal:
    """Reduces a [n, n], n >= 1 or symbolic, whose entries must be of order 1."""
    n = a.shape[0]
    width = min(_PANEL_WIDTH, n) if are_sizes_known(n) else _PANEL_WIDTH
    padded = round_up_to_multiple(width, n)
    count = padded // width

    def reduce(p: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        a, d, e, lefts, rights = state
        start = p * np.int32(width)
        panel = _reduce_panel(a, width, start)
        left, right = panel.left.whole(), panel.right.whole()
        a = a - matmul(lax.transpose(left, (1, 0)), conj(right))
        d = lax.dynamic_update_slice_in_dim(d, panel.d, start, 0)
        e = lax.dynamic_update_slice_in_dim(e, panel.e, start, 0)
        lefts = lax.dynamic_update_slice_in_dim(lefts, _take_every_other(left, 0), p, 0)
        rights = lax.dynamic_update_slice_in_dim(rights, _take_every_other(right, 1), p, 0)
        return a, d, e, lefts, rights

    entries = lax.full((padded,), 0, a.dtype)
    panels = lax.full((count, width, padded), 0, a.dtype)
    start = (resize(a, (padded, padded)), entries, entries, panels, panels)
    _, d, e, left, right = loop(count, reduce, start)
    return Bidiagonal(resize(d, (n,)), resize(e, (n - 1,)), left, right)


def _take_every_other(pairs: Any, first: int) -> Any:
    """Returns rows first, first + 2, ... of [2 width, n], as [1, width, n]."""
    by_pair = lax.reshape(pairs, (pairs.shape[0] // 2, 2, pairs.shape[1]))
    return lax.expand_dims(lax.index_in_dim(by_pair, first, 1, keepdims=False), (0,))


def _reduce_panel(a: Any, width: int, start: Any) -> _Panel:
    """Finds the reflections that reduce `width` columns and rows of `a` [n, n] from `start` on."""
    n = a.shape[0]
    index = rows(lax.iota(np.int32, n))
    positions = rows(lax.iota(np.int32, 2 * width))
    steps = lax.iota(np.int32, width)
    matrix = RowMatrix.of(a)

    def step(j: Any, panel: _Panel) -> _Panel:
        k = start + j
        position = j * np.int32(2)
        left, right = panel.left, panel.right
        column = matrix.column(k) - left.times(conj(right.column(k)))
        column = where(index >= k, column, 0)
        # Stored among the vectors so that one product also computes its squared length.
        left = left.write(column, position)
        products = conj(left.times(conj(column), transposed=True))
        alpha, scale = make_reflection(_entry_at(column, k), real(_entry_at(products, position)))
        # v = (column - alpha e_k) scale; its products are linear in it, so they change alike.
        products = where(
            positions == position, 0, (products - alpha * conj(left.column(k))) * scale
        )
        y = conj(matrix.times(conj(column)) - conj(alpha) * matrix.row(k)) * scale
        y = y - right.times(products)
        left = left.write(where(index == k, column - alpha, column) * scale, position)
        right = right.write(y, position)

        # The conjugate, because this reflection acts on the matrix from the right.
        row = conj(matrix.row(k)) - right.times(conj(left.column(k)))
        k = k + np.int32(1)
        position = position + np.int32(1)
        row = where(index >= k, row, 0)
        right = right.write(row, position)
        products = conj(right.times(conj(row), transposed=True))
        beta, scale = make_reflection(_entry_at(row, k), real(_entry_at(products, position)))
        products = where(
            positions == position, 0, (products - beta * conj(right.column(k))) * scale
        )
        x = (matrix.times(row, transposed=True) - beta * matrix.column(k)) * scale
        x = x - left.times(products)
        left = left.write(x, position)
        right = right.write(where(index == k, row - beta, row) * scale, position)
        d = where(steps == j, lax.reshape(alpha, (1,)), panel.d)
        e = where(steps == j, lax.reshape(conj(beta), (1,)), panel.e)
        return _Panel(left, right, d, e)

    empty = RowMatrix.of(lax.full((2 * width, n), 0, a.dtype))
    entries = lax.full((width,), 0, a.dtype)
    return loop(width, step, _Panel(empty, empty, entries, entries))


def _entry_at(x: Any, k: Any) -> Any:
    return lax.dynamic_slice_in_dim(x, k, 1, 1)
