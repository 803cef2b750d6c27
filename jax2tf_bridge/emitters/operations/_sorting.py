"""Sorting with any comparator, and top_k.

The lexicographic comparators of JAX become ops.math.top_k: sort keys are converted to integers in
the same order, including NaN and -0. Other comparators are implemented by merging runs in a loop.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax2tf_bridge.bytecode import Block, Operation, Value
from jax2tf_bridge.emitters._array import Array, Arrays, graph_dtype
from jax2tf_bridge.emitters._movement import fit_sizes, resize, transpose
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters.formulas.floats import total_order_key
from jax2tf_bridge.emitters.formulas.integers import constant_like
from jax2tf_bridge.emitters.operations._calls import read_mapping
from jax2tf_bridge.rewriting import PLACES, SortKey, match_sort_keys
from shape_poly import Dim


@emits("sort")
def _sort(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    axis = operation.int("dimension") % operands[0].rank
    (block,) = operation.regions
    return sort(scope, block, operands, axis, operands[0].sizes[axis], _read_places(operation))


def _read_places(operation: Operation) -> Sequence[Any]:
    flags = operation.attributes.get(PLACES)
    return flags if isinstance(flags, tuple) else ()


def sort(
    scope: Scope,
    block: Block,
    operands: Arrays,
    axis: int,
    count: Dim,
    is_place: Sequence[Any] = (),
) -> Arrays:
    """Sorts arrays together along an axis, stably, and keeps the first `count` elements.

    `is_place` has a flag for each array, whether its elements are their place along the axis.
    """
    if operands[0].sizes[axis] in (0, 1):
        return operands
    if axis != operands[0].rank - 1:
        order = [i for i in range(operands[0].rank) if i != axis] + [axis]
        moved = [transpose(scope, array, order) for array in operands]
        back = [order.index(i) for i in range(len(order))]
        results = sort(scope, block, moved, len(order) - 1, count, is_place)
        return [transpose(scope, array, back) for array in results]
    keys = match_sort_keys(block, functools.partial(_are_equal_constants, scope))
    if keys is None:
        index = _merge(scope, block, operands)
        length = operands[0].sizes[-1]
        if count != length:
            index = index[..., : scope.sizes.size(count)]
    else:
        index = _index_by_keys(scope, keys, operands, count)
    flags = is_place or [False] * len(operands)
    pairs = zip(operands, flags, strict=True)
    return [_take(scope, array, index, count, is_place=flag) for array, flag in pairs]


def _are_equal_constants(scope: Scope, left: Value, right: Value) -> bool:
    a, b = scope.array(left), scope.array(right)
    if a.numbers is None or b.numbers is None or a.element != b.element:
        return False
    return a.sizes == b.sizes and a.numbers.tobytes() == b.numbers.tobytes()


def _take(scope: Scope, array: Array, index: ops.Tensor, count: Dim, *, is_place: bool) -> Array:
    """Takes elements of the last axis by an index that differs per row."""
    sizes = (*array.sizes[:-1], count)
    if array.repeats(array.rank - 1) and array.sizes[-1] != 1:
        return resize(array, sizes)
    if is_place:
        return scope.new_array(ops.cast(index, array.graph_dtype), array.element, sizes)
    if all(array.repeats(axis) for axis in range(array.rank - 1)):
        row = scope.compact(array)
        row = row if row.shape.rank == 1 else ops.reshape(row, [-1])
        return scope.new_array(ops.gather(row, index), array.element, sizes)
    result = ops.gather(scope.tensor(array), index, batch_dims=array.rank - 1)
    return scope.new_array(result, array.element, sizes)


# Sort keys.


def _index_by_keys(
    scope: Scope, keys: Sequence[SortKey], operands: Arrays, count: Dim
) -> ops.Tensor:
    sizes = operands[0].sizes
    index: ops.Tensor | None = None
    # Stable sorts from the last key to the first give the lexicographic order.
    for key in reversed(keys):
        (number,) = scope.new_region().run(key.block, operands)
        number = fit_sizes(scope, number, sizes)
        tensor = _to_integers(scope, number, key)
        if index is not None:
            tensor = ops.gather(tensor, index, batch_dims=len(sizes) - 1)
        length = count if key is keys[0] else sizes[-1]
        result = ops.math.top_k(tensor, scope.sizes.size(length)).indices
        index = result if index is None else ops.gather(index, result, batch_dims=len(sizes) - 1)
    assert index is not None, "there is a key"
    return index


def _to_integers(scope: Scope, number: Array, key: SortKey) -> ops.Tensor:
    """Converts sort keys to integers; the greatest integer comes first."""
    tensor = scope.tensor(number)
    row = number.row
    if row.kind == "bool":
        tensor = ops.cast(tensor, ops.int8)
    if tensor.dtype.is_unsigned and tensor.dtype.size == 2:
        tensor = ops.cast(tensor, ops.int32)  # LiteRT does not sort uint16
    if tensor.dtype.is_unsigned and tensor.dtype.size >= 4 and not scope.for_converters:
        # LiteRT only sorts signed integers.
        signed = ops.int32 if tensor.dtype.size == 4 else ops.int64
        half = constant_like(tensor, tensor.dtype.max // 2 + 1)
        tensor = ops.bitcast(ops.add(tensor, half), signed)
    if row.kind == "float":
        if not key.total_order:
            tensor = ops.where(ops.equal(tensor, 0), ops.zeros([], tensor.dtype), tensor)
        if scope.for_onnx or scope.for_frozen_graph:
            tensor = _put_nan_last(tensor, ops.float64 if scope.for_onnx else ops.float32)
        elif not scope.for_converters:
            wide = ops.cast(tensor, ops.float32) if tensor.dtype.size == 1 else tensor
            tensor = total_order_key(wide)
        # Other converters cannot read bits; NaN may then be anywhere in the order.
    if key.descending:
        return tensor
    if tensor.dtype.is_floating:
        return ops.negative(tensor)
    # Subtracting from -1, or from the greatest unsigned integer, reverses the order.
    return constant_like(tensor, -1 if tensor.dtype.min < 0 else tensor.dtype.max) - tensor


def _put_nan_last(tensor: ops.Tensor, dtype: ops.DType) -> ops.Tensor:
    """Converts floats to floats in the same order, in which NaN comes after inf.

    The greatest number of `dtype` takes the place of infinity.
    """
    wide = ops.cast(tensor, dtype)
    largest = constant_like(wide, dtype.max)
    finite = ops.minimum(ops.maximum(wide, -largest), largest)
    return ops.where(ops.math.is_nan(wide), constant_like(wide, np.inf), finite)


# Any other comparator.


def _merge(scope: Scope, block: Block, operands: Arrays) -> ops.Tensor:
    """Finds the order of the last axis by merging runs of 1, 2, 4, ... elements.

    The position of an element in the merged run is its position in its own run plus the number of
    elements of the other run that come before it. Bisection finds that for all elements at once.
    """
    sizes = operands[0].sizes
    flat = [ops.reshape(scope.carry(array), [-1]) for array in operands]
    length = scope.sizes.number(sizes[-1], ops.int32)
    total = ops.size(flat[0])
    place = ops.reshape(ops.broadcast_to(ops.range(length), scope.sizes.shape(sizes)), [-1])
    first = ops.range(total) - place

    def comes_before(left: ops.Tensor, right: ops.Tensor) -> ops.Tensor:
        inner = scope.new_region(other_graph=True)
        size = inner.sizes.new_size(total)
        arguments = [
            inner.measure(ops.gather(tensor, at), array.element, (size,))
            for tensor, array in zip(flat, operands, strict=True)
            for at in (left, right)
        ]
        (verdict,) = inner.run(block, arguments)
        return inner.tensor(fit_sizes(inner, verdict, (size,)))

    def merge(width: ops.Tensor, order: ops.Tensor) -> tuple[ops.Tensor, ops.Tensor]:
        is_left = ops.equal(place // width % 2, 0)
        start = ops.minimum(
            ops.where(is_left, (place // width + 1), place // width - 1) * width, length
        )
        end = ops.minimum(start + width, length)
        steps = width * 2

        def narrow(
            span: ops.Tensor, low: ops.Tensor, high: ops.Tensor
        ) -> tuple[ops.Tensor, ops.Tensor, ops.Tensor]:
            middle = (low + high) // 2
            is_open = low < high
            candidate = ops.gather(order, ops.where(is_open, first + middle, first + place))
            before = comes_before(
                ops.where(is_left, candidate, order), ops.where(is_left, order, candidate)
            )
            # Equal elements of the left run come first.
            goes_right = ops.logical_and(is_open, ops.equal(before, is_left))
            goes_left = ops.logical_and(is_open, ops.not_equal(before, is_left))
            return (
                span // 2,
                ops.where(goes_right, middle + 1, low),
                ops.where(goes_left, middle, high),
            )

        _, places, _ = ops.while_loop(lambda span, *_: span > 0, narrow, (steps, start, end))
        run = place // (2 * width) * (2 * width)
        target = run + place % width + places - start
        back = ops.math.top_k(-ops.reshape(target, scope.sizes.shape(sizes)), length).indices
        moved = ops.gather(order, ops.reshape(back, [-1]) + first)
        return width * 2, moved

    _, order = ops.while_loop(
        lambda width, _: width < length,
        merge,
        (ops.constant(1), ops.range(total)),
        shape_invariants=(ops.TensorShape([]), ops.TensorShape([None])),
    )
    return ops.reshape(order - first, scope.sizes.shape(sizes))


# top_k.


@emits("chlo.top_k", "mhlo.topk")
def _top_k(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    parameters = _read_parameters(operation)
    count = parameters.get("k")
    if not isinstance(count, int):
        scope.fail(operation, f"its k is {count!r:.100}")
    largest = parameters.get("largest")
    return top_k(scope, operation, operands[0], count, descending=largest is not False)


def _read_parameters(operation: Operation) -> Mapping[str, Any]:
    names = ("composite_attributes", "mhlo.attributes", "mhlo.backend_config")
    return read_mapping(operation, *names) or operation.attributes


@emits("stablehlo.dynamic_top_k")
def _dynamic_top_k(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    array, count = operands
    return top_k(scope, operation, array, _read_number(scope, count), descending=True)


def _read_number(scope: Scope, array: Array) -> Dim:
    """Reads the only element of an array as a size."""
    if array.integers is not None:
        return array.integers[0]
    return scope.sizes.new_size(ops.reshape(scope.tensor(array), []))


def top_k(
    scope: Scope, operation: Operation, array: Array, count: Dim, *, descending: bool
) -> Arrays:
    """Finds the greatest numbers of the last axis and their indices; the first of equal numbers."""
    sizes = (*array.sizes[:-1], count)
    if array.row.is_integer and descending:
        values, index = ops.math.top_k(scope.tensor(array), scope.sizes.size(count))
        result = scope.new_array(values, array.element, sizes)
    else:
        key = SortKey(Block((), ()), descending, total_order=True)
        index = ops.math.top_k(_to_integers(scope, array, key), scope.sizes.size(count)).indices
        result = _take(scope, array, index, count, is_place=False)
    element = operation.results[1].tensor.element
    return [result, scope.new_array(ops.cast(index, graph_dtype(element)), element, sizes)]


@emits("ApproxTopK", "stablehlo.dynamic_approx_top_k")
def _approx_top_k(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    parameters = _read_parameters(operation)
    axis, count = parameters.get("reduction_dim"), parameters.get("top_k")
    n_arrays = len(operation.results)
    arrays = operands[:n_arrays]
    if not isinstance(axis, int):
        scope.fail(operation, f"its reduction_dim is {axis!r:.100}")
    # The approximate operation is computed exactly.
    length: Dim | None
    if operation.text("call_target_name") == "stablehlo.dynamic_approx_top_k":
        length = _read_number(scope, operands[2 * n_arrays])
    else:
        # Without aggregate_to_topk the result has more elements than top_k.
        length = operation.result_type.shape[axis]
        if length is None and isinstance(count, int):
            length = count
    if length is None:
        scope.fail(operation, f"its top_k is {count!r:.100}")
    block = scope.called_block(operation)
    return sort(scope, block, arrays, axis % arrays[0].rank, length, _read_places(operation))
