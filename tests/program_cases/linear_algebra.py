"""Programs of linear algebra, with results that do not depend on the signs of the vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program_cases.record import Array, Example, calls, normal, program

Function = Callable[..., Any]


def _general(n: int, *batch: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Far from singular."""
    near_zero = normal(*batch, n, n, seed=seed, dtype=dtype) / n
    return np.asarray(near_zero + 2 * np.eye(n, dtype=dtype))


def _spread(n: int, *batch: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Symmetric or Hermitian, with positive eigenvalues that lie well apart."""
    orthogonal, _ = np.linalg.qr(normal(*batch, n, n, seed=seed, dtype=dtype).astype(complex))
    if not np.issubdtype(dtype, np.complexfloating):
        orthogonal, _ = np.linalg.qr(orthogonal.real)
    adjoint = np.swapaxes(orthogonal, -1, -2).conj()
    return np.asarray((orthogonal * np.arange(1, n + 1)) @ adjoint).astype(dtype)


def _transposed(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2).conj()


def _qr(x: Any) -> Any:
    """Q and R with a positive diagonal in R."""
    q, r = jnp.linalg.qr(x)
    diagonal = jnp.diagonal(r, axis1=-2, axis2=-1)
    signs = lax.stop_gradient(diagonal / jnp.abs(diagonal))
    return q * signs[..., None, :], r * signs.conj()[..., :, None]


def _eigh(x: Any) -> Any:
    """Computes the eigenvalues, and two functions of the matrix that depend on no vector's sign."""
    w, v = jnp.linalg.eigh(x)
    back = (v * w[..., None, :].astype(v.dtype)) @ _transposed(v)
    sine = (v * jnp.sin(w)[..., None, :].astype(v.dtype)) @ _transposed(v)
    return w, back, sine


def _svd(x: Any) -> Any:
    u, s, vt = jnp.linalg.svd(x, full_matrices=False)
    return (
        s,
        (u * s[..., None, :].astype(u.dtype)) @ vt,
        (u * jnp.tanh(s)[..., None, :].astype(u.dtype)) @ vt,
    )


def _seventeen(function: Function, matrix: Function, *others: Array) -> Example:
    return Example(function, calls(*((matrix(5, seed=s), *others) for s in (0, 1))))


def _batches(function: Function, matrix: Function, dtype: Any = np.float32) -> Example:
    return Example(function, calls(*((matrix(4, b, dtype=dtype),) for b in (1, 3))))


@program(seventeen=True, needs_linalg=True, jit_compile=True)
def qr() -> Example:
    return _seventeen(_qr, _general)


@program(seventeen=True, needs_linalg=True, jit_compile=True)
def eigh() -> Example:
    return _seventeen(_eigh, _spread)


@program(seventeen=True, needs_linalg=True, jit_compile=True)
def cholesky() -> Example:
    return _seventeen(jnp.linalg.cholesky, _spread)


@program(seventeen=True, needs_linalg=True, jit_compile=True)
def svd() -> Example:
    return _seventeen(_svd, lambda n, seed: _spread(n, seed=seed)[:, :4])


@program(seventeen=True, needs_linalg=True, jit_compile=True)
def lu_solve() -> Example:
    return _seventeen(jnp.linalg.solve, _general, normal(5, 3))


@program(seventeen=True, needs_linalg=True, jit_compile=True)
def triangular_solve() -> Example:
    def solve(a: Any, b: Any) -> Any:
        upper = jax.scipy.linalg.solve_triangular(a, b, trans=1, unit_diagonal=True)
        return upper, jax.scipy.linalg.solve_triangular(a, b, lower=True)

    return _seventeen(solve, _general, normal(5, 2))


@program(polymorphic_shapes="(b, 4, 4)", needs_linalg=True)
def qr_batches() -> Example:
    return _batches(_qr, _general)


@program(polymorphic_shapes="(b, 4, 4)", needs_linalg=True)
def eigh_batches() -> Example:
    return _batches(_eigh, _spread)


@program(polymorphic_shapes="(b, 4, 4)", needs_linalg=True)
def cholesky_batches() -> Example:
    return _batches(jnp.linalg.cholesky, _spread)


@program(polymorphic_shapes="(b, 4, 4)", needs_linalg=True)
def svd_batches() -> Example:
    return _batches(_svd, _spread)


@program(polymorphic_shapes=("(b, 4, 4)", "(b, 4)"), needs_linalg=True)
def solve_batches() -> Example:
    def solve(a: Any, y: Any) -> Any:
        return jnp.linalg.solve(a, y[..., None])[..., 0]

    return Example(solve, calls(*((_general(4, b), normal(b, 4)) for b in (1, 3))))


@program(polymorphic_shapes=("(b, 4, 4)", "(b, 4, k)"), constraints=("k >= 4",), needs_linalg=True)
def triangular_solve_batches() -> Example:
    def solve(a: Any, y: Any) -> Any:
        return lax.linalg.triangular_solve(a, y, left_side=True, lower=True)

    shapes = ((1, 4), (3, 5))
    return Example(solve, calls(*((_general(4, b), normal(b, 4, k)) for b, k in shapes)))


@program(polymorphic_shapes="(b, 4, 4)", needs_linalg=True)
def determinants() -> Example:
    def both(x: Any) -> Any:
        sign, logarithm = jnp.linalg.slogdet(x)
        return jnp.linalg.det(x), sign, logarithm

    return _batches(both, _general)


@program(polymorphic_shapes="(b, 4, 4)", needs_linalg=True)
def inverse() -> Example:
    return _batches(jnp.linalg.inv, _general)


@program(needs_linalg=True)
def pseudoinverse() -> Example:
    return _seventeen(jnp.linalg.pinv, lambda n, seed: _spread(n, seed=seed)[:, :3])


@program(needs_linalg=True)
def least_squares() -> Example:
    def solution(a: Any, y: Any) -> Any:
        return jnp.linalg.lstsq(a, y)[0]

    return _seventeen(solution, lambda n, seed: _spread(n, seed=seed)[:, :3], normal(5, 2))


@program(needs_linalg=True)
def matrix_exponential() -> Example:
    return _seventeen(jax.scipy.linalg.expm, _general)


@program(needs_linalg=True, differentiable=False)
def matrix_rank() -> Example:
    full = _spread(5)
    thin = full[:, :2] @ full[:2]
    return Example(jnp.linalg.matrix_rank, calls((full,), (thin,)))


@program(needs_linalg=True)
def norms() -> Example:
    def several(x: Any) -> Any:
        return jnp.linalg.norm(x, ord=2), jnp.linalg.norm(x, ord="nuc"), jnp.linalg.cond(x)

    return _seventeen(several, _spread)


@program(needs_linalg=True)
def cholesky_solve() -> Example:
    def solve(a: Any, y: Any) -> Any:
        return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), y)

    return _seventeen(solve, _spread, normal(5))


@program(needs_linalg=True)
def lu_factors() -> Example:
    def factors(x: Any) -> Any:
        return jax.scipy.linalg.lu(x)

    return _seventeen(factors, lambda n, seed: normal(n, n - 1, seed=seed))


@program(polymorphic_shapes="(b, 4, 4)", needs_linalg=True)
def complex_cholesky() -> Example:
    return _batches(jnp.linalg.cholesky, _spread, np.complex64)


@program(needs_linalg=True)
def complex_eigh() -> Example:
    return Example(
        lambda x: _eigh((x + _transposed(x)) / 2),
        calls(*((_spread(4, seed=s, dtype=np.complex64),) for s in (0, 1))),
    )


@program(needs_linalg=True)
def complex_solve() -> Example:
    y = normal(4, 2, dtype=np.complex64)
    matrices = (_general(4, seed=s, dtype=np.complex64) for s in (0, 1))
    return Example(jnp.linalg.solve, calls(*((a, y) for a in matrices)))


@program(needs_linalg=True)
def complex_qr_svd() -> Example:
    def both(x: Any) -> Any:
        return (*_qr(x), *_svd(x))

    matrices = (_general(4, seed=s, dtype=np.complex64) for s in (0, 1))
    return Example(both, calls(*((a,) for a in matrices)))


@program(needs_linalg=True, x64=True, tolerance=1e-10)
def double_precision() -> Example:
    """Answers that single precision would not reach."""

    def several(x: Any, y: Any) -> Any:
        return jnp.linalg.solve(x, y), *_qr(x), jnp.linalg.cholesky(x), jnp.linalg.inv(x)

    matrices = (_spread(6, seed=s, dtype=np.float64) for s in (0, 1))
    y = normal(6, 2, dtype=np.float64)
    return Example(several, calls(*((a, y) for a in matrices)))


@program(needs_linalg=True, x64=True, tolerance=1e-7)
def double_precision_vectors() -> Example:
    """XLA's Jacobi method leaves alone what is below 1e-6 of the diagonal, also in 64 bits."""

    def several(x: Any) -> Any:
        return *_eigh(x), *_svd(x)

    return Example(several, calls(*((_spread(6, seed=s, dtype=np.float64),) for s in (0, 1))))


@program(needs_linalg=True)
def larger_matrices() -> Example:
    """Has more rows than the block of a blocked algorithm."""

    def several(x: Any, y: Any) -> Any:
        return jnp.linalg.solve(x, y), jnp.linalg.cholesky(x), *_qr(x), jnp.linalg.eigvalsh(x)

    n = 70
    symmetric = np.cos(np.add.outer(np.arange(n), np.arange(n))).astype(np.float32) / 10
    well_conditioned = symmetric + np.diag(np.linspace(4, 9, n, dtype=np.float32))
    return Example(several, calls((well_conditioned, normal(n, 3))))
