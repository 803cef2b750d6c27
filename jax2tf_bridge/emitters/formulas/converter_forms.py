"""Forms of operations that tf2onnx and OpenVINO support.

Both lack operations that reinterpret bits. tf2onnx turns most selections of floats into products
with 0 and 1, where infinity becomes NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from jax2tf_bridge.emitters._ops import get_builder, ops
from jax2tf_bridge.emitters.formulas import converter_integers, floats
from jax2tf_bridge.emitters.formulas.integers import constant_like


def _is_infinite_constant(x: ops.Tensor) -> bool:
    if x.op.type != "Const":
        return False
    return not np.isfinite(ops.get_static_value(x)).all()


_OF_SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})
"""Operations that may be constants although their operand is not."""


def _is_constant(x: ops.Tensor) -> bool:
    """Returns whether TensorFlow's optimizer may compute a tensor before the graph runs."""
    operations, visited = [x.op], set()
    while operations:
        operation = operations.pop()
        if operation.type in _OF_SHAPES or operation.name in visited:
            continue
        visited.add(operation.name)
        if not operation.inputs and operation.type != "Const":
            return False
        operations += [tensor.op for tensor in operation.inputs]
    return True


def compute_beside(constant: ops.Tensor, beside: ops.Tensor) -> ops.Tensor:
    """Makes a tensor that is computed from constants depend on another one, which is not.

    OpenVINO 2026.4 may write the result of an operation over a constant that it computed itself,
    if that is the first operand. The next call then reads the result in place of the constant.
    """
    if beside.dtype.is_integer:  # ONNX Runtime does not compare all of them
        never = ops.cast(ops.bitwise.bitwise_xor(beside, beside), ops.bool)
    elif beside.dtype == ops.bool:
        never = ops.not_equal(beside, beside)
    else:
        never = ops.less(beside, beside)
    if constant.dtype == ops.bool:
        return ops.logical_or(never, constant)
    if constant.dtype.is_floating:  # a product keeps the sign of zeros
        return ops.cast(ops.logical_not(never), constant.dtype) * constant
    return ops.cast(never, constant.dtype) + constant


def choose(flag: ops.Tensor, x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Returns x where the flag is set, else y."""
    if get_builder() is not None or ops.executing_eagerly():  # other builders select exactly
        return ops.where(flag, x, y)
    if x.dtype == ops.bool:
        # OpenVINO has some bools as bytes, and refuses to select from both kinds.
        first = ops.logical_and(flag, x)
        return ops.logical_or(first, ops.logical_and(ops.logical_not(flag), y))
    if x.dtype == ops.float16:  # which tf2onnx always multiplies
        wide = choose(flag, ops.cast(x, ops.float32), ops.cast(y, ops.float32))
        return ops.cast(wide, ops.float16)
    if x.dtype.is_floating and not (_is_infinite_constant(x) or _is_infinite_constant(y)):
        # tf2onnx selects if the flags come from IsNan, or an operand is a constant NaN or infinity.
        # Infinities from 1 / flags or log(flags) would be faster in ONNX Runtime, but OpenVINO then
        # computes other results.
        number = ops.constant(0.0)
        if _is_constant(flag):  # TensorFlow's optimizer would compute IsNan of constants
            number = ops.cast(ops.math.is_nan(y if _is_constant(x) else x), ops.float32)
        marks = ops.where(flag, number, ops.constant(np.nan, ops.float32))
        return ops.where(ops.math.is_nan(marks), y, x)
    is_wide = x.dtype.is_integer and x.dtype.size >= 4
    return converter_integers.select(flag, x, y) if is_wide else ops.where(flag, x, y)


def expm1(x: ops.Tensor) -> ops.Tensor:
    """Computes exp(x) - 1 accurately near 0; tf2onnx lacks Expm1.

    Kahan's method is not usable, because Grappler simplifies (1 + x) - 1 to x.
    """
    return ops.tanh(x * constant_like(x, 0.5)) * (ops.exp(x) + constant_like(x, 1))


def log1p(x: ops.Tensor) -> ops.Tensor:
    """Computes log(1 + x) accurately near 0; tf2onnx lacks Log1p."""
    if x.dtype.is_complex:
        return floats.complex_log1p(x)
    two = constant_like(x, 2)
    is_near = ops.less(ops.abs(x), constant_like(x, 0.5))
    small = choose(is_near, x, constant_like(x, 0))
    near = two * ops.atanh(small / (two + small))
    return choose(is_near, near, ops.math.log(constant_like(x, 1) + x))


def is_negative(x: ops.Tensor) -> ops.Tensor:
    """Returns whether the sign bit is set, also for -0; False for NaN, whose sign is lost."""
    zero = constant_like(x, 0)
    return ops.less(x, zero) | ops.less(constant_like(x, 1) / x, zero)


def _is_before(x: ops.Tensor, y: ops.Tensor) -> ops.Tensor:
    """Compares floats in the order -inf < ... < -0 < 0 < ... < inf < NaN."""
    is_last = ops.math.is_nan(y) & ~ops.math.is_nan(x)
    of_zeros = ops.equal(x, y) & (is_negative(x) & ~is_negative(y))
    return (ops.less(x, y) | of_zeros) | is_last


_Selection: TypeAlias = Callable[[ops.Tensor, ops.Tensor, ops.Tensor], ops.Tensor]

ORDERED_COMPARISONS = converter_integers.make_comparisons(
    lambda x, y: ~(_is_before(x, y) | _is_before(y, x)), _is_before
)
"""Comparisons of floats in total order, without their bits."""


def next_after(x: ops.Tensor, y: ops.Tensor, select: _Selection = choose) -> ops.Tensor:
    """Returns the float next to x in the direction of y, without its bits.

    Adds or subtracts slightly more than half of the last digit, which rounds to one digit (Rump et
    al., 2009, "Computing predecessor and successor in rounding to nearest"). Subnormal numbers are
    zero, as in TensorFlow and the runtimes.

    Args:
      x: floats.
      y: other floats.
      select: as in `lgamma`.
    """
    info = np.finfo(x.dtype.as_numpy_dtype)
    size = ops.abs(x)
    # The last digit of a small number is subnormal.
    is_small = ops.less(size, constant_like(x, float(info.tiny) * 2.0 ** (info.nmant + 2)))
    scale = select(is_small, constant_like(x, 2.0 ** (info.nmant + 4)), constant_like(x, 1))
    scaled = size * scale
    half = float(info.eps) / 2
    step = scaled * constant_like(x, half * (1 + 2 * half))
    is_up = ops.less(x, y)
    grows = ops.equal(is_up, ops.less(constant_like(x, 0), x))
    moved = select(grows, scaled + step, scaled - step) / scale
    is_infinite = ops.equal(size, constant_like(x, np.inf))
    moved = select(is_infinite, select(grows, size, constant_like(x, info.max)), moved)
    moved = select(ops.less(x, constant_like(x, 0)), -moved, moved)
    smallest = constant_like(x, info.smallest_subnormal)
    from_zero = select(is_up, smallest, -smallest)
    moved = select(ops.equal(x, constant_like(x, 0)), from_zero, moved)
    moved = select(ops.equal(x, y), y, moved)
    return select(ops.math.is_nan(x) | ops.math.is_nan(y), x + y, moved)


# Godfrey's coefficients of Lanczos' approximation with g = 7 and nine terms.
_LANCZOS = (
    *(676.520368121885098567009190444019, -1259.13921672240287047156078755283),
    *(771.3234287776530788486528258894, -176.61502916214059906584551354),
    *(12.507343278686904814458936853, -0.13857109526572011689554707),
    *(9.984369578019570859563e-6, 1.50563273514931155834e-7),
)
_LANCZOS_FIRST = 0.99999999999980993227684700473478
_LANCZOS_G = 7.0


def lgamma(
    x: ops.Tensor,
    log1p: Callable[[ops.Tensor], ops.Tensor] = log1p,
    select: _Selection = choose,
) -> ops.Tensor:
    """Computes log|gamma(x)|; tf2onnx does not know Lgamma, and JAX's formula may read bits.

    Args:
      x: floats.
      log1p: computes log(1 + x) by operations that the runtime has.
      select: selects its second argument where the first is set, else the third.
    """
    half, one = constant_like(x, 0.5), constant_like(x, 1)
    is_reflected = ops.less(x, half)
    z = select(is_reflected, -x, x - one)
    total: ops.Tensor = constant_like(x, _LANCZOS_FIRST)
    for i, coefficient in enumerate(_LANCZOS, 1):
        total += constant_like(x, coefficient) / (z + constant_like(x, i))
    g = constant_like(x, _LANCZOS_G + 0.5)
    # Logarithms of sums, in which one part may be much smaller.
    log_t = constant_like(x, np.log(_LANCZOS_G + 0.5)) + log1p(z / g)
    result = (z + half - (g + z) / log_t) * log_t + ops.math.log(total)
    result += constant_like(x, np.log(2 * np.pi) / 2)
    # log(pi / |sin(pi x)|), of the distance from the nearest integer: exact for great numbers.
    fraction = ops.abs(x) - ops.floor(ops.abs(x))
    distance = ops.minimum(fraction, one - fraction)
    sine = ops.math.log(ops.sin(constant_like(x, np.pi) * distance))
    is_pole = ops.equal(distance, constant_like(x, 0))
    infinite = constant_like(x, np.inf)
    reflected = select(is_pole, infinite, constant_like(x, np.log(np.pi)) - sine - result)
    result = select(is_reflected, reflected, result)
    return select(ops.equal(ops.abs(x), infinite), infinite, result)


def choose_combination(kind: str, element: str) -> Callable[[ops.Tensor, ops.Tensor], ops.Tensor]:
    """Returns the function of "maximum", "minimum" or "multiply"."""
    is_maximum = kind == "maximum"
    result: Callable[[ops.Tensor, ops.Tensor], ops.Tensor] = ops.multiply
    if element == "i1":
        result = ops.logical_or if is_maximum else ops.logical_and
    elif kind == "multiply":
        pass
    else:
        of_integers = converter_integers.maximum if is_maximum else converter_integers.minimum
        result = functools.partial(of_integers, element)
    return result


def round_away_from_zero(x: ops.Tensor) -> ops.Tensor:
    """Rounds to integers, halves away from zero, without a selection."""
    to_even = ops.round(x)
    is_half = ops.equal(ops.abs(x) - ops.abs(to_even), constant_like(x, 0.5))
    return to_even + ops.sign(x) * ops.cast(is_half, x.dtype)


def square(x: ops.Tensor) -> ops.Tensor:
    """Multiplies x by itself; tf2onnx mishandles the shape of Square for transposed images."""
    is_image = x.shape.rank in (4, 5) and x.dtype.is_floating
    return ops.pow(x, constant_like(x, 2)) if is_image else ops.square(x)


def reverse(x: ops.Tensor, axes: Sequence[int]) -> ops.Tensor:
    """Reverses axes; OpenVINO fails for ReverseV2 with several axes, and in some loops with one."""
    every = tuple(slice(None, None, -1 if i in axes else None) for i in range(x.shape.rank))
    return x[every]


def copy(x: ops.Tensor) -> ops.Tensor:
    """Copies an array by an operation that no converter removes."""
    if x.dtype == ops.bool:
        return ops.logical_or(x, x)
    return x if x.dtype.is_complex else ops.maximum(x, x)
