"""Linear algebra: solvers, calls and composites of factorizations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape, zeros
from jax2tf_bridge.emitters._folding import convert_array
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import OperationEmitter, Scope, emits
from jax2tf_bridge.emitters.formulas import factorizations
from jax2tf_bridge.emitters.operations._calls import decompose, read_mapping
from shape_poly import Dim

_DTYPES = frozenset({"f32", "f64", "complex<f32>", "complex<f64>"})
"""Element types of matrices that ops.linalg can factor."""
_ArrayEmitter: TypeAlias = "Callable[[Scope, Operation, Arrays], Array]"
_NARROW = frozenset({"f16", "bf16"})
"""Element types of matrices that are computed as float32."""


def _in_float32(emitter: _ArrayEmitter) -> _ArrayEmitter:
    """Makes an emitter compute matrices of narrow floats as float32."""

    def emit(scope: Scope, operation: Operation, operands: Arrays) -> Array:
        element = operands[-1].element
        if element not in _NARROW:
            return emitter(scope, operation, operands)
        wide = [convert_array(scope, array, "f32") for array in operands]
        return convert_array(scope, emitter(scope, operation, wide), element)

    return emit


@emits("cholesky")
@_in_float32
def _cholesky(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (a,) = operands
    _check(scope, operation, operands)
    if 0 in a.sizes:
        return a
    factor = factorizations.cholesky(
        scope.tensor(a),
        lower=operation.flag("lower"),
        by_columns=scope.is_for_any_converter,
        choose=scope.choose,
    )
    return scope.new_array(factor, a.element, a.sizes)


@emits("triangular_solve")
@_in_float32
def _triangular_solve(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    a, b = operands
    _check(scope, operation, operands)
    if 0 in b.sizes:
        return b
    if scope.is_for_any_converter:
        solution = factorizations.triangular_solve_by_rows(
            scope.tensor(a), scope.tensor(b), **_read_triangle(operation)
        )
        return scope.new_array(solution, b.element, b.sizes)
    # The kernel broadcasts matrices itself.
    is_whole = a.computed is not None and not any(
        a.repeats(axis) and a.sizes[axis] != 1 for axis in (a.rank - 2, a.rank - 1)
    )
    compact = scope.compact(a)
    tensor = factorizations.triangular_solve(
        compact if is_whole and compact.shape.rank >= 2 else scope.tensor(a),
        scope.tensor(b),
        **_read_triangle(operation),
    )
    return scope.new_array(tensor, b.element, b.sizes)


def _read_triangle(operation: Operation) -> dict[str, Any]:
    return {
        "left": operation.flag("left_side"),
        "lower": operation.flag("lower"),
        "unit_diagonal": operation.flag("unit_diagonal"),
        "transpose": operation.text("transpose_a"),
    }


def _check(scope: Scope, operation: Operation, arrays: Arrays) -> None:
    for array in arrays:
        if array.element not in _DTYPES:
            scope.fail(operation, f"{scope.runtime} has no kernel for matrices of {array.element}")


def _find_smaller_size(scope: Scope, operation: Operation, array: Array) -> Dim:
    rows, columns = array.sizes[-2:]
    lower, upper = scope.sizes.bounds(rows - columns)
    if upper <= 0:
        return rows
    if lower >= 0:
        return columns
    scope.fail(operation, f"the sizes do not tell whether {rows} is less than {columns}")


# Factorizations. A function gets the scope, the operation and its matrices, and returns tensors
# with their sizes. Composites, calls that XLA expands and LAPACK's routines share these functions.

_Results: TypeAlias = "list[tuple[ops.Tensor, Shape]]"
_Function: TypeAlias = Callable[..., "_Results | None"]


def _eigh(scope: Scope, a: Array, *, lower: bool) -> _Results:
    vectors, values = factorizations.eigh(scope.tensor(a), lower=lower)
    return [(vectors, a.sizes), (values, a.sizes[:-1])]


def _lu(scope: Scope, operation: Operation, a: Array) -> _Results:
    *batch, m, _ = a.sizes
    count = _find_smaller_size(scope, operation, a)
    lu = factorizations.lu_by_columns if scope.is_for_any_converter else factorizations.lu
    factors, pivots, permutation = lu(scope.tensor(a))
    return [(factors, a.sizes), (pivots, (*batch, count)), (permutation, (*batch, m))]


def _svd(scope: Scope, operation: Operation, a: Array, *, full: bool) -> _Results:
    *batch, m, n = a.sizes
    k = _find_smaller_size(scope, operation, a)
    values, u, vh = factorizations.svd(scope.tensor(a), full_matrices=full)
    rows, columns = (m, n) if full else (k, k)
    return [(values, (*batch, k)), (u, (*batch, m, rows)), (vh, (*batch, columns, n))]


def _householder_qr(scope: Scope, operation: Operation, a: Array) -> _Results:
    sizes = (*a.sizes[:-2], _find_smaller_size(scope, operation, a))
    if 0 in a.sizes:
        return [(scope.tensor(a), a.sizes), (ops.zeros([], a.graph_dtype), sizes)]
    packed, taus = factorizations.householder_qr(scope.tensor(a))
    return [(packed, a.sizes), (taus, sizes)]


def _householder_product(
    scope: Scope, operation: Operation, packed: Array, taus: Array
) -> _Results:
    if 0 in packed.sizes:
        return [(scope.tensor(packed), packed.sizes)]
    product = factorizations.householder_product(
        scope.tensor(packed), scope.tensor(taus), by_rows=scope.is_for_any_converter
    )
    return [(product, packed.sizes)]


def _make_arrays(scope: Scope, operation: Operation, results: _Results) -> list[Array]:
    """Makes the arrays of the operation's first results."""
    values = operation.results[: len(results)]
    return [
        scope.new_array(tensor, value.tensor.element, tuple(sizes))
        for (tensor, sizes), value in zip(results, values, strict=True)
    ]


# Composites.

_ATTRIBUTES = "composite_attributes"


def _composite(name: str) -> Callable[[_Function], OperationEmitter]:
    """Makes a function the emitter of a composite.

    Composites of empty matrices, and of those that ops.linalg cannot factor, are decomposed.
    """

    def make(function: _Function) -> OperationEmitter:
        @emits(name)
        def emit(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
            results = None
            if operands[-1].element in _DTYPES and 0 not in operands[-1].sizes:
                results = function(scope, operation, *operands)
            if results is None:
                return decompose(scope, operation)
            return _make_arrays(scope, operation, results)

        return emit

    return make


@_composite("jax2tf.eig")
def _eig_composite(scope: Scope, operation: Operation, a: Array) -> _Results | None:
    if read_mapping(operation, _ATTRIBUTES).get("compute_left_eigenvectors"):
        return None  # TensorFlow does not compute them
    values, vectors = factorizations.eig(scope.tensor(a))
    results: _Results = [(values, a.sizes[:-1]), (vectors, a.sizes)]
    return results[: len(operation.results)]


@_composite("jax2tf.eigh")
def _eigh_composite(scope: Scope, operation: Operation, a: Array) -> _Results:
    return _eigh(scope, a, lower=bool(read_mapping(operation, _ATTRIBUTES).get("lower", True)))


@_composite("jax2tf.qr")
def _qr_composite(scope: Scope, operation: Operation, a: Array) -> _Results:
    full = bool(read_mapping(operation, _ATTRIBUTES).get("full_matrices"))
    *batch, m, n = a.sizes
    k = m if full else _find_smaller_size(scope, operation, a)
    q, r = ops.linalg.qr(scope.tensor(a), full_matrices=full)
    return [(q, (*batch, m, k)), (r, (*batch, k, n))]


@_composite("jax2tf.svd")
def _svd_composite(scope: Scope, operation: Operation, a: Array) -> _Results:
    attributes = read_mapping(operation, _ATTRIBUTES)
    if attributes.get("compute_uv"):
        return _svd(scope, operation, a, full=bool(attributes.get("full_matrices")))
    values = factorizations.singular_values(scope.tensor(a))
    return [(values, (*a.sizes[:-2], _find_smaller_size(scope, operation, a)))]


@_composite("jax2tf.tridiagonal_solve")
def _tridiagonal_solve(
    scope: Scope, operation: Operation, lower: Array, diagonal: Array, upper: Array, b: Array
) -> _Results:
    diagonals = [scope.tensor(array) for array in (upper, diagonal, lower)]
    solution = ops.linalg.tridiagonal_solve(
        ops.stack(diagonals, -2), scope.tensor(b), diagonals_format="compact"
    )
    return [(solution, b.sizes)]


_lu_composite = _composite("jax2tf.lu")(_lu)


# Custom calls that XLA expands.


def _call(*names: str) -> Callable[[Callable[..., _Results]], OperationEmitter]:
    """Makes a function the emitter of custom calls."""

    def make(function: Callable[..., _Results]) -> OperationEmitter:
        @emits(*names)
        def emit(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
            # With open sizes, the shapes of the results are further operands.
            matrices = [array for array in operands if not array.row.is_integer]
            _check(scope, operation, matrices)
            is_lapack = operation.text("call_target_name").startswith("lapack_")
            if is_lapack and any(0 in array.sizes for array in matrices):
                scope.fail(operation, "its matrices are empty")
            arrays = _make_arrays(scope, operation, function(scope, operation, *matrices))
            if is_lapack and len(arrays) < len(operation.results):
                # JAX only tests whether `info` is 0. The results of failed factorizations are NaN.
                info = operation.results[-1].tensor.element
                arrays.append(zeros(info, matrices[0].sizes[:-2]))
            return arrays

        return emit

    return make


@_call("Eigh")
def _eigh_call(scope: Scope, operation: Operation, a: Array) -> _Results:
    config = operation.attributes.get("backend_config")
    # The configuration has the triangle that is read, and the precision of XLA's iteration.
    return _eigh(scope, a, lower=not isinstance(config, str) or config.split(",")[0] != "0")


def _lapack(letters: str, routine: str) -> Iterator[str]:
    """Yields the targets of a routine as JAX calls it on CPUs; the first letters are the dtypes."""
    return (f"lapack_{letter}{routine}_ffi" for letter in letters)


_lu_call = _call("LuDecomposition")(_lu)
_qr_call = _call("Qr", *_lapack("sdcz", "geqrf"))(_householder_qr)
_householder_product_call = _call(
    "ProductOfElementaryHouseholderReflectors",
    *(*_lapack("sd", "orgqr"), *_lapack("cz", "ungqr")),
)(_householder_product)


def _flag(scope: Scope, operation: Operation, name: str, default: str) -> str:
    """Reads a flag, which is stored as the code of a character."""
    number = read_mapping(operation, "mhlo.backend_config", "backend_config").get(name)
    if number is None:
        return default
    if not isinstance(number, int) or not 0 <= number < 128:
        scope.fail(operation, f"its flag {name} is {number!r}, where a letter is expected")
    return chr(number)


def _reads_lower(scope: Scope, operation: Operation) -> bool:
    return _flag(scope, operation, "uplo", "L") == "L"


@_call(*_lapack("sdcz", "getrf"))
def _getrf(scope: Scope, operation: Operation, a: Array) -> _Results:
    factors, (pivots, sizes), _ = _lu(scope, operation, a)
    return [factors, (pivots + 1, sizes)]  # LAPACK numbers rows from 1


@_call(*_lapack("sdcz", "potrf"))
def _potrf(scope: Scope, operation: Operation, a: Array) -> _Results:
    factor = factorizations.cholesky(scope.tensor(a), lower=_reads_lower(scope, operation))
    has_failed = ops.math.is_nan(ops.math.real(ops.linalg.diag_part(factor)))
    info = ops.cast(ops.reduce_any(has_failed, -1), ops.int32)
    return [(factor, a.sizes), (info, a.sizes[:-2])]


@_call(*_lapack("sd", "syevd"), *_lapack("cz", "heevd"))
def _syevd(scope: Scope, operation: Operation, a: Array) -> _Results:
    return _eigh(scope, a, lower=_reads_lower(scope, operation))


@_call(*_lapack("sdcz", "gesdd"))
def _gesdd(scope: Scope, operation: Operation, a: Array) -> _Results:
    full = _flag(scope, operation, "mode", "S") == "A"
    return [(scope.tensor(a), a.sizes), *_svd(scope, operation, a, full=full)]


@_call(*_lapack("sdcz", "trsm"))
def _trsm(scope: Scope, operation: Operation, a: Array, b: Array) -> _Results:
    transposes = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}
    solution = factorizations.triangular_solve(
        scope.tensor(a),
        scope.tensor(b),
        left=_flag(scope, operation, "side", "L") == "L",
        lower=_reads_lower(scope, operation),
        unit_diagonal=_flag(scope, operation, "diag", "N") == "U",
        transpose=transposes[_flag(scope, operation, "trans_x", "N")],
    )
    return [(solution, b.sizes)]
