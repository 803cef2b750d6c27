"""Folds arithmetic on sizes and small integers, so that known values need no operations."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jax2tf_bridge import rewriting
from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape, graph_dtype, plain
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.emitters._sizes import find_broadcast_sizes
from jax2tf_bridge.emitters.formulas import conversions, converter_integers
from shape_poly import Dim

_MAX_FOLDED_ELEMENTS = 1024
"""Maximum number of elements of an operand to fold, in compact form."""
_MAX_FOLDED_RESULT = 1 << 16
"""Maximum number of elements of a folded result. Operands that repeat along different axes, as in
masks, have fewer, and the result is stored in the graph."""
_MAX_FOLDED_SIZES = 64
"""Maximum number of elements that depend on variables; shapes have fewer."""
_SIZES = frozenset({"i32", "i64"})


def fold(scope: Scope, operation: Operation, operands: Arrays) -> Array | None:
    """Computes an elementwise operation on known integers or bools; None if impossible."""
    element = operation.result_type.element
    if operation.name == "negate" and operands[0].row.kind in ("float", "complex"):
        return _negate(operands[0])
    known = [_find_small_constant(array) for array in operands]
    shapes = [each.shape for each in known if each is not None]
    if len(shapes) == len(known) and _has_small_result(shapes):
        has_sizes = any(array.numbers is None for array in operands)
        result = (
            _fold_sizes(scope, operation, operands, known)
            if has_sizes
            else _fold_numbers(operation, known, element)
        )
        if result is not None:
            return Array(element, find_broadcast_sizes(operands), known=result)
    return _choose(scope, operation, operands)


def _negate(array: Array) -> Array | None:
    if array.known is None or array.known.size > _MAX_FOLDED_ELEMENTS:
        return None
    return Array(array.element, array.sizes, known=-array.known)


def _find_small_constant(array: Array) -> np.ndarray[Any, Any] | None:
    is_small = array.known is not None and array.known.size <= _MAX_FOLDED_ELEMENTS
    return array.known if is_small and array.row.kind in ("bool", "int", "uint") else None


def _has_small_result(shapes: Sequence[tuple[int, ...]]) -> bool:
    return math.prod(np.broadcast_shapes(*shapes)) <= _MAX_FOLDED_RESULT


def _shift(shift: Callable[..., Any], left: Any, right: Any) -> Any:
    """Shifts unsigned bits; shifts by the width or more give 0."""
    if np.any(left < 0) or np.any(right < 0):
        return None
    return np.where(right < 64, shift(left, np.minimum(right, 63)), 0)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": operator.add,
        "subtract": operator.sub,
        "multiply": operator.mul,
        "divide": lambda left, right: (left - np.fmod(left, right)) // right,
        "remainder": np.fmod,
        rewriting.FLOOR_DIVIDE: np.floor_divide,
        rewriting.FLOOR_MODULO: np.mod,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "negate": operator.neg,
        "abs": np.abs,
        "sign": np.sign,
        "shift_left": functools.partial(_shift, np.left_shift),
        "shift_right_logical": functools.partial(_shift, np.right_shift),
        "select": np.where,
        "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "not": np.invert,
    }
)
_OF_FLAGS = frozenset({"and", "or", "xor", "not"})
_DIVISIONS = frozenset({"divide", "remainder", rewriting.FLOOR_DIVIDE, rewriting.FLOOR_MODULO})
COMPARISONS: Mapping[str, str] = MappingProxyType(
    {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal"}
    | {"GT": "greater", "GE": "greater_equal"}
)
"""Maps directions of comparisons to the names of NumPy's and TensorFlow's functions."""


def _fold_numbers(
    operation: Operation, constants: Sequence[Any], element: str
) -> np.ndarray[Any, Any] | None:
    if operation.name == "compare":
        function = getattr(np, COMPARISONS[operation.text("comparison_direction")])
    else:
        are_flags = all(constant.dtype == bool for constant in constants)
        if operation.name not in (_OF_FLAGS if are_flags else _FUNCTIONS):
            return None
        function = _FUNCTIONS[operation.name]
    # The computation is in 64 bits, then wraps around; uint64 values are never sizes.
    wide = [c if c.dtype == bool else c.astype(np.int64) for c in constants]
    if any(constant.dtype == np.uint64 for constant in constants):
        return None
    if operation.name in _DIVISIONS and not np.all(constants[1]):
        return None
    with np.errstate(over="ignore"):
        result = function(*wide)
    return None if result is None else to_element(element, np.asarray(result))


def to_element(element: str, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Converts integers or bools to another element type, with wraparound."""
    row = dtype_of_element(element)
    if row.is_integer and row.bits < 8:
        span = 2**row.bits
        numbers = numbers.astype(np.int64) % span
        if row.kind == "int":
            numbers = np.where(numbers < span // 2, numbers, numbers - span)
    return numbers.astype(graph_dtype(element).as_numpy_dtype)


def _fold_sizes(
    scope: Scope, operation: Operation, operands: Arrays, known: Sequence[Any]
) -> np.ndarray[Any, Any] | None:
    if not all(array.element in (*_SIZES, "i1") for array in operands):
        return None
    name, element = operation.name, operation.result_type.element
    if name == "select":
        chosen: np.ndarray[Any, Any] = np.where(*known)
        return chosen
    rows = np.broadcast(*(each.astype(object) for each in known))
    if rows.size > _MAX_FOLDED_SIZES:
        return None
    results: list[Any] = []
    for row in rows:
        if name == "compare":
            result: Any = scope.sizes.compare(operation.text("comparison_direction"), *row)
        else:
            result = _compute_size(scope, name, row)
            if result is not None and not scope.sizes.fits(result, element):
                return None
        if result is None:
            return None
        results.append(result)
    dtype = bool if name == "compare" else object
    return np.fromiter(results, dtype, len(results)).reshape(rows.shape)


def _choose(scope: Scope, operation: Operation, operands: Arrays) -> Array | None:
    """Returns the operand that a known flag makes the result, or None."""
    if any(array.element not in (*_SIZES, "i1") for array in operands):
        return None
    name = operation.name
    if name == "select":
        flag, on_true, on_false = operands[0].scalar, *operands[1:]
        if flag is None or on_true.sizes != on_false.sizes:
            return None
        return on_true if flag else on_false
    if name == "compare":
        name += f" {operation.text('comparison_direction')}"
    neutral = {"and": True, "or": False, "xor": False, "compare NE": False, "compare EQ": True}
    if name not in neutral or any(a.element != "i1" or a.sizes for a in operands):
        return None
    for decider, operand in (operands, operands[::-1]):
        flag = decider.scalar
        if flag is not None and bool(flag) == neutral[name]:
            return operand
        if flag is not None and name in ("and", "or"):
            return decider  # decides alone
    return None


def convert_known(scope: Scope, array: Array, element: str) -> Array | None:
    """Converts known elements to another type, if the result is exact or its rounding unique."""
    if element == array.element:
        return array
    if array.known is None or array.known.size > _MAX_FOLDED_ELEMENTS:
        return None
    if array.numbers is None:
        if element not in _SIZES or array.element not in _SIZES:
            return None
        fits = scope.sizes.is_within if element == "i64" else scope.sizes.fits
        is_exact = all(fits(part, "i32") for part in array.known.flat)
        return Array(element, array.sizes, known=array.known) if is_exact else None
    kinds = array.row.kind, dtype_of_element(element).kind
    match kinds:
        case (("bool" | "int" | "uint"), "bool"):
            known = array.known != 0
        case (("bool" | "int" | "uint"), _):
            known = to_element(element, array.known)
        case "float", ("float" | "complex"):
            with np.errstate(over="ignore", invalid="ignore"):
                known = array.known.astype(graph_dtype(element).as_numpy_dtype)
        case _:
            return None
    return Array(element, array.sizes, known=known)


def convert_array(scope: Scope, array: Array, element: str) -> Array:
    known = convert_known(scope, array, element)
    if known is not None:
        return known
    tensor = scope.compact(array)
    is_float = dtype_of_element(element).kind == "float"
    if scope.for_converters and array.element == "ui32" and is_float and array.known is None:
        tensor = converter_integers.to_float(tensor, graph_dtype(element))
    else:
        tensor = conversions.convert(array.element, element, tensor)
    return scope.new_array(tensor, element, array.sizes)


def _compute_size(scope: Scope, name: str, row: Shape) -> Dim | None:
    match name, row:
        case (("add" | "subtract" | "multiply" | "negate"), _):
            return plain(_FUNCTIONS[name](*row))
        case "maximum", (left, right):
            return scope.sizes.maximum(left, right)
        case "minimum", (left, right):
            return -scope.sizes.maximum(-left, -right)
        case "clamp", (low, x, high):
            return -scope.sizes.maximum(-scope.sizes.maximum(x, low), -high)
        case "divide", (left, right) if _is_positive(scope, left, right):
            return left // right
        case "remainder", (left, right) if _is_positive(scope, left, right):
            return left % right
        case rewriting.FLOOR_DIVIDE, (left, right) if scope.sizes.bounds(right)[0] >= 1:
            return left // right
        case rewriting.FLOOR_MODULO, (left, right) if scope.sizes.bounds(right)[0] >= 1:
            return left % right
        case "sign", (only,):
            lower, upper = scope.sizes.bounds(only)
            return 1 if lower > 0 else -1 if upper < 0 else None
        case "abs", (only,):
            lower, upper = scope.sizes.bounds(only)
            return only if lower >= 0 else -only if upper <= 0 else None
    return None


def _is_positive(scope: Scope, left: Dim, right: Dim) -> bool:
    # Rounding down and rounding towards zero agree here.
    return scope.sizes.bounds(left)[0] >= 0 and scope.sizes.bounds(right)[0] >= 1
