"""LAPACK's routines as JAX functions, with the results of archived calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax import lax

from jax2tf_bridge.from_jax._jax_compat_lowering import geqrf_p
from jax2tf_bridge.from_jax.linalg import adjoint, is_complex, ormqr, pivoted_qr

Shapes = tuple[tuple[Any, ...], ...]
Flags = Mapping[str, int]
Routine = Callable[..., tuple[Any, ...]]
"""Function of the call's arrays, its flags and the shapes of its results."""


def routine_function(routine: str, flags: Flags, result_shapes: Shapes) -> Callable[..., Any]:
    """Makes a function of the call's arrays (for trsm also a scale) that returns its first results.

    Matrices are [..., m, n]; the call's other results are workspaces. Values that JAX does not read
    differ: potrf has zeros in the other triangle, gees has zeros as eigenvalues, and gesdd returns
    its argument.
    """
    function = _ROUTINES[routine]
    return lambda *arrays: function(*arrays, flags=flags, shapes=result_shapes)


def _getrf(a: Any, **_: Any) -> tuple[Any, ...]:
    factors, pivots = lax.linalg.lu(a)[:2]
    # LAPACK numbers rows from 1.
    return factors, pivots + np.int32(1), _success(a)


def _potrf(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    if not flags["lower"]:
        a = adjoint(a)
    factor = lax.linalg.cholesky(a, symmetrize_input=False)
    # The rules return NaN if LAPACK would return the index of the first bad minor.
    matrix = (a.ndim - 2, a.ndim - 1)
    failed = lax.reduce(lax.ne(factor, factor), np.array(False), lax.bitwise_or, matrix)
    info = lax.convert_element_type(failed, np.int32)
    return factor if flags["lower"] else adjoint(factor), info


def _trsm(a: Any, b: Any, *scale: Any, flags: Flags, **_: Any) -> tuple[Any, ...]:
    if scale:
        b = b * scale[0]
    solution = lax.linalg.triangular_solve(
        a,
        b,
        left_side=bool(flags["left"]),
        lower=bool(flags["lower"]),
        transpose_a=flags["transpose"] > 0,
        conjugate_a=flags["transpose"] == 2,
        unit_diagonal=bool(flags["unit_diagonal"]),
    )
    return (solution,)


def _geqrf(a: Any, **_: Any) -> tuple[Any, ...]:
    packed, taus = geqrf_p.bind(a)
    return packed, taus, _success(a)


def _orgqr(a: Any, taus: Any, **_: Any) -> tuple[Any, ...]:
    return lax.linalg.householder_product(a, taus), _success(a)


def _ormqr(*arrays: Any, flags: Flags, **_: Any) -> tuple[Any, ...]:
    left, transpose = bool(flags["left"]), bool(flags["transpose"])
    return (ormqr(*arrays, left=left, transpose=transpose),)


def _syevd(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    if not flags["lower"]:
        # XLA expands Eigh once per shape in a module, with the triangle of the first occurrence.
        a = adjoint(a)
    vectors, values = lax.linalg.eigh(a, lower=True, symmetrize_input=False)
    return vectors, values, _success(a)


def _geev(a: Any, *, flags: Flags, shapes: Shapes) -> tuple[Any, ...]:
    wanted = flags["left_vectors"], flags["right_vectors"]
    values, *computed = lax.linalg.eig(
        a, compute_left_eigenvectors=bool(wanted[0]), compute_right_eigenvectors=bool(wanted[1])
    )
    vectors = [computed.pop(0) if each else _zeros(a.shape, values) for each in wanted]
    n = a.shape[-1]
    if is_complex(a):
        results = [values, *vectors, _success(a)]
        workspaces = [_zeros((n, n), a), lax.real(_zeros((2 * n,), a))]
    else:
        results = [lax.real(values), lax.imag(values), *vectors, _success(a)]
        workspaces = [_zeros((n, n), a)] * 3
    return tuple(results if len(shapes) == len(results) else [*workspaces, *results])


def _gees(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    """Returns zeros as eigenvalues, which are on the diagonal of the Schur form."""
    form, *vectors = lax.linalg.schur(a, compute_schur_vectors=bool(flags["vectors"]))
    vectors = vectors or [_zeros(a.shape, a)]
    values = _zeros(a.shape[:-1], a)
    # The real and imaginary parts for real matrices, else a workspace and the values.
    first = lax.real(_zeros(a.shape[-1:], a)) if is_complex(a) else values
    return form, first, values, *vectors, _success(a), _success(a)


def _gees_ffi(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    """Like _gees, with the results in another order."""
    form, first, values, *rest = _gees(a, flags=flags)
    vectors, *success = rest
    return form, vectors, *(() if is_complex(a) else (first,)), values, *success


def _gehrd(a: Any, **_: Any) -> tuple[Any, ...]:
    packed, taus = lax.linalg.hessenberg(a)
    return packed, taus, _success(a)


def _sytrd(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    packed, diagonal, beside, taus = lax.linalg.tridiagonal(a, lower=bool(flags["lower"]))
    return packed, diagonal, beside, taus, _success(a)


def _geqp3(*arrays: Any, shapes: Shapes, **_: Any) -> tuple[Any, ...]:
    return pivoted_qr(*arrays, rank=shapes[2][-1])


def _gesdd(a: Any, *, shapes: Shapes, **_: Any) -> tuple[Any, ...]:
    smaller = min(a.shape[-2:])
    full = shapes[2][-1] != smaller or shapes[3][-2] != smaller
    u, s, vh = lax.linalg.svd(a, full_matrices=full, compute_uv=True)
    return a, s, u, vh, _success(a)


def _gesvd_gpu(a: Any, *, flags: Flags, shapes: Shapes) -> tuple[Any, ...]:
    if not flags["transposed"]:
        return _gesdd(a, shapes=shapes)
    # The solver receives the transpose, so the two factors are exchanged.
    s, u, vh, info = _gesdd(a, shapes=(*shapes[:2], shapes[3], shapes[2]))[1:]
    return a, s, vh, u, info


def _gesvdj(a: Any, *, shapes: Shapes, **_: Any) -> tuple[Any, ...]:
    """Returns V instead of its adjoint."""
    swapped = (*shapes[3][:-2], shapes[3][-1], shapes[3][-2])
    s, u, vh, info = _gesdd(a, shapes=(*shapes[:3], swapped))[1:]
    return a, s, u, adjoint(vh), info


def _permutation(pivots: Any, *, shapes: Shapes, **_: Any) -> tuple[Any, ...]:
    """Converts pivots, which start from 0, to a permutation."""
    return (lax.linalg.lu_pivots_to_permutation(pivots, shapes[0][-1]),)


def _gtsv(lower: Any, diagonal: Any, upper: Any, b: Any, **_: Any) -> tuple[Any, ...]:
    solution = lax.linalg.tridiagonal_solve(lower, diagonal, upper, b)
    return lower, diagonal, upper, solution, _success(b)


_ROUTINES: Mapping[str, Routine] = {
    "gees": _gees,
    "geev": _geev,
    "gees_ffi": _gees_ffi,
    "gehrd": _gehrd,
    "geqp3": _geqp3,
    "geqrf": _geqrf,
    "gesdd": _gesdd,
    "gesvd": _gesdd,
    "gesvd_gpu": _gesvd_gpu,
    "gesvdj": _gesvdj,
    "getrf": _getrf,
    "gtsv": _gtsv,
    "lu_pivots_to_permutation": _permutation,
    "orgqr": _orgqr,
    "ormqr": _ormqr,
    "potrf": _potrf,
    "syevd": _syevd,
    "sytrd": _sytrd,
    "trsm": _trsm,
}


def _success(a: Any) -> Any:
    """Returns LAPACK's info for each matrix: 0, because failures are NaN in these rules."""
    return lax.full(a.shape[:-2], 0, np.int32)


def _zeros(shape: Any, like: Any) -> Any:
    return lax.full(shape, 0, like.dtype)
