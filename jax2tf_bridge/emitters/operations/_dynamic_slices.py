"""Dynamic slices and updates, whose starts are operands."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from typing import Any, TypeAlias

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape
from jax2tf_bridge.emitters._movement import (
    concatenate,
    find_compact_sizes,
    iota,
    reshape,
    resize,
    select,
    slice_array,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters.operations._indices import clamp, scalar_index, slice_axis
from shape_poly import Dim, DimExpr

_Start: TypeAlias = "Dim | ops.Tensor"

_MAX_COPIED_BYTES = 1 << 18
"""Maximum size in bytes of an array that is copied for an update. TensorStridedSliceUpdate writes
in place if nothing else reads the array, as in loops, but some consumers of graphs lack it. For
small arrays a copy is as fast as another operation."""


@emits("dynamic_slice")
def _dynamic_slice(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, *starts = operands
    sizes = operation.ints("slice_sizes")
    return slice_at(scope, array, clamp_starts(scope, array, starts, sizes), sizes)


def clamp_starts(scope: Scope, array: Array, starts: Arrays, sizes: Shape) -> dict[int, Array]:
    """Clamps starts so that slices lie within an array; omits axes that are taken whole."""
    return {
        axis: clamp(scope, start, array.sizes[axis] - sizes[axis])
        for axis, start in enumerate(starts)
        if array.sizes[axis] != sizes[axis]
    }


def slice_at(
    scope: Scope,
    array: Array,
    starts: Mapping[int, Array],
    sizes: Shape,
    new_sizes: Shape | None = None,
) -> Array:
    """Takes a slice, whose starts must lie within the array; missing starts are 0.

    The result is reshaped to the sizes `new_sizes`, if given, which differ by axes of size 1.
    """
    array = shrink_repeated(array, sizes)
    computed: dict[int, ops.Tensor] = {}
    firsts: list[Dim] = [0] * array.rank
    limits = list(array.sizes)
    for axis, size in enumerate(sizes):
        if array.sizes[axis] == size:
            continue
        start = scalar_index(scope, starts[axis]) if axis in starts else 0
        if not isinstance(start, int):
            computed[axis] = scope.sizes.size(start) if isinstance(start, DimExpr) else start
        else:
            firsts[axis], limits[axis] = start, start + size
    array = slice_array(scope, array, firsts, limits, [1] * array.rank)
    if computed:
        array = _slice_computed(scope, array, computed, sizes)
    return reshape(scope, array, sizes if new_sizes is None else new_sizes)


def shrink_repeated(array: Array, sizes: Shape) -> Array:
    """Changes the sizes of axes that repeat one element, for which all slices are equal."""
    result = tuple(
        size if array.repeats(axis) else array.sizes[axis] for axis, size in enumerate(sizes)
    )
    return array if result == array.sizes else resize(array, result)


def _slice_computed(
    scope: Scope, array: Array, starts: Mapping[int, ops.Tensor], sizes: Shape
) -> Array:
    compact = scope.compact(array)
    own = list(find_compact_sizes(array))
    first = array.rank - len(own)
    if len(starts) == 1:
        ((axis, start),) = starts.items()
        if sizes[axis] == 1:
            # The result lacks the sliced axis.
            taken = ops.gather(compact, start, axis=axis - first)
            dropped = [size for place, size in enumerate(own) if place != axis - first]
            left = [size for place, size in enumerate(sizes) if place != axis]
            return Array(array.element, tuple(left), scope.set_shape(taken, dropped))
    taken = _slice_tensor(
        scope,
        compact,
        {axis - first: start for axis, start in starts.items()},
        {axis - first: scope.sizes.size(sizes[axis]) for axis in starts},
    )
    for axis in starts:
        own[axis - first] = sizes[axis]
    return Array(array.element, tuple(sizes), scope.set_shape(taken, own))


def _slice_tensor(
    scope: Scope, tensor: ops.Tensor, starts: Mapping[int, Any], lengths: Mapping[int, Any]
) -> ops.Tensor:
    """Slices a tensor, by default from the start and to the end of an axis."""
    axes = range(tensor.shape.rank)
    if scope.for_converters:
        # tf2onnx mishandles a Slice with lengths of -1.
        ends = {
            axis: starts[axis] + length if axis in starts else length
            for axis, length in lengths.items()
        }
        return tensor[tuple(slice(starts.get(axis), ends.get(axis)) for axis in axes)]
    begin = [starts.get(axis, 0) for axis in axes]
    return ops.slice(tensor, begin, [lengths.get(axis, -1) for axis in axes])


@emits("dynamic_update_slice")
def _dynamic_update_slice(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, update, *starts = operands
    return update_at(scope, array, update, clamp_starts(scope, array, starts, update.sizes))


def update_at(scope: Scope, array: Array, update: Array, starts: Mapping[int, Array]) -> Array:
    """Replaces a slice, which must lie within the array."""
    if 0 in update.sizes:
        return array
    scalars = {
        axis: scalar_index(scope, start)
        for axis, start in starts.items()
        if array.sizes[axis] != update.sizes[axis]
    }
    if not scalars:
        return resize(update, array.sizes)
    if all(isinstance(start, int) for start in scalars.values()):
        return _assemble(scope, array, update, scalars)
    is_small = array.is_static and (
        math.prod(array.static_sizes()) * array.graph_dtype.size <= _MAX_COPIED_BYTES
    )
    if is_small and all(update.sizes[axis] == 1 for axis in scalars):
        return _select(scope, array, update, scalars)
    if not is_small and not (scope.for_converters or scope.for_onnx):
        return _write(scope, array, update, scalars)
    if not is_small and set(scalars) == {0} and update.sizes[0] == 1:
        return _write_row(scope, array, update, scalars[0])
    return _assemble(scope, array, update, scalars)


def _write(scope: Scope, array: Array, update: Array, starts: Mapping[int, _Start]) -> Array:
    last = max(starts) + 1
    whole = sum(1 << axis for axis in range(last) if axis not in starts)
    begin = [_scalar(scope, starts.get(axis, 0)) for axis in range(last)]
    ends = [
        begin[axis] + scope.sizes.size(update.sizes[axis]) if axis in starts else 0
        for axis in range(last)
    ]
    tensor = ops.raw_ops.TensorStridedSliceUpdate(
        input=scope.tensor(array),
        begin=ops.stack(begin),
        end=ops.stack(ends),
        strides=[1] * last,
        value=scope.tensor(update),
        end_mask=whole,
    )
    return scope.new_array(tensor, array.element, array.sizes)


def _write_row(scope: Scope, array: Array, update: Array, start: _Start) -> Array:
    index = ops.reshape(_scalar(scope, start), [1, 1])
    tensor = ops.tensor_scatter_nd_update(scope.tensor(array), index, scope.tensor(update))
    return scope.new_array(tensor, array.element, array.sizes)


def _scalar(scope: Scope, start: _Start) -> Any:
    return start if ops.is_tensor(start) else scope.sizes.size(start)


def _select(scope: Scope, array: Array, update: Array, starts: Mapping[int, _Start]) -> Array:
    """Selects the update for elements whose indices lie within it."""
    flags = [
        ops.equal(scope.compact(iota(scope, "i32", array.sizes, axis)), _scalar(scope, start))
        for axis, start in starts.items()
    ]
    return select(scope, functools.reduce(operator.and_, flags), update, scope.full(array))


def _assemble(scope: Scope, array: Array, update: Array, starts: Mapping[int, _Start]) -> Array:
    """Concatenates the parts before and after an update with it, axis by axis."""
    (axis, start), *others = starts.items()
    size = update.sizes[axis]
    if ops.is_tensor(start):
        array = scope.full(array)
    if others:
        window = _part(scope, array, axis, start, size)
        update = _assemble(scope, window, update, dict(others))
    if not ops.is_tensor(start):
        end = start + size
        around = [
            _part(scope, array, axis, 0, start),
            _part(scope, array, axis, end, array.sizes[axis] - end),
        ]
        return concatenate(scope, [around[0], update, around[1]], axis)
    tensor = scope.tensor(array)
    pieces = [
        _slice_tensor(scope, tensor, {}, {axis: start}),
        scope.tensor(update),
        _slice_tensor(scope, tensor, {axis: start + scope.sizes.size(size)}, {}),
    ]
    return scope.new_array(ops.concat(pieces, axis), array.element, array.sizes)


def _part(scope: Scope, array: Array, axis: int, start: _Start, size: Dim) -> Array:
    sizes = [size if i == axis else own for i, own in enumerate(array.sizes)]
    if array.repeats(axis):
        return shrink_repeated(array, sizes)
    if ops.is_tensor(start):
        return reshape(scope, _slice_computed(scope, array, {axis: start}, sizes), sizes)
    return slice_axis(scope, array, axis, start, size)
