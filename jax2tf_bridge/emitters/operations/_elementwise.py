"""Elementwise operations of every dtype: arithmetic, comparisons, select and conversions.

The results follow StableHLO's rules. The maximum and minimum of 0 and -0 may be either, because
machines differ.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, graph_dtype, has_dtype
from jax2tf_bridge.emitters._folding import COMPARISONS, convert_array, fold
from jax2tf_bridge.emitters._movement import resize
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Emitter, OperationEmitter, Scope, emits
from jax2tf_bridge.emitters._sizes import find_broadcast_sizes
from jax2tf_bridge.emitters.formulas import converter_forms, converter_integers, floats, integers
from jax2tf_bridge.emitters.formulas.conversions import bitcast
from jax2tf_bridge.rewriting import BFLOAT16_BITS, FLOOR_DIVIDE, FLOOR_MODULO, SIGN_BITS, SQUARE

TensorFunction = Callable[..., ops.Tensor]
Kernel = Callable[..., ops.Tensor]
"""Function of the operands' element type and their tensors."""

_OF_BITS = frozenset(
    {"xor", "shift_left", "shift_right_arithmetic", "shift_right_logical", "reduce_precision"}
    | {"popcnt", "count_leading_zeros", "compare", "power", "divide", "remainder"}
    | {FLOOR_DIVIDE, FLOOR_MODULO}
)
"""Operations that may become BitwiseXor or RightShift."""


def emit_elementwise(
    scope: Scope, operation: Operation, operands: Arrays, function: TensorFunction
) -> Array:
    """Applies a broadcasting function to compact forms; operations on sizes are folded."""
    result = fold(scope, operation, operands)
    if result is not None:
        return result
    element = operation.result_type.element
    sizes = find_broadcast_sizes(operands)
    is_replaced = scope.is_converted_by_bridge and operation.name in _OF_BITS
    if is_replaced and len(sizes) > integers.MAX_AXES:
        flat = [
            ops.reshape(scope.tensor(a), [-1]) if a.sizes else scope.compact(a) for a in operands
        ]
        result = ops.reshape(_apply_wider(element, function, flat), scope.sizes.shape(sizes))
        return scope.new_array(result, element, sizes)
    result = _apply_wider(element, function, _make_tensors(scope, operands))
    return scope.new_array(result, element, sizes)


def _make_tensors(scope: Scope, operands: Arrays) -> list[ops.Tensor]:
    tensors = [scope.compact(array) for array in operands]
    if not scope.for_converters or ops.executing_eagerly():
        return tensors
    origins = [_find_origin(scope, tensor) for tensor in tensors]
    if _Origin.INPUTS not in origins:
        return tensors
    beside = tensors[origins.index(_Origin.INPUTS)]
    return [
        converter_forms.compute_beside(tensor, beside) if origin is _Origin.COMPUTED else tensor
        for tensor, origin in zip(tensors, origins, strict=True)
    ]


class _Origin(enum.Enum):
    """Origin of a tensor: inputs, or constants that OpenVINO computes or folds when it loads."""

    INPUTS, COMPUTED, FOLDED = range(3)


_FOLDED = frozenset(
    {"Add", "AddV2", "BroadcastTo", "Cast", "ConcatV2", "Const", "ExpandDims", "Fill", "Identity"}
    | {"Mul", "Neg", "Pack", "Range", "Reshape", "Slice", "Squeeze", "StridedSlice", "Sub"}
    | {"Tile", "Transpose"}
)
"""Operations of constants that OpenVINO replaces by constants."""


def _find_origin(scope: Scope, tensor: ops.Tensor) -> _Origin:
    def find() -> _Origin:
        kind, inputs = tensor.op.type, tensor.op.inputs
        origins = {_find_origin(scope, each) for each in inputs}
        if _Origin.INPUTS in origins or (not inputs and kind != "Const"):
            return _Origin.INPUTS
        is_folded = _Origin.COMPUTED not in origins and kind in _FOLDED
        return _Origin.FOLDED if is_folded else _Origin.COMPUTED

    origin: _Origin = scope.cache.get_or_make(("origin", tensor.op), find)
    return origin


def _apply_wider(
    element: str, function: TensorFunction, tensors: Sequence[ops.Tensor]
) -> ops.Tensor:
    """Applies a function; 8-bit floats are computed in float32, because they have no arithmetic."""
    if not any(_is_tiny(tensor) for tensor in tensors):
        return function(*tensors)
    wide = (ops.cast(tensor, ops.float32) if _is_tiny(tensor) else tensor for tensor in tensors)
    return ops.cast(function(*wide), graph_dtype(element))


def _is_tiny(tensor: ops.Tensor) -> bool:
    return bool(tensor.dtype.is_floating and tensor.dtype.size == 1)


def _by_kind(
    name: str,
    *,
    flag: TensorFunction | None = None,
    integer: Kernel | None = None,
    real: TensorFunction | None = None,
    complex_: TensorFunction | None = None,
) -> OperationEmitter:
    """Makes an emitter that chooses a function by the kind of the operands' dtype.

    Complex numbers use the function of real ones if they have none of their own.
    """

    @emits(name)
    def emit(scope: Scope, operation: Operation, operands: Arrays) -> Array:
        element = operands[-1].element
        kind = dtype_of_element(element).kind
        function = flag
        if kind in ("int", "uint"):
            has_own = scope.for_converters and not _divides_exactly(scope, name, element)
            kernel = (has_own and _CONVERTER_INTEGERS.get(name)) or integer
            function = None if kernel is None else functools.partial(kernel, element)
        elif kind != "bool":
            function = (scope.for_converters and _CONVERTER_FLOATS.get(name)) or real
            function = (complex_ or function) if kind == "complex" else function
        if function is None:
            scope.fail(operation, f"{scope.runtime} has none for elements of type {element}")
        return emit_elementwise(scope, operation, operands, function)

    return emit


def _divides_exactly(scope: Scope, name: str, element: str) -> bool:
    """Returns whether the graph's runtime has an exact division, or a replacement of it."""
    return scope.for_frozen_graph and name in ("divide", "remainder") and element != "ui32"


def _for_any_element(function: TensorFunction) -> Kernel:
    return lambda element, *tensors: function(*tensors)


def _wrap_result(function: TensorFunction) -> Kernel:
    """Makes a kernel for integers, which wrap around."""
    return lambda element, *tensors: integers.wrap(element, function(*tensors))


def _wrap_wider(function: TensorFunction) -> Kernel:
    """Makes a kernel for integers, which wrap around also where OpenVINO's 8-bit ones saturate."""

    def kernel(element: str, *tensors: ops.Tensor) -> ops.Tensor:
        dtype = tensors[0].dtype
        wide = [ops.cast(x, ops.int32) if dtype.size < 4 else x for x in tensors]
        return integers.wrap(element, ops.cast(function(*wide), dtype))

    return kernel


def _negate_wider(element: str, x: ops.Tensor) -> ops.Tensor:
    is_narrow = x.dtype.size < 4
    return (_wrap_wider(ops.negative) if is_narrow else integers.negative)(element, x)


def elementwise(function: TensorFunction) -> Emitter:
    """Makes an emitter that applies a broadcasting function, for every element type."""

    def emit(scope: Scope, operation: Operation, operands: Arrays) -> Array:
        return emit_elementwise(scope, operation, operands, function)

    return emit


# TensorFlow cannot order bools; false comes before true.
_FLAG_COMPARISONS: Mapping[str, Callable[..., ops.Tensor]] = MappingProxyType(
    {
        "LT": lambda x, y: ~x & y,
        "LE": lambda x, y: ~x | y,
        "GT": lambda x, y: x & ~y,
        "GE": lambda x, y: x | ~y,
    }
)


def _is_total_order(operation: Operation) -> bool:
    return operation.attributes.get("compare_type") == "TOTALORDER"


def _compare_exactly(scope: Scope, operation: Operation, operands: Arrays) -> Any:
    """Compares large integers, and floats in total order, by forms for converters."""
    element = operands[0].element
    direction = operation.text("comparison_direction")
    if dtype_of_element(element).kind == "float" and _is_total_order(operation):
        compare = converter_forms.ORDERED_COMPARISONS[direction]
        return emit_elementwise(scope, operation, operands, compare)
    is_ordered = integers.is_unsigned(element) and direction not in ("EQ", "NE")
    is_small = not is_ordered and any(map(converter_integers.is_small, operands))
    if not converter_integers.is_wide(element) or is_small or scope.for_frozen_graph:
        return _compare.emit(scope, operation, operands)
    return emit_elementwise(scope, operation, operands, converter_integers.COMPARISONS[direction])


@emits("compare", for_converters=_compare_exactly)
def _compare(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    direction, is_total_order = operation.text("comparison_direction"), _is_total_order(operation)

    def function(x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
        if is_total_order and x.dtype.is_floating:
            x, y = floats.total_order_key(x), floats.total_order_key(y)
        of_flags = _FLAG_COMPARISONS.get(direction) if x.dtype == ops.bool else None
        return (of_flags or getattr(ops, COMPARISONS[direction]))(x, y)

    return emit_elementwise(scope, operation, operands, function)


def _clamp(low: ops.Tensor, x: ops.Tensor, high: ops.Tensor) -> ops.Tensor:
    return ops.minimum(ops.maximum(x, low), high)


def _clamp_exactly(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    low, x, high = operands
    is_small = all(map(converter_integers.is_small, (low, high)))
    is_exact = is_small and not integers.is_unsigned(x.element)
    if is_exact or not converter_integers.is_wide(x.element) or scope.for_frozen_graph:
        return emit_elementwise(scope, operation, operands, _clamp)

    def function(low: ops.Tensor, x: ops.Tensor, high: ops.Tensor) -> ops.Tensor:
        # OpenVINO would turn maximum and minimum into a clamp of float32.
        least = converter_integers.select(converter_integers.less(x, low), low, x)
        return converter_integers.select(converter_integers.less(high, least), high, least)

    return emit_elementwise(scope, operation, operands, function)


_emit_clamp = emits("clamp", for_converters=_clamp_exactly)(elementwise(_clamp))


@emits("select")
def _select(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    return emit_elementwise(scope, operation, operands, scope.choose)


@emits("convert")
def _convert(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    return convert_array(scope, operands[0], operation.result_type.element)


def _has_bits(element: str) -> bool:
    """Returns whether a type's bits can be read: not for bools, nor without a TensorFlow dtype."""
    row = dtype_of_element(element)
    return row.is_integer or (row.kind == "float" and has_dtype(element))


@emits("bitcast_convert")
def _bitcast_convert(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (array,) = operands
    kind = operation.result_type
    bits, new_bits = array.row.bits, dtype_of_element(kind.element).bits
    if array.element == kind.element:
        return array
    widths_fit = bits == new_bits or min(bits, new_bits) >= 8 or max(bits, new_bits) % 8 == 0
    if not (widths_fit and _has_bits(array.element) and _has_bits(kind.element)):
        scope.fail(operation, f"the bits of {array.element} cannot be read as {kind.element}")
    if bits == new_bits:
        tensor = bitcast(array.element, kind.element, scope.compact(array))
        return scope.new_array(tensor, kind.element, array.sizes)
    is_narrowed = new_bits < bits
    sizes = (*array.sizes, bits // new_bits) if is_narrowed else array.sizes[:-1]
    tensor = bitcast(array.element, kind.element, scope.tensor(array))
    return scope.result(operation, scope.set_shape(tensor, sizes), sizes)


@emits(BFLOAT16_BITS)
def _bits_of_bfloat16(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    scope.fail(operation, "for converters bfloat16 is float32, which has other bits")


@emits("reduce_precision")
def _reduce_precision(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    bits = {name: operation.int(name) for name in ("exponent_bits", "mantissa_bits")}
    function = functools.partial(floats.reduce_precision, **bits)
    return emit_elementwise(scope, operation, operands, function)


@emits("map")
def _map(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    sizes = find_broadcast_sizes(operands)
    result = scope.new_region().run(operation.regions[0], operands)
    return [resize(array, sizes) for array in result]


@emits(FLOOR_DIVIDE, FLOOR_MODULO)
def _round_down(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    """Divides integers, or takes the remainder, rounding down.

    TensorFlow's own functions fail for a divisor of 0, and some runtimes round them to zero.
    """
    x, y = operands
    element, is_quotient = x.element, operation.name == FLOOR_DIVIDE
    is_positive = y.numbers is not None and bool(np.all(y.numbers > 0))
    if is_positive and element in ("i32", "i64") and not scope.is_for_any_converter:
        function = ops.math.floordiv if is_quotient else ops.math.floormod
        return emit_elementwise(scope, operation, operands, function)
    is_inexact = scope.for_converters and not _divides_exactly(scope, "divide", element)
    kernels = converter_integers if is_inexact else integers
    select = converter_integers.select if is_inexact else ops.where

    def divide(x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
        zero, one = (integers.constant_like(x, number) for number in (0, 1))
        remainder = kernels.remainder(element, x, y)
        if is_positive:
            is_rounded_up = ops.less(remainder, zero)
        else:
            signs = [integers.sign(element, v) if is_quotient else v < zero for v in (x, y)]
            has_remainder = ops.not_equal(remainder, zero)
            is_rounded_up = has_remainder & ops.not_equal(*signs)
        if not is_quotient:
            return select(is_rounded_up, integers.wrap(element, remainder + y), remainder)
        quotient = kernels.divide(element, x, y)
        return select(is_rounded_up, integers.subtract(element, quotient, one), quotient)

    return emit_elementwise(scope, operation, operands, divide)


@emits(*SIGN_BITS)
def _emit_sign_bit(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (array,) = operands
    element = operation.result_type.element
    bit = ops.cast(converter_forms.is_negative(scope.compact(array)), graph_dtype(element))
    sign = integers.constant_like(bit, SIGN_BITS[operation.name])
    return scope.new_array(bit * sign, element, array.sizes)


_square = emits(SQUARE, for_converters=elementwise(converter_forms.square))(elementwise(ops.square))

# Functions for tf2onnx and OpenVINO, where they need other ones than the table below has.
_CONVERTER_INTEGERS: Mapping[str, Kernel] = MappingProxyType(
    {
        "add": _wrap_wider(ops.add),
        "count_leading_zeros": converter_integers.count_leading_zeros,
        "divide": converter_integers.divide,
        "maximum": converter_integers.maximum,
        "minimum": converter_integers.minimum,
        "multiply": _wrap_wider(ops.multiply),
        "negate": _negate_wider,
        "popcnt": converter_integers.population_count,
        "remainder": converter_integers.remainder,
        "shift_left": converter_integers.shift_left,
        "shift_right_arithmetic": converter_integers.shift_right_arithmetic,
        "shift_right_logical": converter_integers.shift_right_logical,
        "subtract": _wrap_wider(ops.subtract),
    }
)
_CONVERTER_FLOATS: Mapping[str, TensorFunction] = MappingProxyType(
    {
        "cbrt": functools.partial(floats.cube_root, select=converter_forms.choose),
        "exponential_minus_one": converter_forms.expm1,
        "log_plus_one": converter_forms.log1p,
        "round_nearest_afz": converter_forms.round_away_from_zero,
        "sign": ops.sign,
    }
)
_BY_KIND = (
    _by_kind("abs", integer=integers.absolute, real=ops.abs),
    _by_kind("add", flag=ops.logical_or, integer=_wrap_result(ops.add), real=ops.add),
    _by_kind("and", flag=ops.logical_and, integer=_for_any_element(ops.bitwise.bitwise_and)),
    _by_kind("atan2", real=ops.math.atan2, complex_=floats.complex_arctan2),
    _by_kind("cbrt", real=floats.cube_root),
    _by_kind("ceil", real=ops.math.ceil),
    _by_kind("complex", real=ops.complex),
    _by_kind("cosine", real=ops.cos),
    _by_kind("count_leading_zeros", integer=integers.count_leading_zeros),
    _by_kind("divide", integer=integers.divide, real=ops.divide, complex_=floats.complex_divide),
    _by_kind("exponential", real=ops.exp),
    _by_kind("exponential_minus_one", real=ops.math.expm1, complex_=floats.complex_expm1),
    _by_kind("floor", real=ops.floor),
    _by_kind("imag", real=ops.zeros_like, complex_=ops.math.imag),
    _by_kind("is_finite", real=ops.math.is_finite),
    _by_kind("log", real=ops.math.log),
    _by_kind("log_plus_one", real=ops.math.log1p, complex_=floats.complex_log1p),
    _by_kind("logistic", real=ops.sigmoid),
    _by_kind(
        "maximum",
        flag=ops.logical_or,
        integer=_for_any_element(ops.maximum),
        real=ops.maximum,
        complex_=functools.partial(floats.complex_extremum, greater=True),
    ),
    _by_kind(
        "minimum",
        flag=ops.logical_and,
        integer=_for_any_element(ops.minimum),
        real=ops.minimum,
        complex_=functools.partial(floats.complex_extremum, greater=False),
    ),
    _by_kind(
        "multiply", flag=ops.logical_and, integer=_wrap_result(ops.multiply), real=ops.multiply
    ),
    _by_kind("negate", integer=integers.negative, real=ops.negative),
    _by_kind("not", flag=ops.logical_not, integer=integers.invert),
    _by_kind("or", flag=ops.logical_or, integer=_for_any_element(ops.bitwise.bitwise_or)),
    _by_kind("popcnt", integer=integers.population_count),
    _by_kind("power", integer=integers.power, real=ops.pow, complex_=floats.complex_power),
    _by_kind("real", real=lambda x: x, complex_=ops.math.real),
    _by_kind("remainder", integer=integers.remainder, real=floats.remainder),
    _by_kind("round_nearest_afz", real=floats.round_away_from_zero),
    _by_kind("round_nearest_even", real=ops.round),
    _by_kind("rsqrt", real=ops.math.rsqrt, complex_=floats.complex_rsqrt),
    _by_kind("shift_left", integer=integers.shift_left),
    _by_kind("shift_right_arithmetic", integer=integers.shift_right_arithmetic),
    _by_kind("shift_right_logical", integer=integers.shift_right_logical),
    _by_kind("sign", integer=integers.sign, real=floats.sign, complex_=floats.complex_sign),
    _by_kind("sine", real=ops.sin),
    _by_kind("sqrt", real=ops.sqrt),
    _by_kind("subtract", integer=integers.subtract, real=ops.subtract),
    _by_kind("tan", real=ops.tan),
    _by_kind("tanh", real=ops.tanh),
    _by_kind("xor", flag=ops.not_equal, integer=_for_any_element(ops.bitwise.bitwise_xor)),
)
