"""Patterns of single operations that have a simpler form in TensorFlow, or change nothing.

Grappler, LiteRT and other consumers fuse Relu, Relu6 and BiasAdd with the operation before them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from jax2tf_bridge._dtypes import dtype_of_element
from jax2tf_bridge.bytecode import DenseElements, Operation, TensorType, Value
from jax2tf_bridge.rewriting._patterns import (
    BROADCASTS,
    Matcher,
    Pattern,
    Replacement,
    Rewritten,
    in_both_orders,
)

BIAS_ADD, RELU, RELU6, SQUARE = (
    f"tensorflow.{name}" for name in ("bias_add", "relu", "relu6", "square")
)
"""Names of the operations. BIAS_ADD adds a vector along the last axis of its first operand."""

BFLOAT16_BITS = "tensorflow.bfloat16_bits"
"""Operation that converts bits to bfloat16, or bfloat16 to bits."""

RANDOM_UNIT = "tensorflow.random_unit"
"""Operation that makes floats in [1, 2) from an integer with `fraction_bits` random bits."""

_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_INTEGERS = frozenset({"int", "uint"})
_MAX_BIAS_AXES = 5
"""Maximum rank of the first operand of BiasAdd."""


# Operations that change nothing.

_IDENTITIES: Mapping[str, tuple[frozenset[str], float]] = MappingProxyType(
    {
        "add": (_INTEGERS, 0),  # -0.0 + 0.0 is 0.0
        "divide": (_INTEGERS | {"float"}, 1),
        "maximum": (frozenset({"float"}), -np.inf),
        "minimum": (frozenset({"float"}), np.inf),
        "multiply": (_INTEGERS | {"float"}, 1),
        "subtract": (_INTEGERS | {"float"}, 0),
    }
)
"""Maps operations to the kinds of elements and the second operand with which they do nothing."""
_ORDERED = frozenset({"divide", "subtract"})


def _drop_identity(operation: Operation, matcher: Matcher) -> Replacement | None:
    kinds, identity = _IDENTITIES[operation.name]
    (result,) = operation.results
    if dtype_of_element(result.tensor.element).kind not in kinds:
        return None
    orders = in_both_orders(operation)[: 1 if operation.name in _ORDERED else 2]
    for value, constant in orders:
        number = matcher.number(constant)
        if number != identity or value.type != result.type:
            continue
        if operation.name != "subtract" or not np.signbit(number):  # -0.0 - -0.0 is 0.0
            return Replacement((), (value,))
    return None


def _choose_operand(select: Operation, matcher: Matcher) -> Replacement | None:
    flag, on_true, on_false = select.operands
    number = matcher.number(flag)
    if number is None:
        return None
    value = on_true if number else on_false
    return Replacement((), (value,)) if value.type == select.results[0].type else None


# Activations, biases and squares.


def _simplify_maximum(maximum: Operation, matcher: Matcher) -> Operation | None:
    for value, constant in in_both_orders(maximum):
        if value.tensor.element in _FLOATS and matcher.number(constant) == 0:
            return dataclasses.replace(maximum, name=RELU, operands=(value,))
    return None


def _simplify_minimum(minimum: Operation, matcher: Matcher) -> Operation | None:
    for value, constant in in_both_orders(minimum):
        relu = matcher.maker(value, RELU)
        if relu is not None and matcher.number(constant) == 6:
            return dataclasses.replace(minimum, name=RELU6, operands=relu.operands)
    return None


def _simplify_clamp(clamp: Operation, matcher: Matcher) -> Operation | None:
    low, value, high = clamp.operands
    if value.tensor.element not in _FLOATS:
        return None
    if matcher.number(low) != 0 or matcher.number(high) != 6:
        return None
    return dataclasses.replace(clamp, name=RELU6, operands=(value,))


def _simplify_subtract(subtract: Operation, matcher: Matcher) -> Operation | None:
    left, right = subtract.operands
    if dtype_of_element(left.tensor.element).kind != "uint" or matcher.number(left) != 0:
        return None
    return dataclasses.replace(subtract, name="negate", operands=(right,))


def _simplify_multiply(multiply: Operation, matcher: Matcher) -> Operation | None:
    left, right = multiply.operands
    if left is not right or left.tensor.element not in _FLOATS:
        return None
    return dataclasses.replace(multiply, name=SQUARE, operands=(left,))


_PRODUCTS = ("dot", "dot_general", "convolution", "dynamic_conv")


def _simplify_add(add: Operation, matcher: Matcher) -> Operation | None:
    for value, bias in in_both_orders(add):
        kind = value.tensor
        if kind.element not in _FLOATS or not 2 <= len(kind.shape) <= _MAX_BIAS_AXES:
            continue
        if matcher.maker(value, *_PRODUCTS) is None:
            continue
        vector = _find_vector(bias, matcher)
        if vector is not None and kind.shape[-1] is not None:
            return dataclasses.replace(add, name=BIAS_ADD, operands=(value, vector))
    return None


def _find_vector(value: Value, matcher: Matcher) -> Value | None:
    """Returns the vector that a value repeats along all axes but the last, or None."""
    size = value.tensor.shape[-1]
    axis = len(value.tensor.shape) - 1
    while (operation := matcher.maker(value, *BROADCASTS, "reshape")) is not None:
        value = operation.operands[0]
        shape = value.tensor.shape
        if operation.name == "reshape":
            axes = [i for i, each in enumerate(shape) if each != 1]
            if len(axes) != 1 or shape[axes[0]] != size:
                return None
            (axis,) = axes
        else:
            dimensions = operation.ints("broadcast_dimensions")
            if axis not in dimensions:
                return None
            axis = dimensions.index(axis)
        if any(each != 1 for i, each in enumerate(shape) if i != axis) or shape[axis] != size:
            return None
    return value if len(value.tensor.shape) == 1 else None


# Branches and convolutions.


def _simplify_case(case: Operation, matcher: Matcher) -> Operation | None:
    """Recognizes lax.cond, which converts its flag to an index."""
    if len(case.regions) != 2:
        return None
    flag = matcher.operand(case.operands[0], "convert")
    if flag is None or flag.tensor.element != "i1":
        return None
    on_false, on_true = case.regions
    return dataclasses.replace(case, name="if", operands=(flag,), regions=(on_true, on_false))


def _reverse_window(convolution: Operation, matcher: Matcher) -> Operation | None:
    """Moves the reversal of a kernel into the convolution."""
    image, kernel, *padding = convolution.operands
    reverse = matcher.maker(kernel, "reverse")
    if reverse is None:
        return None
    axes = convolution.ints("kernel_spatial_dimensions")
    reversed_axes = reverse.ints("dimensions")
    if not set(reversed_axes) <= set(axes):
        return None
    before = convolution.flags("window_reversal")
    flags = [flag != (axis in reversed_axes) for axis, flag in zip(axes, before, strict=True)]
    attribute = DenseElements(TensorType((len(flags),), "i1"), memoryview(bytes(flags)))
    return dataclasses.replace(
        convolution,
        operands=(image, reverse.operands[0], *padding),
        attributes={**convolution.attributes, "window_reversal": attribute},
    )


# Arrays that are joined and taken apart again, such as the caches of the layers of a decoder.


def _take_operand(slice_: Operation, matcher: Matcher) -> Rewritten:
    """Takes a slice of joined arrays from the only one that it reaches."""
    (joined,) = slice_.operands
    concatenate = matcher.maker(joined, "concatenate")
    if concatenate is None:
        return None
    axis, first = concatenate.int("dimension"), 0
    starts, limits = (list(slice_.ints(name)) for name in ("start_indices", "limit_indices"))
    for operand in concatenate.operands:
        size = operand.tensor.shape[axis]
        if size is None:
            return None
        if first <= starts[axis] and limits[axis] <= first + size:
            break
        first += size
    else:
        return None
    if operand.type == slice_.results[0].type:
        return Replacement((), (operand,))
    starts[axis] -= first
    limits[axis] -= first
    bounds = {"start_indices": tuple(starts), "limit_indices": tuple(limits)}
    return dataclasses.replace(
        slice_, operands=(operand,), attributes={**slice_.attributes, **bounds}
    )


def _undo_reshape(reshape: Operation, matcher: Matcher) -> Replacement | None:
    """Drops two reshapes that lead back to the same shape; the first may be a broadcast."""
    (between,) = reshape.operands
    maker = matcher.maker(between, "reshape", "broadcast_in_dim")
    if maker is None or maker.operands[0].type != reshape.results[0].type:
        return None
    (source,) = maker.operands
    if maker.name == "broadcast_in_dim":
        axes = maker.ints("broadcast_dimensions")
        if list(axes) != sorted(axes) or any(
            between.tensor.shape[axis] != size
            for axis, size in zip(axes, source.tensor.shape, strict=True)
        ):
            return None
    is_known = None not in source.tensor.shape and None not in between.tensor.shape
    return Replacement((), (source,)) if is_known else None


# Random numbers: jax.random puts random bits behind the sign and the exponent of 1.

_ONE = 0x3F80
"""Upper 16 bits of 1 in float32, which are also 1 in bfloat16; the fraction is below."""
_FRACTION_BITS: Mapping[tuple[str, str], int] = MappingProxyType(
    {("ui32", "f32"): 23, ("ui16", "f32"): 7}
)
"""Number of bits of the fraction by the types of the bits and of the floats; bfloat16 is f32."""


def _simplify_bits(bitcast: Operation, matcher: Matcher) -> Operation | None:
    (bits,) = bitcast.operands
    (result,) = bitcast.results
    n_bits = _FRACTION_BITS.get((bits.tensor.element, result.tensor.element))
    either = matcher.maker(bits, "or")
    if n_bits is None or either is None or bits.tensor.shape != result.tensor.shape:
        return None
    for fraction, one in in_both_orders(either):
        if matcher.number(one) != _ONE >> 7 << n_bits or _count_bits(fraction, matcher) > n_bits:
            continue
        attributes = {"fraction_bits": n_bits}
        return dataclasses.replace(
            bitcast, name=RANDOM_UNIT, operands=(fraction,), attributes=attributes
        )
    return None


def _count_bits(value: Value, matcher: Matcher) -> int:
    """Returns an upper bound of the number of used bits of integers."""
    row = dtype_of_element(value.tensor.element)
    width = row.bits if row.kind == "uint" else 64
    operation = matcher.maker(value, "and", "convert", "shift_right_logical")
    if operation is None:
        return width
    first = operation.operands[0]
    if operation.name == "convert":
        is_unsigned = dtype_of_element(first.tensor.element).kind == "uint"
        return min(width, _count_bits(first, matcher)) if is_unsigned else width
    number = matcher.number(operation.operands[1])
    if number is None or number < 0:
        return width
    if operation.name == "and":
        return min(width, int(number).bit_length())
    return max(_count_bits(first, matcher) - int(number), 0)


def _drop_assertion(call: Operation, matcher: Matcher) -> Replacement | None:
    if call.attributes.get("call_target_name") != "shape_assertion" or call.results:
        return None
    return Replacement((), ())


SIMPLIFICATIONS = (
    Pattern(frozenset(_IDENTITIES), _drop_identity),
    Pattern(frozenset({"select"}), _choose_operand),
    Pattern(frozenset({"maximum"}), _simplify_maximum),
    Pattern(frozenset({"minimum"}), _simplify_minimum),
    Pattern(frozenset({"clamp"}), _simplify_clamp),
    Pattern(frozenset({"subtract"}), _simplify_subtract),
    Pattern(frozenset({"multiply"}), _simplify_multiply),
    Pattern(frozenset({"add"}), _simplify_add),
    Pattern(frozenset({"case"}), _simplify_case),
    Pattern(frozenset({"convolution", "dynamic_conv"}), _reverse_window),
    Pattern(frozenset({"slice"}), _take_operand),
    Pattern(frozenset({"reshape"}), _undo_reshape),
)
"""Patterns for TensorFlow."""

PATTERNS_OF_BITS = (Pattern(frozenset({"bitcast_convert", BFLOAT16_BITS}), _simplify_bits),)
"""Patterns for converters of TensorFlow's graphs, which do not know Bitcast."""

PATTERNS_OF_ASSERTIONS = (Pattern(frozenset({"custom_call"}), _drop_assertion),)
"""Patterns that drop assertions on sizes, which the caller checks instead."""
