"""Values of each factorization exported without LAPACK, including hard matrices."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.from_jax.lowered import (
    Function,
    check_everywhere,
    compare,
    compare_each,
    definite,
    export_function,
    hermitian,
    matrix,
    run,
    tolerance,
    with_spectrum,
)
from tests.sampling import sampled

SHAPES = [(1, 1), (2, 2), (5, 3), (3, 5), (40, 40), (64, 30), (30, 64)]


def qr_in_every_mode(a: Any) -> Any:
    return [jnp.linalg.qr(a, mode=mode) for mode in ("reduced", "complete", "r")]


def test_qr() -> None:
    compare_each(qr_in_every_mode, *(matrix(*shape) for shape in SHAPES[:4]))


@pytest.mark.slow
def test_qr_of_larger_matrices() -> None:
    compare_each(qr_in_every_mode, *(matrix(*shape) for shape in SHAPES[4:]))


def test_lu() -> None:
    compare_each(lax.linalg.lu, *(matrix(*shape) for shape in [*SHAPES[:4], (40, 34)]))


@pytest.mark.slow
def test_lu_of_larger_matrices() -> None:
    compare_each(lax.linalg.lu, *(matrix(*shape) for shape in [*SHAPES[4:], (140, 130)]))


SVDS = [
    (1, 1, True),
    (3, 5, True),
    (5, 3, False),
]


@pytest.mark.costly
def test_svd() -> None:
    def f(*matrices: Any) -> Any:
        return [
            jnp.linalg.svd(a, full_matrices=full)
            for a, (_, _, full) in zip(matrices, SVDS, strict=True)
        ]

    matrices = [matrix(m, n) for m, n, _ in SVDS]
    results = iter(run(f, *matrices))
    for a, (m, n, full_matrices) in zip(matrices, SVDS, strict=True):
        u, s, vh = next(results), next(results), next(results)
        assert (u.shape, vh.shape) == (
            ((m, m), (n, n)) if full_matrices else ((m, s.size), (s.size, n))
        )
        check_svd(a, u, s, vh)


@pytest.mark.complete
@pytest.mark.parametrize(
    ("m", "n", "full_matrices"),
    [(3, 3, True), (18, 24, False), (30, 64, False), (64, 30, True)],
)
def test_svd_of_other_sizes(m: int, n: int, full_matrices: bool) -> None:
    a = matrix(m, n)
    check_svd(a, *run(functools.partial(jnp.linalg.svd, full_matrices=full_matrices), a))


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


@pytest.fixture(scope="module")
def eigh_of_33_rows() -> Function:
    """Reads the upper triangle. Has the bridge's own algorithm: XLA's takes at most 32 rows."""
    f = functools.partial(jnp.linalg.eigh, UPLO="U", symmetrize_input=False)
    return jax.jit(export_function(f, matrix(33, 33)).call)


def test_eigh(eigh_of_33_rows: Function) -> None:
    a = np.triu(matrix(33, 33))  # the other triangle must not be read
    check_eigh(a + np.triu(a, 1).T, *map(np.asarray, eigh_of_33_rows(a)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "triangle"), [(1, "L"), (2, "U"), (3, "L"), (32, "U"), (64, "L"), (200, "L")]
)
def test_eigh_of_other_sizes(n: int, triangle: str) -> None:
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
@pytest.mark.parametrize("dtype", sampled(["float32", "complex128"], every=2))
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


@pytest.mark.slow
@pytest.mark.parametrize("n", [70, 96])
def test_svd_of_several_blocks(n: int) -> None:
    """Blocks of 32 rows, the third of which has no partner at first; 96 rows need no padding."""
    svd = jax.jit(export_function(jnp.linalg.svd, np.eye(n, dtype=np.float32)).call)
    ones = np.tril(np.ones((n, n), np.float32))
    rank = with_spectrum(np.concatenate([np.zeros(n - 3), [0.5, 1.0, 1.0]]), "float32")
    for a in (matrix(n, n), ones, rank, np.zeros((n, n), np.float32), np.eye(n, dtype=np.float32)):
        check_svd(a, *(np.asarray(x) for x in svd(a)))


def test_small_singular_values_keep_their_size() -> None:
    a = with_spectrum(np.array([1.0, 1e-2, 1e-4, 1e-6]), "float32")
    s = run(functools.partial(jnp.linalg.svd, compute_uv=False), a)[0]
    np.testing.assert_allclose(s, [1, 1e-2, 1e-4, 1e-6], rtol=0, atol=3e-7)


def test_sizes_near_the_ends_of_the_range(eigh_of_33_rows: Function) -> None:
    for scale in (1e-30, 1e30):
        a = np.asarray(hermitian(matrix(33, 33))) * np.float32(scale)
        check_eigh(a, *map(np.asarray, eigh_of_33_rows(a)))


def both_choleskys(a: Any) -> Any:
    return jnp.linalg.cholesky(a), jnp.linalg.cholesky(a, upper=True)


def test_cholesky() -> None:
    compare_each(both_choleskys, *(np.asarray(definite(matrix(n, n))) for n in (1, 24, 25)))


@pytest.mark.slow
def test_cholesky_of_larger_matrices() -> None:
    compare_each(both_choleskys, *(np.asarray(definite(matrix(n, n))) for n in (64, 90)))


def test_cholesky_of_an_indefinite_matrix_is_nan() -> None:
    pairs = []
    for n in (3, 40):
        good = np.asarray(definite(matrix(n, n)))
        pairs.append(np.stack([good, good - 100 * np.eye(n, dtype="float32")]))
    for got in run(lambda *pairs: [jnp.linalg.cholesky(a) for a in pairs], *pairs):
        lower = np.tri(got.shape[-1], dtype=bool)
        assert np.isfinite(got[0]).all()
        assert np.isnan(got[1][lower]).all()


@pytest.mark.costly
def test_not_finite_gives_nan(eigh_of_33_rows: Function) -> None:
    pair = np.stack([np.asarray(hermitian(matrix(3, 3)))] * 2)
    pair[1, 0, 0] = np.nan
    results = run(lambda a: [jnp.linalg.svd(a), jnp.linalg.eigh(a)], pair)
    assert len(results) == 5
    for got in results:
        assert np.isfinite(got[0]).all()
        assert np.isnan(got[1]).all()
    large = matrix(33, 33)
    large[0, 0] = np.nan
    for result in eigh_of_33_rows(large):
        assert np.isnan(result).all()


def test_singular_matrices() -> None:
    # As in LAPACK: the factorisation exists, and has zeros on the diagonal of U. The first one of
    # equal entries is the pivot.
    def f(a: Any, equals: Any, reflection: Any) -> Any:
        lu = lax.linalg.lu
        return lu(a), lu(equals), jnp.linalg.det(a), jnp.linalg.slogdet(reflection)

    a = np.array([[1, 2, 3], [2, 4, 6], [1, 1, 1]], "float32")
    reflection = np.diag(np.array([-1, 2, 3], "float32"))
    equals = np.stack([np.zeros((5, 5)), np.sign(matrix(5, 5)), np.ones((5, 5))])
    compare(f, a, equals.astype("float32"), reflection)


@pytest.mark.costly
def test_inverses_and_ranks_of_singular_matrices() -> None:
    def f(a: Any) -> Any:
        return jnp.linalg.inv(a), jnp.linalg.matrix_rank(a)

    singular = np.stack([np.zeros((3, 3)), np.outer([1, 2, 0], [1, 2, 0])]).astype("float32")
    inverses, ranks = run(f, singular)
    assert not np.isfinite(inverses).any()
    assert list(ranks) == [0, 1]


@pytest.mark.parametrize(("m", "n"), [(0, 0), (0, 3), (3, 0)])
def test_matrices_without_elements(m: int, n: int) -> None:
    def f(a: Any) -> Any:
        square = [jnp.linalg.eigh(a), jnp.linalg.cholesky(a)] if m == n else []
        return lax.linalg.lu(a), jnp.linalg.svd(a), jnp.linalg.qr(a), square

    compare(f, np.zeros((m, n), "float32"))


def test_tridiagonal_systems_that_need_pivoting() -> None:
    dl = np.array([0, 1, 1, 1], "float32")
    d = np.array([0, 1e-8, 2, 0], "float32")
    du = np.array([2, 1, 3, 0], "float32")
    b = matrix(4, 2)

    def f(*systems: Any) -> Any:
        return [lax.linalg.tridiagonal_solve(*system) for system in systems]

    compare(f, (dl, d, du, b), (dl[:1], d[:1] + 3, du[:1], b[:1]))
    zero = np.zeros(4, "float32")
    assert np.isnan(run(f, (zero, zero, zero, b))[0]).all()


@pytest.mark.skipif(
    not hasattr(jax.scipy.linalg, "qr_multiply"), reason="this JAX has no qr_multiply"
)
def test_qr_multiply() -> None:
    a = matrix(7, 4)
    multiply: Function = getattr(jax.scipy.linalg, "qr_multiply")  # noqa: B009

    def f(a: Any, left: Any, right: Any) -> Any:
        return multiply(a, left, mode="left"), multiply(a, right, mode="right")

    check_everywhere(f, a, matrix(4, 2), matrix(3, 7))
    compare(f, a, matrix(4, 2), matrix(3, 7))
