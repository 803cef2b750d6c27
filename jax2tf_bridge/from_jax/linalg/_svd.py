"""Singular value decomposition by way of a tridiagonal eigenproblem of twice the size."""

import functools
import math
from typing import Any

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    columns,
    diagonal,
    eye_like,
    int32,
    is_complex,
    matmul,
    real,
    resize,
    rows,
    sizes_known,
    where,
)
from jax2tf_bridge.from_jax.linalg._bidiagonal import bidiagonalize
from jax2tf_bridge.from_jax.linalg._divide_and_conquer import eigh_tridiagonal, rayleigh
from jax2tf_bridge.from_jax.linalg._qr import qr
from jax2tf_bridge.from_jax.linalg._tridiagonal import apply_panels, running_phases


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
      s, descending, real [..., k], and with `compute_uv` also U [..., m, k] and V^H [..., k, n],
      k = min(m, n); with `full_matrices` U is [..., m, m] and V^H [..., n, n]. With
      `subset_by_index` (from, to), k is their difference. A matrix that is not finite gives NaN.
    """
    del algorithm  # which of LAPACK's or cusolver's algorithms; the result is the same
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
    if m == n and not (sizes_known(n) and n == 0):
        s, u, v = _svd_square(a)
        return s, u, adjoint(v)
    if not sizes_known(m, n):
        left, r = qr(a, rank=rank, full=full)
        right, core = qr(adjoint(resize(r, (rank, n))), rank=rank, full=full)
        s, u, v = _svd_square(adjoint(resize(core, (rank, rank))))
        return s, _times(left, u, full), adjoint(_times(right, v, full))
    if m < n:
        s, u, vh = _svd(adjoint(a), full=full, rank=rank)
        return s, adjoint(vh), adjoint(u)
    if n == 0:
        u = eye_like(a, m, m) if full else a
        return lax.full((0,), 0, real(a).dtype), u, lax.full((0, 0), 0, a.dtype)
    left, r = qr(a, rank=rank, full=full)
    s, u, v = _svd_square(r[:n])
    return s, _times(left, u, full), adjoint(v)


def _times(basis: Any, u: Any, full: bool) -> Any:
    """Turns the first columns of `basis` [m, m] or [m, k] by u [k, k]."""
    m, rank = basis.shape[0], u.shape[0]
    turned = matmul(resize(basis, (m, rank)), u)
    if not full:
        return turned
    others = lax.iota(np.int32, basis.shape[1]) >= int32(rank)
    return where(rows(others), basis, resize(turned, basis.shape))


def _svd_square(a: Any) -> tuple[Any, Any, Any]:
    """Computes s, U and V of a [n, n], with a = P B Q^H and B upper bidiagonal.

    With the rows and columns of [[0, B^H], [B, 0]] in turns it is tridiagonal. Its eigenvalues are
    s and -s, its eigenvectors (v, u) and (v, -u). Where s is about a rounding error, those of s and
    -s (and of other such s) mix, and u and v are no longer orthonormal by themselves:
    orthogonalised in descending order of s, they are, at the cost of such an error in A.
    """
    n = a.shape[0]
    dtype = real(a).dtype
    size = lax.abs(a)
    largest = lax.reduce(size, np.zeros((), dtype), lax.max, (0, 1))
    finite = lax.reduce(lax.is_finite(size), np.array(True), lax.bitwise_and, (0, 1))
    scale = where((largest > 0) & finite, largest, np.ones((), dtype))
    b = bidiagonalize(a / lax.convert_element_type(scale, a.dtype))

    beside = lax.conj(b.e) if is_complex(a) else b.e
    pairs = lax.concatenate([columns(b.d), columns(resize(beside, (n,)))], 1)
    below = resize(lax.reshape(pairs, (2 * n,)), (2 * n - 1,))
    phases = running_phases(below)
    below = lax.abs(below)
    zero = np.zeros((), dtype)
    sums = lax.pad(below, zero, [(1, 0, 0)]) + lax.pad(below, zero, [(0, 1, 0)])
    norm = lax.reduce(sums, zero, lax.max, (0,))
    norm = where(norm > 0, norm, np.ones((), dtype)) * np.array(2, dtype)
    below = below / norm
    middle = lax.full((2 * n,), 0, dtype)
    vectors = eigh_tridiagonal(middle, below)
    vectors = lax.pad(vectors, zero, [(0, 0, 0), (-n, 0, 0)])  # those of s
    s = lax.max(rayleigh(middle, below, vectors), lax.full((n,), 0, dtype))
    descending, order = lax.sort((-s, lax.iota(np.int32, n)), dimension=0, num_keys=1)
    vectors = vectors.at[:, order].get(mode="promise_in_bounds", unique_indices=True)

    vectors = lax.convert_element_type(vectors * np.array(math.sqrt(2), dtype), a.dtype)
    # V and U side by side, which compiles once for both.
    both = lax.transpose(lax.reshape(columns(phases) * vectors, (n, 2, n)), (1, 0, 2))
    panels = lax.concatenate([lax.expand_dims(x, (0,)) for x in (b.right, b.left)], 0)
    padded = resize(_orthonormal(both), (2, panels.shape[3], n))
    nan = np.array(np.nan, a.dtype)
    both = where(finite, resize(jax.vmap(apply_panels)(panels, padded), (2, n, n)), nan)
    s = where(finite, -descending * norm * scale, real(nan))
    return s, both[1], both[0]


def _orthonormal(a: Any) -> Any:
    """Returns Q of a QR with a positive diagonal of R: near `a`, if a is orthonormal."""
    q, r = qr(a, rank=a.shape[-1])
    pivots = diagonal(r)
    if not is_complex(a):
        return where(rows(pivots) < 0, -q, q)
    size = lax.abs(pivots)
    nonzero = size > 0
    divisor = lax.convert_element_type(where(nonzero, size, 1), a.dtype)
    return q * rows(where(nonzero, pivots / divisor, 1))
