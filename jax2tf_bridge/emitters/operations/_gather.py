"""Gather: slices of an array at given indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array, Arrays, Shape
from jax2tf_bridge.emitters._movement import (
    broadcast,
    multiply_sizes,
    pad_to,
    reshape,
    take_first,
    transpose,
)
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.emitters._sizes import fill_sizes
from jax2tf_bridge.emitters.operations._dynamic_slices import (
    Slices,
    clamp,
    clamp_vectors,
    flatten_indices,
    is_too_deep,
    join_vectors,
    shrink_repeated,
    slice_at,
    slice_axis,
    split_operands,
    stack_indices,
)
from shape_poly import Dim

_NAMES = (
    *("offset_dims", "collapsed_slice_dims", "operand_batching_dims"),
    *("start_indices_batching_dims", "start_index_map"),
)

_Taken: TypeAlias = "tuple[Array, list[int | None]]"
"""An array, and the axis of the result for each of its axes; None for axes of size 1 that the
result lacks."""


@emits("gather", "dynamic_gather")
def _gather(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (array,), indices, lengths = split_operands(operation, operands)
    slices = Slices.read(operation, _NAMES, array.rank, indices[0].rank)
    slice_sizes: Shape = (
        scope.sizes_of(lengths[0], [None] * array.rank)
        if lengths
        else operation.ints("slice_sizes")
    )
    sizes = tuple(
        size if axis in slices.window_axes else 1 for axis, size in enumerate(slice_sizes)
    )
    array = shrink_repeated(array, sizes)
    axis = slices.vector_axis
    batch = (*indices[0].sizes[:axis], *indices[0].sizes[axis + 1 :])
    # A single row serves the whole batch.
    batched = {axis: place for axis, place in slices.batched.items() if array.sizes[axis] != 1}
    slices = replace(slices, sizes=sizes, batch=batch, batched=batched)
    result: list[Dim] = [1] * (len(batch) + len(slices.window_axes))
    for axis, size in zip(slices.batch_axes, batch, strict=True):
        result[axis] = size
    for axis, place in slices.window_axes.items():
        result[place] = sizes[axis]
    result = list(fill_sizes(operation.result_type.shape, result))
    if 0 in result:
        return broadcast(scope, array, result, [])

    indexed = [axis for axis in sorted(slices.index_map) if array.sizes[axis] != sizes[axis]]
    many = any(size != 1 for size in batch)
    if many:
        # Axes without an index start at 0.
        limits = [
            own if axis in indexed or axis in batched else size
            for axis, (own, size) in enumerate(zip(array.sizes, sizes, strict=True))
        ]
        array = take_first(scope, array, limits)
    by_elements = many and not batched and len(indexed) == len(slices.index_map) > 1
    if by_elements and all(sizes[axis] == 1 for axis in indexed):
        vectors = join_vectors(scope, indices, slices.vector_axis)
        if vectors is not None:
            vectors = clamp_vectors(
                scope, vectors, [array.sizes[axis] - 1 for axis in slices.index_map]
            )
            taken = _take_at_vectors(scope, array, slices, slices.index_map, vectors)
            return _arrange(scope, taken, result)
    starts = {
        axis: clamp(scope, slices.component(scope, indices, axis), array.sizes[axis] - sizes[axis])
        for axis in indexed
    }
    if not many:
        return slice_at(scope, array, starts, sizes, result)
    slices = _order_batch(scope, replace(slices, starts=starts))
    return _arrange(scope, _take(scope, array, slices), result)


def _order_batch(scope: Scope, slices: Slices) -> Slices:
    """Moves the batching axes of the batch to the front."""
    first = list(slices.batched.values())
    order = [*first, *(axis for axis in range(len(slices.batch)) if axis not in first)]
    return replace(
        slices,
        batched={axis: place for place, axis in enumerate(slices.batched)},
        batch_axes=tuple(slices.batch_axes[axis] for axis in order),
        batch=tuple(slices.batch[axis] for axis in order),
        starts={axis: transpose(scope, start, order) for axis, start in slices.starts.items()},
    )


def _arrange(scope: Scope, taken: _Taken, sizes: Shape) -> Array:
    """Moves axes to their positions in the result."""
    array, places = taken
    live = [axis for axis, place in enumerate(places) if place is not None]
    if len(live) < len(places):
        array = reshape(scope, array, [array.sizes[axis] for axis in live])
    return broadcast(scope, array, sizes, [place for place in places if place is not None])


def _take(scope: Scope, array: Array, slices: Slices) -> _Taken:
    """Takes the slices.

    Axes of the array without a start have the sizes of the slices, and the batch begins with the
    batching axes.
    """
    batched, starts = slices.batched, list(slices.starts)

    def places(axes: Sequence[int]) -> list[int | None]:
        return [
            slices.batch_axes[batched[axis]] if axis in batched else slices.window_axes.get(axis)
            for axis in axes
        ]

    if not starts:
        return array, places(range(array.rank))
    components = [slices.on_grid(scope, axis) for axis in starts]
    if not batched and len(starts) > 1 and not is_too_deep(len(starts)):
        return _take_at_vectors(scope, array, slices, starts, stack_indices(scope, components))
    # Batching axes come first, then those before the index, the index, and those behind it.
    others = [axis for axis in range(array.rank) if axis not in batched and axis not in starts]
    before = [axis for axis in others if len(starts) == 1 and axis < starts[0]]
    behind = others[len(before) :]
    array = transpose(scope, array, [*batched, *before, *starts, *behind])
    count, place = len(batched), len(batched) + len(before)
    sizes = array.sizes[place : place + len(starts)]
    index = flatten_indices(scope, components, sizes)
    if len(starts) > 1:
        merged = (*array.sizes[:place], multiply_sizes(sizes), *array.sizes[place + len(starts) :])
        array = reshape(scope, array, merged)
    grid_axes = slices.grid_axes
    axes = [*grid_axes[:count], *places(before), *grid_axes[count:], *places(behind)]
    progression = None if count else _match_progression(index)
    if progression is not None:
        first, step = progression
        return slice_axis(scope, array, place, first, index.sizes[0], step), axes
    tensor = ops.gather(scope.tensor(array), scope.tensor(index), axis=place, batch_dims=count)
    result = (*array.sizes[:place], *index.sizes[count:], *array.sizes[place + 1 :])
    return scope.new_array(tensor, array.element, result), axes


def _take_at_vectors(
    scope: Scope, array: Array, slices: Slices, axes: Sequence[int], vectors: ops.Tensor
) -> _Taken:
    """Takes elements or rows by index vectors, whose components are indices of `axes`."""
    rest = [axis for axis in range(array.rank) if axis not in axes]
    array = transpose(scope, array, [*axes, *rest])
    # GatherNd fails if the rows are empty.
    padded = pad_to(scope, array, [*(0 for _ in axes), *(1 for _ in rest)])
    tensor = ops.gather_nd(scope.tensor(padded), vectors)
    rows = scope.new_array(tensor, array.element, (*slices.grid, *padded.sizes[len(axes) :]))
    sizes = (*slices.grid, *array.sizes[len(axes) :])
    places = [*slices.grid_axes, *(slices.window_axes.get(axis) for axis in rest)]
    return take_first(scope, rows, sizes), places


def _match_progression(index: Array) -> tuple[int, int] | None:
    """Returns the first index and the step if the indices are a known progression, else None."""
    if index.numbers is None or index.rank != 1 or index.numbers.size < 2:
        return None
    flat = index.numbers.reshape(-1)
    steps = np.diff(flat)
    if steps[0] < 1 or np.any(steps != steps[0]):
        return None
    return int(flat[0]), int(steps[0])


@emits("torch_index_select")
def _index_select(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    array, indices = operands
    count, axis = operation.int("batch_dims"), operation.int("dim")
    index = clamp(scope, indices, array.sizes[axis] - 1)
    tensor = ops.gather(scope.tensor(array), scope.tensor(index), axis=axis, batch_dims=count)
    sizes = (*array.sizes[:axis], *index.sizes[count:], *array.sizes[axis + 1 :])
    return scope.result(operation, tensor, sizes)
