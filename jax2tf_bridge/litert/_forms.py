"""Forms: TensorFlow functions of LiteRT's built-in operations, for operations that it lacks.

LiteRT has 32-bit arithmetic; its only bitwise operations are XOR and the right shift. Narrower
integers are computed in 32 bits, unsigned 32-bit integers as signed ones with the same bits, and
16-bit floats in 32 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.to_tensorflow import get_dynamic_update_slice
from jax2tf_bridge.to_tensorflow.operations import lgamma

Kernel: TypeAlias = Callable[..., tf.Tensor]
"""Function of the operation's inputs."""

_MIN_INT32 = -(2**31)


@dataclass(frozen=True)
class Form:
    """Replacement of an operation.

    Attributes:
      kernel: computes the result from the inputs.
      inputs: the dtypes of the inputs.
      result: the dtype of the result.
    """

    kernel: Kernel
    inputs: tuple[tf.DType, ...]
    result: tf.DType


def form_of(node: Any, makers: Mapping[str, Any]) -> Form | None:
    """Returns the form of a node of a GraphDef; None if it needs none, or none exists.

    Args:
      node: the node.
      makers: the nodes of the same graph by name.
    """
    if node.op == "Squeeze":
        return _squeeze(node, makers)
    if node.op == "Erfc":
        return _erfc_form(node, makers)
    special = _SPECIAL.get(node.op)
    if special is not None:
        return special(node)
    dtype = _dtype(node, "T")
    kernel = None if dtype is None else _kernel(node.op, dtype)
    if kernel is None or dtype is None:
        return None
    count = sum(not name.startswith("^") for name in node.input)
    return Form(kernel, (dtype,) * count, tf.bool if node.op in _FLAGS else dtype)


def _attribute(node: Any, name: str) -> Any:
    """Returns an attribute; an empty message for a default value, which files omit."""
    # The lookup of a missing attribute would add it.
    return node.attr[name] if name in node.attr else tf.compat.v1.AttrValue()


def _dtype(node: Any, attribute: str) -> tf.DType | None:
    number = _attribute(node, attribute).type
    return tf.as_dtype(number) if number else None


def _kernel(operation: str, dtype: tf.DType) -> Kernel | None:
    """Returns the kernel of an elementwise operation."""
    if dtype == tf.int32:
        return _OF_INT32.get(operation)
    if dtype == tf.int64:
        return _OF_INT64.get(operation)
    if dtype == tf.uint32:
        return _of_uint32(operation)
    if dtype == tf.uint64:
        return _of_uint64(operation)
    if dtype == tf.float32:
        return _OF_FLOATS.get(operation)
    if dtype in _NARROW_FLOATS and operation in _WIDENED_FLOATS:
        return _widen(_OF_FLOATS.get(operation) or _plain(operation), tf.float32)
    if dtype in (tf.int8, tf.uint8, tf.int16, tf.uint16) and operation in _WIDENED_INTEGERS:
        return _widen(_OF_INT32.get(operation) or _plain(operation), tf.int32)
    return None


_NARROW_FLOATS = (tf.float16, tf.bfloat16)
_INPUTS: Mapping[int, tuple[str, ...]] = MappingProxyType({1: ("x",), 2: ("x", "y")})


def _plain(operation: str) -> Kernel:
    """Returns TensorFlow's own operation as a form."""
    function = getattr(tf.raw_ops, operation)

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        return function(**dict(zip(_INPUTS[len(tensors)], tensors, strict=True)))

    return call


def _widen(form: Kernel, wide: tf.DType) -> Kernel:
    def call(*tensors: tf.Tensor) -> tf.Tensor:
        result = form(*(tf.cast(tensor, wide) for tensor in tensors))
        return result if result.dtype == tf.bool else tf.cast(result, tensors[0].dtype)

    return call


# Integers.


def _as_signed(form: Kernel, signed: tf.DType = tf.int32) -> Kernel:
    """Computes unsigned integers by the kernel for signed ones."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        result = form(*(tf.bitcast(tensor, signed) for tensor in tensors))
        return result if result.dtype == tf.bool else tf.bitcast(result, tensors[0].dtype)

    return call


def _compare_unsigned(form: Kernel) -> Kernel:
    """Compares unsigned integers as signed ones, with a flipped highest bit to keep the order."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        return form(*(_xor(tf.bitcast(tensor, tf.int32), _MIN_INT32) for tensor in tensors))

    return call


_xor = tf.bitwise.bitwise_xor


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
    one = tf.constant(1, tf.int64)
    quotient = tf.where(tf.less(rest, tf.zeros_like(rest)), quotient - one, quotient)
    rest = tf.where(tf.less(rest, tf.zeros_like(rest)), rest + divisor, rest)
    quotient = tf.where(tf.greater_equal(rest, divisor), quotient + one, quotient)
    return tf.cast(quotient, tf.uint32)


def _absolute(x: tf.Tensor) -> tf.Tensor:
    return tf.maximum(x, tf.negative(x))


def _sign(x: tf.Tensor) -> tf.Tensor:
    one = tf.ones([], x.dtype)
    return tf.minimum(tf.maximum(x, tf.negative(one)), one)


_OF_INT32: Mapping[str, Kernel] = MappingProxyType(
    {
        "BitwiseAnd": _and,
        "BitwiseOr": _or,
        "Invert": _invert,
        "LeftShift": _left_shift,
        "TruncateMod": _truncated_remainder,
    }
)


def _by_words(form: Kernel) -> Kernel:
    """Computes 64-bit integers as two 32-bit words."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        return tf.bitcast(form(*(tf.bitcast(tensor, tf.int32) for tensor in tensors)), tf.int64)

    return call


def _logical_shift(x: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Shifts words to the right; shifts by the width or more give 0."""
    kept = tf.cast(tf.minimum(tf.maximum(places, 0), 31), tf.uint32)
    shifted = tf.bitcast(tf.bitwise.right_shift(tf.bitcast(x, tf.uint32), kept), tf.int32)
    return tf.where(tf.logical_and(tf.less(places, 32), tf.greater_equal(places, 0)), shifted, 0)


def _words(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    low, high = tf.unstack(tf.bitcast(x, tf.int32), 2, axis=-1)
    return low, high


def _shift_right_64(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Shifts unsigned 64-bit integers to the right."""
    (low, high), places = _words(x), tf.cast(y, tf.int32)
    joined = _xor(_logical_shift(low, places), _left_shift(high, 32 - places))
    near = tf.where(tf.less(places, 32), joined, _logical_shift(high, places - 32))
    return tf.bitcast(tf.stack([near, _logical_shift(high, places)], axis=-1), tf.int64)


def _shift_left_64(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    (low, high), places = _words(x), tf.cast(y, tf.int32)
    joined = _xor(_left_shift(high, places), _logical_shift(low, 32 - places))
    far = tf.where(tf.less(places, 32), joined, _left_shift(low, places - 32))
    return tf.bitcast(tf.stack([_left_shift(low, places), far], axis=-1), tf.int64)


_OF_INT64: Mapping[str, Kernel] = MappingProxyType(
    {
        "Abs": _absolute,
        "BitwiseAnd": _by_words(_and),
        "BitwiseOr": _by_words(_or),
        "BitwiseXor": _by_words(_xor),
        "Invert": _by_words(_invert),
        "LeftShift": _shift_left_64,
        "Sign": _sign,
        "TruncateMod": _truncated_remainder,
    }
)
_COMPARISONS = frozenset({"Greater", "GreaterEqual", "Less", "LessEqual", "Maximum", "Minimum"})
_WIDENED_INTEGERS = frozenset(
    {"Abs", "AddV2", "FloorDiv", "FloorMod", "Mul", "Neg", "RightShift", "Sign", "Sub"}
    | {"Equal", "NotEqual", "TruncateDiv", *_COMPARISONS, *_OF_INT32}
)


def _of_uint32(operation: str) -> Kernel | None:
    if operation in ("Maximum", "Minimum"):
        compare = _compare_unsigned(tf.greater if operation == "Maximum" else tf.less)
        return lambda x, y: tf.where(compare(x, y), x, y)
    if operation in _COMPARISONS:
        return _compare_unsigned(_plain(operation))
    if operation in ("AddV2", "Equal", "Mul", "NotEqual", "Sub"):
        return _as_signed(_plain(operation))
    if operation == "FloorMod":
        return _unsigned_remainder
    if operation in ("FloorDiv", "TruncateDiv"):
        return _unsigned_quotient
    form = None if operation == "TruncateMod" else _OF_INT32.get(operation)
    return None if form is None else _as_signed(form)


def _of_uint64(operation: str) -> Kernel | None:
    if operation in ("AddV2", "Equal", "Mul", "NotEqual", "Sub"):
        return _as_signed(_plain(operation), tf.int64)
    if operation == "RightShift":
        return _as_signed(_shift_right_64, tf.int64)
    if operation.startswith("Bitwise") or operation in ("Invert", "LeftShift"):
        return _as_signed(_OF_INT64[operation], tf.int64)
    return None


def _cast(node: Any) -> Form | None:
    """Casts from and to uint64 by its words."""
    source, result = _dtype(node, "SrcT"), _dtype(node, "DstT")
    if source is None or result is None or tf.uint64 not in (source, result):
        return None

    def kernel(x: tf.Tensor) -> tf.Tensor:
        if source == tf.uint64:
            signed = tf.bitcast(x, tf.int64)
            if result == tf.int64:
                return signed
            low = _words(signed)[0]
            return low if result == tf.int32 else tf.bitcast(low, tf.uint32)
        return tf.bitcast(tf.cast(x, tf.int64), tf.uint64)

    if source == tf.uint64 and result not in (tf.int32, tf.int64, tf.uint32):
        return None
    return Form(kernel, (source,), result)


# Floats.


def _polynomial(x: tf.Tensor, coefficients: tuple[float, ...]) -> tf.Tensor:
    """Evaluates a polynomial by Horner's rule; the highest power comes first."""
    return functools.reduce(lambda sum_, c: sum_ * x + c, coefficients[1:], coefficients[0])


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
    return clamped * _polynomial(square, _ERF_ABOVE) / _polynomial(square, _ERF_BELOW)


# Press et al., "Numerical Recipes in C" (1992), section 6.2: relative errors of 1.2e-7.
_ERFC = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)


def _erfc(x: tf.Tensor) -> tf.Tensor:
    size = tf.abs(x)
    t = 1.0 / (1.0 + 0.5 * size)
    tail = t * tf.exp(_polynomial(t, _ERFC) - size * size)
    far = tf.where(tf.less(x, 0.0), 2.0 - tail, tail)
    return tf.where(tf.less(size, 0.5), 1.0 - _erf(x), far)


def _erfc_form(node: Any, makers: Mapping[str, Any]) -> Form | None:
    """Returns the form of erfc; None for erfc(x / sqrt(2)) in float32, which becomes a GELU."""
    dtype = _dtype(node, "T")
    if dtype not in (tf.float32, *_NARROW_FLOATS):
        return None
    if dtype == tf.float32 and _is_scaled(node.input[0], makers, np.sqrt(0.5)):
        return None
    return Form(_widen(_erfc, tf.float32), (dtype,), dtype)


def _is_scaled(name: str, makers: Mapping[str, Any], factor: float) -> bool:
    """Returns whether a tensor is a product with `factor` or its negative."""
    maker = makers.get(name.partition(":")[0])
    if maker is None or maker.op != "Mul":
        return False
    factors = [makers.get(operand.partition(":")[0]) for operand in maker.input]
    return any(
        each is not None
        and each.op == "Const"
        and np.allclose(np.abs(tf.make_ndarray(each.attr["value"].tensor)), factor, rtol=1e-4)
        for each in factors
    )


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
    middle = _polynomial(w - 2.5, _ERFINV_MIDDLE)
    tail = _polynomial(tf.sqrt(tf.maximum(w, 5.0)) - 3.0, _ERFINV_TAIL)
    result = tf.where(tf.less(w, 5.0), middle, tail) * x
    # A product with infinity is the greatest finite number in LiteRT.
    result = tf.where(tf.equal(x, 1.0), np.float32(np.inf), result)
    return tf.where(tf.equal(x, -1.0), np.float32(-np.inf), result)


def _expm1(x: tf.Tensor) -> tf.Tensor:
    """Computes exp(x) - 1 accurately near 0, by Kahan's method."""
    power = tf.exp(x)
    near = (power - 1.0) * x / tf.where(tf.equal(power, 1.0), tf.ones_like(x), tf.math.log(power))
    result = tf.where(tf.less(tf.abs(x), 0.5), near, power - 1.0)
    return tf.where(tf.equal(power, 1.0), x, result)


def _log1p(x: tf.Tensor) -> tf.Tensor:
    """Computes log(1 + x) accurately near 0, by Kahan's method."""
    sum_ = 1.0 + x
    near = tf.math.log(sum_) * x / tf.where(tf.equal(sum_, 1.0), tf.ones_like(x), sum_ - 1.0)
    result = tf.where(tf.less(tf.abs(x), 0.5), near, tf.math.log(sum_))
    return tf.where(tf.equal(sum_, 1.0), x, result)


def _sinh(x: tf.Tensor) -> tf.Tensor:
    power = _expm1(tf.abs(x))
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


def _atanh(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * (_log1p(x) - _log1p(-x))


def _asin(x: tf.Tensor) -> tf.Tensor:
    return tf.atan2(x, tf.sqrt((1.0 - x) * (1.0 + x)))


def _acos(x: tf.Tensor) -> tf.Tensor:
    return tf.atan2(tf.sqrt((1.0 - x) * (1.0 + x)), x)


def _is_finite(x: tf.Tensor) -> tf.Tensor:
    return tf.less(tf.abs(x), np.float32(np.inf))


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


def _next_after(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Adds or subtracts 1 to the bits of x, which are in the order of the numbers of one sign."""
    bits = tf.bitcast(x, tf.int32)
    is_away = tf.equal(tf.less(x, y), tf.greater(x, 0.0))
    moved = tf.bitcast(bits + tf.where(is_away, 1, -1), tf.float32)
    smallest = tf.bitcast(tf.where(tf.less(y, 0.0), _MIN_INT32 + 1, 1), tf.float32)
    result = tf.where(tf.equal(x, y), y, tf.where(tf.equal(x, 0.0), smallest, moved))
    is_nan = tf.logical_or(tf.not_equal(x, x), tf.not_equal(y, y))
    return tf.where(is_nan, np.float32(np.nan), result)


_OF_FLOATS: Mapping[str, Kernel] = MappingProxyType(
    {
        "Acos": _acos,
        "Acosh": _acosh,
        "Asin": _asin,
        "Asinh": _asinh,
        "Atan": lambda x: tf.atan2(x, tf.ones_like(x)),
        "Atan2": _atan2,
        "Atanh": _atanh,
        "Cosh": _cosh,
        "Erf": _erf,
        "Erfinv": _erfinv,
        "Expm1": _expm1,
        "IsFinite": _is_finite,
        # The converter's own form has empty constants if a size is open.
        "Lgamma": lambda x: lgamma(x, _log1p),
        "Log1p": _log1p,
        "Sinh": _sinh,
        "Tan": lambda x: tf.sin(x) / tf.cos(x),
        "TruncateMod": _float_remainder,
    }
)
_FLAGS = frozenset(
    {"Equal", "Greater", "GreaterEqual", "IsFinite", "Less", "LessEqual", "NotEqual"}
)
"""Operations with boolean results."""
_WIDENED_FLOATS = frozenset(
    {"Abs", "AddV2", "Ceil", "Cos", "Exp", "Floor", "Log", "Maximum", "Minimum", "Mul", "Neg"}
    | {"Pow", "RealDiv", "Rsqrt", "Sigmoid", "Sin", "Sqrt", "Square", "Sub", "Tanh", *_OF_FLOATS}
    | {"Equal", "NotEqual", *_COMPARISONS}
)


# Products and updates.


_TERMS = 256
"""Number of products of bytes that float32 adds exactly."""


def _bytes(x: tf.Tensor) -> list[tf.Tensor]:
    """Splits integers into bytes as floats, lowest first; the highest byte is signed."""
    shifted = [x, *(tf.bitwise.right_shift(x, tf.constant(8 * i)) for i in (1, 2, 3))]
    low = [tf.math.floormod(each, tf.constant(256)) for each in shifted[:3]]
    return [tf.cast(each, tf.float32) for each in (*low, shifted[3])]


def _terms_in_groups(x: tf.Tensor) -> tf.Tensor:
    """Reshapes (b, k, n) to (b * groups, terms, n), padded with zeros."""
    batch, count, width = tf.unstack(tf.shape(x), 3)
    terms = tf.minimum(tf.maximum(count, 1), _TERMS)
    groups = (count + terms - 1) // terms
    missing = groups * terms - count
    filled = tf.pad(x, [[0, 0], [0, missing], [0, 0]])
    return tf.reshape(filled, [batch * groups, terms, width])


def _in_one_batch(x: tf.Tensor, batch: tf.Tensor | None, is_transposed: bool) -> tf.Tensor:
    """Reshapes (..., k, n) to (b, k, n), because LiteRT only multiplies arrays of low rank."""
    ends = tf.shape(x)[-2:]
    if batch is not None:
        x = tf.broadcast_to(x, tf.concat([batch, ends], 0))
    x = tf.reshape(x, tf.stack([1 if batch is None else tf.reduce_prod(batch), ends[0], ends[1]]))
    return tf.transpose(x, [0, 2, 1]) if is_transposed else x


def _int32_product(
    x: tf.Tensor, y: tf.Tensor, *, in_batches: bool, left: bool, right: bool
) -> tf.Tensor:
    """Multiplies int32 matrices modulo 2**32, by bytes, whose products float32 adds exactly."""
    batch = None
    if in_batches:
        batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
    x, y = _in_one_batch(x, batch, not left), _in_one_batch(y, batch, right)
    rows, columns = tf.shape(x)[2], tf.shape(y)[2]
    size = tf.shape(x)[0]
    of_x, of_y = (_bytes(_terms_in_groups(each)) for each in (x, y))
    result = tf.zeros(tf.stack([size, rows, columns]), tf.int32)
    for i, each in enumerate(of_x):
        for j, other in enumerate(of_y[: 4 - i]):
            product = tf.cast(tf.raw_ops.BatchMatMulV2(x=each, y=other, adj_x=True), tf.int32)
            groups = tf.reshape(product, tf.stack([size, -1, rows, columns]))
            result += tf.reduce_sum(groups, 1) * tf.constant(1 << 8 * (i + j))
    ends = tf.stack([rows, columns])
    return tf.reshape(result, ends if batch is None else tf.concat([batch, ends], 0))


def _product(node: Any) -> Form | None:
    """Returns the form of a matrix product: float32 for narrow floats, bytes for integers."""
    dtype = _dtype(node, "T")
    if dtype not in (*_NARROW_FLOATS, tf.int32):
        return None
    flags = ("transpose_a", "transpose_b") if node.op == "MatMul" else ("adj_x", "adj_y")
    left, right = (_attribute(node, name).b for name in flags)
    if dtype == tf.int32:
        kernel = functools.partial(
            _int32_product, in_batches=node.op != "MatMul", left=left, right=right
        )
        return Form(kernel, (dtype, dtype), dtype)

    def multiply(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if node.op == "MatMul":
            return tf.raw_ops.MatMul(a=x, b=y, transpose_a=left, transpose_b=right)
        return tf.raw_ops.BatchMatMulV2(x=x, y=y, adj_x=left, adj_y=right)

    return Form(_widen(multiply, tf.float32), (dtype, dtype), dtype)


def _update(node: Any) -> Form | None:
    """Returns the form of a dynamic update of a slice."""
    dtype, index = _dtype(node, "T"), _dtype(node, "Index")
    write = get_dynamic_update_slice()
    if dtype is None or index != tf.int32 or any(_attribute(node, m).i for m in _OTHER_MASKS):
        return None
    if write is None:
        return None
    whole = _attribute(node, "begin_mask").i

    def kernel(
        x: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, strides: tf.Tensor, value: tf.Tensor
    ) -> tf.Tensor:
        # The rank is a constant after the function is inlined.
        count = tf.size(begin)
        bits = tf.math.floormod(tf.constant(whole) // (2 ** tf.range(count)), 2)
        starts = tf.where(tf.equal(bits, 1), 0, begin)
        starts = tf.pad(starts, [[0, tf.rank(x) - count]])
        return write(x, value, starts)

    return Form(kernel, (dtype, index, index, index, dtype), dtype)


_OTHER_MASKS = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def _rows(x: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
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


def _of_rows(combine: Kernel) -> Kernel:
    """Makes the kernel of a scatter from a function of a matrix, row numbers and rows."""

    def kernel(tensor: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
        matrix, numbers, width = _rows(tensor, indices)
        rows = tf.reshape(updates, tf.stack([tf.size(numbers), width]))
        return tf.reshape(combine(matrix, numbers, rows), tf.shape(tensor))

    return kernel


def _set_rows(matrix: tf.Tensor, numbers: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Overwrites rows; the last of several updates of a row wins.

    The converter's own form multiplies old values by 0, which turns infinity into NaN.
    """
    count = tf.shape(matrix)[0]
    last = tf.math.unsorted_segment_max(tf.range(tf.shape(rows)[0]), numbers, count)
    # An additional row is taken for rows without an update.
    none = tf.zeros(tf.stack([1, tf.shape(matrix)[1]]), matrix.dtype)
    taken = tf.gather(tf.concat([none, rows], 0), tf.maximum(last, -1) + 1)
    return tf.where(tf.greater_equal(last, 0)[:, None], taken, matrix)


def _add_rows(matrix: tf.Tensor, numbers: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return matrix + tf.math.unsorted_segment_sum(rows, numbers, tf.shape(matrix)[0])


def _greatest_rows(matrix: tf.Tensor, numbers: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.maximum(matrix, tf.math.unsorted_segment_max(rows, numbers, tf.shape(matrix)[0]))


def _least_rows(matrix: tf.Tensor, numbers: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.minimum(matrix, tf.math.unsorted_segment_min(rows, numbers, tf.shape(matrix)[0]))


SCATTERS: Mapping[str, Kernel] = MappingProxyType(
    {
        "TensorScatterAdd": _of_rows(_add_rows),
        "TensorScatterMax": _of_rows(_greatest_rows),
        "TensorScatterMin": _of_rows(_least_rows),
        "TensorScatterUpdate": _of_rows(_set_rows),
    }
)
"""Forms of scatters of float32 and int32, by the names of TensorFlow's operations."""


def _scatter(node: Any) -> Form | None:
    dtype, index = _dtype(node, "T"), _dtype(node, "Tindices")
    if index is None:
        return None
    if dtype == tf.uint32 and node.op in ("TensorScatterMax", "TensorScatterMin"):

        def ordered(x: tf.Tensor) -> tf.Tensor:
            return _xor(tf.bitcast(x, tf.int32), _MIN_INT32)

        def kernel(x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
            result = SCATTERS[node.op](ordered(x), indices, ordered(updates))
            return tf.bitcast(_xor(result, _MIN_INT32), tf.uint32)

        return Form(kernel, (dtype, index, dtype), dtype)
    if dtype not in (tf.float32, tf.int32):
        return None
    return Form(SCATTERS[node.op], (dtype, index, dtype), dtype)


def _next_after_form(node: Any) -> Form | None:
    is_double = _dtype(node, "T") == tf.float64  # float32 is the default
    return None if is_double else Form(_next_after, (tf.float32, tf.float32), tf.float32)


def _squeeze(node: Any, makers: Mapping[str, Any]) -> Form | None:
    """Replaces a squeeze of a transpose, which the converter itself rejects, by a reshape."""
    maker = makers.get(node.input[0].partition(":")[0])
    dtype, axes = _dtype(node, "T"), list(_attribute(node, "squeeze_dims").list.i)
    if dtype is None or not axes or maker is None or maker.op != "Transpose":
        return None

    def kernel(x: tf.Tensor) -> tf.Tensor:
        places = tf.range(tf.rank(x))
        dropped = [tf.math.floormod(tf.constant(axis, tf.int32), tf.rank(x)) for axis in axes]
        kept = tf.reduce_all(tf.not_equal(places[:, None], tf.stack(dropped)), 1)
        return tf.reshape(x, tf.boolean_mask(tf.shape(x), kept))

    return Form(kernel, (dtype,), dtype)


_SPECIAL: Mapping[str, Callable[[Any], Form | None]] = MappingProxyType(
    {
        "BatchMatMulV2": _product,
        "Cast": _cast,
        "MatMul": _product,
        "NextAfter": _next_after_form,
        **dict.fromkeys(SCATTERS, _scatter),
        "TensorStridedSliceUpdate": _update,
    }
)


def copy_of(dtype: tf.DType) -> Kernel | None:
    """Returns an identity that LiteRT's converter does not remove."""
    if dtype == tf.bool:
        return lambda x: tf.logical_or(x, x)
    if dtype in (tf.float32, tf.int32, tf.int64):
        return lambda x: tf.maximum(x, x)
    if dtype in (tf.uint32, tf.uint64):
        return _as_signed(lambda x: tf.maximum(x, x), tf.int32 if dtype.size == 4 else tf.int64)
    if dtype.is_floating and dtype.size == 2:
        return _widen(lambda x: tf.maximum(x, x), tf.float32)
    if dtype.is_integer and dtype.size < 4:
        return _widen(lambda x: tf.maximum(x, x), tf.int32)
    return None
