"""Chooses dtypes for sums of products, because TensorFlow lacks kernels for many dtypes."""

from __future__ import annotations

import tensorflow as tf

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.to_tensorflow.operations._array import tf_dtype
from jax2tf_bridge.to_tensorflow.operations._conversions import convert

_NATIVE_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})


def accumulation_dtype(left: str, right: str, result: str) -> tf.DType:
    """Chooses the dtype to multiply and add in, for element types of StableHLO.

    Integers use signed 32 or 64 bits, which wrap around like narrower and unsigned ones; bools are
    counted. 16-bit floats stay, because TensorFlow's kernels add them in 32 bits; narrower floats
    use 32 bits.
    """
    rows = [dtype_of_element(element) for element in (left, right, result)]
    kinds = {row.kind for row in rows}
    if "complex" in kinds:
        return tf.complex128 if any(row.bits > 64 for row in rows) else tf.complex64
    if "float" in kinds:
        if left == right == result and left in _NATIVE_FLOATS:
            return tf_dtype(left)
        return (
            tf.float64
            if any(row.kind == "float" and row.bits == 64 for row in rows)
            else tf.float32
        )
    # Bits beyond those of the result would be cut off in the end.
    return tf.int64 if rows[2].bits > 32 else tf.int32


def exact_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype for operations that, unlike MatMul, would add 16-bit floats in 16 bits."""
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def to_accumulation(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Converts an operand; integers may lose bits that the result does not have."""
    if tensor.dtype == dtype:
        return tensor
    is_same_size = tensor.dtype.is_integer and dtype.is_integer and tensor.dtype.size == dtype.size
    return tf.bitcast(tensor, dtype) if is_same_size else tf.cast(tensor, dtype)


def from_accumulation(tensor: tf.Tensor, element: str) -> tf.Tensor:
    """Converts a sum to an element type of StableHLO.

    Integers wrap around. Floats become integers with saturation, and NaN becomes 0. A bool is true
    unless the sum is 0.
    """
    row = dtype_of_element(element)
    if row.kind == "bool":
        return tf.not_equal(tensor, tf.zeros([], tensor.dtype))
    if row.is_integer and tensor.dtype.is_floating:
        return convert("f64" if tensor.dtype == tf.float64 else "f32", element, tensor)
    if row.is_integer and row.bits < 8:
        half, mask = (1 << (row.bits - 1) if row.kind == "int" else 0), (1 << row.bits) - 1
        tensor = tf.bitwise.bitwise_and(tensor + half, tf.constant(mask, tensor.dtype)) - half
    return to_accumulation(tensor, tf_dtype(element))
