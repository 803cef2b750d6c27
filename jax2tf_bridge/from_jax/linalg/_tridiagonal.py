"""Reduction of a Hermitian matrix to a tridiagonal one by Householder reflections."""

from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    below_diagonal,
    block_size,
    columns,
    diagonal,
    epsilon,
    eye_like,
    is_complex,
    loop,
    matmul,
    real,
    rows,
    where,
)

_HIGHEST = lax.Precision.HIGHEST


class Panel(NamedTuple):
    """Reflections H_1 H_2 ... of one panel of columns, H_i = I - v_i v_i^H.

    start: the first row and column of the matrix that they act on.
    vectors: the v_i as columns [n - start, width], v_i^H v_i = 2, or 0 where none is needed.
    """

    start: int
    vectors: Any


def tridiagonalize(a: Any) -> tuple[Any, Any, list[Panel]]:
    """Computes A = Q T Q^H for a Hermitian a [n, n], n > 1.

    The entries of `a` must be of the order of 1.

    Returns:
      The diagonal of T, real [n]; its subdiagonal [n - 1], of the dtype of `a`; the panels of Q.
    """
    n = a.shape[0]
    width = block_size(n, 32, 4)
    diagonals, off_diagonals, panels = [], [], []
    for start in range(0, n - 1, width):
        size = min(width, n - 1 - start)
        vectors, products, below = _reduce_panel(a, size)
        panels.append(Panel(start, vectors))
        product = matmul(vectors, adjoint(products))
        a = a - product - adjoint(product)
        diagonals.append(real(diagonal(a[:size, :size])))
        off_diagonals.append(below)
        a = a[size:, size:]
    diagonals.append(real(diagonal(a)))
    return lax.concatenate(diagonals, 0), lax.concatenate(off_diagonals, 0), panels


def _reduce_panel(a: Any, width: int) -> tuple[Any, Any, Any]:
    """Makes the first `width` columns of `a` [n, n] tridiagonal; `a` itself stays as it is.

    Returns V [n, width] and W with T = a - V W^H - W V^H, and the subdiagonal of T.
    """
    n = a.shape[0]
    index = lax.iota(np.int32, n)
    steps = lax.iota(np.int32, width)
    zero = np.zeros((), a.dtype)
    negligible = epsilon(a.dtype) ** 4
    conj = lax.conj if is_complex(a) else (lambda x: x)

    def dot(x: Any, y: Any) -> Any:
        return lax.dot(x, y, precision=_HIGHEST)

    def step(k: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        v_all, w_all, below = state
        # The column as the reflections so far have left it.
        v_row = conj(lax.squeeze(lax.dynamic_slice_in_dim(v_all, k, 1, 0), (0,)))
        w_row = conj(lax.squeeze(lax.dynamic_slice_in_dim(w_all, k, 1, 0), (0,)))
        column = lax.squeeze(lax.dynamic_slice_in_dim(a, k, 1, 1), (1,))
        column = column - dot(v_all, w_row) - dot(w_all, v_row)
        x = where(lax.gt(index, k), column, zero)

        head = lax.squeeze(lax.dynamic_slice_in_dim(x, k + 1, 1, 0), (0,))
        size = lax.abs(head)
        one = np.ones((), size.dtype)
        tail = where(lax.gt(index, k + 1), x, zero)
        tail_squared = real(dot(conj(tail), tail))
        # Tridiagonal in this column already. The squares of what is this small underflow, and a
        # reflection made of them would not be unitary.
        trivial = lax.le(tail_squared, np.array(negligible, size.dtype))
        norm = lax.sqrt(size * size + tail_squared)
        nonzero = lax.gt(size, 0 * one)
        divisor = lax.convert_element_type(where(nonzero, size, one), a.dtype)
        phase = where(nonzero, head / divisor, np.ones((), a.dtype))
        new = where(trivial, head, -phase * lax.convert_element_type(norm, a.dtype))
        # Scaled so that v^H v = 2: then tau is 1.
        half = lax.convert_element_type(where(trivial, one, norm * (norm + size)), a.dtype)
        v = where(lax.eq(index, k + 1), x - new, x) / lax.sqrt(half)
        v = where(trivial, lax.full_like(v, 0), v)

        p = dot(a, v) - dot(v_all, dot(conj(lax.transpose(w_all, (1, 0))), v))
        p = p - dot(w_all, dot(conj(lax.transpose(v_all, (1, 0))), v))
        half = lax.convert_element_type(real(dot(conj(v), p)), a.dtype) * np.array(0.5, a.dtype)
        w = p - half * v
        here = lax.eq(steps, k)
        v_all = where(rows(here), columns(v), v_all)
        w_all = where(rows(here), columns(w), w_all)
        return v_all, w_all, where(here, new, below)

    zeros = lax.full((n, width), 0, a.dtype)
    start = (zeros, zeros, lax.full((width,), 0, a.dtype))
    return loop(width, step, start)


def apply_reflections(panels: list[Panel], z: Any) -> Any:
    """Computes Q z for z [n, k] and the Q of `tridiagonalize`."""
    for panel in reversed(panels):
        vectors = panel.vectors
        gram = matmul(adjoint(vectors), vectors)
        width = gram.shape[0]
        # H_1 ... H_k = I - V T V^H, and the inverse of T is upper triangular: ones on its
        # diagonal, the products of the v above it.
        inverse = where(below_diagonal(width) < 0, gram, eye_like(gram, width, width))
        rest = z[panel.start :]
        product = matmul(adjoint(vectors), rest)
        product = lax.linalg.triangular_solve(inverse, product, left_side=True, lower=False)
        rest = rest - matmul(vectors, product)
        z = rest if panel.start == 0 else lax.concatenate([z[: panel.start], rest], 0)
    return z
