"""Reduction to tridiagonal and bidiagonal matrices by Householder reflections."""

from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    RowMatrix,
    adjoint,
    are_sizes_known,
    cast_like,
    conj,
    diagonal,
    distance_below_diagonal,
    epsilon,
    eye_like,
    int32,
    loop,
    matmul,
    real,
    resize,
    round_up_to_multiple,
    rows,
    take_at,
    transpose,
    unit_phase,
    where,
)

# Number of columns in a panel. Wider panels make each step slower; narrower ones update the matrix
# more often.
_PANEL_WIDTH = 16
# Number of panels that are applied to other vectors together.
_PANELS_PER_STEP = 4
# From this many rows on, a matrix of known size is cropped when half of its columns are reduced.
_MIN_CROPPED_ROWS = 512


class Stage(NamedTuple):
    """Reflections H_1 H_2 ... of panels of columns, H_i = I - v_i v_i^H.

    start: the first row and column of the matrix that they act on.
    vectors: the v_i as rows of each panel [panels, width, n - start or more]; v_i^H v_i is 2, or 0
      if no reflection is needed.
    """

    start: int
    vectors: Any


def tridiagonalize(a: Any) -> tuple[Any, Any, list[Stage]]:
    """Computes A = Q T Q^H for a Hermitian a [n, n], n > 1 or symbolic.

    The entries of `a` must be of order 1.

    Returns:
      The diagonal of T, real [n]; its subdiagonal [n - 1], of the dtype of `a`; the stages of Q.
    """
    n = a.shape[0]
    diagonals, off_diagonals, stages = [], [], []
    start = 0
    if are_sizes_known(n) and n >= _MIN_CROPPED_ROWS:
        count = n // (2 * _PANEL_WIDTH)
        a, below, vectors = _reduce_panels(a, count, _PANEL_WIDTH)
        stages.append(Stage(start, vectors))
        end = count * _PANEL_WIDTH
        diagonals.append(real(diagonal(a[:end, :end])))
        off_diagonals.append(below)
        a = a[end:, end:]
        start = end
    remaining = n - start
    width = min(_PANEL_WIDTH, remaining) if are_sizes_known(remaining) else _PANEL_WIDTH
    padded = round_up_to_multiple(width, remaining)
    a, below, vectors = _reduce_panels(resize(a, (padded, padded)), padded // width, width)
    stages.append(Stage(start, vectors))
    diagonals.append(resize(real(diagonal(a)), (remaining,)))
    off_diagonals.append(resize(below, (remaining - 1,)))
    return lax.concatenate(diagonals, 0), lax.concatenate(off_diagonals, 0), stages


def _reduce_panels(a: Any, count: Any, width: int) -> tuple[Any, Any, Any]:
    """Makes the first `count` panels of columns of `a` [n, n] tridiagonal.

    Returns:
      Q^H A Q, in whose first columns only the diagonal is valid; the subdiagonal of these columns;
      the vectors of a Stage.
    """
    n = a.shape[0]

    def reduce(p: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, off_diagonal, panels = state
        start = p * np.int32(width)
        pairs, below = _reduce_panel(a, width, start)
        pairs = pairs.whole()
        by_column = lax.reshape(pairs, (width, 2, n))
        exchanged = conj(lax.reshape(lax.rev(by_column, (1,)), (2 * width, n)))
        a = a - matmul(transpose(pairs), exchanged)
        panels = lax.dynamic_update_slice_in_dim(panels, _take_every_other(pairs, 0), p, 0)
        return a, lax.dynamic_update_slice_in_dim(off_diagonal, below, start, 0), panels

    panels = lax.full((count, width, n), 0, a.dtype)
    return loop(count, reduce, (a, lax.full((count * width,), 0, a.dtype), panels))


def _reduce_panel(a: Any, width: int, start: Any) -> tuple[RowMatrix, Any]:
    """Finds the reflections that make `width` columns of `a` [n, n] from `start` on tridiagonal.

    Vectors are stored as rows of one array, and each step writes its own in place. Products with
    them then read contiguous memory, and XLA copies nothing.

    Returns:
      Rows v_0, w_0, v_1, w_1, ... [2 width, n] with T = A - sum_i v_i w_i^H + w_i v_i^H, and the
      subdiagonal of T [width].
    """
    n = a.shape[0]
    index = rows(lax.iota(np.int32, n))
    steps = lax.iota(np.int32, width)
    matrix = RowMatrix.of(a)

    def exchange(coefficients: Any) -> Any:
        pairs = lax.reshape(coefficients, (width, 2))
        return lax.reshape(lax.rev(pairs, (1,)), (1, 2 * width))

    def step(j: Any, state: tuple[RowMatrix, Any]) -> tuple[RowMatrix, Any]:
        pairs, below = state
        position = j * np.int32(2)
        k = start + j
        # Applies the reflections so far to the column.
        column = conj(matrix.row(k)) - pairs.times(conj(exchange(pairs.column(k))))
        x = where(index > k, column, 0)
        k = k + np.int32(1)
        pairs, v, new, scale, products = _reflect(pairs, x, position, k)
        p = (matrix.times(x, transposed=True) - new * conj(matrix.row(k))) * scale
        p = p - pairs.times(exchange(products))
        half = real(matmul(p, adjoint(v)))
        half = half * np.array(0.5, half.dtype)
        w = p - cast_like(half, a) * v
        pairs = pairs.write(lax.concatenate([v, w], 0), position)
        return pairs, where(steps == j, lax.reshape(new, (1,)), below)

    empty = RowMatrix.of(lax.full((2 * width, n), 0, a.dtype))
    return loop(width, step, (empty, lax.full((width,), 0, a.dtype)))


def _reflect(
    vectors: RowMatrix, x: Any, position: Any, k: Any
) -> tuple[RowMatrix, Any, Any, Any, Any]:
    """Finds the reflection that maps x [1, n], which is 0 before entry k, to new e_k.

    Returns:
      The vectors [count, n], with x at `position`; v = (x - new e_k) scale, new and scale as in
      `make_reflection`; the products of the vectors with v [1, count], 0 at `position`.
    """
    # Stored among the vectors so that one product also computes its squared length.
    vectors = vectors.write(x, position)
    products = conj(vectors.times(conj(x), transposed=True))
    new, scale = make_reflection(_entry_at(x, k), real(_entry_at(products, position)))
    index, positions = (rows(lax.iota(np.int32, y.shape[1])) for y in (x, products))
    v = where(index == k, x - new, x) * scale
    # The products are linear in the vector, so they change alike.
    products = (products - new * conj(vectors.column(k))) * scale
    return vectors, v, new, scale, where(positions == position, 0, products)


def make_reflection(head: Any, squares: Any) -> tuple[Any, Any]:
    """Returns `new` and `scale` of the reflection that maps x to a multiple of a unit vector e.

    v = (x - new e) scale has v^H v = 2, and (I - v v^H) x = new e. If x is tiny, scale is 0. `head`
    is the first entry of x [1, 1], and `squares` is x^H x, real [1, 1].
    """
    # The squares of smaller numbers underflow, and the reflection would not be unitary.
    trivial = squares <= np.array(epsilon(head.dtype) ** 4, squares.dtype)
    norm = lax.sqrt(squares)
    new = where(trivial, head, -unit_phase(head) * cast_like(norm, head))
    scale = where(trivial, 0, lax.rsqrt(where(trivial, 1, squares + norm * lax.abs(head))))
    return new, cast_like(scale, head)


def apply_reflections(stages: list[Stage], z: Any) -> Any:
    """Computes Q z for z [n, k] and the Q of `tridiagonalize`."""
    for stage in reversed(stages):
        rest = z[stage.start :] if stage.start else z
        shape = rest.shape
        padded = resize(rest, (stage.vectors.shape[2], shape[1]))
        rest = resize(apply_panels(stage.vectors, padded), shape)
        z = lax.concatenate([z[: stage.start], rest], 0) if stage.start else rest
    return z


def apply_panels(panels: Any, z: Any) -> Any:
    """Computes H_1 H_2 ... z for the vectors [panels, width, n] of reflections, and z [n, k]."""
    count, width, n = panels.shape
    group = min(_PANELS_PER_STEP, count) if are_sizes_known(count) else _PANELS_PER_STEP
    padded = round_up_to_multiple(group, count)
    count = padded // group
    panels = lax.reshape(resize(panels, (padded, width, n)), (count, group * width, n))

    def apply(step: Any, z: Any) -> Any:
        position = int32(count) - np.int32(1) - step
        return _apply_panel(take_at(panels, position, 0), z)

    return loop(count, apply, z)


def _apply_panel(vectors: Any, z: Any) -> Any:
    """Computes H_1 H_2 ... z for the vectors [width, n] of the reflections, and z [n, k]."""
    gram = matmul(conj(vectors), transpose(vectors))
    width = gram.shape[0]
    # H_1 ... H_k = I - V T V^H. The inverse of T is upper triangular, with ones on the diagonal and
    # the products of the vectors above it.
    inverse = where(distance_below_diagonal(width) < 0, gram, eye_like(gram, width, width))
    product = matmul(conj(vectors), z)
    product = lax.linalg.triangular_solve(inverse, product, left_side=True, lower=False)
    return z - matmul(transpose(vectors), product)


def accumulate_phases(e: Any) -> Any:
    """Returns unit numbers p [n] with p_0 = 1 and p_{k+1} / p_k the phase of e_k [n - 1]."""
    n = e.shape[0] + 1
    steps = resize(unit_phase(e), (n,))  # one longer, so that it is not empty for n = 1

    def follow(k: Any, phases: Any) -> Any:
        step = lax.dynamic_slice_in_dim(steps, k, 1, 0)
        phase = lax.dynamic_slice_in_dim(phases, k, 1, 0) * step
        phase = phase / cast_like(lax.abs(phase), e)
        return lax.dynamic_update_slice_in_dim(phases, phase, k + np.int32(1), 0)

    return loop(e.shape[0], follow, lax.full((n,), 1, e.dtype))


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
        panel = _reduce_rows_and_columns(a, width, start)
        left, right = panel.left.whole(), panel.right.whole()
        a = a - matmul(transpose(left), conj(right))
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


def _reduce_rows_and_columns(a: Any, width: int, start: Any) -> _Panel:
    """Finds the reflections that reduce `width` columns and rows of `a` [n, n] from `start` on."""
    n = a.shape[0]
    index = rows(lax.iota(np.int32, n))
    steps = lax.iota(np.int32, width)
    matrix = RowMatrix.of(a)

    def step(j: Any, panel: _Panel) -> _Panel:
        k = start + j
        position = j * np.int32(2)
        left, right = panel.left, panel.right
        column = matrix.column(k) - left.times(conj(right.column(k)))
        column = where(index >= k, column, 0)
        left, v, alpha, scale, products = _reflect(left, column, position, k)
        y = conj(matrix.times(conj(column)) - conj(alpha) * matrix.row(k)) * scale
        y = y - right.times(products)
        left = left.write(v, position)
        right = right.write(y, position)

        # The conjugate, because this reflection acts on the matrix from the right.
        row = conj(matrix.row(k)) - right.times(conj(left.column(k)))
        k = k + np.int32(1)
        position = position + np.int32(1)
        row = where(index >= k, row, 0)
        right, u, beta, scale, products = _reflect(right, row, position, k)
        x = (matrix.times(row, transposed=True) - beta * matrix.column(k)) * scale
        x = x - left.times(products)
        left = left.write(x, position)
        right = right.write(u, position)
        d = where(steps == j, lax.reshape(alpha, (1,)), panel.d)
        e = where(steps == j, lax.reshape(conj(beta), (1,)), panel.e)
        return _Panel(left, right, d, e)

    empty = RowMatrix.of(lax.full((2 * width, n), 0, a.dtype))
    entries = lax.full((width,), 0, a.dtype)
    return loop(width, step, _Panel(empty, empty, entries, entries))


def _entry_at(x: Any, k: Any) -> Any:
    return lax.dynamic_slice_in_dim(x, k, 1, 1)
