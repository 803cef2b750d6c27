"""Reductions, sums along axes, and orders."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from jax2tf_bridge.to_onnx._functions import (
    cast,
    elementwise,
    find_kernel,
    function,
    make_indices,
    to_tensor,
)
from jax2tf_bridge.to_onnx._graph import DTYPES, OnnxDType, OnnxGraph, Tensor

_INT32, _INT64 = DTYPES["int32"], DTYPES["int64"]
_UINT64, _BOOL = DTYPES["uint64"], DTYPES["bool"]
_HIGHEST_BIT = np.array(1 << 63, np.uint64)


def _reduce_shape(x: Tensor, axis: Any, *, keeps_axes: bool) -> tuple[list[int], list[int | None]]:
    rank = x.shape.rank
    numbers = range(rank) if axis is None else [axis] if np.ndim(axis) == 0 else axis
    axes = sorted(int(number) % rank for number in numbers)
    if keeps_axes:
        return axes, [1 if i in axes else size for i, size in enumerate(x.shape)]
    return axes, [size for i, size in enumerate(x.shape) if i not in axes]


def _reduce(
    graph: OnnxGraph,
    value: Any,
    axis: Any = None,
    keepdims: bool = False,
    *,
    operation: str,
    keeps_bits: bool = False,
) -> Tensor:
    x = to_tensor(graph, value)
    axes, shape = _reduce_shape(x, axis, keeps_axes=keepdims)
    if not axes:
        return x
    within = find_kernel(operation, x.dtype, keeps_bits=keeps_bits)
    operands = [cast(graph, x, within), make_indices(graph, *axes)]
    result = graph.add(operation, operands, within, shape, keepdims=int(keepdims))
    return cast(graph, result, x.dtype)


_sum = functools.partial(_reduce, operation="ReduceSum", keeps_bits=True)


@function("reduce_sum")
def _reduce_sum(graph: OnnxGraph, value: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Sums integers modulo powers of two; ONNX Runtime computes with float64, and saturates."""
    x = to_tensor(graph, value)
    if not x.dtype.is_integer:
        return _sum(graph, x, axis, keepdims)
    if x.dtype.size < 8:
        return cast(graph, _sum(graph, cast(graph, x, _INT64), axis, keepdims), x.dtype)
    bits = cast(graph, x, _UINT64)
    half = graph.constant(np.array(32, np.uint64))
    parts = (
        graph.make("bitwise.bitwise_and", bits, graph.constant(np.array(0xFFFFFFFF, np.uint64))),
        graph.make("bitwise.right_shift", bits, half),
    )
    low, high = (
        cast(graph, _sum(graph, cast(graph, part, _INT64), axis, keepdims), _UINT64)
        for part in parts
    )
    return cast(graph, low + graph.make("bitwise.left_shift", high, half), x.dtype)


@function("reduce_prod")
def _reduce_prod(graph: OnnxGraph, value: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Multiplies integers modulo powers of two; ONNX Runtime's ReduceProd saturates."""
    x = to_tensor(graph, value)
    if x.dtype.is_integer:
        return multiply_halves(graph, x, axis, keepdims)
    return _reduce(graph, x, axis, keepdims, operation="ReduceProd")


def multiply_halves(
    graph: OnnxGraph, x: Tensor, axis: Any = None, keepdims: bool = False
) -> Tensor:
    """Multiplies the elements along axes, by products of halves."""
    axes, _ = _reduce_shape(x, axis, keeps_axes=keepdims)
    for place in axes:
        if not x.shape[place]:
            x = _multiply_open_axis(graph, x, place)
        before = (slice(None),) * place
        while (size := x.shape[place]) > 1:
            half = size // 2
            low, high = x[(*before, slice(half))], x[(*before, slice(half, 2 * half))]
            pairs = low * high
            odd = [x[(*before, slice(2 * half, None))]] if size % 2 else []
            x = graph.make("concat", [pairs, *odd], place) if odd else pairs
    return x if keepdims else graph.make("squeeze", x, axes)


def _multiply_open_axis(graph: OnnxGraph, x: Tensor, axis: int) -> Tensor:
    """Multiplies the elements along an axis of open size, which keeps a size of 1."""
    before = (slice(None),) * axis
    one = graph.constant(np.ones((), x.dtype.as_numpy_dtype))

    def size(rows: Tensor) -> Any:
        return graph.call("shape", rows)[axis]

    def pad(rows: Tensor, count: Any) -> Tensor:
        amounts = [[0, count if i == axis else 0] for i in range(rows.shape.rank)]
        return graph.make("pad", rows, amounts, one)

    def step(rows: Tensor) -> list[Tensor]:
        half = (size(rows) + 1) // 2
        even = pad(rows, size(rows) % 2)
        return [even[(*before, slice(half))] * even[(*before, slice(half, None))]]

    shape = [None if i == axis else n for i, n in enumerate(x.shape)]
    # With one more 1, the product of no elements is 1.
    (result,) = graph.call(
        "while_loop", lambda rows: size(rows) > 1, step, [pad(x, 1)], shape_invariants=[shape]
    )
    result.set_shape([1 if i == axis else n for i, n in enumerate(x.shape)])
    assert isinstance(result, Tensor), "a loop returns tensors"
    return result


def _reduce_flags(
    graph: OnnxGraph, x: Tensor, axis: Any = None, keepdims: bool = False, *, operation: str
) -> Tensor:
    axes, shape = _reduce_shape(x, axis, keeps_axes=keepdims)
    if not axes:
        return x
    operands = [cast(graph, x, _INT32), make_indices(graph, *axes)]
    result = graph.add(operation, operands, _INT32, shape, keepdims=int(keepdims))
    # The maximum of no elements is the least integer, and their minimum the greatest one.
    return graph.add("Greater", [result, graph.constant(np.array(0, np.int32))], _BOOL, shape)


def _to_order(graph: OnnxGraph, x: Tensor) -> Tensor:
    """Makes int64 in the order of uint64, which ONNX Runtime does not compare."""
    return cast(graph, elementwise(graph, "BitwiseXor", x, _HIGHEST_BIT), _INT64)


def _from_order(graph: OnnxGraph, x: Tensor) -> Tensor:
    return elementwise(graph, "BitwiseXor", cast(graph, x, _UINT64), _HIGHEST_BIT)


def _reduce_extreme(
    graph: OnnxGraph, x: Tensor, axis: Any = None, keepdims: bool = False, *, operation: str
) -> Tensor:
    if x.dtype is _UINT64:
        result = _reduce(graph, _to_order(graph, x), axis, keepdims, operation=operation)
        return _from_order(graph, result)
    result = _reduce(graph, x, axis, keepdims, operation=operation)
    if result is x or not x.dtype.is_floating:
        return result
    # ONNX Runtime's maxima and minima of many elements leave out NaN.
    has_nan = graph.make("reduce_any", graph.make("math.is_nan", x), axis, keepdims)
    nan = graph.constant(np.array(np.nan, x.dtype.as_numpy_dtype))
    return graph.make("where", has_nan, nan, result)


def _find_extreme(
    graph: OnnxGraph,
    x: Tensor,
    axis: int = 0,
    output_type: OnnxDType = _INT64,
    *,
    operation: str,
) -> Tensor:
    (place,), shape = _reduce_shape(x, axis, keeps_axes=False)
    x = _to_order(graph, x) if x.dtype is _UINT64 else x
    operand = cast(graph, x, find_kernel(operation, x.dtype))
    result = graph.add(operation, [operand], _INT64, shape, axis=place, keepdims=0)
    return cast(graph, result, output_type)


@function("cumsum")
def _cumsum(graph: OnnxGraph, x: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    within = find_kernel("CumSum", x.dtype, keeps_bits=True)
    at = graph.constant(np.array(axis, np.int32))
    operands = [cast(graph, x, within), at]
    result = graph.add("CumSum", operands, within, x.shape, reverse=int(reverse))
    return cast(graph, result, x.dtype)


class _TopK(NamedTuple):
    """Values in descending order, and where they were."""

    values: Tensor
    indices: Tensor


@function("math.top_k")
def _top_k(graph: OnnxGraph, x: Tensor, k: Any) -> _TopK:
    """Returns the k greatest elements of the last axis; of equal ones the first come first."""
    if x.dtype is _UINT64:
        values, places = _top_k(graph, _to_order(graph, x), k)
        return _TopK(_from_order(graph, values), places)
    within = find_kernel("TopK", x.dtype)
    count = cast(graph, to_tensor(graph, k), _INT64)
    number = None if count.value is None else int(count.value)
    vector = graph.make("expand_dims", count, 0)
    shape = [*x.shape[:-1], number]
    values, places = graph.add_several(
        "TopK", [cast(graph, x, within), vector], [(within, shape), (_INT64, shape)], axis=-1
    )
    return _TopK(cast(graph, values, x.dtype), cast(graph, places, _INT32))


@function("norm")
def _norm(graph: OnnxGraph, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    return elementwise(graph, "Sqrt", graph.make("reduce_sum", x * x, axis, keepdims))


FUNCTIONS = (
    function("reduce_mean")(functools.partial(_reduce, operation="ReduceMean")),
    function("reduce_max")(functools.partial(_reduce_extreme, operation="ReduceMax")),
    function("reduce_min")(functools.partial(_reduce_extreme, operation="ReduceMin")),
    function("reduce_all")(functools.partial(_reduce_flags, operation="ReduceMin")),
    function("reduce_any")(functools.partial(_reduce_flags, operation="ReduceMax")),
    function("argmax")(functools.partial(_find_extreme, operation="ArgMax")),
    function("argmin")(functools.partial(_find_extreme, operation="ArgMin")),
)
