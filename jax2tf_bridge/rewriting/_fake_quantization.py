"""Patterns that round numbers to the steps of integers, as in quantisation-aware training.

They are written as `(clip(round(x / scale) + zero_point, low, high) - zero_point) * scale`, with or
without the zero point, by hand and by libraries. A straight-through estimator adds the difference,
`x + (rounded - x)`, which means `rounded`; for an x that is far out of the range, float32 loses it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.bytecode import DenseElements, Operation, Value
from jax2tf_bridge.rewriting._fusions import SOFTMAX
from jax2tf_bridge.rewriting._patterns import (
    BROADCASTS,
    Matcher,
    Pattern,
    Replacement,
    in_both_orders,
    is_stop_gradient,
    with_parts,
)
from jax2tf_bridge.rewriting._regions import Reducer, are_attributes_equal, match_reducers
from jax2tf_bridge.rewriting._simplifications import RELU, RELU6, SQUARE

FAKE_QUANTIZE = "tensorflow.fake_quantize"
"""Name of the operation, which is `(clip(round(x / scale) + zero_point, low, high) - zero_point) *
scale`. Its operands are x, the scale, and the zero point if it has one. Its attribute `is_static`
says whether the scale is independent of x.
"""

_MAX_VISITS = 2000
"""Maximum number of values to look at for the array behind a scale."""


@dataclass(frozen=True)
class _Rounding:
    """Rounded and clipped numbers, as far as they are matched.

    Attributes:
      value: the value whose maker is matched next, towards the array.
      low, high: the bounds, in steps; None before a clip.
    """

    value: Value
    low: int | None
    high: int | None


def _fuse_fake_quantize(multiply: Operation, matcher: Matcher) -> Operation | None:
    (result,) = multiply.results
    if result.tensor.element != "f32":
        return None
    for quantized, scale in in_both_orders(multiply):
        zero_point: Value | None = None
        shifted = matcher.maker(quantized, "subtract")
        inner = quantized
        if shifted is not None:
            inner, zero_point = shifted.operands
        fused = _match_quantized(multiply, inner, scale, zero_point, matcher)
        if fused is not None:
            return fused
    return None


def _match_quantized(
    multiply: Operation, quantized: Value, scale: Value, zero_point: Value | None, matcher: Matcher
) -> Operation | None:
    rounding = _match_clip(_skip_conversions(_Rounding(quantized, None, None), matcher), matcher)
    value, is_shifted = rounding.value, zero_point is None
    if (inner := _match_shift(value, zero_point, matcher)) is not None:
        value, is_shifted = inner, True
    before = matcher.operand(value, "round_nearest_even")
    if before is None:
        return None
    value = before
    if rounding.low is None or rounding.high is None:
        if zero_point is not None and is_shifted:
            return None  # a clip before the rounding would not include the zero point
        rounding = _match_clip(dataclasses.replace(rounding, value=value), matcher)
        value = rounding.value
    if not is_shifted and (inner := _match_shift(value, zero_point, matcher)) is not None:
        value, is_shifted = inner, True
    x = _match_quotient(value, scale, matcher)
    if x is None or not is_shifted or rounding.low is None or rounding.high is None:
        return None
    operands = (x, scale) if zero_point is None else (x, scale, zero_point)
    if zero_point is not None and not _is_whole(zero_point, matcher):
        return None
    low = rounding.low
    if zero_point is None and low < 0 and _is_at_least_zero(x, matcher):
        low = -1 - rounding.high  # the range of a dtype needs no clip
    return dataclasses.replace(
        multiply,
        name=FAKE_QUANTIZE,
        operands=operands,
        attributes={
            "low": low,
            "high": rounding.high,
            "is_static": not _depends_on(scale, x, matcher),
        },
    )


def _skip_conversions(rounding: _Rounding, matcher: Matcher) -> _Rounding:
    """Skips a conversion to integers and back, which clips to their range."""
    back = matcher.maker(rounding.value, "convert")
    if back is None:
        return rounding
    row = dtype_of_element(back.operands[0].tensor.element)
    there = matcher.maker(back.operands[0], "convert")
    if there is None or not row.is_integer or row.bits > 16:
        return rounding
    is_signed = row.kind == "int"
    low = -(1 << (row.bits - 1)) if is_signed else 0
    return _Rounding(there.operands[0], low, low + (1 << row.bits) - 1)


def _match_clip(rounding: _Rounding, matcher: Matcher) -> _Rounding:
    """Skips a clip, whose bounds may be in any order."""
    inner = rounding
    for _ in range(2):
        operation = matcher.maker(inner.value, "clamp", "maximum", "minimum", RELU)
        if operation is None:
            break
        if operation.name == RELU:
            inner = _narrow(inner, operation.operands[0], 0, None)
            continue
        numbers = [_find_whole_number(operand, matcher) for operand in operation.operands]
        if operation.name == "clamp":
            low, _, high = numbers
            is_known = low is not None and high is not None
            return _narrow(inner, operation.operands[1], low, high) if is_known else rounding
        if numbers.count(None) != 1:
            break
        place = numbers.index(None)
        bound = numbers[1 - place]
        bounds = (bound, None) if operation.name == "maximum" else (None, bound)
        inner = _narrow(inner, operation.operands[place], *bounds)
    return inner


def _narrow(rounding: _Rounding, value: Value, low: int | None, high: int | None) -> _Rounding:
    lows = [bound for bound in (rounding.low, low) if bound is not None]
    highs = [bound for bound in (rounding.high, high) if bound is not None]
    return _Rounding(value, max(lows, default=None), min(highs, default=None))


def _match_shift(value: Value, zero_point: Value | None, matcher: Matcher) -> Value | None:
    """Returns the value to which the zero point is added; without one, that to which 0 is added."""
    for inner, addend in in_both_orders(matcher.maker(value, "add")):
        is_zero = zero_point is None and matcher.number(addend) == 0
        if is_zero or (zero_point is not None and _is_same(addend, zero_point, matcher)):
            return inner
    return None


def _match_quotient(value: Value, scale: Value, matcher: Matcher) -> Value | None:
    """Returns the array that is divided by the scale."""
    divide = matcher.maker(value, "divide")
    if divide is not None and _is_same(divide.operands[1], scale, matcher):
        return divide.operands[0]
    return None


_KEEP_SIGNS = frozenset({*BROADCASTS, "reshape", "transpose", "dynamic_reshape", "slice"})
_WITHOUT_SIGN = frozenset({"abs", "exponential", "logistic", RELU, RELU6, SOFTMAX, SQUARE})


def _is_at_least_zero(value: Value, matcher: Matcher) -> bool:
    """Returns whether all numbers are known to be at least 0, apart from padding."""
    operation = matcher.find(value)
    while operation is not None and operation.name in (*_KEEP_SIGNS, "reduce_window"):
        if operation.name == "reduce_window":
            (x, _), (region,) = operation.operands, operation.regions
            if match_reducers(region) != [Reducer("maximum", x.tensor.element)]:
                return False
        operation = matcher.find(operation.operands[0])
    if operation is None:
        return False
    if operation.name == "maximum":
        numbers = [matcher.number(operand) for operand in operation.operands]
        return any(number is not None and number >= 0 for number in numbers)
    return operation.name in _WITHOUT_SIGN


def _fuse_estimator(add: Operation, matcher: Matcher) -> Replacement | None:
    """Replaces `x + (rounded - x)` by `rounded`."""
    for x, difference in in_both_orders(add):
        subtract = matcher.maker(_skip_stop(difference, matcher), "subtract")
        if subtract is None:
            continue
        rounded = _skip_stop(subtract.operands[0], matcher)
        is_rounded = matcher.maker(rounded, FAKE_QUANTIZE) is not None
        if is_rounded and _skip_stop(subtract.operands[1], matcher) is _skip_stop(x, matcher):
            return Replacement((), (rounded,))
    return None


def _skip_stop(value: Value, matcher: Matcher) -> Value:
    operation = matcher.maker(value, "composite")
    if operation is not None and is_stop_gradient(operation):
        return operation.operands[-1]
    return value


def _depends_on(value: Value, source: Value, matcher: Matcher) -> bool:
    """Returns whether a value depends on the elements of another.

    It is True for values with too many operations.
    """
    waiting, seen = [value], {value}
    while waiting:
        each = waiting.pop()
        if each is source or len(seen) > _MAX_VISITS:
            return True
        operation = matcher.find(each)
        if operation is not None and operation.name != "get_dimension_size":
            waiting += [operand for operand in operation.operands if operand not in seen]
            seen.update(operation.operands)
    return False


def _find_whole_number(value: Value, matcher: Matcher) -> int | None:
    """Returns the common value of all elements, if it is a whole number that float32 has."""
    operation = matcher.find(value)
    while operation is not None and operation.name in (*BROADCASTS, "convert", "reshape"):
        operation = matcher.find(operation.operands[0])
    if operation is None or (elements := _read_constant(operation)) is None:
        return None
    numbers = np.unique(elements)
    if numbers.size != 1 or numbers[0] != np.rint(numbers[0]) or abs(numbers[0]) > 1 << 16:
        return None
    return int(numbers[0])


def _is_whole(value: Value, matcher: Matcher) -> bool:
    """Returns whether a value has whole numbers: it is converted from integers, or a constant."""
    operation = matcher.find(value)
    while operation is not None and operation.name in (*BROADCASTS, "convert", "reshape"):
        (value,) = operation.operands[:1]
        if dtype_of_element(value.tensor.element).is_integer:
            return True
        operation = matcher.find(value)
    elements = None if operation is None else _read_constant(operation)
    return elements is not None and bool(np.all(elements == np.rint(elements)))


def _read_constant(operation: Operation) -> np.ndarray | None:
    elements = operation.attributes.get("value")
    if operation.name != "constant" or not isinstance(elements, DenseElements):
        return None
    array: np.ndarray = elements.array()
    return array.astype(np.float64) if array.dtype.kind in "iuf" and array.size else None


def _is_same(left: Value, right: Value, matcher: Matcher) -> bool:
    """Returns whether two values have the same elements by the same operations."""
    if left is right:
        return True
    a, b = matcher.find(left), matcher.find(right)
    if a is None or b is None or a.name != b.name or left.type != right.type:
        return False
    if a.name == "constant":
        first, second = (_read_constant(each) for each in (a, b))
        return first is not None and second is not None and np.array_equal(first, second)
    if a.name not in (*BROADCASTS, "convert", "reshape") or len(a.operands) != len(b.operands):
        return False
    return are_attributes_equal(a.attributes, b.attributes) and all(
        _is_same(x, y, matcher) for x, y in zip(a.operands, b.operands, strict=True)
    )


def _narrow_product(product: Operation, matcher: Matcher) -> Operation | None:
    """Multiplies int8 instead of int8 that was converted to int32; the sums are the same."""
    left, right, *others = product.operands
    narrow = [matcher.operand(operand, "convert") for operand in (left, right)]
    if {value.tensor.element for value in (*product.results, left, right)} != {"i32"}:
        return None
    if any(value is None or value.tensor.element != "i8" for value in narrow):
        return None
    operands = (*(value for value in narrow if value is not None), *others)
    return with_parts(product, operands, product.regions)


NARROW_PRODUCTS = (Pattern(frozenset({"dot_general", "convolution"}), _narrow_product),)
"""Patterns for all consumers, some of which have products of int8."""

FAKE_QUANTIZATIONS = (
    Pattern(frozenset({"multiply"}), _fuse_fake_quantize),
    Pattern(frozenset({"add"}), _fuse_estimator),
)
"""Patterns for consumers that compute with few-bit integers."""
