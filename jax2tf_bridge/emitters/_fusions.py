"""Operations that the rewriting makes of several ones of StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, graph_dtype
from jax2tf_bridge.emitters._converter_forms import is_negative, square
from jax2tf_bridge.emitters._elementwise import elementwise
from jax2tf_bridge.emitters._emitter import emits
from jax2tf_bridge.emitters._integers import constant_like
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Emitter, Scope
from jax2tf_bridge.rewriting import (
    BIAS_ADD,
    LOG_SOFTMAX,
    RANDOM_UNIT,
    RELU,
    RELU6,
    SIGN_BITS,
    SOFTMAX,
    SQUARE,
)


def _along_last_axis(function: Callable[[ops.Tensor], ops.Tensor]) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
        (array,) = operands
        return scope.new_array(function(scope.tensor(array)), array.element, array.sizes)

    return emit


@emits(*SIGN_BITS)
def _emit_sign_bit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (array,) = operands
    element = operation.results[0].tensor.element
    bit = ops.cast(is_negative(scope.compact(array)), graph_dtype(element))
    sign = constant_like(bit, SIGN_BITS[operation.name])
    return scope.new_array(bit * sign, element, array.sizes)


@emits(BIAS_ADD)
def _emit_bias_add(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    array, bias = operands
    tensor = ops.nn.bias_add(scope.tensor(array), scope.tensor(bias))
    return scope.new_array(tensor, array.element, array.sizes)


@emits(RANDOM_UNIT)
def _emit_random_unit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (fraction,) = operands
    # The conversion through signed integers is exact.
    number = ops.cast(ops.cast(scope.compact(fraction), ops.int32), ops.float32)
    tensor = number * ops.constant(2.0 ** -operation.int("fraction_bits")) + ops.constant(1.0)
    return scope.new_array(tensor, "f32", fraction.sizes)


_relu = emits(RELU)(elementwise(ops.nn.relu))
_relu6 = emits(RELU6)(elementwise(ops.nn.relu6))
_square = emits(SQUARE, for_converters=elementwise(square))(elementwise(ops.square))
_softmax = emits(SOFTMAX)(_along_last_axis(ops.nn.softmax))
_log_softmax = emits(LOG_SOFTMAX)(_along_last_axis(ops.nn.log_softmax))
