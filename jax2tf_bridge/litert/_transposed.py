"""Keeps the converter from exchanging the operands of differences and quotients.

The converter of TensorFlow 2.21 moves transposes behind elementwise operations with a constant
operand, and puts the constant second: `2 - x.T` became `(x - 2).T`. An operation between the
transpose and the difference prevents that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge.litert._forms import Form, Kernel

_ORDERED = ("Div", "RealDiv", "Sub")
"""Binary operations that are moved, and are not commutative."""

_ON_ELEMENTS = frozenset(
    {"Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "Atan", "Atan2", "Atanh"}
    | {"BroadcastTo", "Cast", "Ceil", "CheckNumerics", "Cos", "Cosh", "Div", "Elu"}
    | {"EnsureShape", "Erf", "Erfinv", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Identity"}
    | {"IdentityN", "Invert", "LeakyRelu", "LeftShift", "Log", "Log1p", "LogicalNot", "Maximum"}
    | {"Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6"}
    | {"RightShift", "Rint", "Round", "Rsqrt", "Select", "SelectV2", "Sigmoid", "Sign", "Sin"}
    | {"Sinh", "Softplus", "Sqrt", "Square", "SquaredDifference", "Sub", "Tan", "Tanh"}
    | {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "LogicalAnd", "LogicalOr", "TruncateDiv"}
    | {"TruncateMod"}
)
"""Elementwise operations, behind which a transpose may have been moved before.

Bitcast is none of them. LiteRT 2.21 may overwrite its result if a reshape of it is used as well:
both share memory, and an operation on the reshape works in place.
"""


def behind_transpositions(nodes: Sequence[Any]) -> set[str]:
    """Names the elementwise operations that follow a transpose, directly or after others of them.

    Args:
      nodes: the nodes of a graph or a function, in any order.
    """
    makers = {node.name: node for node in nodes}
    return {node.name for node in nodes if node.op in _ON_ELEMENTS and _is_behind(node, makers)}


def _is_behind(node: Any, makers: Mapping[str, Any]) -> bool:
    waiting, seen = [node], set()
    while waiting:
        for name in waiting.pop().input:
            maker = makers.get(name.partition(":")[0])
            if maker is None or maker.name in seen:
                continue
            seen.add(maker.name)
            if maker.op == "Transpose":
                return True
            if maker.op in _ON_ELEMENTS:
                waiting.append(maker)
    return False


def with_reshape(node: Any, form: Form | None) -> Form | None:
    """Puts a reshape before a form of an operation on elements.

    Args:
      node: the node of a GraphDef.
      form: its form of built-in operations, if it has one: differences may be in it as well.

    Returns:
      The new form; None where the operation has none and may be moved.
    """
    if form is None:
        if node.op not in _ORDERED:
            return None
        dtype = tf.as_dtype(node.attr["T"].type)
        form = Form(_plain(node.op), (dtype, dtype), dtype)
    return Form(_apart(form.kernel), form.inputs, form.result)


def _plain(operation: str) -> Kernel:
    function = getattr(tf.raw_ops, operation)
    return lambda x, y: function(x=x, y=y)


def _apart(kernel: Kernel) -> Kernel:
    def call(*tensors: tf.Tensor) -> tf.Tensor:
        return tf.squeeze(kernel(*(tf.expand_dims(tensor, -1) for tensor in tensors)), -1)

    return call
