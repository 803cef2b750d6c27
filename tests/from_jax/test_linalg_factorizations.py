"""Each factorization exported without LAPACK: what it computes, hard matrices among them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.from_jax.linalg_exports import (
    Function,
    compare,
    definite,
    export_function,
    hermitian,
    matrix,
    run,
    tolerance,
    with_spectrum,
)

SHAPES = [(1, 1), (2, 2), (5, 3), (3, 5), (40, 40), (64, 30), (30, 64)]


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_qr(m: int, n: int) -> None:
    def f(a: Any) -> Any:
        return [jnp.linalg.qr(a, mode=mode) for mode in ("reduced", "complete", "r")]

    compare(f, matrix(m, n))


@pytest.mark.parametrize(("m", "n"), [*SHAPES, (200, 200)])
def test_lu(m: int, n: int) -> None:
    compare(lax.linalg.lu, matrix(m, n))


@pytest.mark.parametrize(
    ("m", "n", "full_matrices"),
    [
        (1, 1, True),
        (3, 3, True),
        (5, 3, True),
        (3, 5, True),
        (5, 3, False),
        (30, 64, False),
        (64, 30, True),
    ],
)
def test_svd(m: int, n: int, full_matrices: bool) -> None:
    a = matrix(m, n)
    u, s, vh = run(functools.partial(jnp.linalg.svd, full_matrices=full_matrices), a)
    assert (u.shape, vh.shape) == (
        ((m, m), (n, n)) if full_matrices else ((m, s.size), (s.size, n))
    )
    check_svd(a, u, s, vh)


def check_svd(a: Any, u: Any, s: Any, vh: Any) -> None:
    atol = tolerance(a.dtype)
    want = np.linalg.svd(a, compute_uv=False)
    k = s.shape[-1]
    np.testing.assert_allclose(s, want, rtol=0, atol=atol * max(want[0], 1e-30))
    np.testing.assert_allclose((u[:, :k] * s) @ vh[:k], a, rtol=0, atol=atol * max(want[0], 1e-30))
    check_orthonormal(u)
    check_orthonormal(vh.conj().T)


def check_orthonormal(q: Any) -> None:
    gram = q.conj().T @ q
    np.testing.assert_allclose(gram, np.eye(len(gram)), rtol=0, atol=tolerance(q.dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "triangle"), [(1, "L"), (2, "U"), (3, "L"), (32, "U"), (33, "U"), (64, "L"), (200, "L")]
)
def test_eigh(n: int, triangle: str) -> None:
    # The other triangle must not be read.
    a = np.tril(matrix(n, n)) if triangle == "L" else np.triu(matrix(n, n))
    values, vectors = run(
        functools.partial(jnp.linalg.eigh, UPLO=triangle, symmetrize_input=False), a
    )
    check_eigh(np.asarray(a + a.T - np.diag(np.diag(a))), values, vectors)


def test_both_triangles_in_one_function() -> None:
    """XLA expands the Eigh of a shape once."""
    a = matrix(4, 4)

    def f(a: Any) -> Any:
        upper = jnp.linalg.eigh(a, UPLO="U", symmetrize_input=False)
        return jnp.linalg.eigh(a, UPLO="L", symmetrize_input=False), upper

    results = run(f, a)
    for part, (values, vectors) in ((np.tril(a), results[:2]), (np.triu(a), results[2:])):
        check_eigh(np.asarray(part + part.T - np.diag(np.diag(part))), values, vectors)


def check_eigh(a: Any, values: Any, vectors: Any) -> None:
    want = np.linalg.eigvalsh(a)
    atol = tolerance(a.dtype) * max(np.abs(want).max(), 1e-30)
    np.testing.assert_allclose(values, want, rtol=0, atol=atol)
    assert np.all(np.diff(values) >= 0)
    np.testing.assert_allclose(a @ vectors, vectors * values, rtol=0, atol=atol)
    check_orthonormal(vectors)


SPECTRA = {
    "repeated": np.repeat(np.arange(1.0, 9.0), 5),
    "one": np.ones(40),
    "zero": np.zeros(40),
    "rank one": np.concatenate([np.zeros(39), [1.0]]),
    "graded": np.logspace(0, -7, 40),
    "clusters": np.sort(np.concatenate([1 + 1e-6 * np.arange(20), 2 + 1e-7 * np.arange(20)])),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_spectra_that_are_hard(dtype: str) -> None:
    with jax.enable_x64(True):
        example = np.eye(40, dtype=dtype)
        eigh = jax.jit(export_function(jnp.linalg.eigh, example).call)
        svd = jax.jit(export_function(jnp.linalg.svd, example).call)
        for values in SPECTRA.values():
            a = with_spectrum(values, dtype)
            a = (a + a.conj().T) / 2
            check_eigh(a, *(np.asarray(x) for x in eigh(a)))
            check_svd(a, *(np.asarray(x) for x in svd(a)))


def test_small_singular_values_keep_their_size() -> None:
    a = with_spectrum(np.array([1.0, 1e-2, 1e-4, 1e-6]), "float32")
    s = run(functools.partial(jnp.linalg.svd, compute_uv=False), a)[0]
    np.testing.assert_allclose(s, [1, 1e-2, 1e-4, 1e-6], rtol=0, atol=3e-7)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_sizes_near_the_ends_of_the_range(scale: float) -> None:
    a = np.asarray(hermitian(matrix(40, 40))) * np.float32(scale)
    values, vectors = run(jnp.linalg.eigh, a)
    check_eigh(a, values, vectors)


@pytest.mark.parametrize("n", [1, 24, 25, 64, 200])
def test_cholesky(n: int) -> None:
    a = np.asarray(definite(matrix(n, n)))
    compare(jnp.linalg.cholesky, a)
    compare(functools.partial(jnp.linalg.cholesky, upper=True), a)


@pytest.mark.parametrize("n", [3, 40])
def test_cholesky_of_an_indefinite_matrix_is_nan(n: int) -> None:
    good = np.asarray(definite(matrix(n, n)))
    bad = good - 100 * np.eye(n, dtype="float32")
    lower = np.tri(n, dtype=bool)
    got = run(jnp.linalg.cholesky, np.stack([good, bad]))[0]
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1][lower]).all()


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("f", [jnp.linalg.eigh, jnp.linalg.svd])
def test_not_finite_gives_nan(f: Function, n: int) -> None:
    a = np.stack([np.asarray(hermitian(matrix(n, n)))] * 2)
    a[1, 0, 0] = np.nan
    for got in run(f, a):
        assert np.isfinite(got[0]).all()
        assert np.isnan(got[1]).all()


def test_singular_matrices() -> None:
    # As in LAPACK: the factorisation exists, and has zeros on the diagonal of U.
    a = np.array([[1, 2, 3], [2, 4, 6], [1, 1, 1]], "float32")
    compare(lax.linalg.lu, a)
    compare(lax.linalg.lu, np.zeros((5, 5), "float32"))
    compare(jnp.linalg.det, a)
    compare(jnp.linalg.slogdet, np.diag(np.array([-1, 2, 3], "float32")))
    for singular in (np.zeros((3, 3), "float32"), np.array([[1, 2], [2, 4]], "float32")):
        assert not np.isfinite(run(jnp.linalg.inv, singular)[0]).any()
        assert not np.isfinite(np.asarray(jnp.linalg.inv(singular))).any()
        assert np.linalg.matrix_rank(singular) == run(jnp.linalg.matrix_rank, singular)[0]


@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 3), (3, 0)])
def test_matrices_without_elements(m: int, n: int) -> None:
    a = np.zeros((m, n), "float32")
    compare(lax.linalg.lu, a)
    compare(jnp.linalg.svd, a)
    compare(jnp.linalg.qr, a)
    if m == n:
        compare(jnp.linalg.eigh, a)
        compare(jnp.linalg.cholesky, a)


def test_tridiagonal_systems_that_need_pivoting() -> None:
    dl = np.array([0, 1, 1, 1], "float32")
    d = np.array([0, 1e-8, 2, 0], "float32")
    du = np.array([2, 1, 3, 0], "float32")
    b = matrix(4, 2)
    compare(lax.linalg.tridiagonal_solve, dl, d, du, b)
    compare(lax.linalg.tridiagonal_solve, dl[:1], d[:1] + 3, du[:1], b[:1])
    zero = np.zeros(4, "float32")
    assert np.isnan(run(lax.linalg.tridiagonal_solve, zero, zero, zero, b)[0]).all()


@pytest.mark.skipif(
    not hasattr(jax.scipy.linalg, "qr_multiply"), reason="this JAX has no qr_multiply"
)
def test_qr_multiply() -> None:
    a = matrix(7, 4)
    multiply: Function = getattr(jax.scipy.linalg, "qr_multiply")  # noqa: B009
    compare(functools.partial(multiply, mode="left"), a, matrix(4, 2))
    compare(functools.partial(multiply, mode="right"), a, matrix(3, 7))
