"""Eigenvalues and eigenvectors of general matrices, from their Schur decompositions."""

import functools
from typing import Any

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    are_sizes_known,
    columns,
    diagonal,
    distance_below_diagonal,
    eye_like,
    int32,
    is_complex,
    loop,
    map_matrices,
    matmul,
    real_dtype,
    rows,
    where,
)
from jax2tf_bridge.from_jax.linalg._schur import schur_of_matrix

_MAX_BALANCING_SWEEPS = 20


def eig(
    a: Any, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, **options: Any
) -> tuple[Any, ...]:
    """Computes the eigenvalues and the requested eigenvectors of a [..., n, n]; all are complex.

    The conventions are LAPACK's: u^H A = w u^H for a left eigenvector u, and eigenvectors have
    length 1 and a real largest entry. Eigenvalues of a real matrix are real or in conjugate pairs,
    the one with positive imaginary part first. A matrix that is not finite gives NaN.

    Returns:
      The eigenvalues [..., n]; left eigenvectors [..., n, n]; right eigenvectors [..., n, n].
    """
    del options
    function = functools.partial(
        _eig, left=compute_left_eigenvectors, right=compute_right_eigenvectors
    )
    results: tuple[Any, ...] = map_matrices(function, a)
    return results


def _eig(a: Any, *, left: bool, right: bool) -> tuple[Any, ...]:
    a, scales = _balance(a)
    t, z = schur_of_matrix(a)
    size = lax.abs(t)
    largest = lax.reduce(size, np.zeros((), size.dtype), lax.max, (0, 1))
    scale = where(largest > 0, largest, np.ones((), size.dtype))  # NaN gives 1
    t = t / lax.convert_element_type(scale, t.dtype)
    was_real = not is_complex(a)
    if was_real:
        t, z, values = _to_complex_schur(t, z)
    else:
        values = diagonal(t)
    results = [values * lax.convert_element_type(scale, values.dtype)]
    if left:
        # y^H T = w y^H: T^H is upper triangular in reverse order.
        mirrored = lax.rev(adjoint(t), (0, 1))
        vectors = lax.rev(_solve_triangular(mirrored, lax.rev(lax.conj(values), (0,))), (0, 1))
        unscaled = matmul(z, vectors) / columns(lax.convert_element_type(scales, z.dtype))
        results.append(_normalize(unscaled, values, was_real))
    if right:
        vectors = matmul(z, _solve_triangular(t, values))
        unscaled = vectors * columns(lax.convert_element_type(scales, z.dtype))
        results.append(_normalize(unscaled, values, was_real))
    return tuple(results)


def _balance(a: Any) -> tuple[Any, Any]:
    """Returns D^-1 A D and the diagonal D [n] that makes rows and columns about equally long.

    This is LAPACK's gebal. Without it, the small eigenvalues of a badly scaled matrix would be lost
    in the rounding errors of its largest entries.
    """
    n = a.shape[0]
    dtype = real_dtype(a.dtype)
    ones = lax.full((n,), 1, dtype)
    if are_sizes_known(n) and n < 2:
        return a, ones
    index = lax.iota(np.int32, n)

    def length(entries: Any, i: Any) -> Any:
        others = where(index == i, 0, lax.abs(lax.reshape(entries, (n,))))
        return lax.reduce(others, np.zeros((), dtype), lax.add, (0,))

    def balance_row(i: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, scales, changed = state
        column = lax.dynamic_slice_in_dim(a, i, 1, 1)
        c, r = length(column, i), length(lax.dynamic_slice_in_dim(a, i, 1, 0), i)
        possible = (c > 0) & (r > 0) & lax.is_finite(c) & lax.is_finite(r)
        log_ratio = lax.log(where(possible, r, 1)) - lax.log(where(possible, c, 1))
        power = lax.round(log_ratio / np.array(2 * np.log(2), dtype))
        factor = lax.exp2(lax.clamp(np.array(-40, dtype), power, np.array(40, dtype)))
        shorter = possible & (c * factor + r / factor < 0.95 * (c + r))
        factor = where(shorter, factor, 1)
        typed_factor = lax.convert_element_type(factor, a.dtype)
        a = lax.dynamic_update_slice_in_dim(a, column * typed_factor, i, 1)
        row = lax.dynamic_slice_in_dim(a, i, 1, 0)
        a = lax.dynamic_update_slice_in_dim(a, row / typed_factor, i, 0)
        return a, where(index == i, scales * factor, scales), changed | shorter

    def sweep(state: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        a, scales, _, count = state
        start = (a, scales, np.array(False))
        a, scales, changed = loop(n, balance_row, start)
        return a, scales, changed, count + np.int32(1)

    balanced, scales, _, _ = lax.while_loop(
        lambda state: state[2] & (state[3] < np.int32(_MAX_BALANCING_SWEEPS)),
        sweep,
        (a, ones, np.array(True), np.array(0, np.int32)),
    )
    return balanced, scales


def _to_complex_schur(t: Any, z: Any) -> tuple[Any, Any, Any]:
    """Converts a real Schur decomposition to a complex one: triangular T, Z, and the eigenvalues.

    The blocks [[p, q], [r, p]] have the eigenvalues p +- i sqrt(-q r), and (q, +- i sqrt(-q r)) as
    eigenvectors.
    """
    n = t.shape[0]
    dtype = np.result_type(t.dtype, np.complex64)
    below = distance_below_diagonal(n)
    nothing = np.zeros(1, t.dtype)

    def off_diagonal(shift: int) -> Any:
        entries = where(below == shift, t, 0)
        return lax.reduce(entries, np.zeros((), t.dtype), lax.add, (1 if shift < 0 else 0,))

    # The entries below and above the diagonal, indexed by the first row of each pair.
    lower, upper = off_diagonal(1), off_diagonal(-1)
    first = lower != 0
    imaginary = where(first, lax.sqrt(lax.abs(upper)) * lax.sqrt(lax.abs(lower)), 0)
    imaginary = imaginary - lax.concatenate([nothing, imaginary[:-1]], 0)
    values = lax.complex(diagonal(t), imaginary)

    length = lax.sqrt(where(first, upper * upper + imaginary * imaginary, 1))
    head = where(first, upper / length, 1)
    tail = where(first, imaginary / length, 0)
    second = lax.concatenate([np.zeros(1, np.bool_), first[:-1]], 0)
    previous_head = lax.concatenate([nothing, head[:-1]], 0)
    on_diagonal = where(second, previous_head, head)
    zeros = lax.full_like(t, 0)
    unitary = lax.complex(
        where(below == 0, rows(on_diagonal), 0) + zeros,
        # i tail, below the diagonal in the first column of a pair and above it in the second.
        where(below == 1, rows(tail), 0) + where(below == -1, columns(tail), 0),
    )
    t, z = (lax.convert_element_type(m, dtype) for m in (t, z))
    t = matmul(matmul(adjoint(unitary), t), unitary)
    t = where(below > 0, 0, where(below == 0, columns(values), t))
    return t, matmul(z, unitary), values


def _solve_triangular(t: Any, values: Any) -> Any:
    """Computes the right eigenvectors of an upper triangular T with `values` on its diagonal.

    The entries of T must be of order 1.
    """
    n = t.shape[0]
    if n == 0:
        return t
    index = lax.iota(np.int32, n)
    dtype = real_dtype(t.dtype)
    min_difference = np.array(np.finfo(dtype).eps, dtype)  # the largest entry of T is 1

    def substitute(step: Any, x: Any) -> Any:
        i = int32(n) - np.int32(1) - step
        row = lax.dynamic_slice_in_dim(t, i, 1, 0)
        sums = matmul(where(rows(index > i), row, 0), x)
        value = lax.dynamic_slice_in_dim(values, i, 1, 0)
        difference = value - values
        # Equal eigenvalues are separated by a rounding error of T, as in LAPACK, so they get
        # independent vectors only if T has such.
        close = lax.abs(difference) < min_difference
        divisor = where(close, lax.convert_element_type(min_difference, t.dtype), difference)
        solved = where(rows(index > i), -sums / rows(divisor), 0)
        solved = where(rows(index == i), np.ones((), t.dtype), solved)
        # Rescaled, because nearly equal eigenvalues make entries that would overflow.
        x = lax.dynamic_update_slice_in_dim(x, solved, i, 0)
        longest = lax.reduce(lax.abs(x), np.zeros((), dtype), lax.max, (0,))
        scale = where(longest > 1, longest, np.ones((), dtype))
        return x / rows(lax.convert_element_type(scale, t.dtype))

    return loop(n, substitute, eye_like(t, n, n))


def _normalize(vectors: Any, values: Any, was_real: bool) -> Any:
    """Scales columns to length 1 and a positive largest entry.

    Eigenvectors of a real matrix become exactly real or exactly conjugate pairs.
    """
    if vectors.shape[0] == 0:
        return vectors
    dtype = real_dtype(vectors.dtype)
    size = lax.abs(vectors)
    positions = lax.argmax(size, 0, np.int32)
    chosen = where(lax.broadcasted_iota(np.int32, vectors.shape, 0) == rows(positions), vectors, 0)
    largest = lax.reduce(chosen, np.zeros((), vectors.dtype), lax.add, (0,))
    sizes = where(lax.abs(largest) > 0, lax.abs(largest), np.ones((), dtype))
    vectors = vectors * rows(lax.conj(largest) / lax.convert_element_type(sizes, vectors.dtype))
    if was_real:
        imaginary = rows(lax.imag(values))
        before = lax.concatenate([vectors[:, :1], vectors[:, :-1]], 1)
        vectors = where(imaginary < 0, lax.conj(before), vectors)
        parts = where(imaginary == 0, 0, lax.imag(vectors))
        vectors = lax.complex(lax.real(vectors), parts)
    size = lax.abs(vectors)
    squares = lax.reduce(size * size, np.zeros((), dtype), lax.add, (0,))
    length = lax.sqrt(where(squares > 0, squares, 1))
    return vectors / rows(lax.convert_element_type(length, vectors.dtype))
