"""Operations that the rewriting makes of several ones of StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from jax2tf_bridge.bytecode import Operation
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
from jax2tf_bridge.to_tensorflow.operations._array import Array, tf_dtype
from jax2tf_bridge.to_tensorflow.operations._converter_forms import is_negative, square
from jax2tf_bridge.to_tensorflow.operations._emitter import emits
from jax2tf_bridge.to_tensorflow.operations._integers import constant_like
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Scope


def _emit_unary(function: Callable[[tf.Tensor], tf.Tensor]) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
        (array,) = operands
        return scope.new_array(function(scope.tensor(array)), array.element, array.sizes)

    return emit


@emits(*SIGN_BITS)
def _emit_sign_bit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (array,) = operands
    element = operation.results[0].tensor.element
    bit = tf.cast(is_negative(scope.compact(array)), tf_dtype(element))
    sign = constant_like(bit, SIGN_BITS[operation.name])
    return scope.new_array(bit * sign, element, array.sizes)


def _emit_elementwise(function: Callable[[tf.Tensor], tf.Tensor]) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
        (array,) = operands
        return scope.new_array(function(scope.compact(array)), array.element, array.sizes)

    return emit


@emits(BIAS_ADD)
def _emit_bias_add(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    array, bias = operands
    tensor = tf.nn.bias_add(scope.tensor(array), scope.tensor(bias))
    return scope.new_array(tensor, array.element, array.sizes)


@emits(RANDOM_UNIT)
def _emit_random_unit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (fraction,) = operands
    # The conversion through signed integers is exact.
    number = tf.cast(tf.cast(scope.compact(fraction), tf.int32), tf.float32)
    tensor = number * tf.constant(2.0 ** -operation.int("fraction_bits")) + tf.constant(1.0)
    return scope.new_array(tensor, "f32", fraction.sizes)


_relu = emits(RELU)(_emit_elementwise(tf.nn.relu))
_relu6 = emits(RELU6)(_emit_elementwise(tf.nn.relu6))
_square = emits(SQUARE, for_converters=_emit_elementwise(square))(_emit_elementwise(tf.square))
_softmax = emits(SOFTMAX)(_emit_unary(tf.nn.softmax))
_log_softmax = emits(LOG_SOFTMAX)(_emit_unary(tf.nn.log_softmax))
