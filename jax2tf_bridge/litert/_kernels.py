"""Kernels: operations that LiteRT lacks, as TensorFlow functions of its built-in operations.

LiteRT has 32-bit arithmetic; its only bitwise operations are XOR and the right shift. Unsigned
integers are computed as signed ones with the same bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import tensorflow as tf

from jax2tf_bridge.emitters import expm1, lgamma, next_after
from jax2tf_bridge.to_tensorflow import Kernel

_MIN_INT32 = -(2**31)


def convert(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Reinterprets the bits if both dtypes have the same size; else converts the numbers."""
    if x.dtype == dtype:
        return x
    return tf.bitcast(x, dtype) if x.dtype.size == dtype.size else tf.cast(x, dtype)


def compute_in(dtype: tf.DType, kernel: Kernel) -> Kernel:
    """Makes a kernel that runs another one in a dtype, see `convert`; flags stay flags."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        result = kernel(*(convert(tensor, dtype) for tensor in tensors))
        return result if result.dtype == tf.bool else convert(result, tensors[0].dtype)

    return call


# Integers.


_xor = tf.bitwise.bitwise_xor


def _in_order(kernel: Kernel) -> Kernel:
    """Computes uint32 as int32 in the same order, by flipping the highest bit."""

    def flip(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return convert(_xor(convert(x, tf.int32), _MIN_INT32), dtype)

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        result = kernel(*(flip(x, tf.int32) if x.dtype == tf.uint32 else x for x in tensors))
        return result if result.dtype == tf.bool else flip(result, tf.uint32)

    return call


def _and(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    # x + y equals (x ^ y) + 2 (x & y), apart from the highest bit of x & y.
    doubled = tf.bitcast(tf.subtract(tf.add(x, y), _xor(x, y)), tf.uint32)
    low = tf.bitcast(tf.bitwise.right_shift(doubled, tf.constant(1, tf.uint32)), tf.int32)
    both = tf.logical_and(tf.less(x, 0), tf.less(y, 0))
    return _xor(low, tf.where(both, _MIN_INT32, 0))


def _or(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return _xor(_xor(x, y), _and(x, y))


_POWERS = np.array([*(2**i for i in range(31)), _MIN_INT32, 0], np.int32)


def _left_shift(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    places = tf.minimum(tf.maximum(y, 0), 32)
    return tf.multiply(x, tf.gather(tf.constant(_POWERS), places))


def _invert(x: tf.Tensor) -> tf.Tensor:
    return _xor(x, -1)


def _truncated_remainder(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    zero = tf.zeros([], x.dtype)
    modulus = tf.math.floormod(x, y)
    is_other_sign = tf.not_equal(tf.less(x, zero), tf.less(y, zero))
    return tf.where(
        tf.logical_and(tf.not_equal(modulus, zero), is_other_sign), tf.subtract(modulus, y), modulus
    )


def _unsigned_remainder(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.math.floormod(tf.cast(x, tf.int64), tf.cast(y, tf.int64)), tf.uint32)


def _unsigned_quotient(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Divides with floats in steps; each corrects the relative error 2**-23 of the one before."""
    divisor, rest = tf.cast(y, tf.int64), tf.cast(x, tf.int64)
    inverse = tf.math.reciprocal(tf.cast(divisor, tf.float32))
    quotient = tf.zeros_like(rest)
    for _ in range(3):
        step = tf.cast(tf.floor(tf.cast(rest, tf.float32) * inverse), tf.int64)
        quotient, rest = quotient + step, rest - step * divisor
    is_below = tf.less(rest, 0)
    quotient = tf.where(is_below, quotient - 1, quotient)
    rest = tf.where(is_below, rest + divisor, rest)
    quotient = tf.where(tf.greater_equal(rest, divisor), quotient + 1, quotient)
    return tf.cast(quotient, tf.uint32)


def _by_words(kernel: Kernel) -> Kernel:
    """Computes 64-bit integers as two 32-bit words."""
    return lambda *tensors: tf.bitcast(
        kernel(*(tf.bitcast(x, tf.int32) for x in tensors)), tf.int64
    )


def _logical_shift(x: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Shifts words to the right; shifts by the width or more give 0."""
    kept = tf.cast(tf.minimum(tf.maximum(places, 0), 31), tf.uint32)
    shifted = tf.bitcast(tf.bitwise.right_shift(tf.bitcast(x, tf.uint32), kept), tf.int32)
    return tf.where(tf.logical_and(tf.less(places, 32), tf.greater_equal(places, 0)), shifted, 0)


def _split_words(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    low, high = tf.unstack(tf.bitcast(x, tf.int32), 2, axis=-1)
    return low, high


def _shift_right_64(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    (low, high), places = _split_words(x), tf.cast(y, tf.int32)
    joined = _xor(_logical_shift(low, places), _left_shift(high, 32 - places))
    near = tf.where(tf.less(places, 32), joined, _logical_shift(high, places - 32))
    return tf.bitcast(tf.stack([near, _logical_shift(high, places)], axis=-1), tf.int64)


def _shift_right_signed_64(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Shifts signed 64-bit integers to the right; negative ones by way of their inverted bits."""
    is_negative, invert = tf.less(x, 0), _by_words(_invert)
    shifted = _shift_right_64(tf.where(is_negative, invert(x), x), y)
    return tf.where(is_negative, invert(shifted), shifted)


def _shift_left_64(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    (low, high), places = _split_words(x), tf.cast(y, tf.int32)
    joined = _xor(_left_shift(high, places), _logical_shift(low, 32 - places))
    far = tf.where(tf.less(places, 32), joined, _left_shift(low, places - 32))
    return tf.bitcast(tf.stack([_left_shift(low, places), far], axis=-1), tf.int64)


_BITS_OF_BYTES = np.array([byte.bit_count() for byte in range(256)], np.int32)


def _population_count(x: tf.Tensor) -> tf.Tensor:
    """Counts the set bits of integers of any width, byte by byte.

    Bytes come from shifts, because the converter merges bitcasts of different sizes wrongly.
    """
    words = _split_words(x) if x.dtype.size == 8 else [convert(x, tf.int32)]
    counts = []
    for word, place in itertools.product(words, range(min(x.dtype.size, 4))):
        byte = tf.math.floormod(tf.bitwise.right_shift(word, tf.constant(8 * place)), 256)
        counts.append(tf.gather(tf.constant(_BITS_OF_BYTES), byte))
    return tf.cast(tf.add_n(counts), tf.uint8)


def _take_low_word(x: tf.Tensor) -> tf.Tensor:
    return _split_words(tf.bitcast(x, tf.int64))[0]


CASTS: Mapping[tuple[tf.DType | None, tf.DType | None], Kernel] = MappingProxyType(
    {
        (tf.uint64, tf.int32): _take_low_word,
        (tf.uint64, tf.int64): lambda x: tf.bitcast(x, tf.int64),
        (tf.uint64, tf.uint32): lambda x: tf.bitcast(_take_low_word(x), tf.uint32),
        (None, tf.uint64): lambda x: tf.bitcast(tf.cast(x, tf.int64), tf.uint64),
    }
)
"""Casts by the dtypes of the operand and the result; None stands for all others."""


# Floats.


# Minimax coefficients on [-4, 4] from Eigen's generic_fast_erf_float, as in TensorFlow's kernel.
_ERF_ABOVE = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06),
    *(-5.69250639462346e-05, -7.34990630326855e-04, -2.95459980854025e-03),
    -1.60960333262415e-02,
)
_ERF_BELOW = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03),
    *(-7.37332916720468e-03, -1.42647390514189e-02),
)


def _erf(x: tf.Tensor) -> tf.Tensor:
    clamped = tf.minimum(tf.maximum(x, -4.0), 4.0)
    square = clamped * clamped
    product = clamped * tf.math.polyval(list(_ERF_ABOVE), square)
    return product / tf.math.polyval(list(_ERF_BELOW), square)


# Press et al., "Numerical Recipes in C" (1992), section 6.2: relative errors of 1.2e-7.
_ERFC = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)


def _erfc(x: tf.Tensor) -> tf.Tensor:
    size = tf.abs(x)
    t = 1.0 / (1.0 + 0.5 * size)
    tail = t * tf.exp(tf.math.polyval(list(_ERFC), t) - size * size)
    far = tf.where(tf.less(x, 0.0), 2.0 - tail, tail)
    return tf.where(tf.less(size, 0.5), 1.0 - _erf(x), far)


# Giles, "Approximating the erfinv function", GPU Computing Gems (2011): single precision.
_ERFINV_MIDDLE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_ERFINV_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def _erfinv(x: tf.Tensor) -> tf.Tensor:
    w = -tf.math.log((1.0 - x) * (1.0 + x))
    middle = tf.math.polyval(list(_ERFINV_MIDDLE), w - 2.5)
    tail = tf.math.polyval(list(_ERFINV_TAIL), tf.sqrt(tf.maximum(w, 5.0)) - 3.0)
    result = tf.where(tf.less(w, 5.0), middle, tail) * x
    # A product with infinity is the greatest finite number in LiteRT.
    result = tf.where(tf.equal(x, 1.0), np.float32(np.inf), result)
    return tf.where(tf.equal(x, -1.0), np.float32(-np.inf), result)


def _log1p(x: tf.Tensor) -> tf.Tensor:
    """Computes log(1 + x) accurately near 0, by Kahan's method."""
    sum_ = 1.0 + x
    near = tf.math.log(sum_) * x / tf.where(tf.equal(sum_, 1.0), tf.ones_like(x), sum_ - 1.0)
    result = tf.where(tf.less(tf.abs(x), 0.5), near, tf.math.log(sum_))
    return tf.where(tf.equal(sum_, 1.0), x, result)


def _sinh(x: tf.Tensor) -> tf.Tensor:
    power = expm1(tf.abs(x))
    # Halving comes first, so that no intermediate value overflows before the result.
    near = 0.5 * (power + power / (power + 1.0))
    far = tf.exp(tf.abs(x) - np.float32(np.log(2)))
    return tf.sign(x) * tf.where(tf.less(tf.abs(x), 9.0), near, far)


def _cosh(x: tf.Tensor) -> tf.Tensor:
    half = tf.exp(tf.abs(x) - np.float32(np.log(2)))
    return half + 0.25 / half


def _asinh(x: tf.Tensor) -> tf.Tensor:
    size = tf.abs(x)
    small = tf.minimum(size, 1e4)
    square = small * small
    near = _log1p(small + square / (1.0 + tf.sqrt(1.0 + square)))
    far = tf.math.log(tf.maximum(size, 1.0)) + np.float32(np.log(2))
    return tf.sign(x) * tf.where(tf.less(size, 1e4), near, far)


def _acosh(x: tf.Tensor) -> tf.Tensor:
    small = tf.minimum(x, 1e4) - 1.0
    near = _log1p(small + tf.sqrt(small * (small + 2.0)))
    far = tf.math.log(x) + np.float32(np.log(2))
    # Below 1 there is no result, and far below 1 the two summands would cancel.
    return tf.where(tf.less(x, 1.0), np.float32(np.nan), tf.where(tf.less(x, 1e4), near, far))


def _float_remainder(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the exact remainder with the dividend's sign."""
    size = tf.math.floormod(tf.abs(x), tf.abs(y))
    return tf.where(tf.less(x, 0.0), tf.negative(size), size)


def _atan2(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Broadcasts the operands first, because LiteRT's operation does not.

    A selection keeps the known sizes of a result with open ones; BroadcastTo does not, and the
    converter rejects that.
    """
    everywhere = tf.equal(tf.zeros_like(x), tf.zeros_like(y))
    return tf.atan2(tf.where(everywhere, y, y), tf.where(everywhere, x, x))


# Products and updates.


_MAX_TERMS = 256
"""Maximum number of products of bytes that float32 adds exactly."""


def _split_bytes(x: tf.Tensor) -> list[tf.Tensor]:
    """Splits integers into bytes as floats, lowest first; the highest byte is signed."""
    shifted = [x, *(tf.bitwise.right_shift(x, tf.constant(8 * i)) for i in (1, 2, 3))]
    low = [tf.math.floormod(number, tf.constant(256)) for number in shifted[:3]]
    return [tf.cast(number, tf.float32) for number in (*low, shifted[3])]


def _group_terms(x: tf.Tensor) -> tf.Tensor:
    """Reshapes (b, k, n) to (b * groups, terms, n), padded with zeros."""
    batch, count, width = tf.unstack(tf.shape(x), 3)
    terms = tf.minimum(tf.maximum(count, 1), _MAX_TERMS)
    groups = (count + terms - 1) // terms
    missing = groups * terms - count
    padded = tf.pad(x, [[0, 0], [0, missing], [0, 0]])
    return tf.reshape(padded, [batch * groups, terms, width])


def _flatten_batch(x: tf.Tensor, batch: tf.Tensor | None, is_transposed: bool) -> tf.Tensor:
    """Reshapes (..., k, n) to (b, k, n), because LiteRT only multiplies arrays of low rank."""
    ends = tf.shape(x)[-2:]
    if batch is not None:
        x = tf.broadcast_to(x, tf.concat([batch, ends], 0))
    x = tf.reshape(x, tf.stack([1 if batch is None else tf.reduce_prod(batch), ends[0], ends[1]]))
    return tf.transpose(x, [0, 2, 1]) if is_transposed else x


def multiply_int32(
    x: tf.Tensor, y: tf.Tensor, *, in_batches: bool, left: bool, right: bool
) -> tf.Tensor:
    """Multiplies int32 matrices modulo 2**32, by bytes, whose products float32 adds exactly."""
    batch = None
    if in_batches:
        batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
    x, y = _flatten_batch(x, batch, not left), _flatten_batch(y, batch, right)
    rows, columns = tf.shape(x)[2], tf.shape(y)[2]
    size = tf.shape(x)[0]
    left_bytes, right_bytes = (_split_bytes(_group_terms(matrix)) for matrix in (x, y))
    result = tf.zeros(tf.stack([size, rows, columns]), tf.int32)
    for i, left_byte in enumerate(left_bytes):
        for j, right_byte in enumerate(right_bytes[: 4 - i]):
            product = tf.raw_ops.BatchMatMulV2(x=left_byte, y=right_byte, adj_x=True)
            groups = tf.reshape(tf.cast(product, tf.int32), tf.stack([size, -1, rows, columns]))
            result += tf.reduce_sum(groups, 1) * tf.constant(1 << 8 * (i + j))
    ends = tf.stack([rows, columns])
    return tf.reshape(result, ends if batch is None else tf.concat([batch, ends], 0))


def update_slice(
    write: Callable[..., tf.Tensor],
    x: tf.Tensor,
    begin: tf.Tensor,
    end: tf.Tensor,
    strides: tf.Tensor,
    value: tf.Tensor,
) -> tf.Tensor:
    """Updates a slice at computed places of the first axes."""
    return write(x, value, tf.pad(begin, [[0, tf.rank(x) - tf.size(begin)]]))


def reshape_to_open_size(x: tf.Tensor, shape: tf.Tensor, *, sizes: Sequence[int]) -> tf.Tensor:
    known = math.prod(size for size in sizes if size != -1)
    count = tf.size(x) // max(known, 1)
    return tf.reshape(x, tf.stack([count if size == -1 else size for size in sizes]))


def multiply_row(x: tf.Tensor, y: tf.Tensor, *, left: bool, right: bool) -> tf.Tensor:
    """Multiplies a matrix of one row by another.

    The converter would make a vector of the row, and then reject the product.
    """
    rows = tf.expand_dims(x, 0)
    return tf.squeeze(tf.linalg.matmul(rows, y, transpose_a=left, transpose_b=right), 0)


def squeeze_by_reshape(x: tf.Tensor, *, axes: Sequence[int]) -> tf.Tensor:
    places = tf.range(tf.rank(x))
    dropped = [tf.math.floormod(tf.constant(axis, tf.int32), tf.rank(x)) for axis in axes]
    is_kept = tf.reduce_all(tf.not_equal(places[:, None], tf.stack(dropped)), 1)
    return tf.reshape(x, tf.boolean_mask(tf.shape(x), is_kept))


def correlate(
    image: tf.Tensor,
    window: tf.Tensor,
    cotangent: tf.Tensor,
    *,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: str,
) -> tf.Tensor:
    """Computes the gradient of a 2D convolution with respect to its kernel.

    LiteRT has no convolution with a window of open size, so this is one product of matrices for
    each element of the kernel. Its shape is `window`, with the height and the width in `sizes`.
    """
    counts = tf.shape(cotangent)[1:3]
    lengths = (counts - 1) * strides + 1
    if padding == "SAME":
        total = tf.maximum(lengths + sizes - 1 - tf.shape(image)[1:3], 0)
        low = total // 2
        widths = tf.stack([low, total - low], axis=1)
        image = tf.pad(image, tf.concat([[[0, 0]], widths, [[0, 0]]], axis=0))
    rows = tf.reshape(cotangent, tf.stack([-1, window[3]]))
    products = []
    for start in itertools.product(*map(range, sizes)):
        (top, left), (bottom, right) = start, tf.unstack(lengths + start)
        part = image[:, top : bottom : strides[0], left : right : strides[1], :]
        columns = tf.reshape(part, tf.stack([-1, window[2]]))
        products.append(tf.matmul(columns, rows, transpose_a=True))
    return tf.reshape(tf.stack(products), window)


def _flatten_rows(x: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Reshapes an array to a matrix; also returns the row numbers of updates, and the row width."""
    depth, shape = tf.shape(indices)[-1], tf.shape(x)
    leading, ends = shape[:depth], shape[depth:]
    places = tf.range(depth)
    is_behind = tf.greater(places[None], places[:, None])
    strides = tf.reduce_prod(tf.where(is_behind, leading[None], 1), 1)
    numbers = tf.reduce_sum(tf.cast(indices, tf.int32) * strides, -1)
    width = tf.reduce_prod(ends)
    matrix = tf.reshape(x, tf.stack([tf.reduce_prod(leading), width]))
    return matrix, tf.reshape(numbers, [-1]), width


def _scatter(combine: Kernel) -> Kernel:
    """Makes the kernel of a scatter from a function of a matrix, row numbers and rows."""

    def kernel(tensor: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
        matrix, numbers, width = _flatten_rows(tensor, indices)
        rows = tf.reshape(updates, tf.stack([tf.size(numbers), width]))
        return tf.reshape(combine(matrix, numbers, rows), tf.shape(tensor))

    return kernel


def _set_rows(matrix: tf.Tensor, numbers: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Overwrites rows; the last of several updates of a row wins.

    The converter's own form adds the updates of a row, and multiplies old values by 1 minus their
    number.
    """
    count = tf.shape(matrix)[0]
    last = tf.math.unsorted_segment_max(tf.range(tf.shape(rows)[0]), numbers, count)
    # An additional row is taken for rows without an update.
    none = tf.zeros(tf.stack([1, tf.shape(matrix)[1]]), matrix.dtype)
    taken = tf.gather(tf.concat([none, rows], 0), tf.maximum(last, -1) + 1)
    return tf.where(tf.greater_equal(last, 0)[:, None], taken, matrix)


def _combine_rows(combine: Kernel, reduce_segments: Kernel) -> Kernel:
    def kernel(matrix: tf.Tensor, numbers: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return combine(matrix, reduce_segments(rows, numbers, tf.shape(matrix)[0]))

    return kernel


SCATTERS: Mapping[str, Kernel] = MappingProxyType(
    {
        "TensorScatterAdd": _scatter(_combine_rows(tf.add, tf.math.unsorted_segment_sum)),
        "TensorScatterMax": _scatter(_combine_rows(tf.maximum, tf.math.unsorted_segment_max)),
        "TensorScatterMin": _scatter(_combine_rows(tf.minimum, tf.math.unsorted_segment_min)),
        "TensorScatterUpdate": _scatter(_set_rows),
    }
)
"""Kernels of scatters, for float32 and int32."""


_ARITHMETIC: Mapping[str, Kernel] = MappingProxyType(
    {
        "AddV2": tf.add,
        "Equal": tf.equal,
        "Mul": tf.multiply,
        "NotEqual": tf.not_equal,
        "Sub": tf.subtract,
    }
)
"""Operations with the same bits for signed and unsigned integers."""
_ORDER: Mapping[str, Kernel] = MappingProxyType(
    {
        "Greater": tf.greater,
        "GreaterEqual": tf.greater_equal,
        "Less": tf.less,
        "LessEqual": tf.less_equal,
        "Maximum": tf.maximum,
        "Minimum": tf.minimum,
        **{name: SCATTERS[name] for name in ("TensorScatterMax", "TensorScatterMin")},
    }
)
"""Operations that depend on the order of integers."""
_BITS_32: Mapping[str, Kernel] = MappingProxyType(
    {"BitwiseAnd": _and, "BitwiseOr": _or, "Invert": _invert, "LeftShift": _left_shift}
)
_BITS_64: Mapping[str, Kernel] = MappingProxyType(
    {
        "BitwiseAnd": _by_words(_and),
        "BitwiseOr": _by_words(_or),
        "BitwiseXor": _by_words(_xor),
        "Invert": _by_words(_invert),
        "LeftShift": _shift_left_64,
    }
)
_COUNTS: Mapping[str, Kernel] = MappingProxyType({"PopulationCount": _population_count})


def _make_complex(real: tf.Tensor, imag: tf.Tensor) -> tf.Tensor:
    """Reads pairs of floats as complex numbers.

    The converter of TensorFlow 2.21 accepts that for arrays of unknown size only, so the number of
    pairs is made to depend on numbers: the first row is max(0, min(0, ...)).
    """
    shape = tf.broadcast_dynamic_shape(tf.shape(real), tf.shape(imag))
    parts = [tf.broadcast_to(part, shape) for part in (real, imag)]
    pairs = tf.reshape(tf.stack(parts, -1), [-1, 2])
    number = tf.bitcast(pairs[0, 0], tf.int32)
    first = tf.minimum(tf.maximum(number, 0), 0)
    rows = tf.gather(pairs, tf.range(first, tf.shape(pairs)[0]))
    return tf.reshape(tf.bitcast(rows, tf.complex64), shape)


_FLOATS: Mapping[str, Kernel] = MappingProxyType(
    {
        "Acos": lambda x: tf.atan2(tf.sqrt((1.0 - x) * (1.0 + x)), x),
        "Acosh": _acosh,
        "Asin": lambda x: tf.atan2(x, tf.sqrt((1.0 - x) * (1.0 + x))),
        "Asinh": _asinh,
        "Atan": lambda x: tf.atan2(x, tf.ones_like(x)),
        "Atan2": _atan2,
        "Atanh": lambda x: 0.5 * (_log1p(x) - _log1p(-x)),
        "Complex": _make_complex,
        "Cosh": _cosh,
        "Erf": _erf,
        "Erfc": _erfc,
        "Erfinv": _erfinv,
        "Expm1": expm1,
        "IsFinite": lambda x: tf.less(tf.abs(x), np.float32(np.inf)),
        # The converter's own form has empty constants if a size is open.
        "Lgamma": lambda x: lgamma(x, _log1p, tf.where),
        "Log1p": _log1p,
        "NextAfter": lambda x, y: next_after(x, y, tf.where),
        "Sinh": _sinh,
        "Tan": lambda x: tf.sin(x) / tf.cos(x),
        "TruncateMod": _float_remainder,
    }
)
KERNELS: Mapping[tf.DType, Mapping[str, Kernel]] = MappingProxyType(
    {
        tf.bool: {"TensorScatterUpdate": SCATTERS["TensorScatterUpdate"]},
        tf.float32: {**_FLOATS, **SCATTERS},
        **dict.fromkeys((tf.int8, tf.uint8, tf.int16, tf.uint16), _COUNTS),
        tf.int32: {**_BITS_32, **_COUNTS, "TruncateMod": _truncated_remainder, **SCATTERS},
        tf.int64: {
            **_BITS_64,
            **_COUNTS,
            "Abs": lambda x: tf.maximum(x, -x),
            "RightShift": _shift_right_signed_64,
            "Sign": lambda x: tf.minimum(tf.maximum(x, -1), 1),
            "TruncateMod": _truncated_remainder,
            "TensorScatterUpdate": SCATTERS["TensorScatterUpdate"],
        },
        tf.uint32: {
            **{name: compute_in(tf.int32, f) for name, f in {**_ARITHMETIC, **_BITS_32}.items()},
            **{name: _in_order(f) for name, f in _ORDER.items()},
            **_COUNTS,
            "FloorDiv": _unsigned_quotient,
            "FloorMod": _unsigned_remainder,
            "TruncateDiv": _unsigned_quotient,
        },
        tf.uint64: {
            **{name: compute_in(tf.int64, f) for name, f in {**_ARITHMETIC, **_BITS_64}.items()},
            **_COUNTS,
            "RightShift": compute_in(tf.int64, _shift_right_64),
        },
    }
)
"""Kernels by the dtype and the name of TensorFlow's operations."""
