"""Algorithms in the place of what JAX has from LAPACK alone, as eig and schur."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax2tf_bridge as bridge
from jax2tf_bridge.from_jax.linalg import pivoted_qr

# Private: an algorithm runs under jax.jit, which takes LAPACK's otherwise.
from jax2tf_bridge.from_jax.linalg._linear_systems import tridiagonal_solve
from jax2tf_bridge.from_jax.linalg._reflectors import hessenberg, tridiagonal
from jax2tf_bridge.from_jax.linalg._schur_and_eig import eig, schur
from tests.sampling import sampled

Matrix = np.ndarray[Any, np.dtype[Any]]

_DTYPES = ("float32", "complex128", "float64", "complex64")
# Each size is compiled, so most are small; the large one reaches every kind of step.
_SIZES_OF_DTYPES = {("float32", 1), ("float32", 21), ("complex128", 8)}
_SIZES = sampled(
    [(name, n) for name in _DTYPES for n in (1, 2, 3, 8, 21)], every=100, keep=_SIZES_OF_DTYPES
)


@pytest.fixture(params=sampled(_DTYPES, every=100, keep=_DTYPES[:2]))
def dtype(request: pytest.FixtureRequest) -> Iterator[Any]:
    with _enough_bits(request.param):
        yield np.dtype(request.param)


def _only(dtype: str) -> pytest.MarkDecorator:
    """Makes a test that compiles much be one of a single dtype, and of the others when complete."""
    first = sorted(_DTYPES, key=lambda other: other != dtype)
    return pytest.mark.parametrize("dtype", sampled(first, every=len(first)), indirect=True)


def _enough_bits(name: str) -> AbstractContextManager[Any]:
    bits: AbstractContextManager[Any] = jax.enable_x64(name in ("float64", "complex128"))
    return bits


def _normal(*shape: int, dtype: Any) -> Matrix:
    numbers = np.random.default_rng(list(shape))
    values = numbers.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * numbers.standard_normal(shape)
    return values.astype(dtype)


def _adjoint(a: Matrix) -> Matrix:
    return np.conj(np.swapaxes(a, -1, -2))


MATRICES: dict[str, Callable[[Matrix], Any]] = {
    "normal": lambda a: a,
    "hermitian": lambda a: a + _adjoint(a),
    "skew": lambda a: a - _adjoint(a),
    "diagonal": lambda a: a * np.eye(len(a)),
    "triangular": np.triu,
    "zero": lambda a: 0 * a,
    "identity": lambda a: np.eye(len(a)) + 0 * a,
    "one Jordan block": lambda a: np.eye(len(a), k=1) + 0 * a,
    "cyclic": lambda a: np.roll(np.eye(len(a)), 1, 0) + 0 * a,
    "of rank one": lambda a: np.ones_like(a),
    "nearly the identity": lambda a: np.eye(len(a)) + 1e-6 * a,
    "large": lambda a: a * 1e30,
    "small": lambda a: a * 1e-30,
}


def _error(difference: Any, scale: float) -> float:
    """Relative to `scale`, in roundings."""
    array = np.asarray(difference)
    if array.size == 0:
        return 0.0
    return float(np.max(np.abs(array))) / (scale or 1.0) / float(np.finfo(array.dtype).eps)


def _both(a: Any) -> Any:
    form = schur(a, compute_schur_vectors=True, sort_eig_vals=False)
    return form, eig(a, compute_left_eigenvectors=True, compute_right_eigenvectors=True)


# Once, so that tests of matrices of one size share what is compiled.
_run_both = jax.jit(_both)


@pytest.mark.parametrize("case", _SIZES, ids=lambda case: f"{case[1]}-{case[0]}")
def test_schur_forms_and_eigenvectors_of_every_kind(case: tuple[str, int]) -> None:
    dtype, n = np.dtype(case[0]), case[1]
    for name, make in MATRICES.items():
        a = np.asarray(make(_normal(n, n, dtype=dtype))).astype(dtype)
        scale = float(np.max(np.abs(a)))
        with _enough_bits(dtype.name):
            (t, z), (w, left, right) = jax.device_get(_run_both(a))
        bound = 40 * n
        assert _error(z @ t @ _adjoint(z) - a, scale) < bound, name
        assert _error(_adjoint(z) @ z - np.eye(n, dtype=dtype), 1) < bound, name
        _check_form(t, name)
        assert _error(a @ right - right * w, scale) < bound, name
        assert _error(_adjoint(left) @ a - w[:, None] * _adjoint(left), scale) < bound, name
        for vectors in (left, right):
            assert _error(np.linalg.norm(vectors, axis=0) - 1, 1) < bound, name


def _check_form(t: Matrix, name: str) -> None:
    """Triangular, but for blocks of pairs of complex eigenvalues with a constant diagonal."""
    below = np.diag(t, -1)
    assert not np.any(np.tril(t, -2)), name
    if t.dtype.kind == "c":
        assert not np.any(below), name
    for i in np.nonzero(below)[0]:
        assert t[i, i] == t[i + 1, i + 1], name
        assert np.sign(t[i, i + 1]) == -np.sign(below[i]), name
        assert i + 2 == len(t) or below[i + 1] == 0, name


def _right_only(a: Any) -> Any:
    return eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=True)


def test_eigenvalues_of_a_real_matrix_are_real_or_in_conjugate_pairs() -> None:
    a = _normal(9, 9, dtype=np.dtype("float32"))
    w, right = jax.jit(_right_only)(a)
    values, vectors = np.asarray(w), np.asarray(right)
    places = np.nonzero(values.imag > 0)[0]
    assert len(places) == np.count_nonzero(values.imag < 0) > 0
    np.testing.assert_array_equal(values[places + 1], np.conj(values[places]))
    # To a rounding: XLA may scale the two by different operations.
    np.testing.assert_allclose(
        vectors[:, places + 1], np.conj(vectors[:, places]), rtol=1e-6, atol=1e-6
    )
    assert not np.any(vectors[:, values.imag == 0].imag)
    expected = np.linalg.eigvals(a)
    order = np.lexsort((values.imag, values.real)), np.lexsort((expected.imag, expected.real))
    np.testing.assert_allclose(values[order[0]], expected[order[1]], atol=1e-4)


def test_the_largest_entries_of_eigenvectors_are_real_and_positive(dtype: Any) -> None:
    """JAX's derivative of eigenvectors counts on it, as LAPACK has them."""
    n = 8 if dtype.kind == "c" else 21
    _, (_, *both) = jax.device_get(_run_both(_normal(n, n, dtype=dtype)))
    for vectors in both:
        largest = vectors[np.argmax(np.abs(vectors), 0), np.arange(n)]
        assert np.all(largest.real > 0)
        assert _error(largest.imag, 1) < 10


@pytest.mark.costly
@_only("float64")  # of the size and dtype of badly scaled ones: one compilation for both
def test_matrices_that_are_not_finite_give_nan(dtype: Any) -> None:
    a = _normal(3, 3, 3, dtype=dtype)
    a[1, 2, 1], a[2, 2, 1] = np.nan, np.inf
    for result in jax.tree.leaves(_run_both(a)):
        assert np.all(np.isfinite(result[0]))
        assert np.all(np.isnan(result[1:]))


@_only("complex128")
def test_hessenberg_and_tridiagonal_forms_are_packed_as_by_lapack(dtype: Any) -> None:
    tolerance = 50 * np.finfo(dtype).eps

    @jax.jit
    def pairs(*matrices: Any) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        for a in matrices:
            found.append((hessenberg(a), lax.linalg.hessenberg(a)))
            hermitian = a + jnp.swapaxes(a, -1, -2).conj()
            for lower in (True, False):
                theirs = lax.linalg.tridiagonal(hermitian, lower=lower)
                found.append((tridiagonal(hermitian, lower=lower), theirs))
        return found

    found = pairs(*(_normal(2, n, n, dtype=dtype) for n in (1, 2, 7)))
    assert len(found) == 9
    for pair in found:
        for got, expected in zip(*pair, strict=True):
            np.testing.assert_allclose(got, expected, atol=tolerance, rtol=tolerance)


@_only("complex128")
def test_pivoted_qr_is_that_of_lapack(dtype: Any) -> None:
    @jax.jit
    def both(*matrices: Any) -> list[Any]:
        return [
            (
                lax.linalg.qr(a, pivoting=True, full_matrices=False)[1:],
                pivoted_qr(a, np.zeros((2, a.shape[2]), np.int32))[:2],
            )
            for a in matrices
        ]

    shapes = [(6, 4), (4, 6), (5, 5), (1, 3), (3, 1)]
    results = both(*(_normal(2, *shape, dtype=dtype) for shape in shapes))
    for shape, ((r, order), (packed, pivots)) in zip(shapes, results, strict=True):
        np.testing.assert_array_equal(np.asarray(pivots) - 1, order)
        upper = np.triu(np.asarray(packed))[:, : min(shape)]
        np.testing.assert_allclose(upper, r, atol=50 * np.finfo(dtype).eps)


def test_pivoted_qr_of_dependent_and_of_tiny_columns() -> None:
    factor, no_pivots = jax.jit(pivoted_qr), np.zeros(3, np.int32)
    dependent = np.outer(np.arange(1.0, 6), [1.0, 3, 2]).astype(np.float32)
    packed, pivots, _ = factor(dependent, no_pivots)
    assert np.asarray(pivots)[0] == 2
    assert np.max(np.abs(np.triu(np.asarray(packed))[1:])) < 1e-5
    # Beside the first column, the squares of the others underflow.
    tiny = np.eye(5, 3, dtype=np.float32) * np.array([1, 1e-30, 2e-30], np.float32)
    assert factor(tiny, no_pivots)[1].tolist() == [1, 3, 2]


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_a_perturbed_singular_system_has_a_finite_solution(dtype: Any) -> None:
    zero, one = np.zeros(4, dtype), np.ones((4, 1), dtype)
    d = np.array([1, 0, 2, 1], dtype)
    x, without = jax.jit(
        lambda d: [
            tridiagonal_solve(zero, d, zero, one, perturb_singular=perturb)
            for perturb in (True, False)
        ]
    )(d)
    x = np.asarray(x)
    assert np.all(np.isfinite(x))
    assert x[1, 0].real > 1e5  # along the null space
    np.testing.assert_allclose(x[[0, 2, 3], 0], [1, 0.5, 1])
    assert np.all(np.isnan(np.asarray(without)))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "eig": jnp.linalg.eig,
    "eigvals": jnp.linalg.eigvals,
    "schur": lambda a: jax.scipy.linalg.schur(a),
    "hessenberg": lambda a: jax.scipy.linalg.hessenberg(a, calc_q=True),
    "pivoted qr": lambda a: jax.scipy.linalg.qr(a, pivoting=True),
    "tridiagonal": lax.linalg.tridiagonal,
}
# Not in JAX 0.8.
if "perturb_singular" in inspect.signature(lax.linalg.tridiagonal_solve).parameters:
    FUNCTIONS["perturbed solve"] = lambda a: lax.linalg.tridiagonal_solve(
        a[..., 0], a[..., 1], a[..., 2], a, perturb_singular=True
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_exported_for_every_platform(name: str) -> None:
    a = np.eye(3, dtype=np.float32)
    portable = bridge.export(FUNCTIONS[name])(a)
    assert portable.platforms == ("cpu", "cuda", "rocm", "tpu")
    assert portable.module.stablehlo_version == (0, 14, 24)
    assert bridge.export(FUNCTIONS[name], platforms=["tpu"])(a).platforms == ("tpu",)


@pytest.mark.parametrize("name", ["eig", "schur"])
def test_empty_matrices_stay_empty(name: str) -> None:
    portable = bridge.export(FUNCTIONS[name])(np.zeros((2, 0, 0), np.float32))
    assert portable.out_avals[-1].shape == (2, 0, 0)


@pytest.mark.parametrize("dtype", sampled(["float64", "complex128"], every=2))
def test_eigenvalues_of_badly_scaled_matrices(dtype: str) -> None:
    """Nobody finds these without balancing rows and columns first."""
    both = np.array([[[1, x, 0], [1 / x, 1, x], [0, 1 / x, 1]] for x in (1e4, 1e5, 1e6)])
    with _enough_bits(dtype):
        found = jax.device_get(_run_both(both.astype(dtype))[1])
    for a, values, left, right in zip(both, *found, strict=True):
        expected = np.array([1 - np.sqrt(2), 1, 1 + np.sqrt(2)])
        order = np.argsort(np.real(values))
        np.testing.assert_allclose(values[order], expected, rtol=1e-12)
        for vectors, matrix in ((right, a), (left, a.T)):
            factors = np.abs(matrix) @ np.abs(vectors) + np.abs(vectors * values)
            assert np.max(np.abs(matrix @ vectors - vectors * values) / factors) < 1e-12
