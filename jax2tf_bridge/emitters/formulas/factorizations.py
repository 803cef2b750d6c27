"""Factorizations of matrices with tf.linalg, without the errors of its kernels.

For a matrix without factors JAX returns NaN, but TensorFlow's kernels fail. So such matrices are
replaced before the kernels. Signs and phases of vectors are those of TensorFlow's kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jax2tf_bridge.emitters._ops import ops


def _nan(dtype: ops.DType) -> ops.Tensor:
    return ops.constant(np.array(np.nan), dtype)


def _is_finite(a: ops.Tensor) -> ops.Tensor:
    """Returns which matrices have only finite numbers: [..., 1, 1]."""
    finite = (
        ops.math.is_finite(ops.math.real(a)) & ops.math.is_finite(ops.math.imag(a))
        if a.dtype.is_complex
        else ops.math.is_finite(a)
    )
    return ops.reduce_all(finite, [-2, -1], keepdims=True)


def _rows_and_columns(a: ops.Tensor) -> tuple[Any, Any]:
    """Returns the last two sizes, as ints if known."""
    known = a.shape.as_list()[-2:]
    if None not in known:
        return known[0], known[1]
    shape = ops.shape(a)
    return tuple(shape[i - 2] if known[i] is None else known[i] for i in range(2))


def _least(m: Any, n: Any) -> Any:
    """Returns the smaller size, as an int if both are known."""
    return min(m, n) if isinstance(m, int) and isinstance(n, int) else ops.minimum(m, n)


def _for_each(
    count: Any, step: Callable[..., tuple[ops.Tensor, ...]], *start: ops.Tensor
) -> list[ops.Tensor]:
    """Runs a step for k = 0, ..., count - 1, on arrays whose shapes do not change."""
    shapes = [x.shape for x in start]

    def next_step(k: ops.Tensor, *arrays: ops.Tensor) -> tuple[ops.Tensor, ...]:
        result = step(k, *arrays)
        for array, shape in zip(result, shapes, strict=True):
            array.set_shape(shape)  # TensorFlow 2.19 and older lose sizes in loops
        return (k + 1, *result)

    _, *ended = ops.while_loop(
        lambda k, *_: k < count,
        next_step,
        (ops.constant(0), *start),
        (ops.TensorShape([]), *shapes),
    )
    return [*ended]


def _column(a: ops.Tensor, k: ops.Tensor) -> ops.Tensor:
    return ops.gather(a, k, axis=-1)


def _row(a: ops.Tensor, k: ops.Tensor) -> ops.Tensor:
    return ops.gather(a, k, axis=-2)


def _outer(column: ops.Tensor, row: ops.Tensor) -> ops.Tensor:
    return ops.expand_dims(column, -1) * ops.expand_dims(row, -2)


def _conj(a: ops.Tensor) -> ops.Tensor:
    return ops.math.conj(a) if a.dtype.is_complex else a


def cholesky(
    a: ops.Tensor,
    *,
    lower: bool,
    by_columns: bool = False,
    choose: Callable[..., ops.Tensor] = ops.where,
) -> ops.Tensor:
    """Computes L of a = L L^H from the lower triangle, or U of a = U^H U from the upper one.

    The other triangle is 0. The result for a matrix that is not positive definite is NaN. If the
    least eigenvalue leaves that in doubt, matrices are factored by columns, which is slower.

    Args:
      a: the matrices.
      lower: whether the lower triangle is read.
      by_columns: whether to do without ops.linalg's kernels.
      choose: returns its second argument where the first one is set, else the third one.
    """
    if not lower:
        adjoint = ops.linalg.adjoint(a)
        factor = cholesky(adjoint, lower=True, by_columns=by_columns, choose=choose)
        return ops.linalg.adjoint(factor)
    if by_columns:
        return _cholesky_by_columns(a, choose)
    a = ops.linalg.band_part(a, -1, 0)
    zero = ops.zeros([], a.dtype)
    # Eigenvalues are not NaN, and those of a definite matrix are not 0.
    values = ops.math.real(ops.linalg.eigvalsh(ops.where(_is_finite(a), a, zero)))
    n = _rows_and_columns(a)[0]
    rounding = 8 * np.finfo(values.dtype.as_numpy_dtype).eps * ops.cast(n, values.dtype)
    definite = ops.reduce_all(
        values > rounding * ops.reduce_max(ops.abs(values), -1, keepdims=True)
    )
    return ops.cond(
        definite, lambda: ops.linalg.cholesky(a), lambda: _cholesky_by_columns(a, choose)
    )


def _cholesky_by_columns(a: ops.Tensor, choose: Callable[..., ops.Tensor]) -> ops.Tensor:
    n = _rows_and_columns(a)[0]
    index = ops.range(n)
    zero = ops.zeros([], a.dtype)

    def step(k: ops.Tensor, factor: ops.Tensor) -> tuple[ops.Tensor]:
        row = _conj(_row(factor, k))
        column = _column(a, k) - ops.linalg.matvec(factor, row)
        square = ops.math.real(_column(column, k))
        # A pivot that is not positive is NaN, and so are all pivots after it.
        pivot = ops.expand_dims(ops.cast(square / ops.sqrt(square), a.dtype), -1)
        column = ops.where(index == k, pivot, ops.where(index > k, column / pivot, zero))
        return (ops.where(index == k, ops.expand_dims(column, -1), factor),)

    (factor,) = _for_each(n, step, ops.zeros_like(a))
    last = ops.expand_dims(ops.expand_dims(_column(_column(factor, n - 1), n - 1), -1), -1)
    return choose(ops.expand_dims(index, -1) >= index, factor * (last / last), zero)


def triangular_solve(
    a: ops.Tensor, b: ops.Tensor, *, left: bool, lower: bool, unit_diagonal: bool, transpose: str
) -> ops.Tensor:
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
        a = ops.linalg.set_diag(a, ops.ones_like(ops.linalg.diag_part(a)))
    if transpose == "TRANSPOSE":
        # The transpose is the adjoint of the conjugate.
        a, transpose = _conj(a), "ADJOINT"
    adjoint = transpose == "ADJOINT"
    if left:
        return ops.linalg.triangular_solve(a, b, lower=lower, adjoint=adjoint)
    solution = ops.linalg.triangular_solve(
        a, ops.linalg.adjoint(b), lower=lower, adjoint=not adjoint
    )
    return ops.linalg.adjoint(solution)


def triangular_solve_by_rows(
    a: ops.Tensor, b: ops.Tensor, *, left: bool, lower: bool, unit_diagonal: bool, transpose: str
) -> ops.Tensor:
    """Computes what `triangular_solve` does, without ops.linalg's kernels."""
    if transpose != "NO_TRANSPOSE":
        a, lower = ops.linalg.matrix_transpose(a), not lower
        a = _conj(a) if transpose == "ADJOINT" else a
    if not left:
        a, b, lower = ops.linalg.matrix_transpose(a), ops.linalg.matrix_transpose(b), not lower
    n = _rows_and_columns(a)[0]
    index = ops.range(n)[:, ops.newaxis]

    def step(k: ops.Tensor, x: ops.Tensor) -> tuple[ops.Tensor]:
        place = k if lower else n - 1 - k
        # Rows of x that are not solved yet are 0, but the other triangle of a may hold NaN.
        is_solved = ops.range(n) < place if lower else ops.range(n) > place
        row = _row(a, place)
        known = ops.expand_dims(ops.where(is_solved, row, ops.zeros([], a.dtype)), -2)
        rest = _row(b, place) - ops.squeeze(known @ x, -2)
        solution = rest if unit_diagonal else rest / ops.expand_dims(_column(row, place), -1)
        return (ops.where(index == place, ops.expand_dims(solution, -2), x),)

    (x,) = _for_each(n, step, ops.zeros_like(b))
    return x if left else ops.linalg.matrix_transpose(x)


def eigh(a: ops.Tensor, *, lower: bool) -> tuple[ops.Tensor, ops.Tensor]:
    """Computes eigenvectors and ascending eigenvalues of Hermitian matrices from one triangle."""
    half = ops.linalg.band_part(a if lower else ops.linalg.adjoint(a), -1, 0)
    fine = _is_finite(half)
    values, vectors = ops.linalg.eigh(ops.where(fine, half, ops.zeros([], a.dtype)))
    values = ops.math.real(values)
    return (
        ops.where(fine, vectors, _nan(a.dtype)),
        ops.where(fine[..., 0], values, _nan(values.dtype)),
    )


def eig(a: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
    """Computes eigenvalues and right eigenvectors, of norm 1, of square matrices."""
    fine = _is_finite(a)
    values, vectors = ops.linalg.eig(ops.where(fine, a, ops.zeros([], a.dtype)))
    nan = _nan(values.dtype)
    return ops.where(fine[..., 0], values, nan), ops.where(fine, vectors, nan)


def svd(a: ops.Tensor, *, full_matrices: bool) -> tuple[ops.Tensor, ops.Tensor, ops.Tensor]:
    """Computes the singular values, U, and V^H."""
    values, u, v = ops.linalg.svd(a, full_matrices=full_matrices)
    if a.dtype.is_complex:
        # The kernel returns numbers even for matrices that are not finite.
        fine, nan = _is_finite(a), _nan(a.dtype)
        u, v = ops.where(fine, u, nan), ops.where(fine, v, nan)
        values = ops.where(fine[..., 0], values, _nan(values.dtype))
    return values, u, ops.linalg.adjoint(v)


def singular_values(a: ops.Tensor) -> ops.Tensor:
    """Computes the singular values in descending order."""
    values = ops.linalg.svd(a, compute_uv=False)
    if a.dtype.is_complex:
        values = ops.where(_is_finite(a)[..., 0], values, _nan(values.dtype))
    return values


_SMALL = 64
"""Maximum number of rows of complex matrices that are pivoted by |re| + |im|, as LAPACK does. The
kernel pivots by |z|."""


def lu(a: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor, ops.Tensor]:
    """Computes P A = L U with partial pivoting.

    Returns:
      L below the diagonal and U on and above it [..., m, n]; the row that each step swapped with
      [..., min(m, n)]; the permutation [..., m]. Rows are int32. Non-square and singular matrices,
      which TensorFlow's kernel rejects, are factored by columns.
    """
    m, n = a.shape.as_list()[-2:]
    if m is None or m != n or (a.dtype.is_complex and n <= _SMALL):
        return lu_by_columns(a)

    def whole() -> tuple[ops.Tensor, ops.Tensor, ops.Tensor]:
        factors, permutation = ops.linalg.lu(a)
        return factors, _pivots(permutation, n), permutation

    # Its kernel factors the matrix in the same way, and returns -inf if a pivot is 0.
    logarithm = ops.math.real(ops.linalg.slogdet(a)[1])
    regular = ops.reduce_all(ops.math.is_finite(logarithm))
    factors, pivots, permutation = ops.cond(regular, whole, lambda: lu_by_columns(a))
    return factors, pivots, permutation


def _pivots(permutation: ops.Tensor, count: int) -> ops.Tensor:
    """Converts a permutation to a sequence of swaps."""
    index = ops.range(count)

    def step(k: ops.Tensor, rows: ops.Tensor, pivots: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
        new_row = ops.expand_dims(_column(permutation, k), -1)
        place = ops.expand_dims(ops.argmax(ops.cast(rows == new_row, ops.int32), -1, ops.int32), -1)
        here = ops.expand_dims(_column(rows, k), -1)
        rows = ops.where(index == k, new_row, ops.where(index == place, here, rows))
        return rows, ops.where(index == k, place, pivots)

    rows = ops.broadcast_to(index, ops.shape(permutation))
    return _for_each(count, step, rows, ops.zeros_like(rows))[1]


def lu_by_columns(a: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor, ops.Tensor]:
    """Computes what `lu` does, without ops.linalg's kernels."""
    m, n = _rows_and_columns(a)
    rows, columns = ops.range(m), ops.range(n)
    count = _least(m, n)
    zero = ops.zeros([], a.dtype)
    batch = ops.shape(a)[:-2]
    batch_axes = a.shape.rank - 2

    def step(
        k: ops.Tensor, a: ops.Tensor, pivots: ops.Tensor, permutation: ops.Tensor
    ) -> tuple[ops.Tensor, ops.Tensor, ops.Tensor]:
        column = _column(a, k)
        # LAPACK's measure of complex numbers.
        size = (
            ops.abs(ops.math.real(column)) + ops.abs(ops.math.imag(column))
            if a.dtype.is_complex
            else ops.abs(column)
        )
        candidates = ops.where(rows >= k, size, ops.constant(-1, size.dtype))
        place = ops.expand_dims(ops.argmax(candidates, -1, ops.int32), -1)
        order = ops.where(rows == k, place, ops.where(rows == place, k, rows))
        # tf2onnx mistakes negative axes.
        a = ops.gather(a, order, axis=batch_axes, batch_dims=batch_axes)
        permutation = ops.gather(permutation, order, axis=batch_axes, batch_dims=batch_axes)
        pivots = ops.where(ops.range(count) == k, place, pivots)

        column, row = _column(a, k), _row(a, k)
        pivot = ops.expand_dims(_column(row, k), -1)
        # A column of zeros stays unchanged, as in LAPACK: U is singular, but L is not.
        divisor = ops.where(pivot == zero, ops.ones([], a.dtype), pivot)
        column = ops.where(rows > k, column / divisor, column)
        below, right = ops.where(rows > k, column, zero), ops.where(columns > k, row, zero)
        a = ops.where(columns == k, ops.expand_dims(column, -1), a - _outer(below, right))
        return a, pivots, permutation

    a, pivots, permutation = _for_each(
        count,
        step,
        a,
        ops.zeros(ops.concat([batch, [count]], 0), ops.int32),
        ops.broadcast_to(rows, ops.concat([batch, [m]], 0)),
    )
    return a, pivots, permutation


def householder_qr(a: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
    """Computes R and, below the diagonal, the reflectors of Q, like LAPACK's geqrf.

    Returns:
      For a [..., m, n]: R and reflectors packed [..., m, n], and the taus [..., min(m, n)].
    """
    m, n = _rows_and_columns(a)
    rows, columns = ops.range(m), ops.range(n)
    count = _least(m, n)
    zero, one = ops.zeros([], a.dtype), ops.ones([], a.dtype)

    def step(k: ops.Tensor, a: ops.Tensor, taus: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
        x = _column(a, k)
        alpha = ops.expand_dims(_column(x, k), -1)
        tail = ops.where(rows > k, x, zero)
        sizes = ops.abs(ops.where(rows >= k, x, zero))
        largest = ops.reduce_max(sizes, -1, keepdims=True)
        scale = ops.where(largest > 0, largest, ops.ones([], sizes.dtype))
        norm = scale * ops.norm(sizes / scale, axis=-1, keepdims=True)
        real = ops.math.real(alpha)
        done = ops.reduce_all(tail == zero, -1, keepdims=True) & (ops.math.imag(alpha) == 0)
        beta = ops.where(done, real, ops.where(real < 0, norm, -norm))
        # Columns without a reflection need no division.
        divisor = ops.cast(ops.where(done, ops.ones([], beta.dtype), beta), a.dtype)
        beta = ops.cast(beta, a.dtype)
        tau = (beta - alpha) / divisor
        v = ops.where(rows == k, one, tail / ops.where(done, one, alpha - beta))
        products = ops.linalg.matvec(a, _conj(v), transpose_a=True)
        factor = ops.where(columns > k, _conj(tau) * products, zero)
        reflected = a - _outer(v, factor)
        here = ops.where(rows == k, beta, ops.where(rows > k, v, x))
        a = ops.where(columns == k, ops.expand_dims(here, -1), reflected)
        return a, ops.where(ops.range(count) == k, tau, taus)

    taus = ops.zeros(ops.concat([ops.shape(a)[:-2], [count]], 0), a.dtype)
    packed, taus = _for_each(count, step, a, taus)
    return packed, taus


def householder_product(packed: ops.Tensor, taus: ops.Tensor, *, by_rows: bool) -> ops.Tensor:
    """Computes the first n columns of Q, a product of reflectors (I - tau v v^H), at once.

    With the reflectors as the columns of V, the product is I - V T V^H. T is the inverse of an
    upper triangular matrix with 1 / tau on the diagonal and V^H V above it.

    Args:
      packed: the matrices [..., m, n], with reflectors below the diagonal of the first columns.
      taus: the factors [..., k], with k <= n.
      by_rows: whether to solve without ops.linalg's kernel.
    """
    m, n = _rows_and_columns(packed)
    k = taus.shape[-1] if taus.shape[-1] is not None else ops.shape(taus)[-1]
    zero, one = ops.zeros([], packed.dtype), ops.ones([], packed.dtype)
    below = ops.range(m)[:, ops.newaxis] - ops.range(k)
    v = ops.where(below > 0, packed[..., :k], ops.where(below == 0, one, zero))
    products = ops.linalg.matmul(v, v, adjoint_a=True)
    below = ops.range(k)[:, ops.newaxis] - ops.range(k)
    # Multiplication by the taus, which may be 0, avoids a division.
    scaled = ops.expand_dims(taus, -1) * ops.where(below < 0, products, zero)
    system = ops.where(below == 0, one, scaled)
    diagonal = ops.where(below == 0, ops.expand_dims(taus, -1), zero)
    solve = triangular_solve_by_rows if by_rows else triangular_solve
    t = solve(
        system,
        diagonal,
        left=True,
        lower=False,
        unit_diagonal=by_rows,
        transpose="NO_TRANSPOSE",
    )
    columns = ops.linalg.matmul(t, v[..., :n, :], adjoint_b=True)
    is_diagonal = ops.range(m)[:, ops.newaxis] == ops.range(n)
    return ops.where(is_diagonal, one, zero) - ops.linalg.matmul(v, columns)
