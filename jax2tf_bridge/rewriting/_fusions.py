"""Patterns of several operations that TensorFlow has a single operation for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.bytecode import Operation, Value
from jax2tf_bridge.rewriting._patterns import (
    BROADCASTS,
    Matcher,
    Pattern,
    in_both_orders,
    is_stop_gradient,
)
from jax2tf_bridge.rewriting._regions import Reducer, match_reducers
from jax2tf_bridge.rewriting._simplifications import (
    BFLOAT16_BITS,
    PATTERNS_OF_BITS,
    SIMPLIFICATIONS,
)

# Softmax: JAX writes exp(x - max(x)) / sum(exp(x - max(x))), and x - max(x) - log(sum(...)).

SOFTMAX, LOG_SOFTMAX = "tensorflow.softmax", "tensorflow.log_softmax"
"""Names of the operations; they work along the last axis."""

_MAX_AXES = 4
"""Maximum rank: oneDNN's kernel in TensorFlow supports five axes, some LiteRT kernels four."""
_INITIAL: Mapping[str, float] = MappingProxyType({"add": 0.0, "maximum": -np.inf})


def _fuse_softmax(divide: Operation, matcher: Matcher) -> Operation | None:
    exponentials, total = divide.operands
    shifted = matcher.operand(exponentials, "exponential")
    if shifted is None or matcher.uses(exponentials) != 2 or matcher.uses(shifted) != 1:
        return None
    if _match_reduction(total, "add", matcher) is not exponentials:
        return None
    return _make_along_last_axis(SOFTMAX, divide, shifted, matcher)


def _fuse_log_softmax(subtract: Operation, matcher: Matcher) -> Operation | None:
    shifted, logarithm = subtract.operands
    exponentials = _match_reduction(logarithm, "add", matcher, is_logarithm=True)
    if exponentials is None or matcher.operand(exponentials, "exponential") is not shifted:
        return None
    if matcher.uses(exponentials) != 1 or matcher.uses(shifted) != 2:
        return None
    return _make_along_last_axis(LOG_SOFTMAX, subtract, shifted, matcher)


def _make_along_last_axis(
    name: str, last: Operation, shifted: Value, matcher: Matcher
) -> Operation | None:
    """Makes the operation of the array from which `shifted` has its maxima subtracted."""
    (result,) = last.results
    subtract = matcher.maker(shifted, "subtract")
    if subtract is None or result.tensor.element not in ("f32", "f64"):
        return None
    x, maxima = subtract.operands
    if (
        len(result.tensor.shape) > _MAX_AXES
        or _match_reduction(maxima, "maximum", matcher) is not x
    ):
        return None
    return dataclasses.replace(last, name=name, operands=(x,))


def _match_reduction(
    value: Value, reducer: str, matcher: Matcher, *, is_logarithm: bool = False
) -> Value | None:
    """Returns the operand of a reduction of the last axis that `value` broadcasts; else None.

    Args:
      value: the broadcast value.
      reducer: the name of the reducer.
      matcher: the operations.
      is_logarithm: whether `value` is the logarithm of the reduction.
    """
    rank = len(value.tensor.shape)
    axes = tuple(range(rank))  # maps the axes of the value to those of the result
    names = (*BROADCASTS, "composite", "log", "reduce")
    while (operation := matcher.maker(value, *names)) is not None and operation.name != "reduce":
        match operation.name:
            case "log" if is_logarithm:
                is_logarithm = False
                (value,) = operation.operands
            case "composite" if reducer == "maximum" and is_stop_gradient(operation):
                # The gradient of softmax does not depend on the maximum, so it may be constant.
                value = operation.operands[-1]
            case "broadcast_in_dim" | "dynamic_broadcast_in_dim":
                value = operation.operands[0]
                axes = tuple(axes[axis] for axis in operation.ints("broadcast_dimensions"))
            case _:
                return None
    if operation is None or is_logarithm or axes != tuple(range(rank - 1)):
        return None
    x, initial = operation.operands
    if operation.ints("dimensions") != (rank - 1,) or matcher.number(initial) != _INITIAL[reducer]:
        return None
    is_match = match_reducers(operation.regions[0]) == [Reducer(reducer, x.tensor.element)]
    return x if is_match else None


# Maxima: the export writes select(x >= y or x != x, x, y), because the maximum of TensorFlow's XLA
# drops NaN. TensorFlow's own maximum does not.

_EXTREMES: Mapping[str, str] = MappingProxyType({"GE": "maximum", "LE": "minimum"})


def _fuse_extreme(select: Operation, matcher: Matcher) -> Operation | None:
    flag, left, right = select.operands
    either = matcher.maker(flag, "or")
    if either is None or left.tensor.element[0] not in "fb":
        return None
    comparison, is_nan = map(matcher.comparison, either.operands)
    if comparison is None or comparison[1:] != (left, right) or is_nan != ("NE", left, left):
        return None
    name = _EXTREMES.get(comparison[0])
    return None if name is None else dataclasses.replace(select, name=name, operands=(left, right))


# Division that rounds down: JAX writes x // y as select(f, x / y - 1, x / y), where f holds if the
# remainder is not 0 and the signs of x and y differ. It writes x % y as select(f, r + y, r), where
# r is the remainder, and f holds if r is not 0 and the signs of r and y differ.

FLOOR_DIVIDE, FLOOR_MODULO = "tensorflow.floor_divide", "tensorflow.floor_modulo"
"""Names of the operations on integers."""


_ROUNDED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"divide": (FLOOR_DIVIDE, "subtract"), "remainder": (FLOOR_MODULO, "add")}
)
"""Maps operations that round towards zero to those that round down, and to their correction."""


def _fuse_floor_division(select: Operation, matcher: Matcher) -> Operation | None:
    flag, corrected, rounded = select.operands
    operation = matcher.maker(rounded, *_ROUNDED)
    # JAX writes the same form of the remainder for floats, whose remainder by 0 is NaN.
    if operation is None or not dtype_of_element(rounded.tensor.element).is_integer:
        return None
    x, y = operation.operands
    name, correction_name = _ROUNDED[operation.name]
    correction = matcher.maker(corrected, correction_name)
    if correction is None or correction.operands[0] is not rounded:
        return None
    step = correction.operands[1]
    if not (matcher.number(step) == 1 if name == FLOOR_DIVIDE else _is_equal(step, y, matcher)):
        return None
    for rest, signs in _find_inexact_divisions(flag, matcher):
        if name == FLOOR_DIVIDE:
            remainder = matcher.maker(rest, "remainder")
            is_inexact = remainder is not None and _are_equal(remainder.operands, (x, y), matcher)
            operands, is_sign = (x, y), _is_sign
        else:
            is_inexact = rest is rounded
            operands, is_sign = (rest, y), _is_negative
        if is_inexact and all(is_sign(a, b, matcher) for a, b in zip(signs, operands, strict=True)):
            return dataclasses.replace(select, name=name, operands=(x, y))
    return None


def _find_inexact_divisions(
    flag: Value, matcher: Matcher
) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """Yields the remainder that is not 0 and the signs that differ, if both make the flag."""
    for is_rest, differs in in_both_orders(matcher.maker(flag, "and")):
        unequal, signs = (_match_comparison(each, "NE", matcher) for each in (is_rest, differs))
        if unequal is not None and signs is not None and matcher.number(unequal[1]) == 0:
            yield unequal[0], signs


def _match_comparison(flag: Value, direction: str, matcher: Matcher) -> tuple[Value, ...] | None:
    match = matcher.comparison(matcher.unbroadcast(flag))
    return match[1:] if match is not None and match[0] == direction else None


def _is_sign(value: Value, x: Value, matcher: Matcher) -> bool:
    value = matcher.unbroadcast(value)
    operand = matcher.operand(value, "sign")
    if operand is not None:
        return _is_equal(operand, x, matcher)
    number, sign = matcher.number(x), matcher.number(value)
    return number is not None and sign is not None and sign == np.sign(number)


def _is_negative(value: Value, x: Value, matcher: Matcher) -> bool:
    operands = _match_comparison(value, "LT", matcher)
    return (
        operands is not None
        and matcher.number(operands[1]) == 0
        and _is_equal(operands[0], x, matcher)
    )


def _is_equal(left: Value, right: Value, matcher: Matcher) -> bool:
    """Returns whether two values have the same elements, apart from broadcasts of one element."""
    left, right = matcher.unbroadcast(left), matcher.unbroadcast(right)
    if left is right:
        return True
    number = matcher.number(left)
    return number is not None and number == matcher.number(right)


def _are_equal(left: Sequence[Value], right: Sequence[Value], matcher: Matcher) -> bool:
    return all(_is_equal(a, b, matcher) for a, b in zip(left, right, strict=True))


# Signs: JAX writes signbit as a right shift of the bits, which converters of graphs do not support.

_SIGNS: Mapping[str, int] = MappingProxyType(
    {"shift_right_arithmetic": -1, "shift_right_logical": 1}
)


def _make_sign_name(sign: int) -> str:
    return f"tensorflow.sign_bit{sign:+d}"


SIGN_BITS: Mapping[str, int] = MappingProxyType({_make_sign_name(s): s for s in _SIGNS.values()})
"""Names of the operations that return 0 for floats without a sign, and this number for others."""


def _fuse_sign_bit(shift: Operation, matcher: Matcher) -> Operation | None:
    bits, places = shift.operands
    bitcast = matcher.maker(bits, "bitcast_convert", BFLOAT16_BITS)
    if bitcast is None:
        return None
    (x,) = bitcast.operands
    if dtype_of_element(x.tensor.element).kind != "float" or x.tensor.shape != bits.tensor.shape:
        return None
    if matcher.number(places) != dtype_of_element(bits.tensor.element).bits - 1:
        return None
    return dataclasses.replace(shift, name=_make_sign_name(_SIGNS[shift.name]), operands=(x,))


FUSIONS = (
    *SIMPLIFICATIONS,
    Pattern(frozenset({"divide"}), _fuse_softmax),
    Pattern(frozenset({"subtract"}), _fuse_log_softmax),
    Pattern(frozenset({"select"}), _fuse_extreme),
    Pattern(frozenset({"select"}), _fuse_floor_division),
)
"""Patterns for TensorFlow."""

FUSIONS_FOR_CONVERTERS = (
    *FUSIONS,
    *PATTERNS_OF_BITS,
    Pattern(frozenset(_SIGNS), _fuse_sign_bit),
)
"""Patterns for converters of TensorFlow's graphs."""
