"""Reduction of a Hermitian matrix to a tridiagonal one by Householder reflections."""

from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    below_diagonal,
    columns,
    diagonal,
    epsilon,
    eye_like,
    int32,
    is_complex,
    loop,
    matmul,
    multiple_of,
    real,
    resize,
    rows,
    sizes_known,
    where,
)

_HIGHEST = lax.Precision.HIGHEST

# Columns of a panel.
_WIDTH = 32
# With more rows, a matrix of known size is halved once half of its columns are done.
_LARGEST_STAGE = 128


class Stage(NamedTuple):
    """Reflections H_1 H_2 ... of panels of columns, H_i = I - v_i v_i^H.

    start: the first row and column of the matrix that they act on.
    vectors: the v_i as columns, by panel [panels, n - start or more, width]; v_i^H v_i = 2, or 0
      where none is needed.
    """

    start: int
    vectors: Any


def tridiagonalize(a: Any) -> tuple[Any, Any, list[Stage]]:
    """Computes A = Q T Q^H for a Hermitian a [n, n], n > 1 or symbolic.

    The entries of `a` must be of the order of 1.

    Returns:
      The diagonal of T, real [n]; its subdiagonal [n - 1], of the dtype of `a`; the stages of Q.
    """
    n = a.shape[0]
    diagonals, off_diagonals, stages = [], [], []
    start = 0
    if sizes_known(n) and n > _LARGEST_STAGE:
        count = n // (2 * _WIDTH)
        a, below, vectors = _reduce_panels(a, count, _WIDTH)
        stages.append(Stage(start, vectors))
        end = count * _WIDTH
        diagonals.append(real(diagonal(a[:end, :end])))
        off_diagonals.append(below)
        a = a[end:, end:]
        start = end
    left = n - start
    width = min(_WIDTH, left) if sizes_known(left) else _WIDTH
    padded = multiple_of(width, left)
    a, below, vectors = _reduce_panels(resize(a, (padded, padded)), padded // width, width)
    stages.append(Stage(start, vectors))
    diagonals.append(resize(real(diagonal(a)), (left,)))
    off_diagonals.append(resize(below, (left - 1,)))
    return lax.concatenate(diagonals, 0), lax.concatenate(off_diagonals, 0), stages


def _reduce_panels(a: Any, count: Any, width: int) -> tuple[Any, Any, Any]:
    """Makes the first `count` panels of columns of `a` [n, n] tridiagonal.

    Returns:
      Q^H A Q, of which only the diagonal is right in these columns; the subdiagonal in them; the
      vectors of a Stage.
    """
    n = a.shape[0]

    def reduce(p: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, off_diagonal, panels = state
        start = p * np.int32(width)
        vectors, products, below = _reduce_panel(a, width, start)
        product = matmul(vectors, adjoint(products))
        panels = lax.dynamic_update_slice_in_dim(panels, lax.expand_dims(vectors, (0,)), p, 0)
        off_diagonal = lax.dynamic_update_slice_in_dim(off_diagonal, below, start, 0)
        return a - product - adjoint(product), off_diagonal, panels

    panels = lax.full((count, n, width), 0, a.dtype)
    return loop(count, reduce, (a, lax.full((count * width,), 0, a.dtype), panels))


def _reduce_panel(a: Any, width: int, start: Any) -> tuple[Any, Any, Any]:
    """Makes `width` columns of `a` [n, n] from `start` on tridiagonal; `a` stays as it is.

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
        here = lax.eq(steps, k)
        k = start + k
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
        v_all = where(rows(here), columns(v), v_all)
        w_all = where(rows(here), columns(w), w_all)
        return v_all, w_all, where(here, new, below)

    zeros = lax.full((n, width), 0, a.dtype)
    initial = (zeros, zeros, lax.full((width,), 0, a.dtype))
    return loop(width, step, initial)


def apply_reflections(stages: list[Stage], z: Any) -> Any:
    """Computes Q z for z [n, k] and the Q of `tridiagonalize`."""
    for stage in reversed(stages):
        rest = z[stage.start :] if stage.start else z
        shape = rest.shape
        padded = resize(rest, (stage.vectors.shape[1], shape[1]))
        rest = resize(apply_panels(stage.vectors, padded), shape)
        z = lax.concatenate([z[: stage.start], rest], 0) if stage.start else rest
    return z


def apply_panels(panels: Any, z: Any) -> Any:
    """Computes H_1 H_2 ... z for the vectors [panels, n, width] of reflections, and z [n, k]."""
    count = panels.shape[0]

    def apply(step: Any, z: Any) -> Any:
        place = int32(count) - np.int32(1) - step
        return _apply_panel(lax.squeeze(lax.dynamic_slice_in_dim(panels, place, 1, 0), (0,)), z)

    return loop(count, apply, z)


def _apply_panel(vectors: Any, z: Any) -> Any:
    """Computes H_1 H_2 ... z for the vectors [n, width] of the reflections, and z [n, k]."""
    gram = matmul(adjoint(vectors), vectors)
    width = gram.shape[0]
    # H_1 ... H_k = I - V T V^H, and the inverse of T is upper triangular: ones on its diagonal,
    # the products of the v above it.
    inverse = where(below_diagonal(width) < 0, gram, eye_like(gram, width, width))
    product = matmul(adjoint(vectors), z)
    product = lax.linalg.triangular_solve(inverse, product, left_side=True, lower=False)
    return z - matmul(vectors, product)


def running_phases(e: Any) -> Any:
    """Returns unit numbers p [n] with p_0 = 1 and p_{k+1} / p_k the phase of e_k [n - 1]."""
    size = lax.abs(e)
    nonzero = size > 0
    one = np.ones((), e.dtype)
    steps = where(nonzero, e / lax.convert_element_type(where(nonzero, size, 1), e.dtype), one)
    n = e.shape[0] + 1
    steps = resize(steps, (n,))  # of which one is a part, also where n is 1

    def follow(k: Any, phases: Any) -> Any:
        step = lax.dynamic_slice_in_dim(steps, k, 1, 0)
        phase = lax.dynamic_slice_in_dim(phases, k, 1, 0) * step
        phase = phase / lax.convert_element_type(lax.abs(phase), e.dtype)
        return lax.dynamic_update_slice_in_dim(phases, phase, k + np.int32(1), 0)

    return loop(e.shape[0], follow, lax.full((n,), 1, e.dtype))
