"""Products of int8 and uint8 with sums in int32, for runtimes that have operations for them."""

from __future__ import annotations

from typing import Any

from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope

_BYTES = frozenset({"i8", "ui8"})


def multiplies_bytes(scope: Scope, left: str, right: str, result: str) -> bool:
    """Returns whether the runtime multiplies two element types without widening them.

    LiteRT multiplies int8 by int8, ONNX Runtime each of int8 and uint8 by each. TensorFlow's own
    product of bytes, and that of the other converters, is not faster than that of int32.
    """
    if result != "i32" or not {left, right} <= _BYTES:
        return False
    is_for_litert = scope.for_litert and not scope.for_converters
    return scope.for_onnx or (is_for_litert and left == right == "i8")


def is_bytes(tensor: ops.Tensor) -> bool:
    """Returns whether a tensor is one of `multiplies_bytes`."""
    return tensor.dtype in (ops.int8, ops.uint8)


def multiply_matrices(
    scope: Scope, left: ops.Tensor, right: ops.Tensor, *, transpose_a: bool, transpose_b: bool
) -> ops.Tensor:
    """Multiplies matrices; products of bytes are int32."""
    options: dict[str, Any] = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    if not is_bytes(left):
        return ops.linalg.matmul(left, right, **options)
    options["output_type"] = ops.int32
    if scope.for_onnx or right.shape.rank > 2:
        return ops.linalg.matmul(left, right, **options)
    # LiteRT's converter would make FULLY_CONNECTED of two matrices, which has no int32.
    right = ops.expand_dims(right, 0)
    if left.shape.rank > 2:
        return ops.linalg.matmul(left, right, **options)
    return ops.squeeze(ops.linalg.matmul(ops.expand_dims(left, 0), right, **options), 0)
