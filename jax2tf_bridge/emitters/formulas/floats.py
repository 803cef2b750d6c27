"""Arithmetic on floats and complex numbers for which TensorFlow's rules differ from StableHLO's.

Functions whose names begin with `complex_` are those of complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters.formulas.integers import constant_like


def sign(x: ops.Tensor) -> ops.Tensor:
    """Returns -1 or 1; zeros of both signs and NaN are returned unchanged."""
    return ops.where(ops.equal(x, constant_like(x, 0)), x, ops.sign(x))


def complex_sign(x: ops.Tensor) -> ops.Tensor:
    """Returns the number of length 1 in the same direction; zeros are returned unchanged."""
    length = ops.abs(x)
    unit = ops.complex(ops.math.real(x) / length, ops.math.imag(x) / length)
    return ops.where(ops.equal(length, constant_like(length, 0)), x, unit)


def remainder(x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Returns the remainder with the dividend's sign."""
    if x.dtype.size < 4:  # exact, because the remainder has no more digits than the operands
        return ops.cast(
            ops.truncatemod(ops.cast(x, ops.float32), ops.cast(y, ops.float32)), x.dtype
        )
    return ops.truncatemod(x, y)


def cube_root(x: ops.Tensor, select: Callable[..., ops.Tensor] = ops.where) -> ops.Tensor:
    """Returns the real cube root."""
    wide = ops.cast(x, ops.float64 if x.dtype == ops.float64 else ops.float32)
    size = ops.abs(wide)
    root = ops.pow(size, constant_like(size, 1 / 3))
    if x.dtype.size >= 4:
        # A step of Newton's method corrects the rounding of 1/3, except for 0 and inf.
        step = (root - size / (root * root)) / 3
        root = select(ops.math.is_finite(step), root - step, root)
    return ops.cast(select(ops.equal(wide, 0), wide, ops.sign(wide) * root), x.dtype)


def round_away_from_zero(x: ops.Tensor) -> ops.Tensor:
    """Rounds to integers; halves are rounded away from zero."""
    to_even = ops.round(x)
    half = constant_like(x, 0.5)
    is_half = ops.equal(ops.abs(x - to_even), half)
    return ops.where(is_half, x + ops.sign(x) * half, to_even)


def total_order_key(x: ops.Tensor) -> ops.Tensor:
    """Returns integer keys of the order -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""
    return order_as_floats(ops.bitcast(x, ops.as_dtype(f"int{x.dtype.size * 8}")))


def order_as_floats(bits: ops.Tensor) -> ops.Tensor:
    """Reverses the order of negative integers; applying it twice restores them."""
    # Without bitwise operations, which LiteRT does not broadcast in more than four axes.
    opposite = constant_like(bits, -1) - bits
    return ops.where(bits < 0, opposite + constant_like(bits, bits.dtype.min), bits)


def reduce_precision(x: ops.Tensor, exponent_bits: int, mantissa_bits: int) -> ops.Tensor:
    """Rounds to the numbers of a float with these bits, without subnormal numbers."""
    info: Any = ml_dtypes.finfo(x.dtype.as_numpy_dtype)  # type: ignore[no-untyped-call]
    exponent_bits = min(exponent_bits, info.iexp)
    mantissa_bits = min(mantissa_bits, info.nmant)
    if (exponent_bits, mantissa_bits) == (info.iexp, info.nmant):
        return x
    if x.dtype == ops.float32 and (exponent_bits, mantissa_bits) == (8, 7):
        return ops.cast(ops.cast(x, ops.bfloat16), ops.float32)
    width = x.dtype.size * 8
    bits = ops.bitcast(x, ops.as_dtype(f"uint{width}"))
    sign_bit = ops.bitwise.bitwise_and(bits, constant_like(bits, 1 << (width - 1)))
    size = ops.bitwise.bitwise_and(bits, constant_like(bits, (1 << (width - 1)) - 1))
    lost = info.nmant - mantissa_bits
    if lost > 0:
        # Half of the last kept digit is added, minus one bit if that digit is even.
        last = ops.bitwise.right_shift(size, constant_like(bits, lost))
        odd = ops.bitwise.bitwise_and(last, constant_like(bits, 1))
        size = size + odd + constant_like(bits, (1 << (lost - 1)) - 1)
        size = ops.bitwise.bitwise_and(size, constant_like(bits, ~((1 << lost) - 1) % (1 << width)))
    if exponent_bits < info.iexp:
        bias, new_bias = (1 << (info.iexp - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        least = (bias - new_bias + 1) << info.nmant
        beyond = (bias + new_bias + 1) << info.nmant
        infinity = ((1 << info.iexp) - 1) << info.nmant
        size = ops.where(ops.less(size, constant_like(bits, least)), constant_like(bits, 0), size)
        size = ops.where(
            ops.less(size, constant_like(bits, beyond)), size, constant_like(bits, infinity)
        )
    reduced = ops.bitcast(ops.bitwise.bitwise_or(size, sign_bit), x.dtype)
    return ops.where(ops.math.is_nan(x), x, reduced)


def complex_divide(x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Divides complex numbers, with C's results for zero and infinity."""
    quotient = ops.divide(x, y)
    known = ops.get_static_value(y)
    if known is not None and np.all(np.isfinite(known) & (known != 0)):
        return quotient
    real, imag = ops.math.real(y), ops.math.imag(y)
    is_zero = ops.equal(y, constant_like(y, 0))
    # The other divisor keeps the gradient finite where this branch is not selected.
    zero = ops.where(is_zero, real, constant_like(real, 1))
    by_zero = ops.complex(ops.math.real(x) / zero, ops.math.imag(x) / zero)
    quotient = ops.where(is_zero, by_zero, quotient)
    is_infinite = ops.math.is_inf(real) | ops.math.is_inf(imag)
    is_finite = ops.math.is_finite(ops.math.real(x)) & ops.math.is_finite(ops.math.imag(x))
    return ops.where(is_infinite & is_finite, constant_like(quotient, 0), quotient)


def complex_power(x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Raises x to the power y; the result is 1 for an exponent of 0."""
    return ops.where(ops.equal(y, constant_like(y, 0)), constant_like(x, 1), ops.pow(x, y))


def complex_arctan2(y: ops.Tensor, x: ops.Tensor) -> ops.Tensor:
    """Returns the angle of the point (x, y)."""
    minus_i = constant_like(x, -1j)
    return minus_i * ops.math.log((x - minus_i * y) / ops.sqrt(x * x + y * y))


def complex_expm1(x: ops.Tensor) -> ops.Tensor:
    """Returns exp(x) - 1, also for infinite parts."""
    real, imag = ops.math.real(x), ops.math.imag(x)
    half_sine = ops.sin(imag / 2)
    part = ops.math.expm1(real) * ops.cos(imag) - 2 * half_sine * half_sine
    # An infinite exponential times a sine of 0 would be NaN. The exponential of the rounded
    # logarithm of the greatest number may be infinite.
    finite = ops.minimum(real, constant_like(real, np.log(real.dtype.max) - 1))
    exponential = ops.exp(ops.where(ops.equal(imag, constant_like(imag, 0)), finite, real))
    return ops.complex(part, exponential * ops.sin(imag))


def complex_rsqrt(x: ops.Tensor) -> ops.Tensor:
    """Returns 1 / sqrt(x); TensorFlow's kernel confuses -0 and 0 in imaginary parts."""
    return complex_divide(constant_like(x, 1), ops.sqrt(x))


def complex_log1p(x: ops.Tensor) -> ops.Tensor:
    """Returns log(1 + x), also for small and infinite numbers."""
    real, imag = ops.math.real(x), ops.math.imag(x)
    moved = 1 + real
    small = ops.math.log1p(real * (2 + real) + imag * imag) / 2
    is_small = ops.less(ops.abs(x), constant_like(real, 0.5))
    length = ops.where(is_small, small, ops.math.log(ops.abs(ops.complex(moved, imag))))
    return ops.complex(length, ops.math.atan2(imag, moved))


def complex_extremum(x: ops.Tensor, y: ops.Tensor, greater: bool) -> ops.Tensor:
    """Returns the greater or lesser number, by real parts, then by imaginary parts."""
    compare = ops.greater if greater else ops.less
    left, right = ops.math.real(x), ops.math.real(y)
    by_imag = compare(ops.math.imag(x), ops.math.imag(y))
    return ops.where(compare(left, right) | (ops.equal(left, right) & by_imag), x, y)
