"""Replaces operations that TensorFlow.js and Core ML lack by functions of others.

Both have one kind of integers, int32, which wrap around. Neither has bitwise operations: graph
models of TensorFlow.js 4.22 read the inputs of BitwiseAnd by names that they do not have.

The graph keeps its dtypes. The runtimes take uint32 and the low words of uint64 for int32 with the
same bits, and narrow integers for int32 with the same numbers, which the kernels wrap around.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.to_tensorflow import (
    FormFunctions,
    Kernel,
    find_attribute,
    find_constant,
    find_maker,
    find_node_dtype,
    find_op_definition,
    list_bodies,
    make_form,
    run_node,
)

_MIN_INT32 = -(2**31)


def _split(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the signed high and the unsigned low halves of 32-bit integers.

    WebAssembly divides integers as float32, which is exact for the multiples here.
    """
    number = tf.cast(x, tf.int32)
    low = tf.math.floormod(number, 65536)
    return tf.math.floordiv(tf.subtract(number, low), 65536), low


_DIGITS = 64
_DIGIT_WEIGHTS = _DIGITS ** np.arange(3)
"""Place values of the digits of a half, of 6 bits each."""


def _look_up(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Kernel:
    """Makes a kernel of a bitwise function, by look-ups of 6 bits at a time."""
    digits = np.arange(_DIGITS, dtype=np.int32)
    table = function(digits[:, None], digits).ravel()

    def call(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        places = tf.constant(_DIGIT_WEIGHTS, tf.int32)

        def list_digits(z: tf.Tensor) -> tf.Tensor:
            # One axis for the digits of both halves: Core ML has no arrays of more than 5 axes.
            high, low = _split(z)
            halves = (low, tf.math.floormod(high, 65536))
            digits = [tf.math.floordiv(tf.expand_dims(half, -1), places) for half in halves]
            return tf.math.floormod(tf.concat(digits, -1), _DIGITS)

        index = tf.add(tf.multiply(list_digits(x), _DIGITS), list_digits(y))
        digits = tf.gather(tf.constant(table), index)
        none = np.zeros_like(_DIGIT_WEIGHTS)
        low, high = (
            tf.reduce_sum(tf.multiply(digits, tf.constant(weights, tf.int32)), -1)
            for weights in ([*_DIGIT_WEIGHTS, *none], [*none, *_DIGIT_WEIGHTS])
        )
        return tf.cast(tf.add(tf.multiply(high, 65536), low), x.dtype)

    return call


def _invert(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.subtract(-1, tf.cast(x, tf.int32)), x.dtype)


_PLACES = np.arange(33)
_POWERS = (2**_PLACES & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def _at_places(table: np.ndarray, places: tf.Tensor) -> tf.Tensor:
    index = tf.minimum(tf.maximum(tf.cast(places, tf.int32), 0), 32)
    return tf.gather(tf.constant(table, tf.int32), index)


def _shift_left(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    # Products with powers of two are exact modulo 2**32, in JavaScript's numbers as well.
    return tf.cast(tf.multiply(tf.cast(x, tf.int32), _at_places(_POWERS, y)), x.dtype)


def _shift_right(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    places = tf.cast(y, tf.int32)
    high, low = _split(x)
    if x.dtype.is_unsigned:
        high = tf.math.floormod(high, 65536)
    near = tf.add(
        tf.multiply(high, _at_places(_POWERS, tf.subtract(16, tf.minimum(places, 16)))),
        tf.math.floordiv(low, _at_places(_POWERS, tf.minimum(places, 16))),
    )
    far = tf.math.floordiv(high, _at_places(_POWERS, tf.minimum(tf.subtract(places, 16), 16)))
    return tf.cast(tf.where(tf.less(places, 16), near, far), x.dtype)


def _multiply(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Multiplies modulo 2**32 where products are rounded to 53 bits, as JavaScript's are."""
    left, right = tf.cast(x, tf.int32), tf.cast(y, tf.int32)
    low = tf.math.floormod(right, 65536)
    product = tf.add(tf.multiply(left, low), tf.multiply(left, tf.subtract(right, low)))
    return tf.cast(product, x.dtype)


def _square(x: tf.Tensor) -> tf.Tensor:
    return _multiply(x, x)


def negate(x: tf.Tensor) -> tf.Tensor:
    # TensorFlow.js negates integers as float32 in WebAssembly.
    return tf.subtract(tf.zeros([], x.dtype), x)


def absolute(x: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.less(x, 0), negate(x), x)


def _in_order(function: Kernel) -> Kernel:
    """Makes a kernel of unsigned integers, by signed ones in the same order."""

    def call(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        result = function(*(tf.add(tf.cast(z, tf.int32), _MIN_INT32) for z in (x, y)))
        if result.dtype == tf.bool:
            return result
        return tf.cast(tf.add(result, _MIN_INT32), x.dtype)

    return call


def unsigned_to_float(x: tf.Tensor) -> tf.Tensor:
    """Converts uint32 to float32 with one rounding."""
    high, low = (tf.cast(half, tf.float32) for half in _split(x))
    high = tf.where(tf.less(high, 0.0), tf.add(high, 65536.0), high)
    return tf.add(tf.multiply(high, 65536.0), low)


def float_to_unsigned(x: tf.Tensor) -> tf.Tensor:
    """Converts float32 from 0 to 2**32 to uint32."""
    high = tf.floor(tf.divide(x, 65536.0))
    low = tf.cast(tf.floor(tf.subtract(x, tf.multiply(high, 65536.0))), tf.int32)
    joined = tf.add(tf.multiply(tf.cast(high, tf.int32), 65536), low)
    return tf.cast(joined, tf.uint32)


def wrap(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Wraps int32 around to the numbers of a narrow dtype."""
    bits = 8 * dtype.size
    bias = 0 if dtype.is_unsigned else 2 ** (bits - 1)
    return tf.cast(tf.subtract(tf.math.floormod(tf.add(x, bias), 2**bits), bias), dtype)


def wrap_result(kernel: Kernel, dtype: tf.DType) -> Kernel:
    """Makes a kernel that computes with narrow integers in int32 and wraps the result."""

    def call(*tensors: tf.Tensor) -> tf.Tensor:
        wide = (tf.cast(x, tf.int32) if x.dtype == dtype else x for x in tensors)
        return wrap(kernel(*wide), dtype)

    return call


def scatter_update(x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    """Updates a copy, because TensorFlow.js writes into the array that it gets."""
    if x.dtype == tf.bool:
        duplicate = tf.logical_or(x, False)
    else:
        duplicate = tf.multiply(x, tf.ones([], x.dtype))
    return tf.tensor_scatter_nd_update(duplicate, indices, updates)


def scatter_add(x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    """Adds updates at indices; ScatterNd sums those of the same index."""
    return tf.add(x, tf.scatter_nd(indices, updates, tf.shape(x, indices.dtype)))


def multiply_bytes(x: tf.Tensor, y: tf.Tensor, product: Kernel) -> tf.Tensor:
    """Multiplies or convolves 8-bit numbers in int32 by float32 products, which are exact here.

    WebAssembly has no other products of matrices. They are exact for up to 74,000 summands.

    Args:
      x: the left matrix, or the image.
      y: the right matrix, or the kernel.
      product: the product or convolution in float32.
    """

    def split(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        low = tf.math.floormod(z, 16)
        high = tf.math.floordiv(tf.subtract(z, low), 16)
        return tf.cast(high, tf.float32), tf.cast(low, tf.float32)

    def multiply(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        return tf.cast(product(left, right), tf.int32)

    (high, low), (other_high, other_low) = split(x), split(y)
    mixed = tf.add(multiply(high, other_low), multiply(low, other_high))
    result = tf.add(tf.multiply(multiply(high, other_high), 16), mixed)
    return tf.add(tf.multiply(result, 16), multiply(low, other_low))


def gather_batch(
    x: tf.Tensor, indices: tf.Tensor, axis: tf.Tensor, *, batch_dims: int
) -> tf.Tensor:
    """Gathers along the axis after the batch, which TensorFlow.js does wrongly in WebAssembly."""
    shape, index_shape = tf.shape(x), tf.shape(indices)
    batch, rest = index_shape[:batch_dims], index_shape[batch_dims:]
    rows = shape[batch_dims]
    first = tf.multiply(tf.range(tf.reduce_prod(batch)), rows)
    first = tf.reshape(first, tf.concat([batch, tf.ones_like(rest)], 0))
    rows_of_all = tf.reshape(x, tf.concat([[-1], shape[batch_dims + 1 :]], 0))
    return tf.gather(rows_of_all, tf.add(tf.cast(indices, tf.int32), first))


def truncated_remainder(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the remainder with the sign of the dividend."""
    zero = tf.zeros([], x.dtype)
    if x.dtype.is_floating:
        rest = tf.math.floormod(tf.abs(x), tf.abs(y))
        return tf.where(tf.less(x, zero), tf.negative(rest), rest)
    rest = tf.math.floormod(x, y)
    has_other_sign = tf.not_equal(tf.less(x, zero), tf.less(y, zero))
    is_rounded_down = tf.logical_and(tf.not_equal(rest, zero), has_other_sign)
    return tf.where(is_rounded_down, tf.subtract(rest, y), rest)


def truncated_quotient(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Divides int32 and rounds towards zero, although the runtimes divide as float32.

    The first estimate is too near to zero by less than one part in 2**19, so the quotient of the
    rest has at most 13 bits, and rounds to the right integer.
    """
    multiple = tf.subtract(x, truncated_remainder(x, y))
    divisor = tf.cast(y, tf.float32)
    estimate = tf.multiply(tf.divide(tf.cast(multiple, tf.float32), divisor), 1 - 2.0**-20)
    quotient = tf.cast(estimate, tf.int32)
    rest = tf.subtract(multiple, tf.multiply(quotient, y))
    more = tf.round(tf.divide(tf.cast(rest, tf.float32), divisor))
    return tf.add(quotient, tf.cast(more, tf.int32))


def logical_xor(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.not_equal(tf.cast(x, tf.int32), tf.cast(y, tf.int32))


BITS: Mapping[str, Kernel] = MappingProxyType(
    {
        "BitwiseAnd": _look_up(np.bitwise_and),
        "BitwiseOr": _look_up(np.bitwise_or),
        "BitwiseXor": _look_up(np.bitwise_xor),
        "Invert": _invert,
        "LeftShift": _shift_left,
        "RightShift": _shift_right,
    }
)
"""Kernels of all integers; narrow ones wrap their results."""
UNSIGNED: Mapping[str, Kernel] = MappingProxyType(
    {
        "Greater": _in_order(tf.greater),
        "GreaterEqual": _in_order(tf.greater_equal),
        "Less": _in_order(tf.less),
        "LessEqual": _in_order(tf.less_equal),
        "Maximum": _in_order(tf.maximum),
        "Minimum": _in_order(tf.minimum),
        "Mul": _multiply,
    }
)
"""Kernels of uint32."""


WIDE_PRODUCTS: Mapping[str, Kernel] = MappingProxyType({"Mul": _multiply, "Square": _square})
"""Kernels of int32 for products that may have more than 53 bits, as in hashes."""


# The choice of nodes to replace.


_NARROW = (tf.int8, tf.uint8, tf.int16, tf.uint16)
"""Integers that the runtimes hold as int32."""
_OF_NARROW: Mapping[str, Kernel] = MappingProxyType(
    {
        "Abs": absolute,
        "Add": tf.add,
        "AddV2": tf.add,
        "Mul": tf.multiply,
        "Neg": negate,
        "Square": tf.square,
        "Sub": tf.subtract,
        "TensorScatterAdd": scatter_add,
        "TruncateDiv": truncated_quotient,
        **BITS,
    }
)
"""Kernels of int32 whose results may exceed narrow integers; they are wrapped around."""
_SUMS = frozenset({"Cumsum", "Prod", "Sum"})
"""Operations with attributes whose results may exceed narrow integers."""
_EXACT: Mapping[str, Kernel] = MappingProxyType(
    {"Abs": absolute, "Neg": negate, "TruncateDiv": truncated_quotient}
)
"""Kernels of int32 in place of TensorFlow.js' own, which compute in float32."""


FindKernel: TypeAlias = Callable[[Any, Mapping[str, Any]], Kernel | None]
"""Returns the function that replaces a node; None keeps the node.

The mapping has the nodes of its graph or function by name.

A function that depends on more than the node's attributes is a `functools.partial` with the rest as
keywords.
"""


def replace_lacking(graph: Any, find_own: FindKernel) -> None:
    """Replaces operations that a runtime lacks by their forms, if they have one.

    Args:
      graph: a GraphDef, which is changed in place.
      find_own: finds the forms of this runtime alone, which come first.
    """
    functions = FormFunctions(graph, "form")
    for nodes in list_bodies(graph):
        makers = {node.name: node for node in nodes}
        for node in nodes:
            kernel = find_own(node, makers) or _find_kernel(node, makers)
            if kernel is not None and find_op_definition(node.op) is not None:
                keywords = kernel.keywords if isinstance(kernel, functools.partial) else {}
                functions.replace(node, make_form(node, kernel), *keywords.items())
    graph.library.function.extend(functions.definitions)


def _find_kernel(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    if node.op == "Cast":
        return _cast(node)
    if node.op == "GatherV2":
        return _gather(node, makers)
    if node.op in _PRODUCTS and all(_has_bytes(tensor, makers) for tensor in node.input):
        return lambda x, y: multiply_bytes(
            x, y, lambda left, right: run_node(node, [left, right], T=tf.float32)
        )
    dtype = find_node_dtype(node, "T")
    if dtype in _NARROW and node.op in _OF_NARROW:
        return wrap_result(_OF_NARROW[node.op], dtype)
    if dtype in _NARROW and node.op in _SUMS:
        return wrap_result(lambda *operands: run_node(node, operands, T=tf.int32), dtype)
    if node.op in _ALWAYS:
        return _ALWAYS[node.op]
    if dtype is None or not dtype.is_integer or dtype in _NARROW:
        return None
    if dtype in (tf.int32, tf.uint32) and node.op in _EXACT:
        return _EXACT[node.op]
    if dtype == tf.uint32 and node.op in UNSIGNED:
        return UNSIGNED[node.op]
    if dtype == tf.int32 and node.op in WIDE_PRODUCTS:
        is_exact = any(_has_small_numbers(tensor, makers) for tensor in node.input)
        return None if is_exact else WIDE_PRODUCTS[node.op]
    return BITS.get(node.op)


def _cast(node: Any) -> Kernel | None:
    source, result = find_node_dtype(node, "SrcT"), find_node_dtype(node, "DstT")
    if source is None or result is None:
        return None
    if result in _NARROW and source not in (tf.bool, result):
        return lambda x: wrap(tf.cast(x, tf.int32), result)
    if source == tf.uint32 and result.is_floating:
        return lambda x: tf.cast(unsigned_to_float(x), result)
    if source.is_floating and result == tf.uint32:
        return lambda x: float_to_unsigned(tf.cast(x, tf.float32))
    return None


def _gather(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    batch_dims = find_attribute(node, "batch_dims").i
    if batch_dims <= 0 or find_constant(node.input[2], makers) != batch_dims:
        return None
    return functools.partial(gather_batch, batch_dims=batch_dims)


_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "Conv2D")
_MOVES = frozenset(
    {"ExpandDims", "Identity", "Pad", "Reshape", "Slice", "Squeeze", "StridedSlice", "Transpose"}
)


def _has_bytes(tensor: str, makers: Mapping[str, Any]) -> bool:
    """Returns whether an int32 tensor has numbers of 8 bits."""
    while (move := find_maker(tensor, makers, *_MOVES)) is not None:
        tensor = move.input[0]
    cast = find_maker(tensor, makers, "Cast")
    return (
        cast is not None
        and find_node_dtype(cast, "SrcT") in (tf.int8, tf.uint8)
        and find_node_dtype(cast, "DstT") == tf.int32
    )


_MAX_FACTOR = 2**21
"""Maximum factor with which all products of int32 are exact in JavaScript's numbers of 53 bits."""
_SIZES = frozenset({"ArgMax", "ArgMin", "Range", "Rank", "Shape", "Size"})
"""Operations whose results are sizes and indices, which count as small numbers."""
_PARTS = frozenset({"BroadcastTo", "GatherV2", "Slice", "StridedSlice", "Unpack"})
"""Operations whose results are elements of their first input."""


def _has_small_numbers(tensor: str, makers: Mapping[str, Any]) -> bool:
    """Returns whether the numbers of an int32 tensor are known to be at most `_MAX_FACTOR`."""
    while (move := find_maker(tensor, makers, *_MOVES, *_PARTS)) is not None:
        tensor = move.input[0]
    constant = find_constant(tensor, makers)
    if constant is not None:
        return bool(np.all(np.abs(constant.astype(np.int64)) <= _MAX_FACTOR))
    cast = find_maker(tensor, makers, "Cast")
    if cast is not None:
        return find_node_dtype(cast, "SrcT") in (tf.bool, *_NARROW)
    return find_maker(tensor, makers, *_SIZES) is not None


_ALWAYS: Mapping[str, Kernel] = MappingProxyType(
    {
        "LogicalXor": logical_xor,
        "Rint": tf.round,
        "TensorScatterAdd": scatter_add,
        "TensorScatterUpdate": scatter_update,
        "TruncateMod": truncated_remainder,
    }
)
"""Kernels of operations that TensorFlow.js lacks, or computes wrongly, for each dtype."""
