"""Elementwise functions: arithmetic, comparisons, bits and conversions."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jax2tf_bridge.emitters import NoOperationError, expm1, lgamma, log1p, next_after
from jax2tf_bridge.to_onnx._functions import (
    as_dtype,
    cast,
    compute,
    elementwise,
    find_kernel,
    function,
    to_tensor,
    to_tensors,
)
from jax2tf_bridge.to_onnx._graph import DTYPES, OnnxDType, OnnxGraph, Tensor, broadcast_shapes

_INT32, _INT64, _UINT64 = DTYPES["int32"], DTYPES["int64"], DTYPES["uint64"]
_BOOL, _FLOAT32, _FLOAT64 = DTYPES["bool"], DTYPES["float32"], DTYPES["float64"]


@function("constant")
def _constant(
    graph: OnnxGraph, value: Any, dtype: OnnxDType | None = None, shape: Sequence[int] | None = None
) -> Tensor:
    tensor = to_tensor(graph, value, None if dtype is None else as_dtype(dtype))
    if shape is None:
        return tensor
    assert tensor.value is not None, "a constant has a value"
    return graph.constant(np.broadcast_to(tensor.value, shape))


@function("convert_to_tensor")
def _convert_to_tensor(graph: OnnxGraph, value: Any, dtype: OnnxDType | None = None) -> Tensor:
    tensor = to_tensor(graph, value, dtype)
    return tensor if dtype is None else cast(graph, tensor, dtype)


# Conversions.


@function("cast")
def _cast(graph: OnnxGraph, value: Any, dtype: OnnxDType) -> Tensor:
    x = to_tensor(graph, value)
    dtype = as_dtype(dtype)
    result = cast(graph, x, dtype)
    if dtype in (_INT32, _INT64) and result.wide is None and result is not x.wide:
        result.wide = x.wide
    return result


# Arithmetic.


def widen_sizes(
    graph: OnnxGraph, result: Tensor, operands: Sequence[Tensor], compute: Callable[..., Tensor]
) -> Tensor:
    """Computes a result of sizes in int64 as well, for the operations that take them.

    Nodes that nothing uses are dropped later.
    """
    if any(x.wide is not None for x in operands):
        wide = [_to_wide(graph, x) for x in operands]
        if all(x is not None for x in wide):
            result.wide = compute(*wide)
    return result


def _to_wide(graph: OnnxGraph, x: Tensor) -> Tensor | None:
    """Returns sizes as int64; None if they may be other numbers."""
    if x.wide is not None:
        return x.wide
    return None if x.value is None else graph.constant(x.value.astype(np.int64))


def _binary(name: str, operation: str, *, keeps_bits: bool = False) -> Callable[..., Tensor]:
    @function(name)
    def call(graph: OnnxGraph, x: Any, y: Any) -> Tensor:
        operands = to_tensors(graph, x, y)
        result = elementwise(graph, operation, *operands, keeps_bits=keeps_bits)
        return widen_sizes(
            graph, result, operands, functools.partial(elementwise, graph, operation)
        )

    return call


def _unary(*names: str, operation: str) -> Callable[..., Tensor]:
    return function(*names)(lambda graph, x: elementwise(graph, operation, x))


def _comparison(name: str, operation: str) -> Callable[..., Tensor]:
    @function(name)
    def call(graph: OnnxGraph, x: Any, y: Any) -> Tensor:
        return _compare(graph, operation, *to_tensors(graph, x, y))

    return call


_COMPARISONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"Greater": np.greater, "Less": np.less, "Equal": np.equal}
)
"""Comparisons that are computed while the graph is made, if both numbers are known."""


def _compare(graph: OnnxGraph, operation: str, x: Tensor, y: Tensor) -> Tensor:
    if operation in _COMPARISONS and _is_known_scalar(x) and _is_known_scalar(y):
        return graph.constant(np.asarray(_COMPARISONS[operation](x.value, y.value)))
    return graph.add(operation, [x, y], _BOOL, broadcast_shapes(x.shape, y.shape))


def _is_known_scalar(x: Tensor) -> bool:
    return x.value is not None and x.shape.rank == 0


@function("not_equal")
def _not_equal(graph: OnnxGraph, x: Any, y: Any) -> Tensor:
    x, y = to_tensors(graph, x, y)
    if x.dtype is _BOOL:
        return _compare(graph, "Xor", x, y)
    return ~_compare(graph, "Equal", x, y)


@function("logical_not")
def _logical_not(graph: OnnxGraph, x: Any) -> Tensor:
    x = to_tensor(graph, x)
    return graph.add("Not", [x], _BOOL, x.shape)


@function("negative")
def _negative(graph: OnnxGraph, x: Tensor) -> Tensor:
    if x.dtype.is_unsigned:
        return elementwise(graph, "Sub", graph.constant(np.zeros((), x.dtype.as_numpy_dtype)), x)
    return elementwise(graph, "Neg", x)


def _fill_like(graph: OnnxGraph, x: Tensor, number: int) -> Tensor:
    scalar = graph.constant(np.array(number, x.dtype.as_numpy_dtype))
    if not x.shape:
        return scalar
    result: Tensor = graph.make("broadcast_to", scalar, graph.make("shape", x))
    result.set_shape(x.shape)
    return result


@function("where")
def _where(graph: OnnxGraph, condition: Any, x: Any = None, y: Any = None) -> Tensor:
    flag = to_tensor(graph, condition)
    if x is None and y is None:
        return _find_true(graph, flag)
    on_true, on_false = to_tensors(graph, x, y)
    if on_true.dtype is _BOOL:
        return (flag & on_true) | (~flag & on_false)
    return choose(graph, flag, on_true, on_false)


def choose(graph: OnnxGraph, flag: Tensor, x: Any, y: Any) -> Tensor:
    """Returns x where the flag is set, else y."""
    on_true, on_false = to_tensors(graph, x, y)
    dtype = on_true.dtype
    if _is_known_scalar(flag):
        result, other = (on_true, on_false) if flag.value else (on_false, on_true)
        if _is_known_scalar(other):
            return result
    shape = broadcast_shapes(flag.shape, on_true.shape, on_false.shape)
    within = find_kernel("Where", dtype, keeps_bits=True)
    operands = [flag, cast(graph, on_true, within), cast(graph, on_false, within)]
    result = cast(graph, graph.add("Where", operands, within, shape), dtype)
    return widen_sizes(
        graph,
        result,
        [on_true, on_false],
        lambda *wide: graph.add("Where", [flag, *wide], _INT64, shape),
    )


def _find_true(graph: OnnxGraph, flags: Tensor) -> Tensor:
    """Returns the indices of the set flags [n, rank]."""
    places = graph.add("NonZero", [flags], _INT64, (flags.shape.rank, None))
    return graph.add("Transpose", [places], _INT64, (None, flags.shape.rank), perm=[1, 0])


@function("clip_by_value")
def _clip(graph: OnnxGraph, x: Any, low: Any, high: Any) -> Tensor:
    x, low, high = to_tensors(graph, x, low, high)
    return elementwise(graph, "Min", elementwise(graph, "Max", x, low), high)


# Division.


@function("math.floordiv")
def _floordiv(graph: OnnxGraph, x: Any, y: Any) -> Tensor:
    x, y = to_tensors(graph, x, y)
    if x.dtype.is_floating:
        return elementwise(graph, "Floor", elementwise(graph, "Div", x, y))
    result = _divide_down(graph, x, y)
    return widen_sizes(graph, result, [x, y], functools.partial(_divide_down, graph))


def _divide_down(graph: OnnxGraph, x: Tensor, y: Tensor) -> Tensor:
    if x.dtype.is_unsigned:
        return elementwise(graph, "Div", x, y)
    rest = elementwise(graph, "Mod", x, y)  # with the sign of the divisor
    return (x - rest) / y


@function("math.floormod")
def _floormod(graph: OnnxGraph, x: Any, y: Any) -> Tensor:
    operands = to_tensors(graph, x, y)
    if operands[0].dtype.is_floating:
        raise NoOperationError("ONNX has no remainder of floats that rounds down")
    result = elementwise(graph, "Mod", *operands)
    return widen_sizes(graph, result, operands, functools.partial(elementwise, graph, "Mod"))


@function("pow")
def _pow(graph: OnnxGraph, x: Any, y: Any) -> Tensor:
    x, y = to_tensors(graph, x, y)
    if x.dtype.is_integer:
        return _integer_power(graph, x, y)
    return elementwise(graph, "Pow", x, y)


def _integer_power(graph: OnnxGraph, x: Tensor, y: Tensor) -> Tensor:
    """Raises integers to powers of at least 0 by squaring; products wrap around.

    ONNX Runtime computes powers of integers as floats.
    """
    one = graph.constant(np.ones((), x.dtype.as_numpy_dtype))
    result, base = one, x
    for bit in range(8 * x.dtype.size - (not x.dtype.is_unsigned)):
        mask = graph.constant(np.array(1 << bit, y.dtype.as_numpy_dtype))
        is_set = _compare(graph, "Equal", elementwise(graph, "BitwiseAnd", y, mask), mask)
        result = result * choose(graph, is_set, base, one)
        base = base * base
    return result


# Bits.


@function("bitwise.left_shift")
def _left_shift(graph: OnnxGraph, x: Any, y: Any) -> Tensor:
    x, y = to_tensors(graph, x, y)
    return _shift(graph, x, y, "LEFT")


@function("bitwise.right_shift")
def _right_shift(graph: OnnxGraph, x: Any, y: Any) -> Tensor:
    x, y = to_tensors(graph, x, y)
    if x.dtype.is_unsigned:
        return _shift(graph, x, y, "RIGHT")
    # A signed shift of x is ~(~x >> y) for negative numbers.
    is_negative = x < 0
    bits = choose(graph, is_negative, elementwise(graph, "BitwiseNot", x), x)
    shifted = _shift(graph, bits, y, "RIGHT")
    return choose(graph, is_negative, elementwise(graph, "BitwiseNot", shifted), shifted)


def _shift(graph: OnnxGraph, x: Tensor, y: Tensor, direction: str) -> Tensor:
    """Shifts as unsigned integers; those of 16 bits are shifted in 32."""
    size = x.dtype.size
    within = DTYPES["uint32" if size == 2 else f"uint{8 * size}"]
    same = DTYPES[f"uint{8 * size}"]
    operands = [cast(graph, cast(graph, v, same), within) for v in (x, y)]
    shape = broadcast_shapes(x.shape, y.shape)
    shifted = graph.add("BitShift", operands, within, shape, direction=direction)
    return cast(graph, cast(graph, shifted, same), x.dtype)


@function("raw_ops.PopulationCount")
def _population_count(graph: OnnxGraph, *, x: Tensor) -> Tensor:
    wide = cast(graph, x, _UINT64)

    def number(value: int) -> Tensor:
        return graph.constant(np.array(value, np.uint64))

    def masked(v: Tensor, places: int, mask: int) -> Tensor:
        if places:
            v = _shift(graph, v, number(places), "RIGHT")
        return elementwise(graph, "BitwiseAnd", v, number(mask))

    for places, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        wide = elementwise(graph, "Add", masked(wide, 0, mask), masked(wide, places, mask))
    for places in (8, 16, 32):
        wide = elementwise(graph, "Add", wide, _shift(graph, wide, number(places), "RIGHT"))
    return cast(graph, elementwise(graph, "BitwiseAnd", wide, number(0xFF)), DTYPES["uint8"])


# Functions of floats. In float64, those without a kernel are computed from those with one.


def _by_formula(
    name: str, operation: str, formula: Callable[[OnnxGraph, Tensor], Tensor]
) -> Callable[..., Tensor]:
    @function(name, name.removeprefix("math."))
    def call(graph: OnnxGraph, x: Tensor) -> Tensor:
        if x.dtype is _FLOAT64:
            return formula(graph, x)
        return elementwise(graph, operation, x)

    return call


_LOG_2 = math.log(2)


def _tan(graph: OnnxGraph, x: Tensor) -> Tensor:
    return elementwise(graph, "Sin", x) / elementwise(graph, "Cos", x)


def _sinh(graph: OnnxGraph, x: Tensor) -> Tensor:
    power = graph.make("math.expm1", x)
    near = (power + power / (power + 1.0)) * 0.5
    # For great numbers the quotient is NaN.
    size = elementwise(graph, "Abs", x)
    far = elementwise(graph, "Sign", x) * elementwise(graph, "Exp", size - _LOG_2)
    return choose(graph, size > 300.0, far, near)


def _with_sign_of(graph: OnnxGraph, x: Tensor, size: Tensor) -> Tensor:
    """Returns the size with the sign of x; zeros are returned as they are."""
    # ONNX Runtime's Where makes 0 of -0 in its second operand, but not in its third one. x != 0 has
    # a Not, which ONNX Runtime would fuse into the Where by exchanging the operands.
    is_other = elementwise(graph, "Abs", x) > 0
    return choose(graph, is_other, elementwise(graph, "Sign", x) * size, x)


def _cosh(graph: OnnxGraph, x: Tensor) -> Tensor:
    half = elementwise(graph, "Exp", elementwise(graph, "Abs", x) - _LOG_2)
    return half + 0.25 / half


def _atanh(graph: OnnxGraph, x: Tensor) -> Tensor:
    return _log1p(graph, x * 2.0 / (1.0 - x)) * 0.5


def _asinh(graph: OnnxGraph, x: Tensor) -> Tensor:
    size = elementwise(graph, "Abs", x)
    square = size * size
    root = elementwise(graph, "Sqrt", square + 1.0)
    near = _log1p(graph, size + square / (root + 1.0))
    far = elementwise(graph, "Log", size) + _LOG_2
    return _with_sign_of(graph, x, choose(graph, size > 1e150, far, near))


def _acosh(graph: OnnxGraph, x: Tensor) -> Tensor:
    less = x - 1.0
    near = _log1p(graph, less + elementwise(graph, "Sqrt", less * (x + 1.0)))
    far = elementwise(graph, "Log", x) + _LOG_2
    return choose(graph, x > 1e150, far, near)


# Coefficients of the series of atan(x) / x in x**2, for |x| <= tan(pi/32).
_ATAN_SERIES = tuple((-1) ** k / (2 * k + 1) for k in range(8, -1, -1))


def _atan(graph: OnnxGraph, x: Tensor) -> Tensor:
    """Computes the arc tangent by halving the angle three times, and a series."""
    size = elementwise(graph, "Abs", x)
    is_great = size > 1.0
    y = choose(graph, is_great, elementwise(graph, "Reciprocal", size), size)
    for _ in range(3):
        y = y / (elementwise(graph, "Sqrt", y * y + 1.0) + 1.0)
    angle = _polyval(graph, _ATAN_SERIES, y * y) * y * 8.0
    angle = choose(graph, is_great, math.pi / 2 - angle, angle)
    return _with_sign_of(graph, x, angle)


def _asin(graph: OnnxGraph, x: Tensor) -> Tensor:
    return _atan(graph, x / elementwise(graph, "Sqrt", (1.0 - x) * (x + 1.0)))


def _acos(graph: OnnxGraph, x: Tensor) -> Tensor:
    return _atan(graph, elementwise(graph, "Sqrt", (1.0 - x) / (x + 1.0))) * 2.0


@function("math.log1p")
def _log1p(graph: OnnxGraph, x: Tensor) -> Tensor:
    if x.dtype is not _FLOAT64:
        result: Tensor = log1p(x)
        return result
    # Kahan's method; log1p of the emitters calls atanh, which has no kernel in float64.
    total = x + 1.0
    logarithm = elementwise(graph, "Log", total)
    exact = choose(graph, x > 1e17, logarithm, logarithm * (x / (total - 1.0)))
    return choose(graph, total == 1.0, x, exact)


@function("math.is_inf")
def _is_inf(graph: OnnxGraph, x: Tensor) -> Tensor:
    wide = cast(graph, x, _FLOAT32) if x.dtype.size == 2 else x
    return graph.add("IsInf", [wide], _BOOL, x.shape)


@function("math.atan2")
def _atan2(graph: OnnxGraph, y: Any, x: Any) -> Tensor:
    y, x = to_tensors(graph, y, x)
    dtype = y.dtype
    if dtype.size == 2:
        y, x = (cast(graph, v, _FLOAT32) for v in (y, x))
    height, width = (elementwise(graph, "Abs", v) for v in (y, x))
    is_steep = height > width
    top = choose(graph, is_steep, width, height)
    bottom = choose(graph, is_steep, height, width)
    # The quotient of equal sides is 1, also of zeros (then 0) and of infinities.
    is_origin = bottom == 0
    quotient = top / choose(graph, is_origin, bottom + 1, bottom)
    quotient = choose(graph, (top == bottom) & ~is_origin, 1, quotient)
    angle = graph.make("math.atan", quotient)
    angle = choose(graph, is_steep, math.pi / 2 - angle, angle)
    angle = choose(graph, is_negative(x), math.pi - angle, angle)
    # A product keeps -0.
    angle = angle * choose(graph, is_negative(y), graph.constant(np.array(-1, y.dtype.name)), 1)
    has_nan = graph.make("math.is_nan", x) | graph.make("math.is_nan", y)
    return cast(graph, choose(graph, has_nan, x + y, angle), dtype)


def is_negative(x: Tensor) -> Tensor:
    """Returns whether the sign bit is set, also of -0."""
    return (x < 0) | (1 / x < 0)


@function("sign", "math.sign")
def _sign(graph: OnnxGraph, x: Tensor) -> Tensor:
    if x.dtype.name == "float16":  # its kernel makes 0 of NaN
        return cast(graph, elementwise(graph, "Sign", cast(graph, x, _FLOAT32)), x.dtype)
    return elementwise(graph, "Sign", x)


@function("math.polyval")
def _polyval(graph: OnnxGraph, coefficients: Sequence[Any], x: Tensor) -> Tensor:
    first, *others = coefficients
    return to_tensor(graph, functools.reduce(lambda total, each: total * x + each, others, first))


FUNCTIONS = (
    function("is_tensor")(lambda graph, value: isinstance(value, Tensor)),
    function("get_static_value")(lambda graph, x: x.value),
    function("as_dtype")(lambda graph, value: as_dtype(value)),
    function("stop_gradient", "identity", "math.real", "math.conj")(lambda graph, x: x),
    function("math.imag")(lambda graph, x: _fill_like(graph, x, 0)),
    function("add_n")(lambda graph, tensors: functools.reduce(operator.add, tensors)),
    function("divide", "truncatediv")(lambda graph, x, y: elementwise(graph, "Div", x, y)),
    function("truncatemod")(lambda graph, x, y: elementwise(graph, "Mod", x, y, fmod=1)),
    function("math.rsqrt")(
        lambda graph, x: elementwise(graph, "Reciprocal", elementwise(graph, "Sqrt", x))
    ),
    function("math.is_nan")(lambda graph, x: graph.add("IsNaN", [x], _BOOL, x.shape)),
    # The difference of a number that is not finite and itself is NaN.
    function("math.is_finite")(lambda graph, x: (x - x) == 0),
    _binary("add", "Add", keeps_bits=True),
    _binary("subtract", "Sub", keeps_bits=True),
    _binary("multiply", "Mul", keeps_bits=True),
    _binary("maximum", "Max"),
    _binary("minimum", "Min"),
    _binary("bitwise.bitwise_and", "BitwiseAnd"),
    _binary("bitwise.bitwise_or", "BitwiseOr"),
    _binary("bitwise.bitwise_xor", "BitwiseXor"),
    _comparison("equal", "Equal"),
    _comparison("less", "Less"),
    _comparison("less_equal", "LessOrEqual"),
    _comparison("greater", "Greater"),
    _comparison("greater_equal", "GreaterOrEqual"),
    _comparison("logical_and", "And"),
    _comparison("logical_or", "Or"),
    _unary("abs", "math.abs", operation="Abs"),
    _unary("bitwise.invert", operation="BitwiseNot"),
    _unary("exp", operation="Exp"),
    _unary("math.log", operation="Log"),
    _unary("math.ceil", operation="Ceil"),
    _unary("floor", operation="Floor"),
    _unary("round", operation="Round"),
    _unary("sqrt", operation="Sqrt"),
    _unary("sin", operation="Sin"),
    _unary("cos", operation="Cos"),
    _unary("tanh", operation="Tanh"),
    _unary("sigmoid", operation="Sigmoid"),
    _unary("nn.relu", operation="Relu"),
    _unary("math.erf", "erf", operation="Erf"),
    _by_formula("math.tan", "Tan", _tan),
    _by_formula("math.sinh", "Sinh", _sinh),
    _by_formula("math.cosh", "Cosh", _cosh),
    _by_formula("math.asin", "Asin", _asin),
    _by_formula("math.acos", "Acos", _acos),
    _by_formula("math.atan", "Atan", _atan),
    _by_formula("math.asinh", "Asinh", _asinh),
    _by_formula("math.acosh", "Acosh", _acosh),
    _by_formula("math.atanh", "Atanh", _atanh),
    function("math.expm1")(lambda graph, x: expm1(x)),
    function("math.lgamma")(lambda graph, x: lgamma(x, functools.partial(_log1p, graph))),
    function("math.nextafter")(lambda graph, x, y: next_after(x, y)),
    function("nn.relu6")(lambda graph, x: _clip(graph, x, 0, 6)),
    function("nn.softmax")(lambda graph, x: compute(graph, "Softmax", [x], x.shape, axis=-1)),
    function("nn.log_softmax")(
        lambda graph, x: compute(graph, "LogSoftmax", [x], x.shape, axis=-1)
    ),
    function("zeros_like")(lambda graph, x: _fill_like(graph, x, 0)),
    function("ones_like")(lambda graph, x: _fill_like(graph, x, 1)),
    function("square")(lambda graph, x: x * x),
)
