"""Elementwise operations with a simpler form in TensorFlow, and no-ops.

Grappler, LiteRT and other consumers fuse Relu, Relu6 and BiasAdd with the preceding operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.to_tensorflow.operations import _converter_forms, _integers
from jax2tf_bridge.to_tensorflow.operations._array import Array
from jax2tf_bridge.to_tensorflow.operations._scope import Scope, broadcast_sizes

_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_NUMBERS = frozenset({"int", "uint", "float", "complex"})
_TAKE_BIAS = frozenset({"MatMul", "Conv2D", "Conv3D", "DepthwiseConv2dNative"})


def plain_form(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array | None:
    """Makes the simpler form of an operation; None if there is none."""
    form = _FORMS.get(operation.name)
    return None if form is None else form(scope, operands)


def _number(array: Array) -> Any:
    """Returns the common value of all elements, if known; else None."""
    if array.known is None or array.known.size == 0 or array.known.size > 64:
        return None
    first = array.known.reshape(-1)[0]
    return first if np.all(array.known == first) else None


def _is_number(array: Array, number: float) -> bool:
    known = _number(array)
    return known is not None and bool(known == number)


def _unchanged(array: Array, operands: Sequence[Array]) -> Array | None:
    """Returns an operand that is the result, possibly broadcast; None if it is not."""
    sizes = broadcast_sizes(operands)
    if array.sizes == sizes:
        return array
    if array.computed is None and array.known is None:
        return None
    return Array(array.element, sizes, array.computed, array.known)


def _maximum(scope: Scope, operands: Sequence[Array]) -> Array | None:
    for array, other in (operands, operands[::-1]):
        if array.element not in _FLOATS:
            return None
        if _is_number(other, -np.inf):
            return _unchanged(array, operands)
        if _is_number(other, 0) and array.computed is not None:
            tensor = tf.nn.relu(array.computed)
            return scope.made(tensor, array.element, broadcast_sizes(operands))
    return None


def _minimum(scope: Scope, operands: Sequence[Array]) -> Array | None:
    for array, other in (operands, operands[::-1]):
        if array.element not in _FLOATS:
            return None
        if _is_number(other, np.inf):
            return _unchanged(array, operands)
        if _is_number(other, 6) and _made_by(array) == "Relu":
            tensor = tf.nn.relu6(array.computed.op.inputs[0])  # type: ignore[union-attr]
            return scope.made(tensor, array.element, broadcast_sizes(operands))
    return None


def _clamp(scope: Scope, operands: Sequence[Array]) -> Array | None:
    low, array, high = operands
    if array.element not in _FLOATS or array.computed is None:
        return None
    if not (_is_number(low, 0) and _is_number(high, 6)):
        return None
    return scope.made(tf.nn.relu6(array.computed), array.element, broadcast_sizes(operands))


def add(scope: Scope, operands: Sequence[Array]) -> Array | None:
    """Adds a bias to a product or convolution with BiasAdd; None for other sums."""
    for array, other in (operands, operands[::-1]):
        if array.row.is_integer and _is_number(other, 0):
            return _unchanged(array, operands)
        shape = array.compact_shape
        if (
            array.element in _FLOATS
            and _made_by(array) in _TAKE_BIAS
            and len(shape) == array.rank
            and array.sizes == broadcast_sizes(operands)
            and other.compact_shape == shape[-1:]
            and isinstance(shape[-1], int)
        ):
            tensor = tf.nn.bias_add(array.computed, scope.compact(other))
            return scope.made(tensor, array.element, array.sizes)
    return None


def _made_by(array: Array) -> str:
    """Returns the type of the TensorFlow operation that made the tensor; "" outside of graphs."""
    operation = getattr(array.computed, "op", None)
    return "" if operation is None else operation.type


def _subtract(scope: Scope, operands: Sequence[Array]) -> Array | None:
    array, other = operands
    if array.row.kind == "uint" and _is_number(array, 0):
        tensor = _integers.negative(other.element, scope.compact(other))
        return scope.made(tensor, other.element, broadcast_sizes(operands))
    if array.row.kind != "complex" and _is_number(other, 0):
        # -0.0 - -0.0 is 0.0.
        return None if np.signbit(float(_number(other))) else _unchanged(array, operands)
    return None


def _multiply(scope: Scope, operands: Sequence[Array]) -> Array | None:
    for array, other in (operands, operands[::-1]):
        if array.row.kind in _NUMBERS - {"complex"} and _is_number(other, 1):
            return _unchanged(array, operands)
    left, right = operands
    if left is right and left.element in _FLOATS:
        square = _converter_forms.square if scope.for_converters else tf.square
        return scope.made(square(scope.compact(left)), left.element, left.sizes)
    return None


def _divide(scope: Scope, operands: Sequence[Array]) -> Array | None:
    array, other = operands
    if array.row.kind in _NUMBERS - {"complex"} and _is_number(other, 1):
        return _unchanged(array, operands)
    return None


def _select(scope: Scope, operands: Sequence[Array]) -> Array | None:
    flag = _number(operands[0])
    return None if flag is None else _unchanged(operands[1 if flag else 2], operands[1:])


_FORMS: Mapping[str, Callable[[Scope, Sequence[Array]], Array | None]] = MappingProxyType(
    {
        "add": add,
        "clamp": _clamp,
        "divide": _divide,
        "maximum": _maximum,
        "minimum": _minimum,
        "multiply": _multiply,
        "select": _select,
        "subtract": _subtract,
    }
)
