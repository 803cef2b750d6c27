"""What is built on factorizations, for all dtypes, batches and open sizes, and its gradients."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from tests.from_jax.linalg_exports import (
    ALL,
    Function,
    adjoint,
    check_portable,
    compare,
    definite,
    export_function,
    hermitian,
    matrix,
    run,
    vjp_of,
    well_conditioned,
)


@pytest.fixture(params=["float32", "float64", "complex64", "complex128"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    with jax.enable_x64(request.param in ("float64", "complex128")):
        yield request.param


BUILT_ON: dict[str, tuple[Function, tuple[str, ...]]] = {
    "solve": (jnp.linalg.solve, ("square", "right")),
    "inv": (jnp.linalg.inv, ("square",)),
    "det": (lambda a: jnp.linalg.det(a / a.shape[-1]), ("square",)),
    "slogdet": (jnp.linalg.slogdet, ("square",)),
    "pinv": (jnp.linalg.pinv, ("tall",)),
    "lstsq": (lambda a, b: jnp.linalg.lstsq(a, b)[0], ("tall", "right")),
    "matrix_rank": (jnp.linalg.matrix_rank, ("tall",)),
    "expm": (lambda a: jax.scipy.linalg.expm(a / 20), ("square",)),
    "cho_solve": (
        lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(definite(a)), b),
        ("square", "right"),
    ),
    "eigvalsh": (lambda a: jnp.linalg.eigvalsh(hermitian(a)), ("square",)),
    "svdvals": (jnp.linalg.svdvals, ("tall",)),
    "lower": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        ("square", "right"),
    ),
    "upper adjoint": (
        lambda a, b: lax.linalg.triangular_solve(
            a, b, left_side=True, lower=False, transpose_a=True, conjugate_a=True
        ),
        ("square", "right"),
    ),
    "right unit": (
        lambda a, b: lax.linalg.triangular_solve(a / 20, b.mT, left_side=False, unit_diagonal=True),
        ("square", "right"),
    ),
    "tridiagonal": (
        lambda a, b: lax.linalg.tridiagonal_solve(a[0], a[1] + 10, a[2], b),
        ("square", "right"),
    ),
    "householder": (lambda a: lax.linalg.householder_product(*lax_geqrf(a)), ("tall",)),
    "cholesky update": (
        lambda a: lax.linalg.cholesky_update(jnp.linalg.cholesky(definite(a)).mT.conj(), a[0]),
        ("square",),
    ),
    "symmetric product": (
        lambda a: lax.linalg.symmetric_product(a, a, alpha=2.0, beta=0.5, symmetrize_output=True),
        ("square",),
    ),
    "qdwh": (lambda a: lax.linalg.qdwh(a)[0], ("square",)),
}
REAL_ONLY = {"cholesky update", "symmetric product", "lstsq"}


def lax_geqrf(a: Any) -> tuple[Any, Any]:
    h, taus = jnp.linalg.qr(a, mode="raw")
    return h.mT, taus


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_ON)
def test_built_on_them(name: str) -> None:
    f, kinds = BUILT_ON[name]
    with jax.enable_x64(True):
        for dtype in ("float32", "float64" if name in REAL_ONLY else "complex128"):
            made = {
                "square": well_conditioned(8, 8, dtype=dtype),
                "tall": matrix(8, 5, dtype=dtype),
                "right": matrix(8, 3, dtype=dtype, seed=2),
            }
            compare(f, *(made[kind] for kind in kinds))


FACTORIZATIONS: dict[str, Function] = {
    "qr": jnp.linalg.qr,
    # Vectors of close values are not determined well, functions of them and the values are.
    "eigh": lambda a: rebuilt_eigh(*jnp.linalg.eigh(hermitian(a))),
    "svd": lambda a: rebuilt_svd(*jnp.linalg.svd(a, full_matrices=False)),
    "lu": lax.linalg.lu,
    "cholesky": lambda a: jnp.linalg.cholesky(definite(a)),
}


def rebuilt_eigh(values: Any, vectors: Any) -> Any:
    squares = (vectors * values[..., None, :] ** 2) @ adjoint(vectors)
    return values, squares, vectors @ adjoint(vectors)


def rebuilt_svd(u: Any, s: Any, vh: Any) -> Any:
    return s, (u * s[..., None, :] ** 2) @ vh, adjoint(u) @ u, vh @ adjoint(vh)


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_dtypes(name: str, dtype: str) -> None:
    compare(FACTORIZATIONS[name], matrix(34, 34, dtype=dtype))


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_batches(name: str) -> None:
    f = FACTORIZATIONS[name]
    compare(jax.vmap(f, in_axes=1), matrix(2, 3, 34, 34))
    compare(f, matrix(0, 4, 4))


SYMBOLIC: dict[str, Function] = {
    **FACTORIZATIONS,
    "inv": jnp.linalg.inv,
    "solve": lambda a: jnp.linalg.solve(a, a.mT),
    "det": jnp.linalg.det,
    "pinv": lambda a: jnp.linalg.pinv(a),
    "tridiagonal": lambda a: lax.linalg.tridiagonal_solve(a[:, 0], a[:, 1] + 10, a[:, 2], a),
}


@pytest.mark.parametrize(
    ("name", "n"), [*((name, 4) for name in SYMBOLIC), ("eigh", 34), ("lu", 70), ("cholesky", 34)]
)
def test_symbolic_batch(name: str, n: int) -> None:
    f = SYMBOLIC[name]
    (b,) = export.symbolic_shape("b")
    symbolic = jax.ShapeDtypeStruct((b, n, n), np.float32)
    check_portable(export_function(f, symbolic, platforms=ALL))
    exported = export_function(f, symbolic)
    check_portable(exported)
    for size in (1, 3):
        a = well_conditioned(size, n, n, seed=size)
        want = [np.asarray(x) for x in jax.tree.leaves(f(a))]
        for g, w in zip(jax.tree.leaves(exported.call(a)), want, strict=True):
            np.testing.assert_allclose(g, w, rtol=0, atol=2e-4 * np.abs(w).max())


DIFFERENTIABLE: dict[str, Function] = {
    "solve": jnp.linalg.solve,
    "inv": lambda a, b: jnp.linalg.inv(a) @ b,
    "det": lambda a, b: jnp.linalg.det(a / a.shape[-1]) * b,
    "cholesky": lambda a, b: jnp.linalg.cholesky(definite(a)) @ b,
    "qr": lambda a, b: tuple(x @ b for x in jnp.linalg.qr(a)),
    # Functions of the vectors that their signs do not change.
    "eigh": lambda a, b: of_eigh(b, *jnp.linalg.eigh(hermitian(a))),
    "svd": lambda a, b: of_svd(b, *jnp.linalg.svd(a, full_matrices=False)),
    "lu": lambda a, b: lax.linalg.lu(a)[0] @ b,
    "triangular": lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    "expm": lambda a, b: jax.scipy.linalg.expm(a / 20) @ b,
    "pinv": lambda a, b: jnp.linalg.pinv(a) @ b,
    "tridiagonal": lambda a, b: lax.linalg.tridiagonal_solve(a[0], a[1] + 20, a[2], b),
}


def of_eigh(b: Any, values: Any, vectors: Any) -> Any:
    return values, (vectors * jnp.arange(values.size)) @ adjoint(vectors) @ b


def of_svd(b: Any, u: Any, s: Any, vh: Any) -> Any:
    return s, (u * jnp.arange(s.size)) @ vh @ b


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str) -> None:
    n = 5
    with jax.enable_x64(True):
        a, b = well_conditioned(n, n, dtype="float64"), matrix(n, 3, dtype="float64", seed=2)
        vjp, args = vjp_of(DIFFERENTIABLE[name], a, b)
        got, want = run(vjp, *args), vjp(*args)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=0, atol=1e-8 * np.abs(w).max())
