"""Linear algebra: cholesky, triangular_solve, and calls and composites of factorizations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.bytecode import Attribute, Operation
from jax2tf_bridge.to_tensorflow.operations import _factorizations as factorizations
from jax2tf_bridge.to_tensorflow.operations._array import Array, tf_dtype
from jax2tf_bridge.to_tensorflow.operations._functions import decomposed
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Scope
from shape_poly import Dim

_Attributes: TypeAlias = "Mapping[str, Attribute]"

_DTYPES = frozenset({"f32", "f64", "complex<f32>", "complex<f64>"})
"""Element types of matrices that tf.linalg can factor."""


def _cholesky(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (a,) = operands
    _check(scope, operation, operands)
    if 0 in a.sizes:
        return a
    lower = operation.flag("lower")
    return scope.made(factorizations.cholesky(scope.tensor(a), lower=lower), a.element, a.sizes)


def _triangular_solve(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    a, b = operands
    _check(scope, operation, operands)
    if 0 in b.sizes:
        return b
    # The kernel broadcasts matrices itself.
    is_whole = a.computed is not None and not any(
        a.repeats(axis) and a.sizes[axis] != 1 for axis in (a.rank - 2, a.rank - 1)
    )
    compact = scope.compact(a)
    tensor = factorizations.triangular_solve(
        compact if is_whole and compact.shape.rank >= 2 else scope.tensor(a),
        scope.tensor(b),
        left=operation.flag("left_side"),
        lower=operation.flag("lower"),
        unit_diagonal=operation.flag("unit_diagonal"),
        transpose=operation.text("transpose_a"),
    )
    return scope.made(tensor, b.element, b.sizes)


def _check(scope: Scope, operation: Operation, operands: Sequence[Array]) -> None:
    for array in operands:
        if array.element not in _DTYPES:
            scope.fail(operation, f"TensorFlow has no kernel for matrices of {array.element}")


def _least(scope: Scope, operation: Operation, sizes: Sequence[Dim]) -> Dim:
    """Returns the smaller size of a matrix."""
    rows, columns = sizes[-2:]
    lower, upper = scope.bounds(rows - columns)
    if upper <= 0:
        return rows
    if lower >= 0:
        return columns
    scope.fail(operation, f"whether {rows} rows are fewer than {columns} columns is open")


def _results(
    scope: Scope,
    operation: Operation,
    tensors: Sequence[tf.Tensor],
    sizes: Sequence[Sequence[Dim]],
) -> list[Array]:
    """Makes the results of the operation."""
    return [
        scope.made(tensor, value.tensor.element, tuple(shape))
        for tensor, value, shape in zip(tensors, operation.results, sizes, strict=True)
    ]


def _constant(operation: Operation, place: int, sizes: Sequence[Dim], number: int = 0) -> Array:
    element = operation.results[place].tensor.element
    known = np.array(number, tf_dtype(element).as_numpy_dtype)
    return Array(element, tuple(sizes), known=known)


def _is_empty(array: Array) -> bool:
    return 0 in array.sizes


# Composites of the export, and custom calls that XLA expands.


def _attributes(operation: Operation) -> _Attributes:
    attribute = operation.attributes.get("composite_attributes")
    return attribute if isinstance(attribute, Mapping) else {}


def _qr(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    if a.element not in _DTYPES or _is_empty(a):
        return decomposed(scope, operation)
    full = bool(_attributes(operation).get("full_matrices"))
    *batch, m, n = a.sizes
    k = m if full else _least(scope, operation, a.sizes)
    tensors = factorizations.qr(scope.tensor(a), full_matrices=full)
    return _results(scope, operation, tensors, [(*batch, m, k), (*batch, k, n)])


def _eigh(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    if a.element not in _DTYPES or _is_empty(a):
        return decomposed(scope, operation)
    lower = bool(_attributes(operation).get("lower", True))
    tensors = factorizations.eigh(scope.tensor(a), lower=lower)
    return _results(scope, operation, tensors, [a.sizes, a.sizes[:-1]])


def _svd(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    if a.element not in _DTYPES or _is_empty(a):
        return decomposed(scope, operation)
    attributes = _attributes(operation)
    if not attributes.get("compute_uv"):
        values = factorizations.singular_values(scope.tensor(a))
        least = _least(scope, operation, a.sizes)
        return _results(scope, operation, [values], [(*a.sizes[:-2], least)])
    tensors, sizes = _svd_of(
        scope, operation, a, full_matrices=bool(attributes.get("full_matrices"))
    )
    return _results(scope, operation, tensors, sizes)


def _svd_of(
    scope: Scope, operation: Operation, a: Array, *, full_matrices: bool
) -> tuple[Sequence[tf.Tensor], Sequence[Sequence[Dim]]]:
    *batch, m, n = a.sizes
    k = _least(scope, operation, a.sizes)
    values, u, vh = factorizations.svd(scope.tensor(a), full_matrices=full_matrices)
    inner = (m, n) if full_matrices else (k, k)
    sizes = [(*batch, k), (*batch, m, inner[0]), (*batch, inner[1], n)]
    return (values, u, vh), sizes


def _lu(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    if a.element not in _DTYPES or _is_empty(a):
        return decomposed(scope, operation)
    return _lu_of(scope, operation, a)


def _lu_of(scope: Scope, operation: Operation, a: Array) -> list[Array]:
    *batch, m, _ = a.sizes
    least = _least(scope, operation, a.sizes)
    tensors = factorizations.lu(scope.tensor(a))
    return _results(scope, operation, tensors, [a.sizes, (*batch, least), (*batch, m)])


def _eig(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    attributes = _attributes(operation)
    # TensorFlow does not compute left eigenvectors.
    is_left = bool(attributes.get("compute_left_eigenvectors"))
    if a.element not in _DTYPES or _is_empty(a) or is_left:
        return decomposed(scope, operation)
    values, vectors = factorizations.eig(scope.tensor(a))
    count = len(operation.results)
    return _results(scope, operation, (values, vectors)[:count], [a.sizes[:-1], a.sizes][:count])


def _tridiagonal_solve(
    scope: Scope, operation: Operation, operands: Sequence[Array]
) -> Sequence[Array]:
    b = operands[-1]
    if b.element not in _DTYPES or _is_empty(b):
        return decomposed(scope, operation)
    tensor = factorizations.tridiagonal_solve(*(scope.tensor(array) for array in operands))
    return _results(scope, operation, [tensor], [b.sizes])


def _qr_call(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    a = operands[0]  # with open sizes, the shapes of the results are further operands
    _check(scope, operation, [a])
    taus = (*a.sizes[:-2], _least(scope, operation, a.sizes))
    if _is_empty(a):
        return [a, _constant(operation, 1, taus)]
    tensors = factorizations.householder_qr(scope.tensor(a))
    return _results(scope, operation, tensors, [a.sizes, taus])


def _householder_call(
    scope: Scope, operation: Operation, operands: Sequence[Array]
) -> Sequence[Array]:
    packed, taus = operands = operands[:2]
    _check(scope, operation, operands)
    if _is_empty(packed):
        return [packed]
    tensor = factorizations.householder_product(scope.tensor(packed), scope.tensor(taus))
    return _results(scope, operation, [tensor], [packed.sizes])


def _eigh_call(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    a = operands[0]
    _check(scope, operation, [a])
    config = operation.attributes.get("backend_config")
    # The configuration has the triangle that is read, and the precision of XLA's iteration.
    lower = not isinstance(config, str) or config.split(",")[0] != "0"
    tensors = factorizations.eigh(scope.tensor(a), lower=lower)
    return _results(scope, operation, tensors, [a.sizes, a.sizes[:-1]])


def _lu_call(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    _check(scope, operation, operands[:1])
    return _lu_of(scope, operation, operands[0])


# LAPACK's routines as JAX calls them on CPUs since 2025. JAX only tests whether `info` is 0; here
# it always is, because the results of failed factorizations are already NaN.

_Routine: TypeAlias = "Callable[[Scope, Operation, Sequence[Array]], Sequence[Array]]"


def _flag(scope: Scope, operation: Operation, name: str, default: str) -> str:
    """Reads a flag, which is stored as the code of a character."""
    for attribute in ("mhlo.backend_config", "backend_config"):
        config = operation.attributes.get(attribute)
        if isinstance(config, Mapping):
            number = config.get(name)
            if isinstance(number, int) and 0 <= number < 128:
                return chr(number)
            if number is not None:
                scope.fail(operation, f"its flag {name} is {number!r}, where a letter is expected")
    return default


def _info(operation: Operation, batch: Sequence[Dim]) -> Array:
    return _constant(operation, len(operation.results) - 1, batch)


def _getrf(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    least = _least(scope, operation, a.sizes)
    factors, pivots, _ = factorizations.lu(scope.tensor(a))
    batch = a.sizes[:-2]
    return [
        scope.made(factors, a.element, a.sizes),
        # LAPACK numbers rows from 1.
        scope.made(pivots + 1, "i32", (*batch, least)),
        _info(operation, batch),
    ]


def _geqrf(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    tensors = factorizations.householder_qr(scope.tensor(a))
    return [
        scope.made(tensors[0], a.element, a.sizes),
        scope.made(tensors[1], a.element, (*a.sizes[:-2], _least(scope, operation, a.sizes))),
        *([_info(operation, a.sizes[:-2])] if len(operation.results) > 2 else []),
    ]


def _orgqr(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    packed, taus = operands
    tensor = factorizations.householder_product(scope.tensor(packed), scope.tensor(taus))
    return [
        scope.made(tensor, packed.element, packed.sizes),
        *([_info(operation, packed.sizes[:-2])] if len(operation.results) > 1 else []),
    ]


def _potrf(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    lower = _flag(scope, operation, "uplo", "L") == "L"
    factor = factorizations.cholesky(scope.tensor(a), lower=lower)
    batch = a.sizes[:-2]
    failed = tf.math.is_nan(tf.math.real(tf.linalg.diag_part(factor)))
    info = tf.cast(tf.reduce_any(failed, -1), tf.int32)
    return [scope.made(factor, a.element, a.sizes), scope.made(info, "i32", batch)]


def _syevd(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    lower = _flag(scope, operation, "uplo", "L") == "L"
    vectors, values = factorizations.eigh(scope.tensor(a), lower=lower)
    element = operation.results[1].tensor.element
    return [
        scope.made(vectors, a.element, a.sizes),
        scope.made(values, element, a.sizes[:-1]),
        _info(operation, a.sizes[:-2]),
    ]


def _gesdd(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    (a,) = operands
    full = _flag(scope, operation, "mode", "S") == "A"
    tensors, sizes = _svd_of(scope, operation, a, full_matrices=full)
    elements = [value.tensor.element for value in operation.results[1:4]]
    return [
        a,
        *(
            scope.made(tensor, element, tuple(shape))
            for tensor, element, shape in zip(tensors, elements, sizes, strict=True)
        ),
        _info(operation, a.sizes[:-2]),
    ]


def _trsm(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    a, b = operands
    transposes = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}
    tensor = factorizations.triangular_solve(
        scope.tensor(a),
        scope.tensor(b),
        left=_flag(scope, operation, "side", "L") == "L",
        lower=_flag(scope, operation, "uplo", "L") == "L",
        unit_diagonal=_flag(scope, operation, "diag", "N") == "U",
        transpose=transposes[_flag(scope, operation, "trans_x", "N")],
    )
    return [scope.made(tensor, b.element, b.sizes)]


_ROUTINES: Mapping[str, _Routine] = {
    "geqrf": _geqrf,
    "gesdd": _gesdd,
    "getrf": _getrf,
    "orgqr": _orgqr,
    "potrf": _potrf,
    "syevd": _syevd,
    "trsm": _trsm,
}
_COMPLEX_NAMES: Mapping[str, str] = {"orgqr": "ungqr", "syevd": "heevd"}


def _routine(routine: _Routine) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
        # With open sizes, the shapes of the results are further operands.
        matrices = [array for array in operands if not array.row.is_integer]
        _check(scope, operation, matrices)
        if any(_is_empty(array) for array in matrices):
            scope.fail(operation, "its matrices are empty")
        return routine(scope, operation, matrices)

    return emit


def _lapack() -> dict[str, Emitter]:
    emitters: dict[str, Emitter] = {}
    for name, routine in _ROUTINES.items():
        for letter in "sdcz":
            own = _COMPLEX_NAMES.get(name, name) if letter in "cz" else name
            emitters[f"lapack_{letter}{own}_ffi"] = _routine(routine)
    return emitters


TARGETS: Mapping[str, Emitter] = MappingProxyType(
    {
        "Eigh": _eigh_call,
        "LuDecomposition": _lu_call,
        "ProductOfElementaryHouseholderReflectors": _householder_call,
        "Qr": _qr_call,
        **_lapack(),
    }
)

COMPOSITES: Mapping[str, Emitter] = MappingProxyType(
    {
        "jax2tf.eig": _eig,
        "jax2tf.eigh": _eigh,
        "jax2tf.lu": _lu,
        "jax2tf.qr": _qr,
        "jax2tf.svd": _svd,
        "jax2tf.tridiagonal_solve": _tridiagonal_solve,
    }
)

EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {"cholesky": _cholesky, "triangular_solve": _triangular_solve}
)
