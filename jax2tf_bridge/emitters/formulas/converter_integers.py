"""Arithmetic on integers of 32 bits and more that tf2onnx and OpenVINO compute exactly.

OpenVINO only has signed 32-bit integers. It compares, divides and selects them as float32, and
replaces larger constants by 2**31 - 1. Only sums, products, shifts and bitwise operations keep
every bit. ONNX Runtime also compares integers as floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters.formulas import integers
from jax2tf_bridge.emitters.formulas.integers import constant_like

_SIGN = 1 << 31
_EXACT = 1 << 24
"""Limit below which float32 represents every integer exactly."""


def is_wide(element: str) -> bool:
    """Returns whether float32 cannot represent all integers of a type."""
    row = dtype_of_element(element)
    return row.is_integer and row.bits >= 32


def is_small(array: Array) -> bool:
    """Returns whether integers are known to be exact in float32; sizes are assumed to be."""
    if array.numbers is None:
        return array.known is not None
    return bool(np.all(np.abs(array.numbers.astype(np.float64)) < _EXACT))


def constant(array: np.ndarray) -> ops.Tensor:
    """Makes a constant; an operation that no converter folds adds the highest bits of uint32."""
    if array.dtype != np.uint32 or not np.any(array >= _SIGN):
        return ops.constant(array)
    if np.all(array >= _SIGN):
        return ops.bitwise.invert(ops.constant(~array))
    sign = ops.bitwise.invert(ops.constant(np.uint32(_SIGN - 1)))
    has_sign = ops.constant(array >> np.uint32(31))
    return ops.bitwise.bitwise_or(ops.constant(array & np.uint32(_SIGN - 1)), has_sign * sign)


def select(flag: ops.Tensor, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Returns x where the flag is set, else y."""
    return y + (x - y) * ops.cast(flag, x.dtype)


def _zero_unless(flag: ops.Tensor, x: ops.Tensor) -> ops.Tensor:
    return x * ops.cast(flag, x.dtype)


def _zero(x: ops.Tensor) -> ops.Tensor:
    return constant_like(x, 0)


def equal(x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Compares all bits: the difference is 0 as a float only if it is 0."""
    return ops.equal(x - y, _zero(x))


def less(x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Compares by the sign of the difference, or by its borrow bit."""
    difference = x - y
    bitwise = ops.bitwise
    if x.dtype.is_unsigned:
        not_x = bitwise.invert(x)
        borrows = bitwise.bitwise_and(bitwise.bitwise_or(not_x, y), difference)
        borrows = bitwise.bitwise_or(bitwise.bitwise_and(not_x, y), borrows)
        return _has_sign(borrows)
    overflows = bitwise.bitwise_xor(difference, x)
    overflows = bitwise.bitwise_and(bitwise.bitwise_xor(x, y), overflows)
    return ops.less(bitwise.bitwise_xor(difference, overflows), _zero(x))


def _has_sign(x: ops.Tensor) -> ops.Tensor:
    signed = ops.cast(x, ops.int32 if x.dtype.size == 4 else ops.int64)
    return ops.less(signed, _zero(signed))


_Comparison = Callable[[ops.Tensor, ops.Tensor], ops.Tensor]


def make_comparisons(equal: _Comparison, less: _Comparison) -> Mapping[str, _Comparison]:
    """Returns the comparisons of a total order, by direction."""
    return MappingProxyType(
        {
            "EQ": equal,
            "NE": lambda x, y: ops.logical_not(equal(x, y)),
            "LT": less,
            "LE": lambda x, y: ops.logical_not(less(y, x)),
            "GT": lambda x, y: less(y, x),
            "GE": lambda x, y: ops.logical_not(less(x, y)),
        }
    )


COMPARISONS = make_comparisons(equal, less)


def maximum(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Returns the larger operand; converters compare large unsigned integers wrongly."""
    is_inexact = is_wide(element) and integers.is_unsigned(element)
    return select(less(x, y), y, x) if is_inexact else ops.maximum(x, y)


def minimum(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Returns the smaller operand; as to converters, see `maximum`."""
    is_inexact = is_wide(element) and integers.is_unsigned(element)
    return select(less(x, y), x, y) if is_inexact else ops.minimum(x, y)


# Division.


def divide(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Divides and rounds towards zero; a quotient by zero has all bits set."""
    if dtype_of_element(element).bits != 32:
        return integers.divide(element, x, y)
    is_zero, quotient, _ = _divide_32(x, y)
    return select(is_zero, ops.bitwise.invert(ops.zeros_like(x)), quotient)


def remainder(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Returns the remainder with the dividend's sign; a remainder by zero is the dividend.

    tf2onnx lacks TruncateMod, and rounds FloorMod's quotient towards zero.
    """
    if dtype_of_element(element).bits == 32:
        is_zero, _, rest = _divide_32(x, y)
        return select(is_zero, x, rest)
    divisor, zero = integers.find_safe_divisor(element, x, y)
    wide = ops.int32 if x.dtype.size < 4 else x.dtype
    dividend, divisor = ops.cast(x, wide), ops.cast(divisor, wide)
    result = ops.cast(dividend - ops.truncatediv(dividend, divisor) * divisor, x.dtype)
    return result if zero is None else ops.where(zero, x, result)


def _divide_32(x: ops.Tensor, y: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor, ops.Tensor]:
    """Divides 32-bit integers.

    Returns where y is 0, the quotient and the remainder; the last two are arbitrary where y is 0.
    """
    is_zero = ops.equal(y, _zero(y))
    y = select(is_zero, constant_like(y, 1), y)
    if x.dtype.is_unsigned:
        quotient, rest = _divide_bits(ops.cast(x, ops.int32), ops.cast(y, ops.int32))
        return is_zero, ops.cast(quotient, x.dtype), ops.cast(rest, x.dtype)
    is_below, is_divisor_below = ops.less(x, _zero(x)), ops.less(y, _zero(x))
    quotient, rest = _divide_bits(select(is_below, -x, x), select(is_divisor_below, -y, y))
    quotient = select(ops.not_equal(is_below, is_divisor_below), -quotient, quotient)
    return is_zero, quotient, select(is_below, -rest, rest)


def _divide_bits(x: ops.Tensor, y: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
    """Divides unsigned integers, stored as the bits of int32, by y, which is not 0."""
    one, most = constant_like(x, 1), constant_like(x, _SIGN - 1)
    # A divisor with the highest bit set fits into the dividend at most once.
    is_large = ops.less(y, _zero(y))
    divisor = select(is_large, most, y)
    half = ops.bitwise.bitwise_and(ops.bitwise.right_shift(x, one), most)
    quotient, rest = _divide_halves(half, divisor)
    # The remainder is twice that of the half, plus the lowest bit.
    rest = rest + rest + ops.bitwise.bitwise_and(x, one)
    goes_in = ops.cast(ops.logical_not(_less_bits(rest, divisor)), x.dtype)
    quotient, rest = quotient + quotient + goes_in, rest - goes_in * divisor
    once = ops.cast(ops.logical_not(_less_bits(x, y)), x.dtype)
    return select(is_large, once, quotient), select(is_large, x - once * y, rest)


def _less_bits(x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Compares the bits of int32 as unsigned integers."""
    sign = constant_like(x, -_SIGN)
    return less(ops.bitwise.bitwise_xor(x, sign), ops.bitwise.bitwise_xor(y, sign))


def _divide_halves(x: ops.Tensor, y: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
    """Divides non-negative integers with floats; y is not 0.

    The relative error of about 2**-22 leaves at most 512 plus a divisor after the first step, and
    at most a divisor after the second.
    """
    divisor = ops.cast(y, ops.float32)
    quotient, rest = _zero(x), x
    for _ in range(2):
        step = ops.cast(ops.floor(ops.cast(rest, ops.float32) / divisor), x.dtype)
        quotient, rest = quotient + step, rest - step * y
    below = ops.cast(ops.less(rest, _zero(rest)), x.dtype)
    quotient, rest = quotient - below, rest + below * y
    above = ops.cast(ops.logical_not(less(rest, y)), x.dtype)
    return quotient + above, rest - above * y


# Shifts.


def _clip(y: ops.Tensor, least: int, most: int) -> tuple[ops.Tensor, ops.Tensor]:
    """Clips shift amounts to the limits; also returns where they were within the limits."""
    places = ops.clip_by_value(y, constant_like(y, least), constant_like(y, most))
    return places, ops.equal(places, y)


def shift_left(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Shifts left; shifts by the width or more give 0."""
    bits = dtype_of_element(element).bits
    if integers.is_in_width(element, y):
        return integers.shift_left(element, x, y)
    if bits < 32:
        return _shift_wider(shift_left, element, x, y)
    places, is_within = _clip(y, 0, bits - 1)
    return _zero_unless(is_within, ops.bitwise.left_shift(x, places))


def shift_right_arithmetic(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Shifts right and fills with the sign bit."""
    bits = dtype_of_element(element).bits
    if integers.is_unsigned(element) or integers.is_in_width(element, y):
        return integers.shift_right_arithmetic(element, x, y)
    if bits < 32:
        return _shift_wider(shift_right_arithmetic, element, x, y)
    places, is_within = _clip(y, 0, bits - 1)
    return ops.bitwise.right_shift(x, select(is_within, places, constant_like(y, bits - 1)))


def _shift_wider(
    shift: Callable[..., ops.Tensor], element: str, x: ops.Tensor, y: ops.Tensor
) -> ops.Tensor:
    """Shifts narrow integers in int32, because bits of another dtype would need Bitcast."""
    bits, places = dtype_of_element(element).bits, ops.cast(y, ops.int32)
    # Shifts by the width or more are shifts by 32 or more.
    places = select(_is_below(places, bits), places, constant_like(places, 32))
    shifted = shift("i32", ops.cast(x, ops.int32), places)
    return integers.wrap(element, ops.cast(shifted, y.dtype))


def _is_below(places: ops.Tensor, bits: int) -> ops.Tensor:
    return ops.equal(
        places, ops.clip_by_value(places, _zero(places), constant_like(places, bits - 1))
    )


def shift_right_logical(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Shifts right and clears the copies of the sign bit."""
    bits = dtype_of_element(element).bits
    if element == "ui16":
        # ONNX Runtime only shifts integers of 8, 32 and 64 bits.
        wide = [ops.cast(each, ops.uint32) for each in (x, y)]
        return ops.cast(integers.shift_right_logical("ui32", *wide), ops.uint16)
    if bits < 32 and not integers.is_unsigned(element):
        wide = ops.bitwise.bitwise_and(ops.cast(x, ops.int32), ops.constant((1 << bits) - 1))
        return _shift_wider(shift_right_logical, element, wide, y)
    if bits < 32:
        return integers.shift_right_logical(element, x, y)
    known = ops.get_static_value(y)
    if known is not None and known.size and integers.is_in_width(element, y):
        return _shift_by(x, np.asarray(known), bits)
    # The first shift is by 1, because a mask for all bits would be computed in float32 by OpenVINO.
    most = ops.constant((1 << (bits - 1)) - 1, x.dtype)
    once = ops.bitwise.bitwise_and(ops.bitwise.right_shift(x, constant_like(x, 1)), most)
    places, is_within = _clip(y, 1, bits - 1)
    result = _zero_unless(is_within, ops.bitwise.right_shift(once, places - constant_like(y, 1)))
    return result + _zero_unless(ops.equal(y, _zero(y)), x)


def _shift_by(x: ops.Tensor, places: np.ndarray, bits: int) -> ops.Tensor:
    limits = [(1 << (bits - int(place))) - 1 for place in places.reshape(-1)]
    wrapped = np.array(limits, f"uint{bits}").astype(x.dtype.as_numpy_dtype)
    mask = constant(wrapped.reshape(places.shape))
    if np.all(places >= 32):
        # OpenVINO uses 32 bits for 64, and machines cannot shift these by 32 at once.
        half = constant_like(x, 16)
        x = ops.bitwise.right_shift(ops.bitwise.right_shift(x, half), half)
        places = places - places.dtype.type(32)
    return ops.bitwise.bitwise_and(ops.bitwise.right_shift(x, ops.constant(places)), mask)


# Counts of bits.


def population_count(element: str, x: ops.Tensor) -> ops.Tensor:
    """Counts the bits that are set."""
    count = _count_bits(_to_bits(element, x), dtype_of_element(element).bits)
    return ops.cast(count, x.dtype)


def count_leading_zeros(element: str, x: ops.Tensor) -> ops.Tensor:
    """Counts the zeros before the highest set bit."""
    width = dtype_of_element(element).bits
    # Sign bits that are shifted in do not matter: then the highest bit is set, so all are.
    bits = integers.set_lower_bits(_to_bits(element, x), width, _shift_right)
    return ops.cast(constant_like(bits, width) - _count_bits(bits, width), x.dtype)


def _to_bits(element: str, x: ops.Tensor) -> ops.Tensor:
    """Widens integers of fewer than 32 bits to int32, without copies of the sign bit.

    int64 becomes uint64 with the same bits, because tf2onnx cannot shift int64.
    """
    bits = dtype_of_element(element).bits
    if element == "i64":
        return ops.cast(x, ops.uint64)
    if bits >= 32:
        return x
    return ops.bitwise.bitwise_and(ops.cast(x, ops.int32), ops.constant((1 << bits) - 1))


def _shift_right(x: ops.Tensor, places: int) -> ops.Tensor:
    """Shifts right in steps of at most 16: OpenVINO uses 32 bits for 64."""
    for _ in range(max(1, places // 16)):
        x = ops.bitwise.right_shift(x, constant_like(x, min(places, 16)))
    return x


def _count_bits(x: ops.Tensor, width: int) -> ops.Tensor:
    if width > 32:
        return _count_bits(x, 32) + _count_bits(_shift_right(x, 32), 32)
    # Adds neighbours. The masks also clear what is beyond 32 bits, and copies of the sign bit.
    for places, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F)):
        odd, even = _shift_right(x, places), x
        odd, even = (ops.bitwise.bitwise_and(part, constant_like(x, mask)) for part in (odd, even))
        x = odd + even
    x = x + _shift_right(x, 8)
    return ops.bitwise.bitwise_and(x + _shift_right(x, 16), constant_like(x, 63))


def to_float(x: ops.Tensor, dtype: ops.DType) -> ops.Tensor:
    """Converts uint32 to floats by its two halves, which are non-negative."""
    low = ops.bitwise.bitwise_and(x, constant_like(x, 0xFFFF))
    high = ops.bitwise.right_shift(x, constant_like(x, 16))
    high = ops.bitwise.bitwise_and(high, constant_like(x, 0xFFFF))
    parts = [ops.cast(ops.cast(part, ops.int32), dtype) for part in (high, low)]
    return parts[0] * constant_like(parts[0], 1 << 16) + parts[1]
