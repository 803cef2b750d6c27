"""Special functions of CHLO, in calls and composites of modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import tensorflow as tf

from jax2tf_bridge._operations import CUSTOM_CALLS
from jax2tf_bridge.bytecode import DenseElements, Operation
from jax2tf_bridge.to_tensorflow.operations import _converter_forms
from jax2tf_bridge.to_tensorflow.operations._array import Array, tf_dtype
from jax2tf_bridge.to_tensorflow.operations._emitter import emits
from jax2tf_bridge.to_tensorflow.operations._functions import decompose
from jax2tf_bridge.to_tensorflow.operations._integers import constant_like
from jax2tf_bridge.to_tensorflow.operations._scope import Scope
from jax2tf_bridge.to_tensorflow.operations._sizes import broadcast_sizes

TensorFunction = Callable[..., tf.Tensor]


def _erf(x: tf.Tensor) -> tf.Tensor:
    if x.dtype == tf.float64:
        # TensorFlow returns NaN for infinity; beyond 6 the result is constant in float64.
        x = tf.clip_by_value(x, constant_like(x, -6), constant_like(x, 6))
    return tf.math.erf(x)


def _igamma(a: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    # TensorFlow returns 0 for x = 0 with any a, and NaN for a = 0; JAX returns 1 there for x >= 1.
    is_whole = tf.logical_and(tf.equal(a, 0), x >= 1)
    is_whole = tf.logical_or(is_whole, _is_positive_infinity(x))
    result = tf.where(is_whole, constant_like(x, 1), tf.math.igamma(a, x))
    return tf.where(_is_outside(a, x), constant_like(x, math.nan), result)


def _igammac(a: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    is_zero = tf.logical_or(tf.equal(a, 0), _is_positive_infinity(x))
    result = tf.where(is_zero, constant_like(x, 0), tf.math.igammac(a, x))
    return tf.where(_is_outside(a, x), constant_like(x, math.nan), result)


def _is_positive_infinity(x: tf.Tensor) -> tf.Tensor:
    return tf.equal(x, constant_like(x, math.inf))


def _is_outside(a: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns where the incomplete gamma functions are undefined."""
    is_negative = tf.logical_or(a < 0, x < 0)
    are_zero = tf.logical_and(tf.equal(a, 0), tf.equal(x, 0))
    is_unknown = tf.logical_or(tf.math.is_nan(a), tf.math.is_nan(x))
    return tf.logical_or(tf.logical_or(is_negative, are_zero), is_unknown)


# Coefficients of erf_inv's Taylor series for x, x**3, x**5 and so on.
_ERF_INV_SERIES = (
    *(0.886226925452758, 0.2320136665346544, 0.12755617530559793, 0.08655212924154752),
    *(0.06495961774538541, 0.051731281984616365, 0.04283672065179733),
)
_SMALL: Mapping[tf.DType, float] = MappingProxyType({tf.float32: 0.25, tf.float64: 0.01})
"""Limit below which the series gives erf_inv exactly."""


def _erf_inv(x: tf.Tensor) -> tf.Tensor:
    """Computes the inverse of erf.

    TensorFlow's kernel computes 1 + x, which loses digits unless x is near -1.
    """
    size = tf.abs(x)
    far = tf.math.erfinv(-size) * -tf.sign(x)
    series = tf.math.polyval([constant_like(x, c) for c in reversed(_ERF_INV_SERIES)], x * x)
    return tf.where(tf.less(size, constant_like(x, _SMALL[x.dtype])), series * x, far)


_WIDE, _NARROW = frozenset({"f32", "f64"}), frozenset({"f16", "bf16"})


@dataclass(frozen=True)
class _Function:
    """A special function of TensorFlow.

    Attributes:
      call: computes it.
      elements: the element types with kernels. Other floats are computed in float32.
      in_float32: whether a result in float32 may be rounded to a narrower type.
      for_converters: another form for tf2onnx and OpenVINO.
    """

    call: TensorFunction
    elements: frozenset[str] = _WIDE
    in_float32: bool = True
    for_converters: TensorFunction | None = None


_ALL = _WIDE | _NARROW
_FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        "chlo.acos": _Function(tf.acos, _ALL),
        "chlo.acosh": _Function(tf.acosh, _ALL),
        "chlo.asin": _Function(tf.asin, _ALL),
        "chlo.asinh": _Function(tf.asinh, _ALL),
        "chlo.atanh": _Function(tf.atanh, _ALL),
        "chlo.bessel_i1e": _Function(tf.math.bessel_i1e),
        "chlo.cosh": _Function(tf.cosh, _ALL),
        "chlo.digamma": _Function(tf.math.digamma),
        "chlo.erf": _Function(_erf, _ALL),
        "chlo.erf_inv": _Function(_erf_inv),
        "chlo.erfc": _Function(tf.math.erfc, _ALL),
        "chlo.lgamma": _Function(tf.math.lgamma, for_converters=_converter_forms.lgamma),
        "chlo.next_after": _Function(
            tf.math.nextafter, in_float32=False, for_converters=_converter_forms.next_after
        ),
        "chlo.polygamma": _Function(tf.math.polygamma),
        "chlo.sinh": _Function(tf.sinh, _ALL),
        "chlo.zeta": _Function(tf.math.zeta),
        "jax2tf.bessel_i0e": _Function(tf.math.bessel_i0e),
        "jax2tf.betainc": _Function(tf.math.betainc),
        "jax2tf.igamma": _Function(_igamma),
        "jax2tf.igammac": _Function(_igammac),
    }
)
_CALLS: Mapping[str, str] = MappingProxyType(
    {t: name for t in CUSTOM_CALLS if (name := t.replace("mhlo.", "chlo.")) in _FUNCTIONS}
)
"""Maps the custom calls of older JAX to the functions."""


def _is_infinite_at_zero(scope: Scope, operation: Operation) -> bool:
    """Returns whether JAX's digamma is -inf at zero, as in JAX 0.12; in JAX 0.10 it is NaN."""
    if operation.name != "composite":
        return False
    function = scope.program.functions.get(operation.text("decomposition"))
    constants = () if function is None else function.body.operations
    values = (each.attributes.get("value") for each in constants if each.name == "constant")
    return any(
        isinstance(value, DenseElements) and bool(np.any(value.array() == -np.inf))
        for value in values
    )


@emits(*_FUNCTIONS, *_CALLS)
def _special_function(
    scope: Scope, operation: Operation, operands: Sequence[Array]
) -> Sequence[Array] | Array:
    is_composite = operation.name == "composite"
    name = operation.text("name") if is_composite else _CALLS[operation.text("call_target_name")]
    function, element = _FUNCTIONS[name], operands[0].element
    call = (scope.for_converters and function.for_converters) or function.call
    in_float32 = element in _NARROW - function.elements and function.in_float32
    if not (element in function.elements or in_float32):
        if is_composite:
            return decompose(scope, operation)
        scope.fail(operation, f"TensorFlow has no {name} of {element}")
    sizes = broadcast_sizes(operands)
    tensors = [scope.compact(array) for array in operands]
    if name == "jax2tf.betainc":  # betainc does not broadcast
        tensors = [scope.tensor(Array(a.element, sizes, scope.compact(a))) for a in operands]
    if in_float32:
        tensors = [tf.cast(tensor, tf.float32) for tensor in tensors]
    result = call(*tensors)
    if name == "chlo.digamma" and _is_infinite_at_zero(scope, operation):
        at_zero = tf.equal(tensors[0], constant_like(tensors[0], 0))
        result = tf.where(at_zero, constant_like(result, -np.inf), result)
    return scope.new_array(tf.cast(result, tf_dtype(element)), element, sizes)
