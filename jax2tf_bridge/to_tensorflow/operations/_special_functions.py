"""Special functions of CHLO, in calls and composites of modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import tensorflow as tf

from jax2tf_bridge.bytecode import DenseElements, Operation
from jax2tf_bridge.to_tensorflow.operations import _converter_forms
from jax2tf_bridge.to_tensorflow.operations._array import Array, tf_dtype
from jax2tf_bridge.to_tensorflow.operations._functions import decompose
from jax2tf_bridge.to_tensorflow.operations._integers import constant_like
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Scope
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
_ALL = _WIDE | _NARROW
# The functions, and the element types with kernels.
_FUNCTIONS: Mapping[str, tuple[TensorFunction, frozenset[str]]] = MappingProxyType(
    {
        "chlo.acos": (tf.acos, _ALL),
        "chlo.acosh": (tf.acosh, _ALL),
        "chlo.asin": (tf.asin, _ALL),
        "chlo.asinh": (tf.asinh, _ALL),
        "chlo.atanh": (tf.atanh, _ALL),
        "chlo.bessel_i1e": (tf.math.bessel_i1e, _WIDE),
        "chlo.cosh": (tf.cosh, _ALL),
        "chlo.digamma": (tf.math.digamma, _WIDE),
        "chlo.erf": (_erf, _ALL),
        "chlo.erf_inv": (_erf_inv, _WIDE),
        "chlo.erfc": (tf.math.erfc, _ALL),
        "chlo.lgamma": (tf.math.lgamma, _WIDE),
        "chlo.next_after": (tf.math.nextafter, _WIDE),
        "chlo.polygamma": (tf.math.polygamma, _WIDE),
        "chlo.sinh": (tf.sinh, _ALL),
        "chlo.zeta": (tf.math.zeta, _WIDE),
        "jax2tf.bessel_i0e": (tf.math.bessel_i0e, _WIDE),
        "jax2tf.betainc": (tf.math.betainc, _WIDE),
        "jax2tf.igamma": (_igamma, _WIDE),
        "jax2tf.igammac": (_igammac, _WIDE),
    }
)
_EXACT = frozenset({"chlo.next_after"})
"""Functions that cannot be computed in float32 and rounded."""
# JAX up to 0.9 calls these; later releases have composites.
_CALLED = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "erf", "sinh")
_WRITTEN: Mapping[str, TensorFunction] = MappingProxyType(
    {"chlo.lgamma": _converter_forms.lgamma, "chlo.next_after": _converter_forms.next_after}
)
"""Functions with another form for converters."""
_NOT_CONVERTED = _FUNCTIONS.keys() - {*(f"chlo.{name}" for name in _CALLED), *_WRITTEN}
"""Functions that tf2onnx and OpenVINO lack, directly and by that form."""
_NOT_IN_LITERT = frozenset(
    {"chlo.bessel_i1e", "chlo.digamma", "chlo.polygamma", "chlo.zeta", "jax2tf.bessel_i0e"}
    | {"jax2tf.betainc", "jax2tf.igamma", "jax2tf.igammac"}
)
"""Functions without a kernel in `litert`."""


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


def _emitter(name: str) -> Emitter:
    of_tensorflow, elements = _FUNCTIONS[name]

    def emit(
        scope: Scope, operation: Operation, operands: Sequence[Array]
    ) -> Sequence[Array] | Array:
        element = operands[0].element
        function = _WRITTEN.get(name, of_tensorflow) if scope.for_converters else of_tensorflow
        lacks = _NOT_CONVERTED if scope.for_converters else _NOT_IN_LITERT
        is_supported = name not in lacks or not scope.is_for_any_converter
        in_float32 = element not in elements and element in _NARROW and name not in _EXACT
        has_kernel = element in elements or in_float32
        if operation.name == "composite" and not (is_supported and has_kernel):
            return decompose(scope, operation)
        if not has_kernel:
            scope.fail(operation, f"TensorFlow has no {name} of {element}")
        sizes = broadcast_sizes(operands)
        tensors = [scope.compact(array) for array in operands]
        if name == "jax2tf.betainc":  # betainc does not broadcast
            tensors = [scope.tensor(Array(a.element, sizes, scope.compact(a))) for a in operands]
        if in_float32:
            tensors = [tf.cast(tensor, tf.float32) for tensor in tensors]
        result = function(*tensors)
        if name == "chlo.digamma" and _is_infinite_at_zero(scope, operation):
            at_zero = tf.equal(tensors[0], constant_like(tensors[0], 0))
            result = tf.where(at_zero, constant_like(result, -np.inf), result)
        return scope.new_array(tf.cast(result, tf_dtype(element)), element, sizes)

    return emit


COMPOSITES: Mapping[str, Emitter] = MappingProxyType({name: _emitter(name) for name in _FUNCTIONS})

TARGETS: Mapping[str, Emitter] = MappingProxyType(
    {f"mhlo.{name}": COMPOSITES[f"chlo.{name}"] for name in _CALLED}
)
