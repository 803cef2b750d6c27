"""Factorizations of matrices with tf.linalg, without the errors of its kernels.

For a matrix without factors JAX returns NaN, but TensorFlow's kernels fail. So such matrices are
replaced before the kernels. Signs and phases of vectors are those of TensorFlow's kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def _nan(dtype: tf.DType) -> tf.Tensor:
    return tf.constant(np.array(np.nan), dtype)


def _is_finite(a: tf.Tensor) -> tf.Tensor:
    """Returns which matrices have only finite numbers: [..., 1, 1]."""
    finite = (
        tf.math.is_finite(tf.math.real(a)) & tf.math.is_finite(tf.math.imag(a))
        if a.dtype.is_complex
        else tf.math.is_finite(a)
    )
    return tf.reduce_all(finite, [-2, -1], keepdims=True)


def _rows_and_columns(a: tf.Tensor) -> tuple[Any, Any]:
    """Returns the last two sizes, as ints if known."""
    known = a.shape.as_list()[-2:]
    if None not in known:
        return known[0], known[1]
    shape = tf.shape(a)
    return tuple(shape[i - 2] if known[i] is None else known[i] for i in range(2))


def _least(m: Any, n: Any) -> Any:
    """Returns the smaller size, as an int if both are known."""
    return min(m, n) if isinstance(m, int) and isinstance(n, int) else tf.minimum(m, n)


def _for_each(
    count: Any, step: Callable[..., tuple[tf.Tensor, ...]], *start: tf.Tensor
) -> list[tf.Tensor]:
    """Runs a step for k = 0, ..., count - 1, on arrays whose shapes do not change."""
    shapes = [x.shape for x in start]

    def next_step(k: tf.Tensor, *arrays: tf.Tensor) -> tuple[tf.Tensor, ...]:
        result = step(k, *arrays)
        for array, shape in zip(result, shapes, strict=True):
            array.set_shape(shape)  # TensorFlow 2.19 and older lose sizes in loops
        return (k + 1, *result)

    _, *ended = tf.while_loop(
        lambda k, *_: k < count,
        next_step,
        (tf.constant(0), *start),
        (tf.TensorShape([]), *shapes),
    )
    return [*ended]


def _column(a: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    return tf.gather(a, k, axis=-1)


def _row(a: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    return tf.gather(a, k, axis=-2)


def _outer(column: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
    return tf.expand_dims(column, -1) * tf.expand_dims(row, -2)


def _conj(a: tf.Tensor) -> tf.Tensor:
    return tf.math.conj(a) if a.dtype.is_complex else a


def cholesky(a: tf.Tensor, *, lower: bool) -> tf.Tensor:
    """Computes L of a = L L^H from the lower triangle, or U of a = U^H U from the upper one.

    The other triangle is 0. The result for a matrix that is not positive definite is NaN. If the
    least eigenvalue leaves that in doubt, matrices are factored by columns, which is slower.
    """
    if not lower:
        return tf.linalg.adjoint(cholesky(tf.linalg.adjoint(a), lower=True))
    a = tf.linalg.band_part(a, -1, 0)
    zero = tf.zeros([], a.dtype)
    # Eigenvalues are not NaN, and those of a definite matrix are not 0.
    values = tf.math.real(tf.linalg.eigvalsh(tf.where(_is_finite(a), a, zero)))
    n = _rows_and_columns(a)[0]
    rounding = 8 * np.finfo(values.dtype.as_numpy_dtype).eps * tf.cast(n, values.dtype)
    definite = tf.reduce_all(values > rounding * tf.reduce_max(tf.abs(values), -1, keepdims=True))
    return tf.cond(
        definite, lambda: tf.linalg.cholesky(a), lambda: cholesky_by_columns(a, lower=True)
    )


def cholesky_by_columns(
    a: tf.Tensor, *, lower: bool, choose: Callable[..., tf.Tensor] = tf.where
) -> tf.Tensor:
    """Computes what `cholesky` does, without tf.linalg's kernels.

    Args:
      a: the matrices.
      lower: whether the lower triangle is read.
      choose: returns its second argument where the first one is set, else the third one.
    """
    if not lower:
        adjoint = tf.linalg.adjoint(a)
        return tf.linalg.adjoint(cholesky_by_columns(adjoint, lower=True, choose=choose))
    n = _rows_and_columns(a)[0]
    index = tf.range(n)
    zero = tf.zeros([], a.dtype)

    def step(k: tf.Tensor, factor: tf.Tensor) -> tuple[tf.Tensor]:
        row = _conj(_row(factor, k))
        column = _column(a, k) - tf.linalg.matvec(factor, row)
        square = tf.math.real(_column(column, k))
        # A pivot that is not positive is NaN, and so are all pivots after it.
        pivot = tf.expand_dims(tf.cast(square / tf.sqrt(square), a.dtype), -1)
        column = tf.where(index == k, pivot, tf.where(index > k, column / pivot, zero))
        return (tf.where(index == k, tf.expand_dims(column, -1), factor),)

    (factor,) = _for_each(n, step, tf.zeros_like(a))
    last = tf.expand_dims(tf.expand_dims(_column(_column(factor, n - 1), n - 1), -1), -1)
    return choose(tf.expand_dims(index, -1) >= index, factor * (last / last), zero)


def triangular_solve(
    a: tf.Tensor, b: tf.Tensor, *, left: bool, lower: bool, unit_diagonal: bool, transpose: str
) -> tf.Tensor:
    """Solves op(a) x = b, or x op(a) = b if it is not on the left.

    Args:
      a: the matrices [..., n, n], of which one triangle is read.
      b: the right sides [..., n, k], or [..., k, n].
      left: whether a is on the left.
      lower: whether the lower triangle is read.
      unit_diagonal: whether the diagonal counts as 1.
      transpose: "NO_TRANSPOSE", "TRANSPOSE" or "ADJOINT".
    """
    if unit_diagonal:
        a = tf.linalg.set_diag(a, tf.ones_like(tf.linalg.diag_part(a)))
    if transpose == "TRANSPOSE":
        # The transpose is the adjoint of the conjugate.
        a, transpose = _conj(a), "ADJOINT"
    adjoint = transpose == "ADJOINT"
    if left:
        return tf.linalg.triangular_solve(a, b, lower=lower, adjoint=adjoint)
    solution = tf.linalg.triangular_solve(a, tf.linalg.adjoint(b), lower=lower, adjoint=not adjoint)
    return tf.linalg.adjoint(solution)


def triangular_solve_by_rows(
    a: tf.Tensor, b: tf.Tensor, *, left: bool, lower: bool, unit_diagonal: bool, transpose: str
) -> tf.Tensor:
    """Computes what `triangular_solve` does, without tf.linalg's kernels."""
    if transpose != "NO_TRANSPOSE":
        a, lower = _transpose(a), not lower
        a = _conj(a) if transpose == "ADJOINT" else a
    if not left:
        a, b, lower = _transpose(a), _transpose(b), not lower
    n = _rows_and_columns(a)[0]
    index = tf.range(n)[:, tf.newaxis]

    def step(k: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor]:
        place = k if lower else n - 1 - k
        # Rows of x that are not solved yet are 0, but the other triangle of a may hold NaN.
        is_solved = tf.range(n) < place if lower else tf.range(n) > place
        row = _row(a, place)
        known = tf.expand_dims(tf.where(is_solved, row, tf.zeros([], a.dtype)), -2)
        rest = _row(b, place) - tf.squeeze(known @ x, -2)
        solution = rest if unit_diagonal else rest / tf.expand_dims(_column(row, place), -1)
        return (tf.where(index == place, tf.expand_dims(solution, -2), x),)

    (x,) = _for_each(n, step, tf.zeros_like(b))
    return x if left else _transpose(x)


def _transpose(a: tf.Tensor) -> tf.Tensor:
    return tf.linalg.matrix_transpose(a)


def eigh(a: tf.Tensor, *, lower: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes eigenvectors and ascending eigenvalues of Hermitian matrices from one triangle."""
    half = tf.linalg.band_part(a if lower else tf.linalg.adjoint(a), -1, 0)
    fine = _is_finite(half)
    values, vectors = tf.linalg.eigh(tf.where(fine, half, tf.zeros([], a.dtype)))
    values = tf.math.real(values)
    return (
        tf.where(fine, vectors, _nan(a.dtype)),
        tf.where(fine[..., 0], values, _nan(values.dtype)),
    )


def eig(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes eigenvalues and right eigenvectors, of norm 1, of square matrices."""
    fine = _is_finite(a)
    values, vectors = tf.linalg.eig(tf.where(fine, a, tf.zeros([], a.dtype)))
    nan = _nan(values.dtype)
    return tf.where(fine[..., 0], values, nan), tf.where(fine, vectors, nan)


def svd(a: tf.Tensor, *, full_matrices: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes the singular values, U, and V^H."""
    values, u, v = tf.linalg.svd(a, full_matrices=full_matrices)
    if a.dtype.is_complex:
        # The kernel returns numbers even for matrices that are not finite.
        fine, nan = _is_finite(a), _nan(a.dtype)
        u, v = tf.where(fine, u, nan), tf.where(fine, v, nan)
        values = tf.where(fine[..., 0], values, _nan(values.dtype))
    return values, u, tf.linalg.adjoint(v)


def singular_values(a: tf.Tensor) -> tf.Tensor:
    """Computes the singular values in descending order."""
    values = tf.linalg.svd(a, compute_uv=False)
    if a.dtype.is_complex:
        values = tf.where(_is_finite(a)[..., 0], values, _nan(values.dtype))
    return values


_SMALL = 64
"""Rows of complex matrices that are pivoted as by LAPACK, by |re| + |im|; the kernel takes |z|."""


def lu(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes P A = L U with partial pivoting.

    Returns:
      L below the diagonal and U on and above it [..., m, n]; the row that each step swapped with
      [..., min(m, n)]; the permutation [..., m]. Rows are int32. Non-square and singular matrices,
      which TensorFlow's kernel rejects, are factored by columns.
    """
    m, n = a.shape.as_list()[-2:]
    if m is None or m != n or (a.dtype.is_complex and n <= _SMALL):
        return lu_by_columns(a)

    def whole() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        factors, permutation = tf.linalg.lu(a)
        return factors, _pivots(permutation, n), permutation

    # Its kernel factors the matrix in the same way, and returns -inf if a pivot is 0.
    logarithm = tf.math.real(tf.linalg.slogdet(a)[1])
    regular = tf.reduce_all(tf.math.is_finite(logarithm))
    factors, pivots, permutation = tf.cond(regular, whole, lambda: lu_by_columns(a))
    return factors, pivots, permutation


def _pivots(permutation: tf.Tensor, count: int) -> tf.Tensor:
    """Converts a permutation to a sequence of swaps."""
    index = tf.range(count)

    def step(k: tf.Tensor, rows: tf.Tensor, pivots: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        wanted = tf.expand_dims(_column(permutation, k), -1)
        place = tf.expand_dims(tf.argmax(tf.cast(rows == wanted, tf.int32), -1, tf.int32), -1)
        here = tf.expand_dims(_column(rows, k), -1)
        rows = tf.where(index == k, wanted, tf.where(index == place, here, rows))
        return rows, tf.where(index == k, place, pivots)

    rows = tf.broadcast_to(index, tf.shape(permutation))
    return _for_each(count, step, rows, tf.zeros_like(rows))[1]


def lu_by_columns(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes what `lu` does, without tf.linalg's kernels."""
    m, n = _rows_and_columns(a)
    rows, columns = tf.range(m), tf.range(n)
    count = _least(m, n)
    zero = tf.zeros([], a.dtype)
    batch = tf.shape(a)[:-2]
    batch_axes = a.shape.rank - 2

    def step(
        k: tf.Tensor, a: tf.Tensor, pivots: tf.Tensor, permutation: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        column = _column(a, k)
        # LAPACK's measure of complex numbers.
        size = (
            tf.abs(tf.math.real(column)) + tf.abs(tf.math.imag(column))
            if a.dtype.is_complex
            else tf.abs(column)
        )
        candidates = tf.where(rows >= k, size, tf.constant(-1, size.dtype))
        place = tf.expand_dims(tf.argmax(candidates, -1, tf.int32), -1)
        order = tf.where(rows == k, place, tf.where(rows == place, k, rows))
        # tf2onnx mistakes negative axes.
        a = tf.gather(a, order, axis=batch_axes, batch_dims=batch_axes)
        permutation = tf.gather(permutation, order, axis=batch_axes, batch_dims=batch_axes)
        pivots = tf.where(tf.range(count) == k, place, pivots)

        column, row = _column(a, k), _row(a, k)
        pivot = tf.expand_dims(_column(row, k), -1)
        # A column of zeros stays unchanged, as in LAPACK: U is singular, but L is not.
        divisor = tf.where(pivot == zero, tf.ones([], a.dtype), pivot)
        column = tf.where(rows > k, column / divisor, column)
        below, right = tf.where(rows > k, column, zero), tf.where(columns > k, row, zero)
        a = tf.where(columns == k, tf.expand_dims(column, -1), a - _outer(below, right))
        return a, pivots, permutation

    a, pivots, permutation = _for_each(
        count,
        step,
        a,
        tf.zeros(tf.concat([batch, [count]], 0), tf.int32),
        tf.broadcast_to(rows, tf.concat([batch, [m]], 0)),
    )
    return a, pivots, permutation


def householder_qr(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes R and, below the diagonal, the reflectors of Q, like LAPACK's geqrf.

    Returns:
      For a [..., m, n]: R and reflectors packed [..., m, n], and the taus [..., min(m, n)].
    """
    m, n = _rows_and_columns(a)
    rows, columns = tf.range(m), tf.range(n)
    count = _least(m, n)
    zero, one = tf.zeros([], a.dtype), tf.ones([], a.dtype)

    def step(k: tf.Tensor, a: tf.Tensor, taus: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = _column(a, k)
        alpha = tf.expand_dims(_column(x, k), -1)
        tail = tf.where(rows > k, x, zero)
        sizes = tf.abs(tf.where(rows >= k, x, zero))
        largest = tf.reduce_max(sizes, -1, keepdims=True)
        scale = tf.where(largest > 0, largest, tf.ones([], sizes.dtype))
        norm = scale * tf.norm(sizes / scale, axis=-1, keepdims=True)
        real = tf.math.real(alpha)
        done = tf.reduce_all(tail == zero, -1, keepdims=True) & (tf.math.imag(alpha) == 0)
        beta = tf.where(done, real, tf.where(real < 0, norm, -norm))
        # Columns without a reflection need no division.
        divisor = tf.cast(tf.where(done, tf.ones([], beta.dtype), beta), a.dtype)
        beta = tf.cast(beta, a.dtype)
        tau = (beta - alpha) / divisor
        v = tf.where(rows == k, one, tail / tf.where(done, one, alpha - beta))
        products = tf.linalg.matvec(a, _conj(v), transpose_a=True)
        factor = tf.where(columns > k, _conj(tau) * products, zero)
        reflected = a - _outer(v, factor)
        here = tf.where(rows == k, beta, tf.where(rows > k, v, x))
        a = tf.where(columns == k, tf.expand_dims(here, -1), reflected)
        return a, tf.where(tf.range(count) == k, tau, taus)

    taus = tf.zeros(tf.concat([tf.shape(a)[:-2], [count]], 0), a.dtype)
    packed, taus = _for_each(count, step, a, taus)
    return packed, taus


def householder_product(packed: tf.Tensor, taus: tf.Tensor, *, by_rows: bool) -> tf.Tensor:
    """Computes the first n columns of Q, a product of reflectors (I - tau v v^H), at once.

    With the reflectors as the columns of V, the product is I - V T V^H. T is the inverse of an
    upper triangular matrix with 1 / tau on the diagonal and V^H V above it.

    Args:
      packed: the matrices [..., m, n], with reflectors below the diagonal of the first columns.
      taus: the factors [..., k], with k <= n.
      by_rows: whether to solve without tf.linalg's kernel.
    """
    m, n = _rows_and_columns(packed)
    k = taus.shape[-1] if taus.shape[-1] is not None else tf.shape(taus)[-1]
    zero, one = tf.zeros([], packed.dtype), tf.ones([], packed.dtype)
    below = tf.range(m)[:, tf.newaxis] - tf.range(k)
    v = tf.where(below > 0, packed[..., :k], tf.where(below == 0, one, zero))
    products = tf.linalg.matmul(v, v, adjoint_a=True)
    below = tf.range(k)[:, tf.newaxis] - tf.range(k)
    # Multiplication by the taus, which may be 0, avoids a division.
    scaled = tf.expand_dims(taus, -1) * tf.where(below < 0, products, zero)
    system = tf.where(below == 0, one, scaled)
    diagonal = tf.where(below == 0, tf.expand_dims(taus, -1), zero)
    solve = triangular_solve_by_rows if by_rows else triangular_solve
    t = solve(
        system,
        diagonal,
        left=True,
        lower=False,
        unit_diagonal=by_rows,
        transpose="NO_TRANSPOSE",
    )
    columns = tf.linalg.matmul(t, v[..., :n, :], adjoint_b=True)
    is_diagonal = tf.range(m)[:, tf.newaxis] == tf.range(n)
    return tf.where(is_diagonal, one, zero) - tf.linalg.matmul(v, columns)
