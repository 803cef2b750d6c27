"""Singular value decomposition, by reduction to a bidiagonal matrix."""

import functools
from typing import Any

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    are_sizes_known,
    columns,
    eye_like,
    int32,
    is_complex,
    matmul,
    real,
    resize,
    rows,
    where,
)
from jax2tf_bridge.from_jax.linalg._bidiagonal import bidiagonalize
from jax2tf_bridge.from_jax.linalg._bidiagonal_svd import svd_bidiagonal
from jax2tf_bridge.from_jax.linalg._qr import qr
from jax2tf_bridge.from_jax.linalg._tridiagonal import accumulate_phases, apply_panels


def svd(
    a: Any,
    *,
    full_matrices: bool,
    compute_uv: bool,
    rank: Any,
    subset_by_index: tuple[int, int] | None = None,
    **algorithm: Any,
) -> tuple[Any, ...]:
    """Computes A = U diag(s) V^H for a [..., m, n]; the parameters are those of JAX's primitive.

    `rank` is min(m, n).

    Returns:
      s [..., k], real and descending, where k = min(m, n). With `compute_uv` also U [..., m, k] and
      V^H [..., k, n]; with `full_matrices` U is [..., m, m] and V^H is [..., n, n]. With
      `subset_by_index` (from, to), k is to - from. A matrix that is not finite gives NaN.
    """
    del algorithm  # selects an algorithm of LAPACK or cusolver; the result is the same
    function = functools.partial(_svd, full=full_matrices and compute_uv, rank=rank)
    for _ in a.shape[:-2]:
        function = jax.vmap(function)
    s, u, vh = function(a)
    if subset_by_index is not None:
        first, end = subset_by_index
        s = s[..., first:end]
        if s.shape[-1] != u.shape[-1] or s.shape[-1] != vh.shape[-2]:
            u, vh = u[..., :, first:end], vh[..., first:end, :]
    return (s, u, vh) if compute_uv else (s,)


def _svd(a: Any, *, full: bool, rank: Any) -> tuple[Any, Any, Any]:
    m, n = a.shape
    if m == n and not (are_sizes_known(n) and n == 0):
        s, u, v = _svd_square(a)
        return s, u, adjoint(v)
    if not are_sizes_known(m, n):
        left, r = qr(a, rank=rank, full=full)
        right, core = qr(adjoint(resize(r, (rank, n))), rank=rank, full=full)
        s, u, v = _svd_square(adjoint(resize(core, (rank, rank))))
        return s, _rotate_columns(left, u, full), adjoint(_rotate_columns(right, v, full))
    if m < n:
        s, u, vh = _svd(adjoint(a), full=full, rank=rank)
        return s, adjoint(vh), adjoint(u)
    if n == 0:
        u = eye_like(a, m, m) if full else a
        return lax.full((0,), 0, real(a).dtype), u, lax.full((0, 0), 0, a.dtype)
    left, r = qr(a, rank=rank, full=full)
    s, u, v = _svd_square(r[:n])
    return s, _rotate_columns(left, u, full), adjoint(v)


def _rotate_columns(basis: Any, u: Any, full: bool) -> Any:
    """Multiplies the first k columns of `basis`, [m, m] or [m, k], by u [k, k]."""
    m, rank = basis.shape[0], u.shape[0]
    product = matmul(resize(basis, (m, rank)), u)
    if not full:
        return product
    is_kept = lax.iota(np.int32, basis.shape[1]) >= int32(rank)
    return where(rows(is_kept), basis, resize(product, basis.shape))


def _svd_square(a: Any) -> tuple[Any, Any, Any]:
    """Computes s, U and V of a [n, n] from a = P B Q^H with an upper bidiagonal B."""
    n = a.shape[0]
    dtype = real(a).dtype
    size = lax.abs(a)
    zero = np.zeros((), dtype)
    largest = lax.reduce(size, zero, lax.max, (0, 1))
    finite = lax.reduce(lax.is_finite(size), np.array(True), lax.bitwise_and, (0, 1))
    scale = where((largest > 0) & finite, largest, np.ones((), dtype))
    b = bidiagonalize(a / lax.convert_element_type(scale, a.dtype))

    d, e = b.d, b.e
    phases = None
    if is_complex(a):
        # Diagonal unitary matrices on both sides make B real. If the rows and columns of
        # [[0, B^H], [B, 0]] are interleaved, they are one similarity of a tridiagonal matrix.
        pairs = lax.concatenate([columns(d), columns(resize(lax.conj(e), (n,)))], 1)
        phases = accumulate_phases(resize(lax.reshape(pairs, (2 * n,)), (2 * n - 1,)))
        phases = lax.reshape(phases, (n, 2))
        d, e = lax.abs(d), lax.abs(e)
    larger_neighbour = lax.max(
        lax.pad(lax.abs(e), zero, [(0, 1, 0)]), lax.pad(lax.abs(e), zero, [(1, 0, 0)])
    )
    norm = lax.reduce(lax.abs(d) + larger_neighbour, zero, lax.max, (0,))
    norm = where(norm > 0, norm, np.ones((), dtype)) * np.array(2, dtype)
    s, vectors = svd_bidiagonal(d / norm, e / norm)
    descending, order = lax.sort((-s, lax.iota(np.int32, n)), dimension=0, num_keys=1)
    vectors = vectors.at[:, :, order].get(mode="promise_in_bounds", unique_indices=True)
    vectors = lax.convert_element_type(vectors, a.dtype)
    if phases is not None:
        vectors = columns(lax.transpose(phases, (1, 0))) * vectors

    panels = lax.concatenate([lax.expand_dims(x, (0,)) for x in (b.right, b.left)], 0)
    vectors = jax.vmap(apply_panels)(panels, resize(vectors, (2, panels.shape[3], n)))
    nan = np.array(np.nan, a.dtype)
    vectors = where(finite, resize(vectors, (2, n, n)), nan)
    s = where(finite, lax.max(-descending, 0 * descending) * norm * scale, real(nan))
    return s, vectors[1], vectors[0]
