"""Conversions between dtypes, by StableHLO's rules, and the dtypes in which products are summed."""

from __future__ import annotations

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.emitters._array import graph_dtype, is_narrow_float
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters.formulas.integers import constant_like, wrap


def convert(source: str, target: str, x: ops.Tensor) -> ops.Tensor:
    """Converts to another element type.

    Integers wrap around. Floats are rounded towards zero and saturate as integers; NaN becomes 0.
    Complex numbers lose their imaginary parts. All numbers but zero become true.
    """
    if source == target:
        return x
    row, new_row = dtype_of_element(source), dtype_of_element(target)
    dtype = graph_dtype(target)
    if new_row.kind == "bool":
        x = ops.cast(x, ops.float32) if is_narrow_float(source) else x
        return ops.not_equal(x, constant_like(x, 0))
    if row.kind == "complex" and new_row.kind != "complex":
        x, source = ops.math.real(x), "f32" if row.bits == 64 else "f64"
        return convert(source, target, x)
    if new_row.is_integer and row.kind == "float":
        return _float_to_integer(target, x)
    if (is_narrow_float(source) or is_narrow_float(target)) and x.dtype != ops.float32:
        x = ops.cast(x, ops.float32)  # TensorFlow has no kernels for other pairs
    return wrap(target, x if x.dtype == dtype else ops.cast(x, dtype))


def _float_to_integer(target: str, x: ops.Tensor) -> ops.Tensor:
    row, dtype = dtype_of_element(target), graph_dtype(target)
    least, most = row.limits
    if x.dtype.size < 4:
        x = ops.cast(x, ops.float32)
    is_nan = ops.math.is_nan(x)
    if row.bits <= 16:
        number = ops.where(is_nan, constant_like(x, 0), x)
        nearest = ops.clip_by_value(number, constant_like(x, least), constant_like(x, most))
        return ops.cast(nearest, dtype)
    # The greatest integer may not be a float, but the power of two after it is. Numbers below the
    # least integer become the least one on all machines, unless it is 0.
    low = ops.maximum(x, constant_like(x, 0)) if least == 0 else x
    nearest = ops.where(is_nan, ops.constant(0, dtype), ops.constant(most, dtype))
    return ops.where(ops.less(x, constant_like(x, float(most + 1))), ops.cast(low, dtype), nearest)


def bitcast(source: str, target: str, x: ops.Tensor) -> ops.Tensor:
    """Reinterprets the bits of the elements as another type.

    Narrower elements get a new last axis, low bits first; wider ones use up the last axis.
    """
    row, new_row = dtype_of_element(source), dtype_of_element(target)
    dtype = graph_dtype(target)
    if is_narrow_float(source):
        return bitcast("ui8", target, _to_octets(source, x))
    if is_narrow_float(target):
        return _from_octets(target, bitcast(source, "ui8", x))
    if min(row.bits, new_row.bits) >= 8 or row.bits == new_row.bits:
        return wrap(target, x if x.dtype == dtype else ops.bitcast(x, dtype))
    narrow = min(row.bits, new_row.bits)
    per_byte = 8 // narrow
    if row.bits < new_row.bits:
        parts = ops.bitwise.bitwise_and(
            ops.bitcast(x, ops.uint8), ops.constant(2**narrow - 1, ops.uint8)
        )
        octets = parts[..., ::per_byte]
        for i in range(1, per_byte):
            places = ops.constant(i * narrow, ops.uint8)
            part = ops.bitwise.left_shift(parts[..., i::per_byte], places)
            octets = ops.bitwise.bitwise_or(octets, part)
        return ops.bitcast(octets[..., 0] if new_row.bits == 8 else octets, dtype)
    places = ops.constant([i * narrow for i in range(per_byte)], ops.uint8)
    parts = ops.bitwise.right_shift(ops.bitcast(x, ops.uint8)[..., ops.newaxis], places)
    if row.bits > 8:
        shape = ops.concat([ops.shape(parts)[:-2], [row.bits // narrow]], 0)
        parts = ops.reshape(parts, shape)
    return wrap(target, ops.bitcast(parts, dtype))


def _to_octets(element: str, x: ops.Tensor) -> ops.Tensor:
    """Converts bits to 8-bit floats, for which TensorFlow has no operation."""
    dtype = graph_dtype(element).as_numpy_dtype
    # The numbers of the bits without the sign, in ascending order; NaNs are last.
    numbers = np.arange(128, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    nan = int(np.array(np.nan, dtype).view(np.uint8))
    wide = ops.cast(x, ops.float32)
    result = ops.searchsorted(numbers, ops.reshape(ops.abs(wide), [-1]))
    result = ops.reshape(result, ops.shape(wide))
    result = ops.where(ops.bitcast(wide, ops.int32) < 0, result + 128, result)
    return ops.cast(ops.where(ops.math.is_nan(wide), nan, result), ops.uint8)


def _from_octets(element: str, octets: ops.Tensor) -> ops.Tensor:
    dtype = graph_dtype(element)
    numbers = np.arange(256, dtype=np.uint8).view(dtype.as_numpy_dtype).astype(np.float32)
    return ops.cast(ops.gather(numbers, ops.cast(octets, ops.int32)), dtype)


# Sums of products, for which TensorFlow lacks kernels for many dtypes.

_NATIVE_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})


def choose_accumulation_dtype(left: str, right: str, result: str) -> ops.DType:
    """Chooses the dtype to multiply and add in, for element types of StableHLO.

    Integers use signed 32 or 64 bits, which wrap around like narrower and unsigned ones; bools are
    counted. 16-bit floats stay, because TensorFlow's kernels add them in 32 bits; narrower floats
    use 32 bits.
    """
    rows = [dtype_of_element(element) for element in (left, right, result)]
    kinds = {row.kind for row in rows}
    if "complex" in kinds:
        return ops.complex128 if any(row.bits > 64 for row in rows) else ops.complex64
    if "float" in kinds:
        if left == right == result and left in _NATIVE_FLOATS:
            return graph_dtype(left)
        is_wide = any(row.kind == "float" and row.bits == 64 for row in rows)
        return ops.float64 if is_wide else ops.float32
    # Bits beyond those of the result would be cut off in the end.
    return ops.int64 if rows[2].bits > 32 else ops.int32


def choose_exact_dtype(dtype: ops.DType) -> ops.DType:
    """Returns the dtype for operations that, unlike MatMul, would add 16-bit floats in 16 bits."""
    return ops.float32 if dtype in (ops.float16, ops.bfloat16) else dtype


def to_accumulation(tensor: ops.Tensor, dtype: ops.DType) -> ops.Tensor:
    """Converts an operand; integers may lose bits that the result does not have."""
    if tensor.dtype == dtype:
        return tensor
    is_same_size = tensor.dtype.is_integer and dtype.is_integer and tensor.dtype.size == dtype.size
    return ops.bitcast(tensor, dtype) if is_same_size else ops.cast(tensor, dtype)


def from_accumulation(tensor: ops.Tensor, element: str) -> ops.Tensor:
    """Converts a sum to an element type of StableHLO.

    Integers wrap around. Floats become integers with saturation, and NaN becomes 0. A bool is true
    unless the sum is 0.
    """
    row = dtype_of_element(element)
    if row.kind == "bool":
        return ops.not_equal(tensor, ops.zeros([], tensor.dtype))
    if row.is_integer and tensor.dtype.is_floating:
        return convert("f64" if tensor.dtype == ops.float64 else "f32", element, tensor)
    return wrap(element, to_accumulation(tensor, graph_dtype(element)))
