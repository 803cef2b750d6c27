"""Elementwise operations of every dtype: arithmetic, comparisons, select and conversions.

The results follow StableHLO's rules. The maximum and minimum of 0 and -0 may be either, because
machines differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.rewriting import BFLOAT16_BITS, FLOOR_DIVIDE, FLOOR_MODULO
from jax2tf_bridge.to_tensorflow.operations import (
    _converter_forms,
    _converter_integers,
    _floats,
    _integers,
)
from jax2tf_bridge.to_tensorflow.operations._array import Array, has_dtype, tf_dtype
from jax2tf_bridge.to_tensorflow.operations._conversions import bitcast, convert
from jax2tf_bridge.to_tensorflow.operations._folding import convert_known, fold
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Scope
from jax2tf_bridge.to_tensorflow.operations._sizes import broadcast_sizes
from shape_poly import Dim

TensorFunction = Callable[..., tf.Tensor]
Kernel = Callable[..., tf.Tensor]
"""Function of the operands' element type and their tensors."""


def emit_elementwise(
    scope: Scope, operation: Operation, operands: Sequence[Array], function: TensorFunction
) -> Array:
    """Applies a broadcasting function to compact forms; operations on sizes are folded."""
    result = fold(scope, operation, operands)
    if result is not None:
        return result
    element = operation.results[0].tensor.element
    tensors = [scope.compact(array) for array in operands]
    result = _in_wider_floats(element, function, tensors)
    return scope.new_array(result, element, broadcast_sizes(operands))


def _in_wider_floats(
    element: str, function: TensorFunction, tensors: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Applies a function; 8-bit floats are computed in float32, because they have no arithmetic."""
    if not any(_is_tiny(tensor) for tensor in tensors):
        return function(*tensors)
    wide = (tf.cast(tensor, tf.float32) if _is_tiny(tensor) else tensor for tensor in tensors)
    return tf.cast(function(*wide), tf_dtype(element))


def _is_tiny(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating and tensor.dtype.size == 1)


def _by_kind(
    *,
    flags: TensorFunction | None = None,
    integers: Kernel | None = None,
    floats: TensorFunction | None = None,
    complexes: TensorFunction | None = None,
) -> Emitter:
    """Makes a kernel that chooses a function by the kind of the operands' dtype.

    Complex numbers use the function for floats if they have none of their own.
    """

    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
        element = operands[-1].element
        kind = dtype_of_element(element).kind
        result: TensorFunction | None
        if kind in ("int", "uint"):
            result = None if integers is None else functools.partial(integers, element)
        elif kind == "bool":
            result = flags
        else:
            result = (complexes or floats) if kind == "complex" else floats
        if result is None:
            scope.fail(operation, f"TensorFlow has none for elements of type {element}")
        return emit_elementwise(scope, operation, operands, result)

    return emit


def _wrap_result(function: TensorFunction) -> Kernel:
    """Makes a kernel for integers, which wrap around."""
    return lambda element, *tensors: _integers.wrap(element, function(*tensors))


def _for_any(function: TensorFunction) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
        return emit_elementwise(scope, operation, operands, function)

    return emit


def _for_floats(function: TensorFunction, complexes: TensorFunction | None = None) -> Emitter:
    return _by_kind(floats=function, complexes=complexes)


def _for_integers(kernel: Kernel) -> Emitter:
    return _by_kind(integers=kernel)


def _bitwise(flags: TensorFunction, function: TensorFunction) -> Emitter:
    return _by_kind(flags=flags, integers=lambda element, *tensors: function(*tensors))


_COMPARISONS: Mapping[str, Callable[..., tf.Tensor]] = MappingProxyType(
    {
        "EQ": tf.equal,
        "NE": tf.not_equal,
        "LT": tf.less,
        "LE": tf.less_equal,
        "GT": tf.greater,
        "GE": tf.greater_equal,
    }
)
# TensorFlow cannot order bools; false comes before true.
_FLAG_COMPARISONS: Mapping[str, Callable[..., tf.Tensor]] = MappingProxyType(
    {
        "LT": lambda x, y: tf.logical_and(tf.logical_not(x), y),
        "LE": lambda x, y: tf.logical_or(tf.logical_not(x), y),
        "GT": lambda x, y: tf.logical_and(x, tf.logical_not(y)),
        "GE": lambda x, y: tf.logical_or(x, tf.logical_not(y)),
    }
)


def _compare_tensors(direction: str, x: tf.Tensor, y: tf.Tensor, *, total_order: bool) -> tf.Tensor:
    """Compares elements.

    Args:
      direction: "EQ", "NE", "LT", "LE", "GT" or "GE".
      x: the left side.
      y: the right side.
      total_order: whether floats have the order -NaN < -inf < ... < -0 < 0 < ... < inf < NaN.
    """
    if total_order and x.dtype.is_floating:
        x, y = _floats.total_order_key(x), _floats.total_order_key(y)
    of_flags = _FLAG_COMPARISONS.get(direction) if x.dtype == tf.bool else None
    return (of_flags or _COMPARISONS[direction])(x, y)


def _is_total_order(operation: Operation) -> bool:
    return operation.attributes.get("compare_type") == "TOTALORDER"


def _compare(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    direction = operation.text("comparison_direction")
    total_order = _is_total_order(operation)

    def function(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return _compare_tensors(direction, x, y, total_order=total_order)

    return emit_elementwise(scope, operation, operands, function)


def _clamp(low: tf.Tensor, x: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    return tf.minimum(tf.maximum(x, low), high)


def _convert(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (array,) = operands
    element = operation.results[0].tensor.element
    result = convert_known(scope, array, element)
    if result is not None:
        return result
    tensor = convert(array.element, element, scope.compact(array))
    return scope.new_array(tensor, element, array.sizes)


def _has_bits(element: str) -> bool:
    """Returns whether a type's bits can be read: not for bools, nor without a TensorFlow dtype."""
    row = dtype_of_element(element)
    return row.is_integer or (row.kind == "float" and has_dtype(element))


def _bitcast_convert(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (array,) = operands
    kind = operation.results[0].tensor
    given, wanted = array.row.bits, dtype_of_element(kind.element).bits
    if array.element == kind.element:
        return array
    if not (_has_bits(array.element) and _has_bits(kind.element)):
        scope.fail(operation, f"the bits of {array.element} are not read as {kind.element}")
    if given == wanted:
        return scope.new_array(
            bitcast(array.element, kind.element, scope.compact(array)), kind.element, array.sizes
        )
    if min(given, wanted) < 8 and max(given, wanted) % 8:
        scope.fail(operation, f"the bits of {array.element} are not read as {kind.element}")
    narrowed = wanted < given
    sizes = (*array.sizes, given // wanted) if narrowed else array.sizes[:-1]
    tensor = bitcast(array.element, kind.element, scope.tensor(array))
    return scope.result(operation, scope.set_shape(tensor, sizes), sizes)


def _bits_of_bfloat16(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    scope.fail(operation, "for converters bfloat16 is float32, which has other bits")


def _reduce_precision(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    bits = operation.int("exponent_bits"), operation.int("mantissa_bits")

    def function(x: tf.Tensor) -> tf.Tensor:
        return _floats.reduce_precision(x, *bits)

    return emit_elementwise(scope, operation, operands, function)


def _emit_real(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    if operands[0].row.kind != "complex":
        return operands[0]
    return emit_elementwise(scope, operation, operands, tf.math.real)


def _map(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    sizes = broadcast_sizes(operands)
    result = scope.new_region().run(operation.regions[0], operands)
    return [_repeat(scope, array, sizes) for array in result]


def _repeat(scope: Scope, array: Array, sizes: tuple[Dim, ...]) -> Array:
    if array.sizes == sizes:
        return array
    if array.known is not None:
        return Array(array.element, sizes, known=array.known)
    return Array(array.element, sizes, scope.compact(array))


def _extremum(flags: TensorFunction, function: TensorFunction, *, greater: bool) -> Emitter:
    return _by_kind(
        flags=flags,
        integers=lambda element, *tensors: function(*tensors),
        floats=function,
        complexes=functools.partial(_floats.complex_extremum, greater=greater),
    )


def _round_down(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    """Divides integers, or takes the remainder, rounding down.

    TensorFlow's own functions fail for a divisor of 0, and some runtimes round them to zero.
    """
    x, y = operands
    element, is_quotient = x.element, operation.name == FLOOR_DIVIDE
    is_positive = y.known is not None and bool(np.all(y.known > 0))
    if is_positive and element in ("i32", "i64") and not scope.is_for_any_converter:
        function = tf.math.floordiv if is_quotient else tf.math.floormod
        return emit_elementwise(scope, operation, operands, function)
    kernels = _converter_integers if scope.for_converters else _integers
    select = _converter_integers.select if scope.for_converters else tf.where

    def divide(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        zero, one = (_integers.constant_like(x, number) for number in (0, 1))
        remainder = kernels.remainder(element, x, y)
        if is_positive:
            is_rounded_up = tf.less(remainder, zero)
        else:
            signs = [_integers.sign(element, v) if is_quotient else v < zero for v in (x, y)]
            has_remainder = tf.not_equal(remainder, zero)
            is_rounded_up = tf.logical_and(has_remainder, tf.not_equal(*signs))
        if not is_quotient:
            return select(is_rounded_up, _integers.wrap(element, remainder + y), remainder)
        quotient = kernels.divide(element, x, y)
        return select(is_rounded_up, _integers.subtract(element, quotient, one), quotient)

    return emit_elementwise(scope, operation, operands, divide)


EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {
        "abs": _by_kind(integers=_integers.absolute, floats=tf.abs),
        "add": _by_kind(flags=tf.logical_or, integers=_wrap_result(tf.add), floats=tf.add),
        "and": _bitwise(tf.logical_and, tf.bitwise.bitwise_and),
        "atan2": _for_floats(_floats.arctan2),
        "bitcast_convert": _bitcast_convert,
        "cbrt": _for_floats(_floats.cube_root),
        "ceil": _for_floats(tf.math.ceil),
        "clamp": _for_any(_clamp),
        "compare": _compare,
        "complex": _for_floats(tf.complex),
        "convert": _convert,
        "cosine": _for_floats(tf.cos),
        "count_leading_zeros": _for_integers(_integers.count_leading_zeros),
        "divide": _by_kind(
            integers=_integers.divide, floats=tf.divide, complexes=_floats.complex_divide
        ),
        "exponential": _for_floats(tf.exp),
        "exponential_minus_one": _for_floats(_floats.expm1),
        "floor": _for_floats(tf.floor),
        "imag": _for_floats(tf.zeros_like, tf.math.imag),
        "is_finite": _for_floats(tf.math.is_finite),
        "log": _for_floats(tf.math.log),
        "log_plus_one": _for_floats(_floats.log1p),
        "logistic": _for_floats(tf.sigmoid),
        "map": _map,
        "maximum": _extremum(tf.logical_or, tf.maximum, greater=True),
        "minimum": _extremum(tf.logical_and, tf.minimum, greater=False),
        "multiply": _by_kind(
            flags=tf.logical_and, integers=_wrap_result(tf.multiply), floats=tf.multiply
        ),
        "negate": _by_kind(integers=_integers.negative, floats=tf.negative),
        "not": _by_kind(flags=tf.logical_not, integers=_integers.invert),
        "or": _bitwise(tf.logical_or, tf.bitwise.bitwise_or),
        "popcnt": _for_integers(_integers.population_count),
        "power": _by_kind(integers=_integers.power, floats=_floats.power),
        "real": _emit_real,
        "reduce_precision": _reduce_precision,
        "remainder": _by_kind(integers=_integers.remainder, floats=_floats.remainder),
        "round_nearest_afz": _for_floats(_floats.round_away_from_zero),
        "round_nearest_even": _for_floats(tf.round),
        "rsqrt": _for_floats(_floats.inverse_root),
        "select": _for_any(tf.where),
        "shift_left": _for_integers(_integers.shift_left),
        "shift_right_arithmetic": _for_integers(_integers.shift_right_arithmetic),
        "shift_right_logical": _for_integers(_integers.shift_right_logical),
        "sign": _by_kind(integers=_integers.sign, floats=_floats.sign),
        "sine": _for_floats(tf.sin),
        "sqrt": _for_floats(tf.sqrt),
        "subtract": _by_kind(integers=_integers.subtract, floats=tf.subtract),
        "tan": _for_floats(tf.tan),
        "tanh": _for_floats(tf.tanh),
        FLOOR_DIVIDE: _round_down,
        FLOOR_MODULO: _round_down,
        "xor": _bitwise(tf.not_equal, tf.bitwise.bitwise_xor),
    }
)


def _compare_exactly(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    """Compares large integers, and floats in total order, by forms for converters."""
    element = operands[0].element
    direction = operation.text("comparison_direction")
    if dtype_of_element(element).kind == "float" and _is_total_order(operation):
        compare = _converter_forms.ORDERED_COMPARISONS[direction]
        return emit_elementwise(scope, operation, operands, compare)
    is_ordered = _integers.is_unsigned(element) and direction not in ("EQ", "NE")
    is_small = not is_ordered and any(map(_converter_integers.is_small, operands))
    if not _converter_integers.is_wide(element) or is_small:
        return _compare(scope, operation, operands)
    return emit_elementwise(scope, operation, operands, _converter_integers.COMPARISONS[direction])


def _clamp_exactly(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    low, x, high = operands
    is_small = all(map(_converter_integers.is_small, (low, high)))
    if not _converter_integers.is_wide(x.element):
        return emit_elementwise(scope, operation, operands, _clamp)
    if is_small and not _integers.is_unsigned(x.element):
        return emit_elementwise(scope, operation, operands, _clamp)

    def function(low: tf.Tensor, x: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
        # OpenVINO would turn maximum and minimum into a clamp of float32.
        least = _converter_integers.select(_converter_integers.less(x, low), low, x)
        return _converter_integers.select(_converter_integers.less(high, least), high, least)

    return emit_elementwise(scope, operation, operands, function)


def _extremum_exactly(function: Kernel, otherwise: Emitter) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Any:
        element = operands[0].element
        if not _converter_integers.is_wide(element):
            return otherwise(scope, operation, operands)
        return emit_elementwise(scope, operation, operands, functools.partial(function, element))

    return emit


def _convert_exactly(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Any:
    (array,) = operands
    element = operation.results[0].tensor.element
    if (
        array.element != "ui32"
        or dtype_of_element(element).kind != "float"
        or array.known is not None
    ):
        return _convert(scope, operation, operands)
    function = functools.partial(_converter_integers.to_float, dtype=tf_dtype(element))
    return emit_elementwise(scope, operation, operands, function)


FOR_CONVERTERS: Mapping[str, Emitter] = MappingProxyType(
    {
        BFLOAT16_BITS: _bits_of_bfloat16,
        "cbrt": _for_floats(functools.partial(_floats.cube_root, select=_converter_forms.choose)),
        "clamp": _clamp_exactly,
        "compare": _compare_exactly,
        "convert": _convert_exactly,
        "divide": _by_kind(
            integers=_converter_integers.divide,
            floats=tf.divide,
            complexes=_floats.complex_divide,
        ),
        "exponential_minus_one": _for_floats(_converter_forms.expm1),
        "log_plus_one": _for_floats(_converter_forms.log1p),
        "maximum": _extremum_exactly(_converter_integers.maximum, EMITTERS["maximum"]),
        "minimum": _extremum_exactly(_converter_integers.minimum, EMITTERS["minimum"]),
        "remainder": _by_kind(integers=_converter_integers.remainder, floats=_floats.remainder),
        "round_nearest_afz": _for_floats(_converter_forms.round_away_from_zero),
        "select": _for_any(_converter_forms.choose),
        "shift_left": _for_integers(_converter_integers.shift_left),
        "shift_right_arithmetic": _for_integers(_converter_integers.shift_right_arithmetic),
        "shift_right_logical": _for_integers(_converter_integers.shift_right_logical),
        "sign": _by_kind(integers=_integers.sign, floats=tf.sign, complexes=_floats.sign),
        "subtract": _by_kind(integers=_wrap_result(tf.subtract), floats=tf.subtract),
    }
)
"""Emitters that differ for tf2onnx and OpenVINO; the other modules check `scope.for_converters`."""
