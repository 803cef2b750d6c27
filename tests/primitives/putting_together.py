"""Results of decompositions put together again, so that signs and orders do not matter."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

# A few hundred roundings: of matrices of a condition of about ten, by another algorithm than
# LAPACK's, and derivatives that divide by differences of eigenvalues.
LOOSE = 2e-4

NO_DERIVATIVE = "JAX has no derivative of it"
PIVOTING = "JAX fails to differentiate a batch of it"


def adjoint(a: Any) -> Any:
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def of_eigh(f: Any, a: Any, **options: Any) -> Any:
    """Eigenvalues; the matrix, the identity and projections, of the eigenvectors."""
    a = (a + adjoint(a)) / 2
    first, second = f(a, **options)
    w, v = (first, second) if first.ndim < second.ndim else (second, first)
    return w, (v * w) @ adjoint(v), adjoint(v) @ v, jnp.abs(v) ** 2


def of_svd(f: Any, a: Any, **options: Any) -> Any:
    """Singular values; the matrix and projections, of the singular vectors."""
    u, s, vh = f(a, **options)
    k = s.shape[-1]
    return s, (u[:, :k] * s) @ vh[:k], jnp.abs(u[:, :k]) ** 2, jnp.abs(vh[:k]) ** 2


def full_svd(f: Any, a: Any) -> Any:
    """Singular values, and identities of square factors."""
    u, s, vh = f(a, full_matrices=True)
    return s, u @ adjoint(u), adjoint(vh) @ vh


def of_qr(f: Any, a: Any, **options: Any) -> Any:
    """Puts the matrix and the identity together from factors; sizes in R; the order of columns."""
    q, r, *p = f(a, **options)
    return q @ r, adjoint(q) @ q, jnp.abs(r), jnp.tril(r, -1), *p


def of_eig(f: Any, a: Any, **options: Any) -> Any:
    """Symmetric functions of the eigenvalues; the equation, and lengths, of the vectors."""
    w, v = f(a, **options)
    return sums(w), a @ v - v * w, jnp.sum(jnp.abs(v) ** 2, 0)


def of_eig_both(f: Any, a: Any) -> Any:
    """Puts together as `of_eig`, for the vectors of both sides."""
    w, left, right = f(a)
    return sums(w), adjoint(left) @ a - w[:, None] * adjoint(left), a @ right - right * w


def of_eig_with_gradient(f: Any, a: Any) -> Any:
    """Sums over the eigenvectors, whose order is open, with weights of their eigenvalues."""
    w, v = f(a, compute_left_eigenvectors=False, enable_eigvec_derivs=True)
    return sums(w), jnp.abs(v) ** 2 @ jnp.abs(w)


def sums(w: Any) -> Any:
    """Symmetric functions of eigenvalues, whose order is open."""
    w = w / 4
    return jnp.stack([jnp.sum(w**k) for k in range(1, w.shape[-1] + 1)])


def of_lu(f: Any, a: Any) -> Any:
    """Keeps the packed factors; how far their product is from the matrix."""
    packed, pivots, permutation = f(a)
    m, n = a.shape
    lower = jnp.tril(packed[:, : min(m, n)], -1) + jnp.eye(m, min(m, n), dtype=a.dtype)
    return packed, pivots, permutation, lower @ jnp.triu(packed[: min(m, n)]) - a[permutation]


def of_hessenberg(f: Any, a: Any) -> Any:
    """Puts the matrix and the identity together from unpacked factors; sizes in H."""
    packed, taus = f(a)
    h = jnp.triu(packed, -1)
    n = a.shape[0]
    below = jnp.tril(packed[1:, : n - 1], -1)
    q = jnp.eye(n, dtype=a.dtype).at[1:, 1:].set(lax.linalg.householder_product(below, taus))
    return q @ h @ adjoint(q), q @ adjoint(q), jnp.abs(h)


def of_tridiagonal(f: Any, a: Any, **options: Any) -> Any:
    """T up to its signs, its eigenvalues, and sizes of the taus."""
    _, d, e, taus = f((a + adjoint(a)) / 2, **options)
    t = jnp.diag(d) + jnp.diag(jnp.abs(e), 1) + jnp.diag(jnp.abs(e), -1)
    return d, jnp.abs(e), jnp.linalg.eigvalsh(t), jnp.abs(taus)


def of_reflectors(f: Any, a: Any) -> Any:
    """Q of what jax.numpy.linalg.qr packs."""
    packed, taus = jnp.linalg.qr(a, mode="raw")
    return f(jnp.swapaxes(packed, -1, -2), taus)


def of_ormqr(f: Any, a: Any, c: Any) -> Any:
    """Products with Q of what jax.numpy.linalg.qr packs."""
    packed, taus = jnp.linalg.qr(lax.stop_gradient(a), mode="raw")
    packed = jnp.swapaxes(packed, -1, -2)
    return f(packed, taus, c), f(packed, taus, c, transpose=True)


def of_schur(f: Any, a: Any, **options: Any) -> Any:
    """Puts the matrix and the identity together; what has to be zero, and the trace."""
    t, z = f(a, **options)
    return z @ t @ adjoint(z), adjoint(z) @ z, jnp.tril(t, -2), jnp.trace(t)
