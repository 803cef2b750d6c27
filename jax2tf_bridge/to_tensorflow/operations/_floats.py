"""Arithmetic on floats and complex numbers for which TensorFlow's rules differ from StableHLO's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from jax2tf_bridge.to_tensorflow.operations._integers import constant_like


def sign(x: tf.Tensor) -> tf.Tensor:
    """Returns -1 or 1; zeros of both signs and NaN are returned unchanged."""
    if x.dtype.is_complex:
        length = tf.abs(x)
        unit = tf.complex(tf.math.real(x) / length, tf.math.imag(x) / length)
        return tf.where(tf.equal(length, constant_like(length, 0)), x, unit)
    return tf.where(tf.equal(x, constant_like(x, 0)), x, tf.sign(x))


def remainder(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the remainder with the dividend's sign."""
    if x.dtype.size < 4:  # exact, because the remainder has no more digits than the operands
        return tf.cast(tf.truncatemod(tf.cast(x, tf.float32), tf.cast(y, tf.float32)), x.dtype)
    return tf.truncatemod(x, y)


def cube_root(x: tf.Tensor, select: Callable[..., tf.Tensor] = tf.where) -> tf.Tensor:
    """Returns the real cube root."""
    wide = tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
    size = tf.abs(wide)
    root = tf.pow(size, constant_like(size, 1 / 3))
    if x.dtype.size >= 4:
        # A step of Newton's method corrects the rounding of 1/3, except for 0 and inf.
        step = (root - size / (root * root)) / 3
        root = select(tf.math.is_finite(step), root - step, root)
    return tf.cast(select(tf.equal(wide, 0), wide, tf.sign(wide) * root), x.dtype)


def round_away_from_zero(x: tf.Tensor) -> tf.Tensor:
    """Rounds to integers; halves are rounded away from zero."""
    to_even = tf.round(x)
    half = constant_like(x, 0.5)
    is_half = tf.equal(tf.abs(x - to_even), half)
    return tf.where(is_half, x + tf.sign(x) * half, to_even)


def total_order_key(x: tf.Tensor) -> tf.Tensor:
    """Returns integer keys of the order -NaN < -inf < ... < -0 < 0 < ... < inf < NaN."""
    bits = tf.bitcast(x, tf.as_dtype(f"int{x.dtype.size * 8}"))
    signs = tf.bitwise.right_shift(bits, constant_like(bits, x.dtype.size * 8 - 1))
    flipped = tf.bitwise.bitwise_and(signs, constant_like(bits, bits.dtype.max))
    return tf.bitwise.bitwise_xor(bits, flipped)


def reduce_precision(x: tf.Tensor, exponent_bits: int, mantissa_bits: int) -> tf.Tensor:
    """Rounds to the numbers of a float with these bits, without subnormal numbers."""
    info: Any = ml_dtypes.finfo(x.dtype.as_numpy_dtype)  # type: ignore[no-untyped-call]
    exponent_bits = min(exponent_bits, info.iexp)
    mantissa_bits = min(mantissa_bits, info.nmant)
    if (exponent_bits, mantissa_bits) == (info.iexp, info.nmant):
        return x
    if x.dtype == tf.float32 and (exponent_bits, mantissa_bits) == (8, 7):
        return tf.cast(tf.cast(x, tf.bfloat16), tf.float32)
    width = x.dtype.size * 8
    bits = tf.bitcast(x, tf.as_dtype(f"uint{width}"))
    sign_bit = tf.bitwise.bitwise_and(bits, constant_like(bits, 1 << (width - 1)))
    size = tf.bitwise.bitwise_and(bits, constant_like(bits, (1 << (width - 1)) - 1))
    lost = info.nmant - mantissa_bits
    if lost > 0:
        # Half of the last kept digit is added, minus one bit if that digit is even.
        last = tf.bitwise.right_shift(size, constant_like(bits, lost))
        odd = tf.bitwise.bitwise_and(last, constant_like(bits, 1))
        size = size + odd + constant_like(bits, (1 << (lost - 1)) - 1)
        size = tf.bitwise.bitwise_and(size, constant_like(bits, ~((1 << lost) - 1) % (1 << width)))
    if exponent_bits < info.iexp:
        bias, new_bias = (1 << (info.iexp - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        least = (bias - new_bias + 1) << info.nmant
        beyond = (bias + new_bias + 1) << info.nmant
        infinity = ((1 << info.iexp) - 1) << info.nmant
        size = tf.where(tf.less(size, constant_like(bits, least)), constant_like(bits, 0), size)
        size = tf.where(
            tf.less(size, constant_like(bits, beyond)), size, constant_like(bits, infinity)
        )
    reduced = tf.bitcast(tf.bitwise.bitwise_or(size, sign_bit), x.dtype)
    return tf.where(tf.math.is_nan(x), x, reduced)


def complex_divide(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Divides complex numbers, with C's results for zero and infinity."""
    quotient = tf.divide(x, y)
    known = tf.get_static_value(y)
    if known is not None and np.all(np.isfinite(known) & (known != 0)):
        return quotient
    real, imag = tf.math.real(y), tf.math.imag(y)
    is_zero = tf.equal(y, constant_like(y, 0))
    # The other divisor keeps the gradient finite where this branch is not selected.
    zero = tf.where(is_zero, real, constant_like(real, 1))
    by_zero = tf.complex(tf.math.real(x) / zero, tf.math.imag(x) / zero)
    quotient = tf.where(is_zero, by_zero, quotient)
    is_infinite = tf.logical_or(tf.math.is_inf(real), tf.math.is_inf(imag))
    is_finite = tf.logical_and(
        tf.math.is_finite(tf.math.real(x)), tf.math.is_finite(tf.math.imag(x))
    )
    vanishes = tf.logical_and(is_infinite, is_finite)
    return tf.where(vanishes, constant_like(quotient, 0), quotient)


def power(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Raises x to the power y; the result is 1 for an exponent of 0."""
    raised = tf.pow(x, y)
    if not x.dtype.is_complex:
        return raised
    return tf.where(tf.equal(y, constant_like(y, 0)), constant_like(x, 1), raised)


def arctan2(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the angle of the point (x, y); coordinates may be complex."""
    if not x.dtype.is_complex:
        return tf.math.atan2(y, x)
    minus_i = constant_like(x, -1j)
    return minus_i * tf.math.log((x - minus_i * y) / tf.sqrt(x * x + y * y))


def expm1(x: tf.Tensor) -> tf.Tensor:
    """Returns exp(x) - 1, also for complex numbers with infinite parts."""
    if not x.dtype.is_complex:
        return tf.math.expm1(x)
    real, imag = tf.math.real(x), tf.math.imag(x)
    half_sine = tf.sin(imag / 2)
    part = tf.math.expm1(real) * tf.cos(imag) - 2 * half_sine * half_sine
    # An infinite exponential times a sine of 0 would be NaN. The exponential of the rounded
    # logarithm of the greatest number may be infinite.
    finite = tf.minimum(real, constant_like(real, np.log(real.dtype.max) - 1))
    pad_to = tf.exp(tf.where(tf.equal(imag, constant_like(imag, 0)), finite, real))
    return tf.complex(part, pad_to * tf.sin(imag))


def inverse_root(x: tf.Tensor) -> tf.Tensor:
    """Returns 1 / sqrt(x); TensorFlow's kernel confuses -0 and 0 in imaginary parts."""
    if not x.dtype.is_complex:
        return tf.math.rsqrt(x)
    return complex_divide(constant_like(x, 1), tf.sqrt(x))


def log1p(x: tf.Tensor) -> tf.Tensor:
    """Returns log(1 + x), also for small and infinite complex numbers."""
    if not x.dtype.is_complex:
        return tf.math.log1p(x)
    real, imag = tf.math.real(x), tf.math.imag(x)
    moved = 1 + real
    small = tf.math.log1p(real * (2 + real) + imag * imag) / 2
    is_small = tf.less(tf.abs(x), constant_like(real, 0.5))
    length = tf.where(is_small, small, tf.math.log(tf.abs(tf.complex(moved, imag))))
    return tf.complex(length, tf.math.atan2(imag, moved))


def complex_extremum(x: tf.Tensor, y: tf.Tensor, greater: bool) -> tf.Tensor:
    """Returns the greater or lesser number, by real parts, then by imaginary parts."""
    compare = tf.greater if greater else tf.less
    left, right = tf.math.real(x), tf.math.real(y)
    first = tf.logical_or(
        compare(left, right),
        tf.logical_and(tf.equal(left, right), compare(tf.math.imag(x), tf.math.imag(y))),
    )
    return tf.where(first, x, y)
