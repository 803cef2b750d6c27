"""Arithmetic on integers of every width and on bools, by StableHLO's rules.

TensorFlow lacks kernels for some widths, fails for division by zero, and leaves shifts beyond the
width to the machine. Integers of fewer than 8 bits are stored in 8 bits and wrap around as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.emitters._ops import ops

_NARROWEST = 8


def is_unsigned(element: str) -> bool:
    """Returns whether an element type is an unsigned integer."""
    return dtype_of_element(element).kind == "uint"


MAX_AXES = 4
"""Maximum rank for which LiteRT's BitwiseXor and RightShift broadcast their operands; for more axes
they end the process."""


def constant_like(x: ops.Tensor, value: Any) -> ops.Tensor:
    """Makes a scalar constant of a tensor's dtype."""
    return ops.constant(np.array(value, x.dtype.as_numpy_dtype))


def wrap(element: str, x: ops.Tensor) -> ops.Tensor:
    """Wraps around integers of fewer than 8 bits, which are stored in 8 bits."""
    bits = dtype_of_element(element).bits
    if bits >= _NARROWEST or not dtype_of_element(element).is_integer:
        return x
    if is_unsigned(element):
        return ops.bitwise.bitwise_and(x, constant_like(x, 2**bits - 1))
    places = constant_like(x, _NARROWEST - bits)
    return ops.bitwise.right_shift(ops.bitwise.left_shift(x, places), places)


def _view(x: ops.Tensor, kind: str) -> ops.Tensor:
    dtype = ops.as_dtype(f"{kind}{x.dtype.size * 8}")
    return x if x.dtype == dtype else ops.bitcast(x, dtype)


def _bits_of(element: str, x: ops.Tensor) -> ops.Tensor:
    """Returns the bits as an unsigned integer of the element's width."""
    bits = dtype_of_element(element).bits
    view = _view(x, "uint")
    if bits >= _NARROWEST or is_unsigned(element):
        return view
    return ops.bitwise.bitwise_and(view, constant_like(view, 2**bits - 1))


def _from_bits(element: str, bits: ops.Tensor) -> ops.Tensor:
    return wrap(element, _view(bits, dtype_of_element(element).kind))


# TensorFlow's graph optimizer (Grappler) does not check whether an operation that it makes has a
# kernel. In releases 2.15 to 2.21 it makes three that lack kernels for some integers:
# - Neg from Sub(0, x), without kernels for unsigned integers;
# - SquaredDifference of the square of a Sub, or of Add(x, Neg(y)), which has none for integers of
#   fewer than 32 bits, and none for unsigned ones;
# - Tile from a Pack of one tensor, without a kernel for uint16.
# The code below therefore avoids Sub, Neg and Pack for these dtypes.


def subtract(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Subtracts; the difference wraps around."""
    if x.dtype.size < 4:
        difference = ops.subtract(ops.cast(x, ops.int32), ops.cast(y, ops.int32))
        return wrap(element, ops.cast(difference, x.dtype))
    return _as_signed(ops.subtract, x, y)


def negative(element: str, x: ops.Tensor) -> ops.Tensor:
    """Negates; unsigned integers and the least integer wrap around."""
    if is_unsigned(element) or x.dtype.size < 4:
        return wrap(element, ops.add(ops.bitwise.invert(x), constant_like(x, 1)))
    return ops.negative(x)


def repeat(function: Callable[..., ops.Tensor], *tensors: ops.Tensor) -> ops.Tensor:
    """Applies a function that repeats or stacks tensors; uint16, which Tile lacks, as int16."""
    if tensors[0].dtype != ops.uint16:
        return function(*tensors)
    return _as_signed(function, *tensors)


def _as_signed(function: Callable[..., ops.Tensor], *tensors: ops.Tensor) -> ops.Tensor:
    """Applies a function with equal bits for signed and unsigned integers, in signed ones."""
    result = function(*(_view(x, "int") for x in tensors))
    return _view(result, "uint" if tensors[0].dtype.is_unsigned else "int")


def absolute(element: str, x: ops.Tensor) -> ops.Tensor:
    """Returns the absolute value; the least integer stays unchanged."""
    return x if is_unsigned(element) else wrap(element, ops.abs(x))


def sign(element: str, x: ops.Tensor) -> ops.Tensor:
    """Returns -1, 0 or 1."""
    return ops.minimum(x, constant_like(x, 1)) if is_unsigned(element) else ops.sign(x)


def divide(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Divides and rounds towards zero; a quotient by zero has all bits set."""
    divisor, zero = find_safe_divisor(element, x, y)
    quotient = wrap(element, ops.truncatediv(x, divisor))
    if zero is None:
        return quotient
    return ops.where(zero, wrap(element, ops.bitwise.invert(ops.zeros_like(x))), quotient)


def remainder(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Returns the remainder with the dividend's sign; a remainder by zero is the dividend."""
    divisor, zero = find_safe_divisor(element, x, y)
    if is_unsigned(element):
        result = ops.math.floormod(x, divisor)
    elif x.dtype.size < 4:
        result = ops.cast(
            ops.truncatemod(ops.cast(x, ops.int32), ops.cast(divisor, ops.int32)), x.dtype
        )
    else:
        result = ops.truncatemod(x, divisor)
    return result if zero is None else ops.where(zero, x, result)


def find_safe_divisor(
    element: str, x: ops.Tensor, y: ops.Tensor
) -> tuple[ops.Tensor, ops.Tensor | None]:
    """Returns a divisor that is safe for all kernels, and where the divisor is zero.

    It is 1 for zeros, and for the least integer divided by -1, whose quotient is itself.
    """
    known = ops.get_static_value(y)
    if known is not None and np.all(known) and (is_unsigned(element) or np.all(known != -1)):
        return y, None
    zero = ops.equal(y, constant_like(y, 0))
    unsafe = zero
    if not is_unsigned(element) and dtype_of_element(element).bits >= _NARROWEST:
        least = ops.equal(x, constant_like(x, x.dtype.min))
        unsafe = zero | (least & ops.equal(y, constant_like(y, -1)))
    return ops.where(unsafe, constant_like(y, 1), y), zero


def power(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Raises to a power with wraparound; negative powers of bases other than 1 and -1 are 0."""
    base, exponent = _view(x, "int"), _view(y, "int")
    # TensorFlow fails for negative exponents. In an unsigned exponent the sign bit does not matter
    # for odd bases, whose powers repeat, and makes powers of even bases 0.
    is_large = ops.less(exponent, constant_like(exponent, 0))
    small = ops.bitwise.bitwise_and(exponent, constant_like(exponent, exponent.dtype.max))
    if is_unsigned(element):
        odd = ops.bitwise.bitwise_and(base, constant_like(base, 1))
        vanishes = is_large & ops.equal(odd, constant_like(base, 0))
    else:
        vanishes = is_large & ops.not_equal(ops.abs(base), constant_like(base, 1))
    raised = ops.where(vanishes, constant_like(base, 0), ops.pow(base, small))
    return _from_bits(element, raised)


def invert(element: str, x: ops.Tensor) -> ops.Tensor:
    """Inverts all bits."""
    return wrap(element, ops.bitwise.invert(x))


def is_in_width(element: str, y: ops.Tensor) -> bool:
    """Returns whether shift amounts are known to be less than the width."""
    known = ops.get_static_value(y)
    return known is not None and bool(
        np.all((known >= 0) & (known < dtype_of_element(element).bits))
    )


def shift_left(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Shifts left; shifts by the width or more give 0."""
    shifted = wrap(element, ops.bitwise.left_shift(x, y))
    return shifted if is_in_width(element, y) else _zero_beyond(element, y, shifted)


def shift_right_logical(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Shifts right and fills with zeros, also in the sign bit."""
    shifted = ops.bitwise.right_shift(_bits_of(element, x), _view(y, "uint"))
    result = _from_bits(element, shifted)
    return result if is_in_width(element, y) else _zero_beyond(element, y, result)


def _zero_beyond(element: str, y: ops.Tensor, shifted: ops.Tensor) -> ops.Tensor:
    # Negative amounts are beyond the width as unsigned integers.
    places = _bits_of(element, y)
    is_beyond = ops.greater_equal(places, constant_like(places, dtype_of_element(element).bits))
    return ops.where(is_beyond, constant_like(shifted, 0), shifted)


def shift_right_arithmetic(element: str, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Shifts right and fills with the sign bit; shifts by the width or more give only sign bits."""
    bits = dtype_of_element(element).bits
    if is_unsigned(element) and bits < _NARROWEST:
        places = constant_like(x, _NARROWEST - bits)  # moves the sign bit to that of the dtype
        x = _view(
            ops.bitwise.right_shift(
                _view(ops.bitwise.left_shift(x, places), "int"), _view(places, "int")
            ),
            "uint",
        )
    if not is_in_width(element, y):
        places = _bits_of(element, y)
        y = ops.minimum(places, constant_like(places, bits - 1))
    shifted = ops.bitwise.right_shift(_view(x, "int"), _view(y, "int"))
    return _from_bits(element, shifted)


def population_count(element: str, x: ops.Tensor) -> ops.Tensor:
    """Counts the bits that are set."""
    return ops.cast(ops.raw_ops.PopulationCount(x=_bits_of(element, x)), x.dtype)


def set_lower_bits(
    bits: ops.Tensor, width: int, shift: Callable[[ops.Tensor, int], ops.Tensor]
) -> ops.Tensor:
    """Sets all bits below the highest set one; `shift` shifts right by a number of places."""
    places = 1
    while places < width:
        bits = ops.bitwise.bitwise_or(bits, shift(bits, places))
        places *= 2
    return bits


def _shift_right(bits: ops.Tensor, places: int) -> ops.Tensor:
    return ops.bitwise.right_shift(bits, constant_like(bits, places))


def count_leading_zeros(element: str, x: ops.Tensor) -> ops.Tensor:
    """Counts the zeros before the highest set bit."""
    width = dtype_of_element(element).bits
    bits = set_lower_bits(_bits_of(element, x), width, _shift_right)
    count = ops.raw_ops.PopulationCount(x=bits)
    return ops.cast(ops.subtract(constant_like(count, width), count), x.dtype)
