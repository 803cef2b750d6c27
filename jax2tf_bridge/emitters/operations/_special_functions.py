"""Special functions of CHLO, in calls and composites of modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from jax2tf_bridge._operations import CUSTOM_CALLS
from jax2tf_bridge.bytecode import DenseElements, Operation
from jax2tf_bridge.emitters._array import Array, Arrays, graph_dtype
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters._sizes import find_broadcast_sizes
from jax2tf_bridge.emitters.formulas import converter_forms
from jax2tf_bridge.emitters.formulas.integers import constant_like
from jax2tf_bridge.emitters.operations._calls import decompose

TensorFunction = Callable[..., ops.Tensor]


def _erf(x: ops.Tensor) -> ops.Tensor:
    if x.dtype == ops.float64:
        # TensorFlow returns NaN for infinity; beyond 6 the result is constant in float64.
        x = ops.clip_by_value(x, constant_like(x, -6), constant_like(x, 6))
    return ops.math.erf(x)


def _igamma(a: ops.Tensor, x: ops.Tensor) -> ops.Tensor:
    # TensorFlow returns 0 for x = 0 with any a, and NaN for a = 0; JAX returns 1 there for x >= 1.
    is_whole = (ops.equal(a, 0) & (x >= 1)) | _is_positive_infinity(x)
    result = ops.where(is_whole, constant_like(x, 1), ops.math.igamma(a, x))
    return ops.where(_is_outside(a, x), constant_like(x, math.nan), result)


def _igammac(a: ops.Tensor, x: ops.Tensor) -> ops.Tensor:
    is_zero = ops.equal(a, 0) | _is_positive_infinity(x)
    result = ops.where(is_zero, constant_like(x, 0), ops.math.igammac(a, x))
    return ops.where(_is_outside(a, x), constant_like(x, math.nan), result)


def _is_positive_infinity(x: ops.Tensor) -> ops.Tensor:
    return ops.equal(x, constant_like(x, math.inf))


def _is_outside(a: ops.Tensor, x: ops.Tensor) -> ops.Tensor:
    """Returns where the incomplete gamma functions are undefined."""
    are_zero = ops.equal(a, 0) & ops.equal(x, 0)
    return ((a < 0) | (x < 0) | are_zero) | (ops.math.is_nan(a) | ops.math.is_nan(x))


# Coefficients of erf_inv's Taylor series for x, x**3, x**5 and so on.
_ERF_INV_SERIES = (
    *(0.886226925452758, 0.2320136665346544, 0.12755617530559793, 0.08655212924154752),
    *(0.06495961774538541, 0.051731281984616365, 0.04283672065179733),
)
_SMALL: Mapping[str, float] = MappingProxyType({"float32": 0.25, "float64": 0.01})
"""Limit by dtype, below which the series gives erf_inv exactly."""


def _erf_inv(x: ops.Tensor) -> ops.Tensor:
    """Computes the inverse of erf.

    TensorFlow's kernel computes 1 + x, which loses digits unless x is near -1.
    """
    size = ops.abs(x)
    far = ops.math.erfinv(-size) * -ops.sign(x)
    series = ops.math.polyval([constant_like(x, c) for c in reversed(_ERF_INV_SERIES)], x * x)
    return ops.where(ops.less(size, constant_like(x, _SMALL[x.dtype.name])), series * x, far)


_WIDE, _NARROW = frozenset({"f32", "f64"}), frozenset({"f16", "bf16"})


@dataclass(frozen=True)
class _Function:
    """A special function of TensorFlow.

    Attributes:
      call: computes it.
      elements: the element types with kernels. Other floats are computed in float32.
      in_float32: whether a result in float32 may be rounded to a narrower type.
      for_converters: another form for tf2onnx and OpenVINO.
      not_in_onnx: the element types for which ONNX Runtime has no kernel.
    """

    call: TensorFunction
    elements: frozenset[str] = _WIDE
    in_float32: bool = True
    for_converters: TensorFunction | None = None
    not_in_onnx: frozenset[str] = frozenset()


_ALL = _WIDE | _NARROW
_FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        "chlo.acos": _Function(ops.acos, _ALL),
        "chlo.acosh": _Function(ops.acosh, _ALL),
        "chlo.asin": _Function(ops.asin, _ALL),
        "chlo.asinh": _Function(ops.asinh, _ALL),
        "chlo.atanh": _Function(ops.atanh, _ALL),
        "chlo.bessel_i1e": _Function(ops.math.bessel_i1e),
        "chlo.cosh": _Function(ops.cosh, _ALL),
        "chlo.digamma": _Function(ops.math.digamma),
        "chlo.erf": _Function(_erf, _ALL, not_in_onnx=frozenset({"f64"})),
        "chlo.erf_inv": _Function(_erf_inv),
        "chlo.erfc": _Function(ops.math.erfc, _ALL),
        "chlo.lgamma": _Function(ops.math.lgamma, for_converters=converter_forms.lgamma),
        "chlo.next_after": _Function(
            ops.math.nextafter, in_float32=False, for_converters=converter_forms.next_after
        ),
        "chlo.polygamma": _Function(ops.math.polygamma),
        "chlo.sinh": _Function(ops.sinh, _ALL),
        "chlo.zeta": _Function(ops.math.zeta),
        "jax2tf.bessel_i0e": _Function(ops.math.bessel_i0e),
        "jax2tf.betainc": _Function(ops.math.betainc),
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
def _special_function(scope: Scope, operation: Operation, operands: Arrays) -> Arrays | Array:
    is_composite = operation.name == "composite"
    name = operation.text("name") if is_composite else _CALLS[operation.text("call_target_name")]
    function, element = _FUNCTIONS[name], operands[0].element
    call = (scope.for_converters and function.for_converters) or function.call
    elements = function.elements - function.not_in_onnx if scope.for_onnx else function.elements
    in_float32 = element in _NARROW - elements and function.in_float32
    if not (element in elements or in_float32):
        if is_composite:
            return decompose(scope, operation)
        scope.fail(operation, f"{scope.runtime} has no {name} of {element}")
    sizes = find_broadcast_sizes(operands)
    tensors = [scope.compact(array) for array in operands]
    if name == "jax2tf.betainc":  # betainc does not broadcast
        tensors = [scope.tensor(Array(a.element, sizes, scope.compact(a))) for a in operands]
    if in_float32:
        tensors = [ops.cast(tensor, ops.float32) for tensor in tensors]
    result = call(*tensors)
    if name == "chlo.digamma" and _is_infinite_at_zero(scope, operation):
        at_zero = ops.equal(tensors[0], constant_like(tensors[0], 0))
        result = ops.where(at_zero, constant_like(result, -np.inf), result)
    return scope.new_array(ops.cast(result, graph_dtype(element)), element, sizes)
