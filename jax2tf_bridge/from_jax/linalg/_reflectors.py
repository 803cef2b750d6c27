"""Householder reflectors as LAPACK stores them, and decompositions that use them."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    cast_like,
    columns,
    conj,
    diagonal,
    distance_below_diagonal,
    is_complex,
    loop,
    map_matrices,
    matmul,
    max_over,
    pad_zeros,
    real,
    resize,
    rows,
    take_at,
    transpose,
    where,
)


def make_reflector(x: Any, k: Any) -> tuple[Any, Any, Any]:
    """Returns v, tau and beta with (I - tau v v^H)^H x = beta e_k, for x [n] from entry k on.

    v is 0 before k and 1 at k, and beta is real. tau is 0 if x has the form beta e_k already.
    """
    index = lax.iota(np.int32, x.shape[0])
    alpha = take_at(x, k, 0)
    tail = where(index > k, x, 0)
    largest = max_over(lax.abs(where(index >= k, x, 0)), 0)
    scale = where(largest > 0, largest, 1)
    scaled = lax.abs(x) / scale
    squares = where(index >= k, scaled * scaled, 0)
    norm = scale * lax.sqrt(lax.reduce_sum(squares, (0,)))
    beta = where(_has_sign_bit(real(alpha)), norm, -norm)
    no_tail = lax.reduce_and(tail == 0, (0,))
    is_reduced = no_tail & (lax.imag(alpha) == 0) if is_complex(x) else no_tail
    beta = where(is_reduced, real(alpha), beta)
    tau = (cast_like(beta, x) - alpha) / cast_like(where(is_reduced, 1, beta), x)
    difference = where(is_reduced, 1, alpha - cast_like(beta, x))
    v = where(index == k, 1, tail / difference)
    return v, where(is_reduced, 0, tau), beta


def reflect_rows(a: Any, v: Any, tau: Any) -> Any:
    """Computes (I - tau v v^H)^H a for a [n, m]."""
    return a - conj(tau) * columns(v) * matmul(adjoint(columns(v)), a)


def reflect_columns(a: Any, v: Any, tau: Any) -> Any:
    """Computes A (I - tau v v^H) for a [m, n]."""
    return a - tau * matmul(a, columns(v)) * adjoint(columns(v))


def hessenberg(a: Any) -> tuple[Any, Any]:
    """Computes A = Q H Q^H, packed like LAPACK's gehrd.

    Returns:
      For a [..., n, n]: H on and above the first subdiagonal and the reflectors below it
      [..., n, n]; their taus [..., n - 1].
    """
    return map_matrices(_reduce_to_hessenberg, a)


def _reduce_to_hessenberg(a: Any) -> tuple[Any, Any]:
    n = a.shape[0]
    count = max(n - 1, 0)
    steps = lax.iota(np.int32, count)
    index = lax.iota(np.int32, n)

    def step(k: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        h, taus, vectors = state
        column = take_at(h, k, 1)
        v, tau, beta = make_reflector(column, k + 1)
        h = reflect_columns(reflect_rows(h, v, tau), v, tau)
        is_row = rows(index == k)
        exact = where(index == k + 1, cast_like(beta, a), where(index > k + 1, 0, column))
        h = where(is_row & columns(index > k), columns(exact), h)
        vectors = where(is_row & columns(index > k + 1), columns(v), vectors)
        return h, where(steps == k, tau, taus), vectors

    start = (a, lax.full((count,), 0, a.dtype), lax.full_like(a, 0))
    h, taus, vectors = loop(count, step, start) if count else start
    return where(distance_below_diagonal(n) > 1, vectors, h), taus


def tridiagonal(a: Any, *, lower: bool) -> tuple[Any, Any, Any, Any]:
    """Computes A = Q T Q^H for Hermitian matrices, packed like LAPACK's sytrd and hetrd.

    Only the lower (or upper) triangle of a [..., n, n] is read.

    Returns:
      T and the reflectors in that triangle, with the other triangle unchanged; the diagonal and
      the off-diagonal of T, real [..., n] and [..., n - 1]; the taus [..., n - 1].
    """
    return map_matrices(_reduce_lower if lower else _reduce_upper, a)


def _reduce_upper(a: Any) -> tuple[Any, Any, Any, Any]:
    """Reduces the lower triangle in reverse order, and reverses the results."""
    packed, *vectors = _reduce_lower(lax.rev(a, (0, 1)))
    d, e, taus = (lax.rev(v, (0,)) for v in vectors)
    return lax.rev(packed, (0, 1)), d, e, taus


def _reduce_lower(a: Any) -> tuple[Any, Any, Any, Any]:
    below = distance_below_diagonal(a.shape[0])
    hermitian = where(below > 0, a, adjoint(a))
    hermitian = where(below == 0, cast_like(real(a), a), hermitian)
    packed, taus = _reduce_to_hessenberg(hermitian)
    d = diagonal(packed)
    e = diagonal(packed[1:, :-1])
    return where(below >= 0, packed, a), real(d), real(e), taus


def pivoted_qr(a: Any, pivots: Any, *, rank: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    """Computes A P = Q R with the longest remaining column first, packed like LAPACK's geqp3.

    Args:
      a: the matrices [..., m, n].
      pivots: int32 [..., n]; only its dtype is used, because in JAX all columns are free.
      rank: min(m, n); required for symbolic sizes.
      options: JAX's choice of a GPU library, which is ignored.

    Returns:
      R on and above the diagonal and the reflectors below it [..., m, n]; the column of A for each
      column of R, counted from 1, int32 [..., n]; the taus [..., min(m, n)].
    """
    del options
    rank = min(a.shape[-2:]) if rank is None else rank
    packed, order, taus = map_matrices(functools.partial(_factor_with_pivoting, rank=rank), a)
    return packed, cast_like(order, pivots), taus


def _factor_with_pivoting(a: Any, *, rank: Any) -> tuple[Any, Any, Any]:
    m, n = a.shape
    steps, row_index, column_index = (lax.iota(np.int32, size) for size in (rank, m, n))

    def step(k: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, order, taus = state
        # Scaled by the remaining entries alone, or the squares of tiny columns would underflow.
        remaining = columns(row_index >= k) & rows(column_index >= k)
        size = where(remaining, lax.abs(a), 0)
        largest = max_over(size, 0, 1)
        scaled = size / where(largest > 0, largest, 1)
        norms = lax.reduce_sum(scaled * scaled, (0,))
        free = where(column_index >= k, norms, np.array(-1, size.dtype))
        chosen = lax.argmax(free, 0, np.int32)
        a, order = _swap_columns(a, k, chosen), _swap_columns(rows(order), k, chosen)[0]

        column = take_at(a, k, 1)
        v, tau, beta = make_reflector(column, k)
        reflected = reflect_rows(a, v, tau)
        a = where(rows(column_index > k), reflected, a)
        packed = where(row_index == k, cast_like(beta, a), where(row_index > k, v, column))
        a = where(rows(column_index == k), columns(packed), a)
        return a, order, where(steps == k, tau, taus)

    start = (a, column_index + np.int32(1), lax.full((rank,), 0, a.dtype))
    return loop(rank, step, start) if rank else start


def _swap_columns(a: Any, i: Any, j: Any) -> Any:
    first = lax.dynamic_slice_in_dim(a, i, 1, 1)
    second = lax.dynamic_slice_in_dim(a, j, 1, 1)
    a = lax.dynamic_update_slice_in_dim(a, second, i, 1)
    return lax.dynamic_update_slice_in_dim(a, first, j, 1)


def _has_sign_bit(x: Any) -> Any:
    """Returns whether the sign bit is set (-0.0 included, as in LAPACK)."""
    bits = np.dtype(f"int{8 * x.dtype.itemsize}")
    return lax.bitcast_convert_type(x, bits) < 0


def qr(a: Any, *, rank: Any, full: bool) -> tuple[Any, Any]:
    """Computes Q [m, k] and R [k, n] for a [..., m, n]; k is `rank`, min(m, n), or m if `full`."""
    packed, taus = jnp.linalg.qr(a, mode="raw")
    return _unpack(transpose(packed), taus, rank=rank, full=full)


def qr_with_pivoting(a: Any, *, rank: Any, full: bool) -> tuple[Any, Any, Any]:
    """Computes Q, R and the column order: the column of `a` for each column of R."""
    packed, order, taus = pivoted_qr(
        a, lax.full((*a.shape[:-2], a.shape[-1]), 0, np.int32), rank=rank
    )
    return *_unpack(packed, taus, rank=rank, full=full), order - np.int32(1)


def _unpack(packed: Any, taus: Any, *, rank: Any, full: bool) -> tuple[Any, Any]:
    *batch, m, n = packed.shape
    k = m if full else rank
    q = lax.linalg.householder_product(resize(packed, (*batch, m, k)), taus)
    return q, where(distance_below_diagonal(k, n) > 0, 0, resize(packed, (*batch, k, n)))


def ormqr(a: Any, taus: Any, c: Any, *, left: bool, transpose: bool) -> Any:
    """Computes Q c, Q^H c, c Q or c Q^H for the m x m Q of packed reflectors a [..., m, n]."""
    m, count = a.shape[-2], taus.shape[-1]
    packed = a[..., :count]
    padding = [(0, 0, 0)] * (a.ndim - 1) + [(0, m - count, 0)]
    q = lax.linalg.householder_product(pad_zeros(packed, padding), taus)
    q = adjoint(q) if transpose else q
    return matmul(q, c) if left else matmul(c, q)
