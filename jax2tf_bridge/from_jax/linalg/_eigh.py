"""Eigenvalues and eigenvectors of Hermitian matrices."""

import functools
from typing import Any

import jax
import numpy as np
from jax import lax

from jax2tf_bridge.from_jax.linalg._arrays import (
    adjoint,
    columns,
    distance_below_diagonal,
    epsilon,
    is_complex,
    real,
    where,
)
from jax2tf_bridge.from_jax.linalg._divide_and_conquer import (
    compute_rayleigh_quotients,
    eigh_tridiagonal,
)
from jax2tf_bridge.from_jax.linalg._tridiagonal import (
    accumulate_phases,
    apply_reflections,
    tridiagonalize,
)

# Maximum number of rows for which XLA's own Jacobi iteration (custom call Eigh) is as fast.
_MAX_JACOBI_ROWS = 32


def max_jacobi_rows(dtype: Any) -> int:
    """Returns the maximum number of rows of a matrix that the custom call Eigh decomposes.

    In 64 bits this is one, because Eigh leaves about 1e-8 of the norm off the diagonal, for any
    requested tolerance.
    """
    return _MAX_JACOBI_ROWS if epsilon(dtype) > 1e-10 else 1


def eigh(a: Any, *, lower: bool) -> tuple[Any, Any]:
    """Computes eigenvectors [..., n, n] and ascending eigenvalues [..., n] of Hermitian matrices.

    Only the lower (or upper) triangle of a [..., n, n] is read. A matrix that is not finite gives
    NaN throughout. n may be symbolic.
    """
    function = functools.partial(_decompose, lower=lower)
    for _ in a.shape[:-2]:
        function = jax.vmap(function)
    vectors, values = function(a)
    return vectors, values


def _decompose(a: Any, *, lower: bool) -> tuple[Any, Any]:
    n = a.shape[0]
    a = _make_hermitian(a, lower)
    largest = lax.reduce(lax.abs(a), np.zeros((), real(a).dtype), lax.max, (0, 1))
    finite = lax.is_finite(largest) & lax.reduce(
        lax.is_finite(lax.abs(a)), np.array(True), lax.bitwise_and, (0, 1)
    )
    scale = where((largest > 0) & finite, largest, np.ones((), largest.dtype))
    d, e, stages = tridiagonalize(a / lax.convert_element_type(scale, a.dtype))

    phases = None
    if is_complex(a):
        # A diagonal unitary similarity makes the subdiagonal real.
        phases = accumulate_phases(e)
        e = lax.abs(e)
    size = lax.abs(e)
    sums = (
        lax.abs(d)
        + lax.pad(size, 0 * largest, [(1, 0, 0)])
        + lax.pad(size, 0 * largest, [(0, 1, 0)])
    )
    norm = lax.reduce(sums, np.zeros((), sums.dtype), lax.max, (0,))
    norm = where(norm > 0, norm, np.ones((), norm.dtype)) * np.array(2, norm.dtype)
    d, e = d / norm, e / norm

    vectors = eigh_tridiagonal(d, e)
    values = compute_rayleigh_quotients(d, e, vectors)
    values, order = lax.sort((values, lax.iota(np.int32, n)), dimension=0, num_keys=1)
    vectors = vectors.at[:, order].get(mode="promise_in_bounds", unique_indices=True)

    vectors = lax.convert_element_type(vectors, a.dtype)
    if phases is not None:
        vectors = columns(phases) * vectors
    vectors = apply_reflections(stages, vectors)
    nan = np.array(np.nan, a.dtype)
    return where(finite, vectors, nan), where(finite, values * norm * scale, real(nan))


def _make_hermitian(a: Any, lower: bool) -> Any:
    below = distance_below_diagonal(a.shape[0])
    a = where(below >= 0 if lower else below <= 0, a, adjoint(a))
    if is_complex(a):
        a = where(below == 0, lax.complex(lax.real(a), lax.full_like(lax.real(a), 0)), a)
    return a
