"""Operations that the rewriting makes of several ones of StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import tensorflow as tf

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.rewriting import LOG_SOFTMAX, SIGN_BITS, SOFTMAX
from jax2tf_bridge.to_tensorflow.operations._array import Array, tf_dtype
from jax2tf_bridge.to_tensorflow.operations._converter_forms import is_negative
from jax2tf_bridge.to_tensorflow.operations._integers import constant_like
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Scope


def _emit_unary(function: Callable[[tf.Tensor], tf.Tensor]) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
        (array,) = operands
        return scope.made(function(scope.tensor(array)), array.element, array.sizes)

    return emit


def _emit_sign_bit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (array,) = operands
    element = operation.results[0].tensor.element
    bit = tf.cast(is_negative(scope.compact(array)), tf_dtype(element))
    sign = constant_like(bit, SIGN_BITS[operation.name])
    return scope.made(bit * sign, element, array.sizes)


EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {
        SOFTMAX: _emit_unary(tf.nn.softmax),
        LOG_SOFTMAX: _emit_unary(tf.nn.log_softmax),
        **dict.fromkeys(SIGN_BITS, _emit_sign_bit),
    }
)
