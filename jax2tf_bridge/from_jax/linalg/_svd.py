"""Singular value decomposition by way of a Hermitian eigenproblem of twice the size."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    diagonal,
    eye_like,
    is_complex,
    matmul,
    real,
    rows,
    where,
)

# The types of some JAX versions know only the results with, of others only without, pivoting.
_qr: Callable[..., Any] = lax.linalg.qr


def svd(
    a: Any,
    *,
    full_matrices: bool,
    compute_uv: bool,
    subset_by_index: tuple[int, int] | None = None,
    **algorithm: Any,
) -> tuple[Any, ...]:
    """Computes A = U diag(s) V^H for a [..., m, n]; the parameters are those of JAX's primitive.

    Returns:
      s, descending, real [..., k], and with `compute_uv` also U [..., m, k] and V^H [..., k, n],
      k = min(m, n); with `full_matrices` U is [..., m, m] and V^H [..., n, n]. With
      `subset_by_index` (from, to), k is their difference. A matrix that is not finite gives NaN.
    """
    del algorithm  # which of LAPACK's or cusolver's algorithms; the result is the same
    function = functools.partial(_svd, full=full_matrices and compute_uv)
    for _ in a.shape[:-2]:
        function = jax.vmap(function)
    s, u, vh = function(a)
    if subset_by_index is not None:
        first, end = subset_by_index
        s = s[..., first:end]
        if s.shape[-1] != u.shape[-1] or s.shape[-1] != vh.shape[-2]:
            u, vh = u[..., :, first:end], vh[..., first:end, :]
    return (s, u, vh) if compute_uv else (s,)


def _svd(a: Any, *, full: bool) -> tuple[Any, Any, Any]:
    m, n = a.shape
    if m < n:
        s, u, vh = _svd(adjoint(a), full=full)
        return s, adjoint(vh), adjoint(u)
    if n == 0:
        u = eye_like(a, m, m) if full else a
        return lax.full((0,), 0, real(a).dtype), u, lax.full((0, 0), 0, a.dtype)
    basis = None
    if m > n:
        basis, a = _qr(a, full_matrices=full)
        a = a[:n]
    s, u, v = _svd_square(a)
    if basis is not None:
        thin = matmul(basis[:, :n], u)
        u = lax.concatenate([thin, basis[:, n:]], 1) if full else thin
    return s, u, adjoint(v)


def _svd_square(a: Any) -> tuple[Any, Any, Any]:
    """Computes s, U and V of a [n, n], from the eigenvectors (v, u) of [[0, A^H], [A, 0]].

    Its eigenvalues are s and -s. Where s is about a rounding error, the eigenvectors of s and -s
    (and of other such s) mix, and u and v are no longer orthonormal by themselves: orthogonalised
    in descending order of s, they are, at the cost of such an error in A.
    """
    n = a.shape[0]
    zeros = lax.full((n, n), 0, a.dtype)
    embedding = lax.concatenate(
        [lax.concatenate([zeros, adjoint(a)], 1), lax.concatenate([a, zeros], 1)], 0
    )
    vectors, values = lax.linalg.eigh(embedding, symmetrize_input=False)
    vectors = lax.rev(vectors[:, n:], (1,)) * np.array(math.sqrt(2), a.dtype)
    s = lax.max(lax.rev(values[n:], (0,)), np.zeros(n, values.dtype))
    return s, _orthonormal(vectors[n:]), _orthonormal(vectors[:n])


def _orthonormal(a: Any) -> Any:
    """Returns Q of a QR with a positive diagonal of R: near `a`, if a is orthonormal."""
    q, r = _qr(a, full_matrices=False)
    pivots = diagonal(r)
    if not is_complex(a):
        return where(rows(pivots) < 0, -q, q)
    size = lax.abs(pivots)
    nonzero = size > 0
    divisor = lax.convert_element_type(where(nonzero, size, 1), a.dtype)
    return q * rows(where(nonzero, pivots / divisor, 1))
