"""Linear algebra: of jax.scipy.linalg and jax.scipy.sparse.linalg."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from tests.primitives.arguments import (
    distinct,
    indefinite,
    matrix,
    normal,
    singular_values_apart,
    symmetric,
    triangular,
    uniform,
)
from tests.primitives.case import Case, cases
from tests.primitives.putting_together import (
    LOOSE,
    PIVOTING,
    adjoint,
    of_eigh,
    of_qr,
    of_schur,
    of_svd,
)

_TWO = ("float32",)
_WHILE = "a while loop has no reverse mode"
_NONE = "JAX has no derivative of it"


def _generalized(f: Any, a: Any, b: Any) -> Any:
    w, v = f((a + a.T) / 2, (b + b.T) / 2)
    return w, jnp.abs(v)


def _to_complex(f: Any, a: Any) -> Any:
    from jax.scipy.linalg import schur

    t, z = f(*schur(a))
    return z @ t @ adjoint(z), jnp.tril(t, -1)


CASES: tuple[Case, ...] = (
    *cases("jax.scipy.linalg.block_diag", normal(2, 3), normal(1, 2), normal(3, 1)),
    *cases(
        "jax.scipy.linalg.cho_factor",
        symmetric(5),
        call=lambda f, a: jnp.triu(f(a)[0]),
        dtypes=_TWO,
    ),
    *cases(
        "jax.scipy.linalg.cho_solve",
        triangular(5),
        normal(5, 2),
        call=lambda f, c, b: f((c, True), b),
        dtypes=_TWO,
        tolerance=LOOSE,
    ),
    *cases(
        "jax.scipy.linalg.cholesky",
        symmetric(5),
        call=lambda f, a: (f(a), f(a, lower=True)),
        dtypes=_TWO,
    ),
    *cases("jax.scipy.linalg: circulant fiedler", normal(5)),
    *cases("jax.scipy.linalg: companion fiedler_companion", uniform(1, 2, 5)),
    *cases("jax.scipy.linalg.convolution_matrix", normal(3), call=lambda f, a: f(a, 5)),
    *cases("jax.scipy.linalg: det inv", matrix(5), dtypes=_TWO, tolerance=LOOSE),
    *cases(
        "jax.scipy.linalg: dft helmert hilbert invhilbert pascal invpascal",
        normal(),
        call=lambda f, x: f(5) * x,
    ),
    *cases("jax.scipy.linalg.hadamard", normal(), call=lambda f, x: f(4) * x),
    *cases(
        "jax.scipy.linalg.eigh",
        indefinite(5),
        call=of_eigh,
        dtypes=("float32", "complex64"),
        tolerance=LOOSE,
    ),
    *cases(
        "jax.scipy.linalg.eigh",
        indefinite(5),
        label="values",
        call=lambda f, a: f(a, eigvals_only=True),
        tolerance=LOOSE,
    ),
    *cases(
        "jax.scipy.linalg.eigh_tridiagonal",
        normal(6),
        normal(5),
        call=lambda f, d, e: f(d, e, eigvals_only=True),
        no_gradient=_WHILE,
        tolerance=LOOSE,
    ),
    *cases(
        "jax.scipy.linalg.eigh_tridiagonal",
        distinct(6),
        normal(5),
        label="vectors",
        no_gradient=_WHILE,
        tolerance=LOOSE,
        needs="jax.lax.one_minus_square",
        call=lambda f, d, e: (lambda w, v: (w, jnp.abs(v)))(*f(d, e)),
    ),
    *cases("jax.scipy.linalg.expm", uniform(-1, 1, 4, 4), dtypes=_TWO, tolerance=LOOSE),
    *cases(
        "jax.scipy.linalg.expm_frechet",
        uniform(-1, 1, 4, 4),
        uniform(-1, 1, 4, 4),
        tolerance=LOOSE,
    ),
    *cases(
        "jax.scipy.linalg.funm",
        matrix(4),
        call=lambda f, a: f(a, jnp.sin),
        tolerance=2e-3,
        no_gradient=_NONE,
    ),
    *cases("jax.scipy.linalg.hankel", normal(4), normal(3)),
    *cases(
        "jax.scipy.linalg.hessenberg",
        normal(5, 5),
        tolerance=LOOSE,
        no_gradient=_NONE,
        dtypes=_TWO,
        call=lambda f, a: (lambda h, q: (q @ h @ adjoint(q), jnp.abs(h)))(*f(a, calc_q=True)),
    ),
    *cases("jax.scipy.linalg.leslie", normal(4), normal(3)),
    *cases("jax.scipy.linalg.lu", normal(5, 5), dtypes=_TWO, tolerance=LOOSE),
    *cases("jax.scipy.linalg.lu_factor", normal(5, 5), dtypes=_TWO, tolerance=LOOSE),
    *cases(
        "jax.scipy.linalg.lu_solve",
        matrix(5),
        normal(5, 2),
        tolerance=LOOSE,
        call=lambda f, a, b: f((a, jnp.arange(5, dtype=jnp.int32)), b),
    ),
    *cases(
        "jax.scipy.linalg.polar",
        singular_values_apart(5, 3),
        no_gradient=_WHILE,
        tolerance=LOOSE,
        call=lambda f, a: (f(a), f(a.T, side="left")),
    ),
    *cases(
        "jax.scipy.linalg.polar",
        singular_values_apart(5, 3),
        label="svd",
        tolerance=LOOSE,
        call=lambda f, a: f(a, method="svd"),
    ),
    *cases(
        "jax.scipy.linalg.qr",
        normal(6, 4),
        call=lambda f, a: of_qr(f, a, mode="economic"),
        dtypes=_TWO,
        tolerance=LOOSE,
    ),
    *cases(
        "jax.scipy.linalg.qr",
        normal(6, 4),
        label="pivoting",
        tolerance=LOOSE,
        no_open_gradient=PIVOTING,
        call=lambda f, a: of_qr(f, a, mode="economic", pivoting=True),
    ),
    *cases(
        "jax.scipy.linalg.qr_multiply",
        normal(5, 3),
        normal(2, 5),
        tolerance=LOOSE,
        call=lambda f, a, c: (lambda cq, r: (cq @ r, jnp.abs(r)))(*f(a, c)),
        no_gradient="JAX has no derivative of it",
    ),
    *cases(
        "jax.scipy.linalg.rsf2csf",
        normal(5, 5),
        call=_to_complex,
        tolerance=LOOSE,
        no_gradient=_NONE,
    ),
    *cases(
        "jax.scipy.linalg.schur",
        normal(6, 6),
        call=of_schur,
        dtypes=_TWO,
        tolerance=LOOSE,
        no_gradient=_NONE,
    ),
    *cases(
        "jax.scipy.linalg.schur",
        normal(6, 6),
        label="complex output",
        tolerance=LOOSE,
        no_gradient=_NONE,
        call=lambda f, a: of_schur(f, a, output="complex"),
    ),
    *cases("jax.scipy.linalg.solve", matrix(5), normal(5, 2), dtypes=_TWO, tolerance=LOOSE),
    *cases(
        "jax.scipy.linalg.solve",
        symmetric(5),
        normal(5),
        label="positive",
        tolerance=LOOSE,
        call=lambda f, a, b: f(a, b, assume_a="pos"),
    ),
    *cases(
        "jax.scipy.linalg.solve_sylvester",
        matrix(3),
        matrix(4),
        normal(3, 4),
        tolerance=2e-3,
        no_gradient=_NONE,
    ),
    *cases(
        "jax.scipy.linalg.solve_triangular",
        triangular(5),
        normal(5, 2),
        dtypes=_TWO,
        call=lambda f, a, b: f(a, b, lower=True),
    ),
    *cases("jax.scipy.linalg.sqrtm", matrix(4), tolerance=LOOSE, no_gradient=_NONE),
    *cases(
        "jax.scipy.linalg.svd",
        singular_values_apart(5, 4),
        dtypes=_TWO,
        tolerance=LOOSE,
        call=lambda f, a: of_svd(f, a, full_matrices=False),
    ),
    *cases("jax.scipy.linalg.toeplitz", normal(4), normal(3)),
    *cases(
        "jax.scipy.sparse.linalg: cg",
        symmetric(5),
        normal(5),
        tolerance=LOOSE,
        call=lambda f, a, b: f(lambda v: (a + a.T) / 2 @ v, b, tol=1e-7)[0],
    ),
    *cases(
        "jax.scipy.sparse.linalg: bicgstab gmres",
        matrix(5),
        normal(5),
        tolerance=LOOSE,
        call=lambda f, a, b: f(lambda v: a @ v, b, tol=1e-7)[0],
    ),
)
