"""Conversions between dtypes, by StableHLO's rules, and the dtypes in which products are summed."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.to_tensorflow.operations._array import tf_dtype
from jax2tf_bridge.to_tensorflow.operations._integers import constant_like, wrap


def convert(source: str, target: str, x: tf.Tensor) -> tf.Tensor:
    """Converts to another element type.

    Integers wrap around. Floats are rounded towards zero and saturate as integers; NaN becomes 0.
    Complex numbers lose their imaginary parts. All numbers but zero become true.
    """
    if source == target:
        return x
    row, new_row = dtype_of_element(source), dtype_of_element(target)
    dtype = tf_dtype(target)
    if new_row.kind == "bool":
        x = tf.cast(x, tf.float32) if _is_tiny(source) else x
        return tf.not_equal(x, constant_like(x, 0))
    if row.kind == "complex" and new_row.kind != "complex":
        x, source = tf.math.real(x), "f32" if row.bits == 64 else "f64"
        return convert(source, target, x)
    if new_row.is_integer and row.kind == "float":
        return _float_to_integer(target, x)
    if (_is_tiny(source) or _is_tiny(target)) and x.dtype != tf.float32:
        x = tf.cast(x, tf.float32)  # TensorFlow has no kernels for other pairs
    return wrap(target, x if x.dtype == dtype else tf.cast(x, dtype))


def _is_tiny(element: str) -> bool:
    row = dtype_of_element(element)
    return row.kind == "float" and row.bits <= 8


def _float_to_integer(target: str, x: tf.Tensor) -> tf.Tensor:
    row, dtype = dtype_of_element(target), tf_dtype(target)
    least = -(2 ** (row.bits - 1)) if row.kind == "int" else 0
    most = least + 2**row.bits - 1
    if x.dtype.size < 4:
        x = tf.cast(x, tf.float32)
    is_nan = tf.math.is_nan(x)
    if row.bits <= 16:
        number = tf.where(is_nan, constant_like(x, 0), x)
        nearest = tf.clip_by_value(number, constant_like(x, least), constant_like(x, most))
        return tf.cast(nearest, dtype)
    # The greatest integer may not be a float, but the power of two after it is. Numbers below the
    # least integer become the least one on all machines, unless it is 0.
    low = tf.maximum(x, constant_like(x, 0)) if least == 0 else x
    nearest = tf.where(is_nan, tf.constant(0, dtype), tf.constant(most, dtype))
    return tf.where(tf.less(x, constant_like(x, float(most + 1))), tf.cast(low, dtype), nearest)


def bitcast(source: str, target: str, x: tf.Tensor) -> tf.Tensor:
    """Reinterprets the bits of the elements as another type.

    Narrower elements get a new last axis, low bits first; wider ones use up the last axis.
    """
    row, new_row = dtype_of_element(source), dtype_of_element(target)
    dtype = tf_dtype(target)
    if _is_octet_float(source):
        return bitcast("ui8", target, _to_octets(source, x))
    if _is_octet_float(target):
        return _from_octets(target, bitcast(source, "ui8", x))
    if min(row.bits, new_row.bits) >= 8 or row.bits == new_row.bits:
        return wrap(target, x if x.dtype == dtype else tf.bitcast(x, dtype))
    narrow = min(row.bits, new_row.bits)
    per_byte = 8 // narrow
    if row.bits < new_row.bits:
        parts = tf.bitwise.bitwise_and(
            tf.bitcast(x, tf.uint8), tf.constant(2**narrow - 1, tf.uint8)
        )
        octets = parts[..., ::per_byte]
        for i in range(1, per_byte):
            places = tf.constant(i * narrow, tf.uint8)
            part = tf.bitwise.left_shift(parts[..., i::per_byte], places)
            octets = tf.bitwise.bitwise_or(octets, part)
        return tf.bitcast(octets[..., 0] if new_row.bits == 8 else octets, dtype)
    places = tf.constant([i * narrow for i in range(per_byte)], tf.uint8)
    parts = tf.bitwise.right_shift(tf.bitcast(x, tf.uint8)[..., tf.newaxis], places)
    if row.bits > 8:
        shape = tf.concat([tf.shape(parts)[:-2], [row.bits // narrow]], 0)
        parts = tf.reshape(parts, shape)
    return wrap(target, tf.bitcast(parts, dtype))


def _is_octet_float(element: str) -> bool:
    row = dtype_of_element(element)
    return row.kind == "float" and row.bits == 8


def _to_octets(element: str, x: tf.Tensor) -> tf.Tensor:
    """Converts bits to 8-bit floats, for which TensorFlow has no operation."""
    dtype = tf_dtype(element).as_numpy_dtype
    # The numbers of the bits without the sign, in ascending order; NaNs are last.
    numbers = np.arange(128, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    nan = int(np.array(np.nan, dtype).view(np.uint8))
    wide = tf.cast(x, tf.float32)
    result = tf.searchsorted(numbers, tf.reshape(tf.abs(wide), [-1]))
    result = tf.reshape(result, tf.shape(wide))
    result = tf.where(tf.bitcast(wide, tf.int32) < 0, result + 128, result)
    return tf.cast(tf.where(tf.math.is_nan(wide), nan, result), tf.uint8)


def _from_octets(element: str, octets: tf.Tensor) -> tf.Tensor:
    dtype = tf_dtype(element)
    numbers = np.arange(256, dtype=np.uint8).view(dtype.as_numpy_dtype).astype(np.float32)
    return tf.cast(tf.gather(numbers, tf.cast(octets, tf.int32)), dtype)


# Sums of products, for which TensorFlow lacks kernels for many dtypes.

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
