"""Functions built on factorizations, for all dtypes, batches and open sizes, with gradients."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from tests.from_jax.lowered import (
    Function,
    adjoint,
    check_everywhere,
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
from tests.sampling import sampled


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


def test_triangular_systems_of_every_kind() -> None:
    """Six rows take steps of four and of two rows. Entries that must not be read are NaN."""
    a, b = well_conditioned(6, 6, dtype="complex64") / 12, matrix(6, 2, dtype="complex64")
    batch = well_conditioned(2, 25, 25), matrix(2, 25, 1)

    def f(lower: Any, upper: Any, lower_unit: Any, upper_unit: Any, b: Any, *batch: Any) -> Any:
        solved = [lax.linalg.triangular_solve(*batch, left_side=True)]
        for left, is_lower, transpose in itertools.product((True, False), repeat=3):
            conjugate, unit = is_lower != left, transpose != left
            triangle = {
                (True, False): lower,
                (False, False): upper,
                (True, True): lower_unit,
                (False, True): upper_unit,
            }[is_lower, unit]
            x = lax.linalg.triangular_solve(
                triangle,
                b if left else b.mT,
                left_side=left,
                lower=is_lower,
                transpose_a=transpose,
                conjugate_a=conjugate,
                unit_diagonal=unit,
            )
            solved.append(x)
        return solved

    below, above = np.tri(6, dtype=bool), np.tri(6, dtype=bool).T
    parts = below, above, below & ~above, above & ~below
    triangles = [np.where(part, a, np.array(np.nan, a.dtype)) for part in parts]
    compare(f, *triangles, b, *batch)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_errors_of_ill_conditioned_systems(dtype: str) -> None:
    """Inverses of blocks make residuals many times as large as those of substitution."""
    n = 200
    i = np.arange(n)
    g = matrix(n, n, dtype="complex128" if dtype == "complex64" else "float64")
    hilbert = 1 / (i[:, None] + i + 1.0) + 0 * g
    graded = g * np.exp(-15 * i[:, None] / n) * np.exp(10 * i / n)
    with jax.enable_x64(dtype == "float64"):
        matrices = [x.astype(dtype) for x in (hilbert, graded, g)]
        b = matrix(n, dtype=dtype)
        solved = run(lambda b, *matrices: [jnp.linalg.solve(a, b) for a in matrices], b, *matrices)
    for a, x in zip(matrices, solved, strict=True):
        exact = np.clongdouble if dtype == "complex64" else np.longdouble
        a, x = a.astype(exact), x.astype(exact)
        allowed = 40 * np.finfo(dtype).eps * (np.abs(a) @ np.abs(x) + np.abs(b))
        assert (np.abs(a @ x - b) <= allowed).all()


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
            args = [made[kind] for kind in kinds]
            check_everywhere(f, *args)
            compare(f, *args)


def test_what_gpus_have_calls_for_is_exported_without_them() -> None:
    def f(square: Any, tall: Any) -> Any:
        of_square = [BUILT_ON[n][0](square) for n in ("cholesky update", "symmetric product")]
        return of_square, BUILT_ON["householder"][0](tall)

    check_everywhere(f, matrix(4, 4), matrix(4, 3))


FACTORIZATIONS: dict[str, Function] = {
    "qr": jnp.linalg.qr,
    # Vectors of close eigenvalues are ill-conditioned; these functions of them are not.
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


@pytest.mark.slow
def test_of_complex_matrices_on_every_platform() -> None:
    """64-bit matrices are divided down to single rows, so a few rows make several levels."""
    with jax.enable_x64(True):
        a = {name: matrix(34, 34, dtype="complex128") for name in ("qr", "lu", "cholesky")}
        a |= {"eigh": matrix(7, 7, dtype="complex128"), "svd": matrix(4, 4, dtype="complex128")}
        check_everywhere(every_factorization, a)
        compare(every_factorization, a)


def every_factorization(matrices: dict[str, Any]) -> Any:
    return [FACTORIZATIONS[name](a) for name, a in matrices.items()]


@pytest.mark.complete
@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_dtypes(name: str, dtype: str) -> None:
    a = matrix(34, 34, dtype=dtype)
    check_everywhere(FACTORIZATIONS[name], a)
    compare(FACTORIZATIONS[name], a)


@pytest.mark.costly
def test_batches() -> None:
    """Divides matrices of 34 rows; test_symbolic_batch has eigh of that size."""
    a = {name: matrix(2, 3, 34, 34) for name in ("qr", "lu", "cholesky")}
    a |= {name: matrix(2, 3, 4, 4) for name in ("eigh", "svd")}
    compare(jax.vmap(every_factorization, in_axes=1), a)


def test_empty_batches() -> None:
    compare(every_factorization, dict.fromkeys(FACTORIZATIONS, matrix(0, 4, 4)))


SYMBOLIC: dict[str, Function] = {
    **FACTORIZATIONS,
    "inv": jnp.linalg.inv,
    "solve": lambda a: jnp.linalg.solve(a, a.mT),
    "det": jnp.linalg.det,
    "pinv": lambda a: jnp.linalg.pinv(a),
    "tridiagonal": lambda a: lax.linalg.tridiagonal_solve(a[:, 0], a[:, 1] + 10, a[:, 2], a),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "n", "sizes"),
    [
        (["qr", "lu", "cholesky", "solve", "det", "tridiagonal"], 4, (1, 3)),
        (["eigh", "svd"], 4, (3,)),
        (["eigh", "cholesky"], 34, (2,)),
        pytest.param(["eigh", "svd"], 4, (1,), marks=pytest.mark.complete),
        pytest.param(["inv", "pinv"], 4, (1, 3), marks=pytest.mark.complete),
        pytest.param(["lu"], 70, (1, 3), marks=pytest.mark.complete),
    ],
    ids=str,
)
def test_symbolic_batch(names: list[str], n: int, sizes: tuple[int, ...]) -> None:
    def f(a: Any) -> Any:
        return [SYMBOLIC[name](a) for name in names]

    (b,) = export.symbolic_shape("b")
    symbolic = jax.ShapeDtypeStruct((b, n, n), np.float32)
    if n == 4:
        check_everywhere(f, symbolic)
    exported = export_function(f, symbolic)
    check_portable(exported)
    for size in sizes:
        a = well_conditioned(size, n, n, seed=size)
        want = [np.asarray(x) for x in jax.tree.leaves(jax.jit(f)(a))]
        for g, w in zip(jax.tree.leaves(exported.call(a)), want, strict=True):
            np.testing.assert_allclose(g, w, rtol=0, atol=2e-4 * np.abs(w).max())


DIFFERENTIABLE: dict[str, Function] = {
    "solve": jnp.linalg.solve,
    "inv": lambda a, b: jnp.linalg.inv(a) @ b,
    "det": lambda a, b: jnp.linalg.det(a / a.shape[-1]) * b,
    "cholesky": lambda a, b: jnp.linalg.cholesky(definite(a)) @ b,
    "qr": lambda a, b: tuple(x @ b for x in jnp.linalg.qr(a)),
    # The signs of the vectors do not change these functions.
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


# The other functions are built on the same factorizations.
FAST = {"solve", "lu", "cholesky", "qr", "eigh", "svd", "triangular", "tridiagonal"}


@pytest.mark.parametrize("name", sampled(list(DIFFERENTIABLE), every=100, keep=FAST))
def test_gradients(name: str) -> None:
    n = 3
    with jax.enable_x64(True):
        a, b = well_conditioned(n, n, dtype="float64"), matrix(n, 2, dtype="float64", seed=2)
        vjp, args = vjp_of(DIFFERENTIABLE[name], a, b)
        got, want = run(vjp, *args), jax.jit(vjp)(*args)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=0, atol=1e-8 * np.abs(w).max())
