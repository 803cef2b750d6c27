"""The algorithms in the place of what JAX has from LAPACK alone, as eig and schur."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax2tf_bridge as bridge
from jax2tf_bridge.from_jax._linalg._eig import eig
from jax2tf_bridge.from_jax._linalg._reflectors import hessenberg, pivoted_qr, tridiagonal
from jax2tf_bridge.from_jax._linalg._schur import schur
from jax2tf_bridge.from_jax._linalg._tridiagonal_solve import tridiagonal_solve

Matrix = np.ndarray[Any, np.dtype[Any]]

_SIZES = (1, 2, 3, 8, 21)


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("float64", "complex64")]


@pytest.fixture(params=["float32", "complex128", *_SLOW])
def dtype(request: pytest.FixtureRequest) -> Iterator[Any]:
    with jax.enable_x64(request.param in ("float64", "complex128")):
        yield np.dtype(request.param)


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


@pytest.mark.parametrize("n", _SIZES)
def test_schur_forms_and_eigenvectors_of_every_kind(n: int, dtype: Any) -> None:
    run = jax.jit(_both)
    for name, make in MATRICES.items():
        a = np.asarray(make(_normal(n, n, dtype=dtype))).astype(dtype)
        scale = float(np.max(np.abs(a)))
        (t, z), (w, left, right) = jax.device_get(run(a))
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


def test_eigenvalues_of_a_real_matrix_are_real_or_in_conjugate_pairs() -> None:
    a = _normal(9, 9, dtype=np.dtype("float32"))
    w, right = eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=True)
    values, vectors = np.asarray(w), np.asarray(right)
    places = np.nonzero(values.imag > 0)[0]
    assert len(places) == np.count_nonzero(values.imag < 0) > 0
    np.testing.assert_array_equal(values[places + 1], np.conj(values[places]))
    np.testing.assert_array_equal(vectors[:, places + 1], np.conj(vectors[:, places]))
    assert not np.any(vectors[:, values.imag == 0].imag)
    expected = np.linalg.eigvals(a)
    order = np.lexsort((values.imag, values.real)), np.lexsort((expected.imag, expected.real))
    np.testing.assert_allclose(values[order[0]], expected[order[1]], atol=1e-4)


def test_the_largest_entries_of_eigenvectors_are_real_and_positive(dtype: Any) -> None:
    """As LAPACK has them; JAX's derivative of eigenvectors counts on it."""
    _, vectors = eig(
        _normal(7, 7, dtype=dtype), compute_left_eigenvectors=False, compute_right_eigenvectors=True
    )
    vectors = np.asarray(vectors)
    largest = vectors[np.argmax(np.abs(vectors), 0), np.arange(7)]
    assert np.all(largest.real > 0)
    assert _error(largest.imag, 1) < 10


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_matrices_that_are_not_finite_give_nan(wrong: float, dtype: Any) -> None:
    a = _normal(2, 4, 4, dtype=dtype)
    a[1, 2, 1] = wrong
    for result in jax.tree.leaves(jax.jit(_both)(a)):
        assert np.all(np.isfinite(result[0]))
        assert np.all(np.isnan(result[1]))


def test_hessenberg_and_tridiagonal_forms_are_packed_as_by_lapack(dtype: Any) -> None:
    tolerance = 50 * np.finfo(dtype).eps
    for n in (1, 2, 7):
        a = _normal(2, n, n, dtype=dtype)
        hermitian = a + _adjoint(a)
        pairs: list[tuple[Any, Any]] = [(hessenberg(a), lax.linalg.hessenberg(a))]
        for lower in (True, False):
            theirs = lax.linalg.tridiagonal(hermitian, lower=lower)
            pairs.append((tridiagonal(hermitian, lower=lower), theirs))
        for pair in pairs:
            for got, expected in zip(*pair, strict=True):
                np.testing.assert_allclose(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (1, 3), (3, 1)])
def test_pivoted_qr_is_that_of_lapack(shape: tuple[int, int], dtype: Any) -> None:
    a = _normal(2, *shape, dtype=dtype)
    _, r, order = lax.linalg.qr(a, pivoting=True, full_matrices=False)
    packed, pivots, _ = pivoted_qr(a, np.zeros((2, shape[1]), np.int32))
    np.testing.assert_array_equal(np.asarray(pivots) - 1, order)
    upper = np.triu(np.asarray(packed))[:, : min(shape)]
    np.testing.assert_allclose(upper, r, atol=50 * np.finfo(dtype).eps)


def test_pivoted_qr_shows_the_rank() -> None:
    a = np.outer(np.arange(1.0, 6), [1.0, 3, 2]).astype(np.float32)
    packed, pivots, _ = pivoted_qr(a, np.zeros(3, np.int32))
    assert np.asarray(pivots)[0] == 2
    assert np.max(np.abs(np.triu(np.asarray(packed))[1:])) < 1e-5


def test_a_perturbed_singular_system_has_a_finite_solution() -> None:
    zero, one = np.zeros(4, np.float32), np.ones((4, 1), np.float32)
    d = np.array([1, 0, 2, 1], np.float32)
    x = np.asarray(tridiagonal_solve(zero, d, zero, one, perturb_singular=True))
    assert np.all(np.isfinite(x))
    assert x[1, 0] > 1e5  # along the null space
    np.testing.assert_allclose(x[[0, 2, 3], 0], [1, 0.5, 1])
    assert np.all(np.isnan(np.asarray(tridiagonal_solve(zero, d, zero, one))))


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
    record = bridge.export(FUNCTIONS[name])(a)
    assert record.platforms == ("cpu", "cuda", "rocm", "tpu")
    assert record.stablehlo_version == (0, 14, 24)
    assert bridge.export(FUNCTIONS[name], platforms=["tpu"])(a).platforms == ("tpu",)


@pytest.mark.parametrize("name", ["eig", "schur"])
def test_empty_matrices_stay_empty(name: str) -> None:
    record = bridge.export(FUNCTIONS[name])(np.zeros((2, 0, 0), np.float32))
    assert record.out_avals[-1].shape == (2, 0, 0)


@pytest.mark.parametrize("large", [1e4, 1e6])
def test_eigenvalues_of_badly_scaled_matrices(large: float) -> None:
    """Which nobody finds without balancing rows and columns first."""
    a = np.array([[1, large, 0], [1 / large, 1, large], [0, 1 / large, 1]])
    for dtype in (np.float64, np.complex128):
        with jax.enable_x64(True):
            values, left, right = eig(
                a.astype(dtype), compute_left_eigenvectors=True, compute_right_eigenvectors=True
            )
        values = np.asarray(values)
        expected = np.array([1 - np.sqrt(2), 1, 1 + np.sqrt(2)])
        order = np.argsort(np.real(values))
        np.testing.assert_allclose(values[order], expected, rtol=1e-12)
        for vectors, matrix in ((np.asarray(right), a), (np.asarray(left), a.T)):
            factors = np.abs(matrix) @ np.abs(vectors) + np.abs(vectors * values)
            assert np.max(np.abs(matrix @ vectors - vectors * values) / factors) < 1e-12
